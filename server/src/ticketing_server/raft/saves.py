"""What was handed out to be saved, and how far it is known to be on disk.

Saves are numbered and synced in order, so a number says all: an entry counts as stable only where
no later save, still on its way, writes the same place anew (the same entry may go and come back).
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from ticketing_server.raft.messages import Entry, HardState, Snapshot


class Save(NamedTuple):
    """One write, to be synced as a whole before `synced(number)` is told to the core."""

    number: int
    hard_state: HardState | None
    """None where it hasn't changed."""
    snapshot: Snapshot | None
    """Installed: it replaces the log up to and including all entries saved before."""
    entries: tuple[Entry, ...]
    """They replace all entries from the first one's index on."""


class _Pending(NamedTuple):
    number: int
    first: int
    last: int
    begun_ns: int


class Saves:
    """Numbers saves and follows their syncs."""

    def __init__(self, stable_index: int) -> None:
        """Begin with what was read from disk."""
        self.stable_index = stable_index
        """All entries up to here are on disk as the log has them."""
        self.given = 0
        """Number of the last save handed out."""
        self.done = 0
        """Number of the last save known to be synced."""
        self._pending: deque[_Pending] = deque()

    @property
    def oldest_begun_ns(self) -> int | None:
        """When the oldest save that isn't synced was handed out."""
        return self._pending[0].begun_ns if self._pending else None

    def give(
        self, hard_state: HardState | None, snapshot: Snapshot | None, entries: tuple[Entry, ...],
        now_ns: int,
    ) -> Save:  # fmt: skip
        """Number one more save."""
        self.given += 1
        first = self.stable_index + 1
        last = self.stable_index
        if entries:
            first, last = entries[0].index, entries[-1].index
        if snapshot is not None:
            first, last = snapshot.index, max(snapshot.index, last if entries else 0)
        self.stable_index = min(self.stable_index, first - 1)
        writes = bool(entries) or snapshot is not None
        self._pending.append(
            _Pending(self.given, first if writes else 0, last if writes else 0, now_ns)
        )
        return Save(self.given, hard_state, snapshot, entries)

    def synced(self, number: int) -> None:
        """Take that all saves up to `number` are on disk; `ValueError` if it was never given."""
        if number > self.given:
            raise ValueError(f"save {number} was not given, the last one is {self.given}")
        self.done = max(self.done, number)
        reached = self.stable_index
        while self._pending and self._pending[0].number <= number:
            save = self._pending.popleft()
            if save.last:
                reached = save.last
        rewritten = [save.first for save in self._pending if save.last]
        self.stable_index = min([reached, *(first - 1 for first in rewritten)])
