"""Runs seeds, in as many processes as there are cores, and sums up what happened."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing import get_context
from typing import TextIO

from ticketing_sim.world import World

SECONDS = 60.0
"""Simulated, of each seed."""
RARE = (
    "truncation", "snapshot during an election", "failover grace over", "transfer off",
    "torn tail", "snapshot installed", "start refused", "node voted again after a wipe",
    "failover while some were held back", "crash in a disk step", "back-pressure",
    "image compared and restored", "power lost everywhere", "election", "transfer",
    "disk error", "forced release", "adopted", "event taken_over", "event idle_timeout",
    "version 3 granted", "version 3 undecided", "quiet client looked at",
)  # fmt: skip
"""What has to happen in every run of CI."""


@dataclass
class Outcome:
    """What became of one seed."""

    seed: int
    failure: str
    """Empty where all held."""
    digest: int = 0
    events: int = 0
    commands: int = 0
    simulated_s: float = 0.0
    cpu_s: float = 0.0
    counters: Counter[str] = field(default_factory=Counter)


def play(seed: int, seconds: float = SECONDS, trace: TextIO | None = None) -> Outcome:
    """Run one seed."""
    began_s = time.process_time()
    failure = ""
    world = World(seed, seconds, trace)
    try:
        world.run()
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
        if trace is not None:
            trace.write("".join(traceback.format_exception(error)))
    return Outcome(
        seed, failure, world.schedule.digest, world.schedule.events, world.applied,
        world.schedule.now_ns / 1e9, time.process_time() - began_s, world.counters,
    )  # fmt: skip


def play_all(seeds: Iterable[int], seconds: float = SECONDS) -> Iterator[Outcome]:
    """Run seeds beside each other; outcomes come as they are there."""
    cores = os.cpu_count() or 1
    seeds = iter(seeds)
    with ProcessPoolExecutor(cores, get_context("spawn")) as pool:
        running: set[Future[Outcome]] = set()
        while True:
            for seed in islice(seeds, 2 * cores - len(running)):
                running.add(pool.submit(play, seed, seconds))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()


def replay_command(seed: int, seconds: float) -> str:
    """Return what runs a seed again."""
    more = "" if seconds == SECONDS else f" --simulated {seconds:g}"
    return f"./nox -s sim -- --seed {seed}{more}"


def report(outcomes: list[Outcome], out: TextIO = sys.stdout) -> None:
    """Say what happened, over all seeds."""
    counters: Counter[str] = Counter()
    for outcome in outcomes:
        counters.update(outcome.counters)
    hours = sum(outcome.simulated_s for outcome in outcomes) / 3600
    print(
        f"{len(outcomes)} seeds, {hours:.2f} simulated hours, "
        f"{sum(outcome.events for outcome in outcomes)} events, "
        f"{sum(outcome.commands for outcome in outcomes)} entries and commands applied, "
        f"{counters['election']} elections, {counters['snapshot installed']} snapshots installed, "
        f"{sum(outcome.cpu_s for outcome in outcomes):.0f} s of processor time",
        file=out,
    )
    for name, count in sorted(counters.items()):
        print(f"  {count:8} {name}", file=out)


def missing(outcomes: list[Outcome]) -> list[str]:
    """Return which rare events didn't happen."""
    return [name for name in RARE if not any(outcome.counters[name] for outcome in outcomes)]
