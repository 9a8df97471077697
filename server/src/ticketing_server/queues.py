"""What the lock table is made of: links, waiters, and the queue of one key."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Any

_STALE_MIN = 64
AFTER_ALL = 1 << 63
"""Higher than any join number."""


class Link:
    """What the table knows of a connection.

    Replies are appended to `out`; whoever flushes it empties it in place and resets `dirty`.
    """

    __slots__ = ("broken", "client", "dirty", "leaves", "number", "out", "term", "waiters")

    def __init__(self, term: int, number: int, client: bytes, *, leaves: bool = False) -> None:
        self.term = term
        self.number = number
        self.client = client
        """Client id, 8 bytes."""
        self.leaves = leaves
        """Whether its waiters leave when it ends (version 3) instead of detaching."""
        self.out: list[bytes] = []
        self.dirty = False
        self.broken = False
        """Whether a command of it was refused for good: nothing more of it is applied."""
        self.waiters: dict[int, Waiter] = {}
        """Attached waiters by join number; held-back ones once its term is over."""


class Waiter:
    """An owner in the queue of each of its keys.

    Detached while it has no link, held back while that is of an earlier term, else attached.
    """

    __slots__ = (
        "after",
        "arrived_ns",
        "before",
        "client",
        "grace_bucket",
        "grace_end_ns",
        "joined",
        "keys",
        "lease_ms",
        "link",
        "request_id",
        "wait_bucket",
        "wait_end_ns",
    )

    def __init__(
        self, client: bytes, request_id: bytes, keys: tuple[bytes, ...], joined: int
    ) -> None:
        self.client = client
        self.request_id = request_id
        self.keys = keys
        self.joined = joined
        self.link: Link | None = None
        self.lease_ms = 0
        self.arrived_ns = 0
        self.wait_end_ns = 0
        self.wait_bucket: dict[int, Waiter] | None = None
        self.grace_end_ns = 0
        self.grace_bucket: dict[int, Waiter] | None = None
        self.before: Waiter
        self.after: Waiter

    @property
    def owner(self) -> bytes:
        """Client id + request id."""
        return self.client + self.request_id

    @property
    def op(self) -> str:
        """Name of the frame that made it."""
        return "acquire" if len(self.keys) == 1 else "acquire_set"

    def forget_deadlines(self) -> None:
        """End its wait and its reattach grace, where they run."""
        if self.wait_bucket is not None:
            self.wait_bucket.pop(self.joined, None)
            self.wait_bucket = None
        if self.grace_bucket is not None:
            self.grace_bucket.pop(self.joined, None)
            self.grace_bucket = None


class Line:
    """Every waiter of every key, in the order of their joining.

    A linked ring, so that whoever walks it can stop anywhere and go on later, whatever changed.
    """

    __slots__ = ("end",)

    def __init__(self) -> None:
        self.end = end = Waiter(b"", b"", (), AFTER_ALL)
        """No waiter, but what comes after the last one and before the first."""
        end.before = end.after = end

    def __iter__(self) -> Iterator[Waiter]:
        """Go over all waiters; the one that was given last must not be removed meanwhile."""
        waiter = self.end.after
        while waiter is not self.end:
            yield waiter
            waiter = waiter.after

    def add(self, waiter: Waiter) -> None:
        """Take a waiter that joined after all that are there."""
        end = self.end
        last = end.before
        waiter.before = last
        waiter.after = end
        last.after = end.before = waiter

    def remove(self, waiter: Waiter) -> None:
        """Take a waiter out."""
        before, after = waiter.before, waiter.after
        before.after = after
        after.before = before
        # Else one that a queue still has would keep alive all that left after it.
        del waiter.before, waiter.after


class Queue:
    """One key that is waited for, or that a set holds. Held-back waiters count as attached here.

    `line` is a heap of (join number, waiter). Who leaves or detaches stays in it until they come to
    the front or until most of it is stale, so no change costs more than a logarithm; who is
    attached again is pushed again, and being there twice does no harm.
    """

    __slots__ = ("attached", "detached", "holder", "line")

    def __init__(self) -> None:
        self.holder: Any = None
        """The ticket that holds the key, if any."""
        self.attached = 0
        self.detached = 0
        self.line: list[tuple[int, Waiter]] = []

    def is_free(self) -> bool:
        """Whether a newcomer may have the key: not held, and only detached waiters want it."""
        return self.holder is None and not self.attached

    def first(self) -> Waiter | None:
        """Return the first attached or held-back waiter."""
        line = self.line
        while line:
            waiter = line[0][1]
            if waiter.link is not None:
                return waiter
            heappop(line)
        return None

    def attach(self, waiter: Waiter) -> None:
        """Let a waiter that has a place take part (again)."""
        self.attached += 1
        self.detached -= 1
        line = self.line
        if len(line) > 2 * self.attached + _STALE_MIN:
            current = {entry[0]: entry for entry in line if entry[1].link is not None}
            line[:] = current.values()
            heapify(line)
        heappush(line, (waiter.joined, waiter))

    def detach(self) -> None:
        """Pass one of its attached waiters over; that waiter's `link` is None already."""
        self.attached -= 1
        self.detached += 1
