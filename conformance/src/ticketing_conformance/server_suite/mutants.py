"""Seeded bugs of the server, each of which a test of this suite has to catch."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ticketing_conformance.mutate import Mutant

SUITE = Path(__file__).parent
TEST_S = 150
# Without a bug all tests run in one go, on two workers.
ALL_TESTS_S = 900
TESTS_FAILED = 1
"""Exit code of a pytest run in which tests failed, and nothing else was wrong."""
_PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=line")


def _node(case: str) -> str:
    module, _, test = case.removeprefix("server/").partition(".")
    return f"{SUITE / f'test_{module}.py'}::{test}"


def failure_with(path: Path, mutant: Mutant) -> str:
    """Why the named test fails with the bug; "" if it passes. Raises RuntimeError if it can't run.

    `path` is the list that the mutant is in.
    """
    mutated = [sys.executable, "-m", "ticketing_conformance.mutate", str(path), mutant.id]
    program = shlex.join([*mutated, "-m", "ticketing_server"])
    try:
        run = _run([*_PYTEST, "--server-program", program, _node(mutant.case)], TEST_S)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"the test did not end within {TEST_S} s") from None
    if run.returncode == 0:
        return ""
    if run.returncode != TESTS_FAILED or re.search(r"ServerBroken|\berrors?\b in ", run.stdout):
        raise RuntimeError(f"the run itself failed: {run.stdout[-600:]}{run.stderr[-300:]}")
    return run.stdout.strip().splitlines()[-1]


def failure_without(cases: Sequence[str]) -> str:
    """What fails of these tests without any bug; "" if all pass."""
    nodes = sorted({_node(case) for case in cases})
    try:
        run = _run([*_PYTEST, "-n2", *nodes], ALL_TESTS_S)
    except subprocess.TimeoutExpired:
        return f"the tests did not end within {ALL_TESTS_S} s"
    return f"{run.stdout[-2000:]}{run.stderr[-300:]}" if run.returncode else ""


def _run(command: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
