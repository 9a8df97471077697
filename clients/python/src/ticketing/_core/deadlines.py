"""Due times of requests and tickets in one heap, so that a shell needs a single timer."""

from __future__ import annotations

import heapq
from typing import Protocol


class Timed(Protocol):
    """Something that is due at a time, or never."""

    due_ns: int | None


class Deadlines:
    """A heap that forgets lazily: an entry counts only while its object still says that time."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timed]] = []
        self._pushed = 0
        self._live = 0

    def set(self, timed: Timed, due_ns: int | None) -> None:
        """Make `timed` due at a time, or never; whatever was set before is void."""
        if timed.due_ns is not None:
            self._live -= 1
        timed.due_ns = due_ns
        if due_ns is not None:
            self._live += 1
            self._pushed += 1
            heapq.heappush(self._heap, (due_ns, self._pushed, timed))
            if len(self._heap) > 4 * self._live + 256:
                self._forget_void_entries()

    def _forget_void_entries(self) -> None:
        """Without this the heap would grow with every request for as long as the longest lease."""
        newest: dict[int, tuple[int, int, Timed]] = {}
        for entry in self._heap:
            if entry[2].due_ns == entry[0]:
                newest[id(entry[2])] = entry
        self._heap = list(newest.values())
        heapq.heapify(self._heap)

    def next_ns(self) -> int | None:
        """The earliest due time, or None."""
        heap = self._heap
        while heap and heap[0][2].due_ns != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def pop_due(self, now_ns: int) -> Timed | None:
        """Take out the earliest object that is due at `now_ns`; None when there is none."""
        due = self.next_ns()
        if due is None or due > now_ns:
            return None
        timed = heapq.heappop(self._heap)[2]
        timed.due_ns = None
        self._live -= 1
        return timed
