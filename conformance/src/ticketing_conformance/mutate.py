"""Runs a Python program with one seeded bug.

`python -m ticketing_conformance.mutate LIST ID PROGRAM …`, where PROGRAM is a file, or `-m` and a
module. The bug is a replacement of source text, made while the module is imported: nothing on disk
changes. A text that is not there exactly once is a stale mutant, and the program does not start.
"""

from __future__ import annotations

import os
import runpy
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from ticketing_conformance import seeding
from ticketing_conformance.seeding import STALE_EXIT, Patch, Stale


@dataclass(frozen=True)
class Mutant:
    """One seeded bug, and the case that must catch it."""

    id: str
    about: str
    module: str
    find: str
    replace: str
    case: str
    req: str
    api: str = "async"
    """Under which API of the Python client the case is run."""

    @property
    def patch(self) -> Patch:
        """What is replaced."""
        return Patch(self.module, self.find, self.replace)


def load_mutants(path: Path) -> list[Mutant]:
    """The mutants of one list, in its order; ids are unique."""
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
    mutants = [Mutant(**entry) for entry in entries]
    seen: set[str] = set()
    for mutant in mutants:
        if mutant.id in seen:
            raise ValueError(f"{path.name}: mutant {mutant.id} is there twice")
        if mutant.find == mutant.replace:
            raise ValueError(f"{path.name}: mutant {mutant.id} changes nothing")
        seen.add(mutant.id)
    return mutants


def check(mutant: Mutant) -> None:
    """Raises Stale where the mutant no longer fits its module."""
    try:
        seeding.check([mutant.patch])
    except Stale as stale:
        raise Stale(f"mutant {mutant.id}: {stale}") from None


def main(arguments: list[str]) -> None:
    """Seeds the bug, then runs the program: a file, or `-m` and a module."""
    if len(arguments) < 3:
        print("usage: mutate LIST ID (PROGRAM | -m MODULE) ARGUMENTS…", file=sys.stderr)
        raise SystemExit(2)
    path, wanted, *program = arguments
    mutant = next((one for one in load_mutants(Path(path)) if one.id == wanted), None)
    if mutant is None:
        print(f"there is no mutant {wanted} in {path}", file=sys.stderr)
        raise SystemExit(2)
    try:
        check(mutant)
    except Stale as stale:
        print(stale, file=sys.stderr)
        raise SystemExit(STALE_EXIT) from None
    seeding.plant([mutant.patch])
    if program[0] == "-m":
        sys.argv = program[1:]
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = program
        sys.path[0] = os.path.dirname(os.path.abspath(program[0]))
        runpy.run_path(program[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
