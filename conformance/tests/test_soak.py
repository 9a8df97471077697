"""The list of long runs is made of the cases that have more to do in a soak."""

from __future__ import annotations

import subprocess
import sys

from ticketing_conformance.soak import long_runs


def test_long_runs_have_names_of_their_own():
    names = [run.name for run in long_runs()]
    assert len(names) == len(set(names))
    assert {"kills-of-the-leader", "killed-at-random-moments", "rolling-restart"} <= set(names)
    assert names[-1] == "simulation"


def test_a_name_that_is_none():
    command = [sys.executable, "-m", "ticketing_conformance.soak", "--only", "nonsense"]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert done.returncode == 2
    assert b"kills-of-the-leader" in done.stderr
