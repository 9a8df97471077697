"""`python -m ticketing_sim`: runs the seeds of CI, or others; see `--help`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from itertools import count

from ticketing_sim import bugs
from ticketing_sim.runs import (
    SECONDS,
    Outcome,
    missing,
    play,
    play_all,
    replay_command,
    report,
)

SEEDS = 208
"""How many CI runs, from 0 on."""


def main(arguments: list[str]) -> int:
    """Run what is asked for; returns the exit code."""
    parser = argparse.ArgumentParser(prog="sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this seed alone, and show what happened")
    parser.add_argument("--trace", help="with --seed: write every event into this file")
    parser.add_argument("--first", type=int, default=0, help="first of several seeds")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many")
    parser.add_argument("--seconds", type=float, help="run ever more seeds for so long instead")
    parser.add_argument(
        "--simulated", type=float, default=SECONDS, help="simulated seconds of each seed"
    )
    parser.add_argument("--bugs", action="store_true", help="find the bugs put in on purpose")
    parser.add_argument("--share", default="1/1", help="with --bugs: the K-th of N shares, K/N")
    parser.add_argument("--bug", help="with --bugs: this one alone")
    chosen = parser.parse_args(arguments)
    if chosen.bugs:
        return bugs.find_all(chosen.share, chosen.bug)
    if chosen.seed is not None:
        return _one(chosen.seed, chosen.simulated, chosen.trace)
    seeds: Iterator[int] = iter(range(chosen.first, chosen.first + chosen.seeds))
    if chosen.seconds is not None:
        seeds = _until(time.monotonic() + chosen.seconds, chosen.first)
    return _several(seeds, chosen.simulated, must_be_rare=chosen.seconds is None)


def _until(end_s: float, first: int) -> Iterator[int]:
    for seed in count(first):
        if time.monotonic() >= end_s:
            return
        yield seed


def _one(seed: int, simulated: float, path: str | None) -> int:
    if path is None:
        outcome = play(seed, simulated)
    else:
        with open(path, "w", encoding="utf-8") as trace:
            outcome = play(seed, simulated, trace)
    report([outcome])
    print(f"trace {outcome.digest:08x}")
    if outcome.failure:
        print(f"seed {seed}: {outcome.failure}")
    return bool(outcome.failure)


def _several(seeds: Iterator[int], simulated: float, *, must_be_rare: bool) -> int:
    outcomes: list[Outcome] = []
    failed = 0
    for outcome in play_all(seeds, simulated):
        outcomes.append(outcome)
        if outcome.failure:
            failed += 1
            print(f"seed {outcome.seed}: {outcome.failure}")
            print(f"  again: {replay_command(outcome.seed, simulated)}", flush=True)
    report(outcomes)
    absent = missing(outcomes) if must_be_rare else []
    if absent:
        print(f"never happened: {', '.join(absent)}")
    return bool(failed or absent)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
