"""Each package carries the licence itself: registries show what is in it, nothing beside it."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("server", *(f"clients/{path.name}" for path in (ROOT / "clients").iterdir()))


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_a_package_has_the_licence_of_the_repository(package):
    assert (ROOT / package / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
