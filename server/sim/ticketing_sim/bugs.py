"""Bugs put in on purpose, one at a time, to see that the simulator finds them.

`bugs.toml` lists them: which text of which module is replaced by what, and within how many seeds
the run must fail. The replacement is made while the module is imported; nothing on disk changes. A
text that isn't there exactly once is a stale bug, which fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ticketing_conformance.seeding import STALE_EXIT, Patch, Stale, check, plant

LIST = Path(__file__).with_name("bugs.toml")
SEEDS_MAX = 50
_TIMEOUT_S = 900
_FOUND_EXIT = 7


@dataclass(frozen=True)
class Bug:
    """One seeded bug."""

    id: str
    about: str
    seeds: int
    """Within how many seeds it is found, …"""
    first: int
    """… from this one on."""
    patches: tuple[Patch, ...]


def load_bugs(path: Path = LIST) -> list[Bug]:
    """Return all bugs; `ValueError` where the list is no good."""
    bugs: list[Bug] = []
    for entry in tomllib.loads(path.read_text(encoding="utf-8"))["bug"]:
        patches = tuple(Patch(**patch) for patch in entry.get("patches", ()))
        if "find" in entry:
            patches += (Patch(entry["module"], entry["find"], entry["replace"]),)
        bug = Bug(entry["id"], entry["about"], entry["seeds"], entry.get("first", 0), patches)
        if not 1 <= bug.seeds <= SEEDS_MAX or not patches:
            raise ValueError(f"{bug.id}: {bug.seeds} seeds, {len(patches)} patches")
        if bug.id in [other.id for other in bugs]:
            raise ValueError(f"{bug.id} is there twice")
        bugs.append(bug)
    return bugs


def _seed_and_run(wanted: str) -> int:
    """In a process of its own: seed a bug, then run seeds until one fails."""
    bug = next(bug for bug in load_bugs() if bug.id == wanted)
    try:
        check(bug.patches)
    except Stale as stale:
        print(f"stale: {stale}")
        return STALE_EXIT
    plant(bug.patches)
    from ticketing_sim.runs import play

    for number, seed in enumerate(range(bug.first, bug.first + bug.seeds)):
        outcome = play(seed)
        if outcome.failure:
            print(f"{number + 1} seeds: {outcome.failure.splitlines()[0]}")
            return _FOUND_EXIT
    print(f"not found in {bug.seeds} seeds")
    return 0


def find(bug: Bug) -> tuple[bool, str]:
    """Return whether a bug is found within its seeds, and how."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "ticketing_sim.bugs", bug.id],
            capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False, f"no end within {_TIMEOUT_S} s"
    lines = (done.stdout.strip() or done.stderr.strip()).splitlines()
    return done.returncode == _FOUND_EXIT, lines[-1] if lines else f"exit {done.returncode}"


def find_all(share: str, only: str | None) -> int:
    """Find all bugs of a share; returns the exit code."""
    number, shares = (int(part) for part in share.split("/"))
    bugs = [bug for bug in load_bugs() if only in (None, bug.id)][number - 1 :: shares]
    missed = 0
    with ThreadPoolExecutor(os.cpu_count() or 1) as threads:
        for bug, (is_found, how) in zip(bugs, threads.map(find, bugs), strict=True):
            missed += not is_found
            print(f"{'found ' if is_found else 'MISSED'} {bug.id}: {how[:200]}", flush=True)
    print(f"{len(bugs) - missed} of {len(bugs)} bugs found")
    return bool(missed or not bugs)


if __name__ == "__main__":
    raise SystemExit(_seed_and_run(sys.argv[1]))
