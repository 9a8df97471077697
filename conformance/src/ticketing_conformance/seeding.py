"""Bugs put in on purpose: replacements of source text, made while modules are imported.

Nothing on disk changes. A text that is not in its module exactly once is stale. Shared by the
mutants here and the simulator's bugs; it imports nothing that could be changed.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

STALE_EXIT = 3
"""Exit code of a program whose bug is stale."""


class Stale(Exception):
    """The text that is to be replaced is not in its module exactly once."""


@dataclass(frozen=True)
class Patch:
    """One replacement."""

    module: str
    find: str
    replace: str

    def apply(self, source: str) -> str:
        """Return the module's source with the bug in it; raises Stale."""
        times = source.count(self.find)
        if times != 1:
            raise Stale(f"{self.module} has {times} times, not once: {self.find!r}")
        return source.replace(self.find, self.replace)


def module_file(module: str) -> Path:
    """Where the source of an installed module is, found without importing its package."""
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None or spec.origin is None:
        raise Stale(f"there is no package {top}")
    base = Path(spec.origin).parent.joinpath(*rest)
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    raise Stale(f"there is no module {module}")


def check(patches: Sequence[Patch]) -> None:
    """Raise Stale where patches don't fit their modules, one after the other."""
    for module in {patch.module for patch in patches}:
        _patched(patches, module, module_file(module))


def plant(patches: Sequence[Patch]) -> None:
    """Have modules imported from now on with these patches; call `check` before."""
    for patch in patches:
        if patch.module in sys.modules:
            raise RuntimeError(f"{patch.module} was imported before its bug could be seeded")
    sys.meta_path.insert(0, _Finder(patches))


def _patched(patches: Sequence[Patch], module: str, path: Path) -> str:
    source = path.read_text(encoding="utf-8")
    for patch in patches:
        if patch.module == module:
            source = patch.apply(source)
    return source


class _Loader(SourceFileLoader):
    def __init__(self, patches: Sequence[Patch], module: str, path: str) -> None:
        super().__init__(module, path)
        self._patches = patches

    def get_code(self, fullname: str) -> CodeType:
        """Compile the patched source, past the cache of compiled files."""
        path = self.get_filename(fullname)
        source = _patched(self._patches, fullname, Path(path))
        return compile(source, path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    def __init__(self, patches: Sequence[Patch]) -> None:
        self._patches = patches
        self._files = {patch.module: str(module_file(patch.module)) for patch in patches}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        found = self._files.get(fullname)
        if found is None:
            return None
        loader = _Loader(self._patches, fullname, found)
        return importlib.util.spec_from_file_location(fullname, found, loader=loader)
