"""Runs a Python program with one seeded bug.

`python -m ticketing_conformance.mutate LIST ID PROGRAM …`, where PROGRAM is a file, or `-m` and a
module. The bug is a replacement of source text, made while the module is imported: nothing on disk
changes. A text that is not there exactly once is a stale mutant, and the program does not start.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

STALE_EXIT = 3
"""Exit code of a program whose mutant is stale."""


class StaleMutant(Exception):
    """The text that a mutant replaces is not in its module exactly once."""


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

    def apply(self, source: str) -> str:
        """The module's source with the bug in it; raises StaleMutant."""
        count = source.count(self.find)
        if count != 1:
            raise StaleMutant(
                f"mutant {self.id}: {self.module} has {count} times, not once: {self.find!r}"
            )
        return source.replace(self.find, self.replace)


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


def module_file(module: str) -> Path:
    """Where the source of an installed module is, found without importing its package."""
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None or spec.origin is None:
        raise StaleMutant(f"there is no package {top}")
    base = Path(spec.origin).parent.joinpath(*rest)
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    raise StaleMutant(f"there is no module {module}")


def check(mutant: Mutant) -> None:
    """Raises StaleMutant where the mutant no longer fits its module."""
    mutant.apply(module_file(mutant.module).read_text(encoding="utf-8"))


class _MutatingLoader(SourceFileLoader):
    def __init__(self, mutant: Mutant, path: str) -> None:
        super().__init__(mutant.module, path)
        self._mutant = mutant

    def get_code(self, fullname: str) -> CodeType:
        """Compiles the mutated source, past the cache of compiled files."""
        path = self.get_filename(fullname)
        source = self._mutant.apply(Path(path).read_text(encoding="utf-8"))
        return compile(source, path, "exec", dont_inherit=True)


class _MutatingFinder(MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant
        self._path = str(module_file(mutant.module))

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._mutant.module:
            return None
        return importlib.util.spec_from_file_location(
            fullname, self._path, loader=_MutatingLoader(self._mutant, self._path)
        )


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
    except StaleMutant as stale:
        print(stale, file=sys.stderr)
        raise SystemExit(STALE_EXIT) from None
    if mutant.module in sys.modules:
        raise RuntimeError(f"{mutant.module} was imported before its mutant could be seeded")
    sys.meta_path.insert(0, _MutatingFinder(mutant))
    if program[0] == "-m":
        sys.argv = program[1:]
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = program
        sys.path[0] = os.path.dirname(os.path.abspath(program[0]))
        runpy.run_path(program[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
