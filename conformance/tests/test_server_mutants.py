"""The seeded bugs of the server fit it, and name tests that show their requirement."""

from __future__ import annotations

import importlib

import pytest
from ticketing_conformance.mutants import MUTANTS_DIR, SUITE_SIDE
from ticketing_conformance.mutate import Mutant, check, load_mutants

# The suite's own conftest registers its markers; here its modules are only looked at.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnknownMarkWarning")

MUTANTS = load_mutants(MUTANTS_DIR / f"{SUITE_SIDE}.toml")


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.id for mutant in MUTANTS])
def test_a_mutant_fits_and_names_its_test(mutant: Mutant) -> None:
    check(mutant)
    stem, _, test = mutant.case.removeprefix("server/").partition(".")
    module = importlib.import_module(f"ticketing_conformance.server_suite.test_{stem}")
    marks = getattr(module, test.partition("[")[0]).pytestmark
    shown = {name for mark in marks if mark.name == "requirement" for name in mark.args}
    assert mutant.req in shown


def test_there_are_forty_requirements_with_a_mutant() -> None:
    assert len({mutant.req for mutant in MUTANTS}) >= 40
