"""The log as a pure structure: entries behind a base, which is what a snapshot stands for.

It keeps what is in memory; what of it is on disk is known to `saves`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import attrgetter

from ticketing_server.raft.messages import Entry

_term = attrgetter("term")


class Log:
    """Entries in rising order without a gap, from `base_index` + 1 to `last_index`."""

    def __init__(
        self, base_index: int = 0, base_term: int = 0, base_stamp: int = 0,
        entries: Iterable[Entry] = (),
    ) -> None:  # fmt: skip
        """Begin behind a base; `ValueError` where the entries don't follow it."""
        self.base_index = base_index
        self.base_term = base_term
        self._base_stamp = base_stamp
        self._entries: list[Entry] = []
        self.append(entries)

    @property
    def last_index(self) -> int:
        """Index of the last entry, or of the base."""
        return self.base_index + len(self._entries)

    @property
    def last_term(self) -> int:
        """Term of the last entry, or of the base."""
        return self._entries[-1].term if self._entries else self.base_term

    @property
    def last_stamp(self) -> int:
        """Cluster time of the last entry, or of the base."""
        return self._entries[-1].stamp if self._entries else self._base_stamp

    def term(self, index: int) -> int | None:
        """Return the term at an index; None below the base and behind the end."""
        if index == self.base_index:
            return self.base_term
        place = index - self.base_index - 1
        return self._entries[place].term if 0 <= place < len(self._entries) else None

    def stamp(self, index: int) -> int:
        """Return the cluster time at an index that `term` knows."""
        if index == self.base_index:
            return self._base_stamp
        return self._entries[index - self.base_index - 1].stamp

    def slice(
        self, first: int, last: int | None = None, limit_bytes: int | None = None
    ) -> tuple[Entry, ...]:
        """Return the entries `first` to `last`: one at least, then as many as fit the limit."""
        if first <= self.base_index:
            raise ValueError(f"entry {first} is compacted, the base is {self.base_index}")
        begin = first - self.base_index - 1
        end = None if last is None else max(begin, last - self.base_index)
        if limit_bytes is None:
            return tuple(self._entries[begin:end])
        end = len(self._entries) if end is None else min(end, len(self._entries))
        stop = begin
        size = 0
        while stop < end:
            size += self._entries[stop].size
            if size > limit_bytes and stop > begin:
                break
            stop += 1
        return tuple(self._entries[begin:stop])

    def append(self, entries: Iterable[Entry]) -> None:
        """Put entries at the end; `ValueError` where index or term don't follow."""
        for entry in entries:
            if entry.index != self.last_index + 1 or entry.term < self.last_term:
                raise ValueError(
                    f"entry {entry.index} of term {entry.term} doesn't follow "
                    f"{self.last_index} of term {self.last_term}"
                )
            self._entries.append(entry)

    def truncate(self, index: int) -> None:
        """Drop the entries from `index` on."""
        if index <= self.base_index:
            raise ValueError(f"can't truncate at {index}, the base is {self.base_index}")
        del self._entries[index - self.base_index - 1 :]

    def compact(self, index: int) -> None:
        """Drop the entries up to `index`, which becomes the base; nothing where it's older."""
        if index <= self.base_index:
            return
        term = self.term(index)
        if term is None:
            raise ValueError(f"can't compact to {index}, the last entry is {self.last_index}")
        stamp = self.stamp(index)
        del self._entries[: index - self.base_index]
        self.base_index, self.base_term, self._base_stamp = index, term, stamp

    def is_as_recent(self, last_index: int, last_term: int) -> bool:
        """Return whether a log with that end has all that this one may have committed."""
        return (last_term, last_index) >= (self.last_term, self.last_index)

    def first_conflict(self, entries: Sequence[Entry]) -> int | None:
        """Return the index of the first of these that is missing here or has another term."""
        for entry in entries:
            if self.term(entry.index) != entry.term and entry.index > self.base_index:
                return entry.index
        return None

    def last_at_most(self, index: int, term: int) -> int:
        """Return the highest place up to `index` whose term is `term` or older.

        Two logs can only agree there or below, where one has `term` at `index`. An index below
        the base comes back as it is: nothing is known there.
        """
        if index <= self.base_index:
            return index
        place = bisect_right(self._entries, term, key=_term)
        return min(index, self.base_index + place)
