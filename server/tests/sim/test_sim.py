"""The simulator itself: what it sees, that it sees the same again, and that its bugs fit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from ticketing_conformance.seeding import check
from ticketing_sim.beliefs import Belief, Beliefs
from ticketing_sim.bugs import load_bugs
from ticketing_sim.process import Process
from ticketing_sim.runs import Outcome, play, replay_command
from ticketing_sim.schedule import MS, SECOND, Broken, Clock, Schedule
from ticketing_sim.world import SIZES, World

SIM = Path(__file__).parents[2] / "sim"
SIMULATED_S = 8.0


def digest(seed: int, hash_seed: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "ticketing_sim", "--seed", str(seed), "--simulated", "8"],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(SIM)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("trace ")]
    return line


@pytest.mark.parametrize("seed", [0, 2, 3])
def test_same_seed_gives_same_trace_whatever_the_order_of_sets(seed: int) -> None:
    one, other = digest(seed, "1"), digest(seed, "2")
    assert one == other
    assert one != digest(seed + len(SIZES), "1")


@pytest.mark.parametrize("seed", range(1_000, 1_000 + len(SIZES)))
def test_every_kind_of_world_holds(seed: int) -> None:
    outcome = play(seed, SIMULATED_S)
    assert not outcome.failure, f"{outcome.failure}\n{replay_command(seed, SIMULATED_S)}"
    assert outcome.commands
    assert outcome.counters["granted"]


def test_failing_seed_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: World) -> None:
        raise Broken("for the test")

    monkeypatch.setattr(World, "run", broken)
    outcome: Outcome = play(1)
    assert outcome.failure == "Broken: for the test"
    assert replay_command(1, 60.0) == "./nox -s sim -- --seed 1"
    assert replay_command(1, 8.0) == "./nox -s sim -- --seed 1 --simulated 8"


def test_no_bug_is_stale() -> None:
    bugs = load_bugs()
    assert len(bugs) >= 30
    for bug in bugs:
        check(bug.patches)


def test_beliefs_that_overlap_are_seen() -> None:
    beliefs = Beliefs()
    holds = [True]
    beliefs.begin(Belief("a", 1, (b"x", b"y"), lambda: holds[0]), is_adopted=False)
    beliefs.begin(Belief("b", 2, (b"z",), lambda: True), is_adopted=False)
    with pytest.raises(Broken, match="believes to hold"):
        beliefs.begin(Belief("c", 3, (b"y",), lambda: True), is_adopted=False)
    holds[0] = False
    beliefs.begin(Belief("c", 3, (b"y",), lambda: True), is_adopted=False)
    with pytest.raises(Broken, match="after 1"):
        beliefs.begin(Belief("d", 1, (b"x",), lambda: True), is_adopted=False)


@pytest.mark.parametrize("seed", range(20))
def test_a_write_that_was_held_up_comes_before_what_arrived_meanwhile(seed: int) -> None:
    """Also where it is suspended again while it still catches up."""
    schedule = Schedule()
    process = Process("p", schedule, Clock(schedule, Random(seed)), Random(seed))
    done: list[str] = []

    def decide_and_be_suspended() -> None:
        process.suspend()
        process.do_next(done.append, "write")

    process.suspend()
    process.do(decide_and_be_suspended)
    for number in range(9):
        process.do(done.append, f"read {number}")
    process.resume()
    process.do(done.append, "last")
    process.resume()
    schedule.run(SECOND)
    assert done == ["write", *(f"read {number}" for number in range(9)), "last"]


def test_clocks_differ_and_are_turned_back_exactly() -> None:
    schedule = Schedule()
    world = World(0, 1.0)
    clocks = [Clock(schedule, world.stream(f"test {number}")) for number in range(20)]
    schedule.run(100 * SECOND)
    for clock in clocks:
        for ahead in (1, 17, MS, 3 * SECOND + 1):
            local = clock.now_ns() + ahead
            when = clock.true_ns(local)
            assert abs(when - schedule.now_ns - ahead) <= ahead // 900 + 2
            schedule.run(when - 1)
            assert clock.now_ns() < local
            schedule.run(when)
            assert clock.now_ns() >= local
