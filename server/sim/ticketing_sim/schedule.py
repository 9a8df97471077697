"""The queue of events, in true time, and the clocks of machines, which are not true."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any, TextIO

US = 1_000
MS = 1_000_000
SECOND = 1_000_000_000

RATE_PPM_MAX = 1_000
"""Clocks are within 0.1 % of true time (protocol.md §5 allows two of them 0.2 % together)."""
_PPM = 1_000_000


class Broken(AssertionError):
    """Something that must always hold doesn't."""


class Schedule:
    """Events by true time; those of one time in the order in which they were put in."""

    def __init__(self, trace: TextIO | None = None) -> None:
        self.now_ns = 0
        self.events = 0
        self.events_max = 1 << 62
        """More than these mean that something never comes to rest."""
        self.digest = 0
        """Of everything that happened; equal where two runs were."""
        self._heap: list[tuple[int, int, str, Callable[..., None], tuple[Any, ...]]] = []
        self._order = 0
        self._trace = trace

    def at(self, when_ns: int, name: str, call: Callable[..., None], *arguments: Any) -> None:
        """Call something at a time, or now if that is over."""
        self._order += 1
        heappush(self._heap, (max(when_ns, self.now_ns), self._order, name, call, arguments))

    def after(self, delay_ns: int, name: str, call: Callable[..., None], *arguments: Any) -> None:
        """Call something in a while."""
        self.at(self.now_ns + delay_ns, name, call, *arguments)

    def note(self, text: str) -> None:
        """Put something into the trace."""
        self.digest = zlib.crc32(text.encode(), self.digest)
        if self._trace is not None:
            self._trace.write(f"{self.now_ns / SECOND:.6f} {text}\n")

    def run(self, until_ns: int, is_done: Callable[[], bool] | None = None) -> None:
        """Let everything happen until then, or until all is done."""
        heap = self._heap
        while heap and heap[0][0] <= until_ns:
            self.now_ns, order, name, call, arguments = heappop(heap)
            self.events += 1
            if self.events > self.events_max:
                raise Broken(f"a storm: {self.events} events by {self.now_ns / SECOND:.1f} s")
            self.note(f"{name} {order}")
            call(*arguments)
            if is_done is not None and is_done():
                return
        self.now_ns = until_ns


class Clock:
    """One machine's monotonic clock, which counts suspended time, and its wall clock."""

    def __init__(self, schedule: Schedule, random: Random) -> None:
        self._schedule = schedule
        self._random = random
        some = random.randint(-RATE_PPM_MAX, RATE_PPM_MAX)
        self._ppm = random.choice((-RATE_PPM_MAX, RATE_PPM_MAX, some))
        self._base_ns = 0
        self._since_ns = 0
        self._wall_offset_ms = 0
        self.reboot()

    def now_ns(self) -> int:
        """Return what it shows."""
        true_ns = self._schedule.now_ns - self._since_ns
        return self._base_ns + true_ns + true_ns * self._ppm // _PPM

    def true_ns(self, local_ns: int) -> int:
        """Return the first true time at which it shows this."""
        shown = local_ns - self._base_ns
        true_ns = shown * _PPM // (_PPM + self._ppm)
        while true_ns + true_ns * self._ppm // _PPM < shown:
            true_ns += 1
        return self._since_ns + true_ns

    def reboot(self) -> None:
        """Begin anew at some other time."""
        self._since_ns = self._schedule.now_ns
        self._base_ns = self._random.randrange(1, 10_000) * SECOND

    def wall_ms(self) -> int:
        """Return the wall clock, in unix milliseconds."""
        return 1_800_000_000_000 + self._schedule.now_ns // MS + self._wall_offset_ms

    def jump(self, by_ms: int) -> None:
        """Set the wall clock."""
        self._wall_offset_ms += by_ms
