"""What costs much to find out is told again for a while, so that who asks often slows nobody."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

CHEAP_S = 0.002
FRESH_FOR_COSTS = 50

_Value = TypeVar("_Value")


class Costly(Generic[_Value]):
    """Calls `make`, and remembers what it returned for as long as its cost asks for.

    What took more than `CHEAP_S` of processor time is returned again for `FRESH_FOR_COSTS` times
    the time that it took, which bounds its share of the event loop to 2 %; what is cheap is made
    anew at each call. For use on one thread.
    """

    def __init__(
        self,
        make: Callable[[], _Value],
        clock_s: Callable[[], float] = time.monotonic,
        cpu_clock_s: Callable[[], float] = time.thread_time,
    ) -> None:
        """Take a monotonic clock and one of this thread's processor time, both in seconds."""
        self._make = make
        self._clock_s = clock_s
        self._cpu_clock_s = cpu_clock_s
        self._made: list[_Value] = []
        self._stale_s = float("-inf")

    def __call__(self) -> _Value:
        """Return what is true now, or was a moment ago."""
        now_s = self._clock_s()
        if not self._made or now_s >= self._stale_s:
            begun_s = self._cpu_clock_s()
            self._made = [self._make()]
            cost_s = self._cpu_clock_s() - begun_s
            self._stale_s = now_s + (cost_s * FRESH_FOR_COSTS if cost_s > CHEAP_S else 0.0)
        return self._made[0]
