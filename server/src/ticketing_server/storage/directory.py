"""What the storage needs of a file system: names in one flat directory, and syncs.

All of the storage but `real_directory`, `writer` and `snapshotting` works on this, so that the
simulator can lose power between any two of these calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Refused(Exception):
    """The directory can't be used as it is. The text says which, where and what to do."""


class Directory(Protocol):
    """One directory. Errors of the system come as `OSError`; a missing name is one too.

    Until `sync` returned, any of the sectors written since may be lost, kept or torn by a loss of
    power; until `sync_directory` returned, so may be creations, renames and removals.
    """

    @property
    def label(self) -> str:
        """How texts for people name it."""

    def list(self) -> Sequence[str]:
        """Return the names in it."""

    def size(self, name: str) -> int:
        """Return the bytes of a file."""

    def read(self, name: str) -> bytes:
        """Return the whole content of a file."""

    def create(self, name: str, size: int) -> None:
        """Make a file of `size` zeros, written out; an older one of the name is emptied first."""

    def write_at(self, name: str, offset: int, data: bytes) -> None:
        """Write in place; at the end of a file it grows."""

    def sync(self, name: str) -> None:
        """Return when the content of a file survives a loss of power."""

    def rename(self, name: str, to: str) -> None:
        """Give a file another name, at once in place of what had it."""

    def unlink(self, name: str) -> None:
        """Remove a file."""

    def sync_directory(self) -> None:
        """Return when all creations, renames and removals survive a loss of power."""


def put(directory: Directory, name: str, content: bytes) -> None:
    """Write a file so that after a crash it is there whole, or as it was before."""
    temporary = name + TEMPORARY
    directory.create(temporary, 0)
    directory.write_at(temporary, 0, content)
    directory.sync(temporary)
    directory.rename(temporary, name)
    directory.sync_directory()


TEMPORARY = ".tmp"
"""End of names that mean nothing after a crash."""
