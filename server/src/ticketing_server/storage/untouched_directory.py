"""A directory that is read as it is and never written to: what is written stays in memory.

So that a start can be tried to the end, with all its checks, beside what is there.
"""

from __future__ import annotations

import builtins

from ticketing_server.storage.directory import Directory


class UntouchedDirectory:
    """See `directory.Directory`; changes are seen here and nowhere else."""

    def __init__(self, below: Directory) -> None:
        """Read from `below`."""
        self._below = below
        self._changed: dict[str, bytearray] = {}
        self._names = set(below.list())

    @property
    def label(self) -> str:
        """How texts for people name it."""
        return self._below.label

    def list(self) -> builtins.list[str]:
        """Return the names in it."""
        return sorted(self._names)

    def size(self, name: str) -> int:
        """Return the bytes of a file."""
        changed = self._changed.get(name)
        return self._below.size(name) if changed is None else len(changed)

    def read(self, name: str) -> bytes:
        """Return the whole content of a file."""
        if name not in self._names:
            raise FileNotFoundError(name)
        changed = self._changed.get(name)
        return self._below.read(name) if changed is None else bytes(changed)

    def create(self, name: str, size: int) -> None:
        """Make a file of `size` zeros in memory."""
        self._changed[name] = bytearray(size)
        self._names.add(name)

    def write_at(self, name: str, offset: int, data: bytes) -> None:
        """Write to a copy."""
        if name not in self._changed:
            self._changed[name] = bytearray(self.read(name))
        content = self._changed[name]
        content.extend(bytes(max(0, offset - len(content))))
        content[offset : offset + len(data)] = data

    def sync(self, name: str) -> None:
        """Do nothing: nothing is to survive."""

    def rename(self, name: str, to: str) -> None:
        """Give a file another name."""
        self._changed[to] = bytearray(self.read(name))
        self.unlink(name)
        self._names.add(to)

    def unlink(self, name: str) -> None:
        """Forget a file."""
        self._changed.pop(name, None)
        self._names.remove(name)

    def sync_directory(self) -> None:
        """Do nothing."""
