"""The verbs `load …` against a server alone: what they see, and what a case fails on."""

from __future__ import annotations

from pathlib import Path

import pytest
from ticketing_conformance.adapters import AdapterPool, load_languages
from ticketing_conformance.cluster.history import Holding
from ticketing_conformance.context import Arguments, Context, StepFailed
from ticketing_conformance.load_verbs import History, LoadVerbs
from ticketing_conformance.mixed import seats
from ticketing_conformance.runner import run_case
from ticketing_conformance.script import parse_cases
from ticketing_conformance.server_pool import ServerPool

PYTHON = load_languages()["python"]
CASE = """
case load
  about Clients of a process and members use tickets of one server together
  timeout 90
  counts least = 20 20
  server start
  load start as=l clients=2 workers=3 keys=2 hold_ms=5
  load members as=m keys=2
  sleep 500..700
  load stop l m -> ok failed=0 tickets>={least} released>={least}
  server empty
"""


def test_a_load_of_processes_and_members():
    (case,) = parse_cases(CASE, "cluster", Path("load.case"))
    adapters, servers = AdapterPool(), ServerPool()
    try:
        others = seats([(PYTHON, "async"), (PYTHON, "sync")])
        outcome = run_case(case, PYTHON, "async", adapters, servers, others)
    finally:
        servers.close()
        adapters.close()
    assert outcome.failure == ""


class Seen:
    """A load that saw this."""

    def __init__(self, *holdings: Holding) -> None:
        self._holdings = list(holdings)

    def end(self) -> History:
        """What it saw."""
        return History(self._holdings)


def test_an_overlap_between_two_loads_fails_the_step(tmp_path):
    verbs = LoadVerbs(Context(tmp_path, 1e18), None, dict)
    verbs._loads = {
        "l": [Seen(Holding("a", ("k",), 1, 0, 10))],
        "m": [Seen(Holding("b", ("k",), 2, 9, 20))],
    }
    with pytest.raises(StepFailed, match="1 faults: k: b had token 2"):
        verbs.do(Arguments("load", ["stop", "l", "m"], {}))


def test_counts_of_a_soak():
    (case,) = parse_cases(CASE.replace("= 20 20", "= 20 500"), "cluster", Path("load.case"))
    assert case.counts == (("least", "20", "500"),)
    assert case.at_length().counts[0][1] == "500"
    assert case.at_length().seconds == 90
