"""The load generator, built once, and the driver, for the tests of this folder."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[1]
SOURCES = BENCH / "loadgen"
sys.path.insert(0, str(BENCH))


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a build from clean sources, with warnings as errors."""
    if shutil.which("gcc") is None or shutil.which("make") is None:
        pytest.skip("no gcc or no make: the load generator is in C; apt install gcc make")
    folder = tmp_path_factory.mktemp("loadgen")
    for source in [*SOURCES.glob("*.[ch]"), SOURCES / "Makefile"]:
        shutil.copy(source, folder)
    done = subprocess.run(
        ["make", "-C", folder], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="session")
def loadgen(built: Path) -> Path:
    return built / "loadgen"
