"""Who leads, as nodes tell it, and where nodes listen."""

from __future__ import annotations

import socket
from pathlib import Path

from ticketing_conformance.cluster.nodes import EPHEMERAL, View, free_ports, leader_of
from ticketing_conformance.script import machine_needs, parse_cases

FOLLOWS = View(
    is_leader=False, has_leader=True, term=3, applied=9, commit=9, voters=3, is_voter=True
)


def of(term: int, *, leads: bool) -> View:
    return View(leads, True, term, 9, 9, 3, True)


def test_the_leader_of_the_highest_term_leads():
    assert leader_of({0: of(2, leads=True), 1: of(3, leads=True), 2: FOLLOWS}) == 1


def test_a_leader_of_an_older_term_does_not_know_yet():
    assert leader_of({0: of(2, leads=True), 1: FOLLOWS, 2: FOLLOWS}) is None


def test_without_a_leader_there_is_none():
    assert leader_of({0: FOLLOWS}) is None
    assert leader_of({}) is None


def test_ports_are_free_and_given_to_no_outgoing_connection():
    ports = free_ports(12)
    assert len(set(ports)) == 12
    if EPHEMERAL.exists():
        assert max(ports) < int(EPHEMERAL.read_text().split()[0])
    with socket.socket() as one:
        one.bind(("127.0.0.1", ports[0]))


def test_what_cases_need_of_the_machine():
    text = """
case cuts
  about a
  repeat i 1..2
    cluster start as=k network=1
  end
case fills
  about b
  cluster start as=k disk0_mib=24
case neither
  about c
  cluster start as=k
  server start network=1
"""
    cases = {case.name: case for case in parse_cases(text, "cluster", Path("a.case"))}
    assert cases["cuts"].machine == {"network"}
    assert cases["fills"].machine == {"disk"}
    assert machine_needs(cases["neither"].steps) == set()
