"""The client's monotonic clock: one that goes on while the machine sleeps, where there is one."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable


def _choose() -> int | None:
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.CLOCK_BOOTTIME
    if sys.platform == "darwin" and hasattr(time, "CLOCK_MONOTONIC"):
        return time.CLOCK_MONOTONIC  # It counts suspended time there; time.monotonic does not.
    return None


def _make_clock() -> Callable[[], int]:
    clock = _choose()
    if clock is None:
        return time.monotonic_ns
    return functools.partial(time.clock_gettime_ns, clock)


now_ns = _make_clock()
"""Nanoseconds on the clock that leases are counted on."""


def monotonic() -> float:
    """Seconds on the clock that `Ticket.expires_at` is on. Thread-safe."""
    return now_ns() / 1_000_000_000
