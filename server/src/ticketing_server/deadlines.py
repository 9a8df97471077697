"""Due times of very many things, most of which end before they are due.

A lock server begins and drops a lease with every request, and only few of them ever run out.
So adding and removing is one dict operation each, and order is found only where it is needed:
times are cut into buckets of 67 ms, a bucket is an unordered dict, and only when its time has
come are its items sorted into a heap. The cost depends neither on how many different lengths are
in use nor on how many things are pending, and an emptied bucket is dropped as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, Generic, TypeVar

ItemT = TypeVar("ItemT")
OrderT = TypeVar("OrderT")

NEVER = 1 << 63
"""Later than any time."""
BUCKET_BITS = 26
_SWEEP_BUCKETS_MIN = 256


class _NearBucket(dict[OrderT, ItemT]):
    """What is due so soon that each item goes straight into the heap."""

    __slots__ = ("_due_ns", "_heap", "_serials")

    def __init__(
        self,
        heap: list[tuple[int, Any, int, dict[OrderT, ItemT]]],
        due_ns: Callable[[ItemT], int],
        serials: count[int],
    ) -> None:
        super().__init__()
        self._heap = heap
        self._due_ns = due_ns
        self._serials = serials

    def __setitem__(self, order: OrderT, item: ItemT) -> None:
        super().__setitem__(order, item)
        heappush(self._heap, (self._due_ns(item), order, next(self._serials), self))


class Deadlines(Generic[OrderT, ItemT]):
    """Items by due time, and at the same time by an order of their own (token, join number).

    The caller adds with ``bucket(deadline)[order] = item``, keeps the bucket beside the item and
    removes with ``del kept_bucket[order]``; an item's deadline changes by removing and adding.
    A bucket that `bucket` returned takes new items until the next call of `open`.
    """

    def __init__(self, due_ns: Callable[[ItemT], int]) -> None:
        self._own_due_ns = due_ns
        self._opened = -1
        self.by_place: dict[int, dict[OrderT, ItemT]] = {}
        self._far_order: list[int] = []
        self._near: list[tuple[int, Any, int, dict[OrderT, ItemT]]] = []
        self._serials = count()
        self._near_bucket: _NearBucket[OrderT, ItemT] = _NearBucket(
            self._near, self._due_ns, self._serials
        )
        self._sweep_at = _SWEEP_BUCKETS_MIN
        self.earliest_ns = NEVER
        """Nothing is due before this; kept without cost, so that a turn looks no further."""
        self.floor_ns = 0
        """Items due earlier are due at this time; it may be raised at any time, at no cost."""

    def bucket(self, deadline_ns: int) -> dict[OrderT, ItemT]:
        """Return the dict that items due at this time belong into."""
        place = deadline_ns >> BUCKET_BITS
        bucket = self.by_place.get(place)
        if bucket is not None:
            return bucket
        if place <= self._opened:
            self.earliest_ns = min(self.earliest_ns, max(deadline_ns, self.floor_ns))
            return self._near_bucket
        bucket = self.by_place[place] = {}
        heappush(self._far_order, place)
        if len(self.by_place) > self._sweep_at:
            # Not here: a bucket that was just returned is empty, too.
            self.earliest_ns = 0
        begins_ns = max(place << BUCKET_BITS, self.floor_ns)
        if begins_ns < self.earliest_ns:
            self.earliest_ns = begins_ns
        return bucket

    def open(self, now_ns: int) -> None:
        """Make everything due until now, and shortly after, ready for `first_due`."""
        opened = now_ns >> BUCKET_BITS
        if opened > self._opened:
            self._opened = opened
        while self._far_order and self._far_order[0] <= self._opened:
            bucket = self.by_place.pop(heappop(self._far_order))
            for order, item in bucket.items():
                entry = (self._due_ns(item), order, next(self._serials), bucket)
                heappush(self._near, entry)
        if len(self.by_place) > self._sweep_at:
            self._sweep()

    def first_due(self) -> int | None:
        """Return the earliest deadline among what is opened, None if there is none."""
        if self._is_below_floor():
            return None
        near = self._near
        while near:
            deadline, order, _, bucket = near[0]
            item = bucket.get(order)
            due = None if item is None else self._due_ns(item)
            if due == deadline:
                return deadline
            heappop(near)
            if due is not None and deadline < self.floor_ns:
                # It came in here before the floor was raised.
                heappush(near, (due, order, next(self._serials), bucket))
        return None

    def take_first(self) -> ItemT:
        """Remove and return the item that `first_due` told of."""
        _, order, _, bucket = heappop(self._near)
        return bucket.pop(order)

    def look_ahead(self) -> None:
        """Set `earliest_ns` anew, after what was due has been taken.

        It is then the earliest deadline, or earlier by at most one bucket, or `NEVER`; before the
        floor's time it may be the floor, though nothing is due then.
        """
        due = self.first_due()
        if due is None:
            order = self._far_order
            while order and not self.by_place[order[0]]:
                del self.by_place[heappop(order)]
            due = max(order[0] << BUCKET_BITS, self.floor_ns) if order else NEVER
            if self._near:
                due = self.floor_ns
        self.earliest_ns = due

    def has(self, order: OrderT) -> bool:
        """Whether an item with this order is pending; costs a look into every bucket."""
        return any(order in bucket for bucket in self._buckets())

    @property
    def bucket_count(self) -> int:
        """About how many buckets there are."""
        return len(self.by_place) + 1

    def places(self) -> dict[OrderT, dict[OrderT, ItemT]]:
        """Return the bucket of each item that is pending; costs a look at every item."""
        return {order: bucket for bucket in self._buckets() for order in bucket}

    def _due_ns(self, item: ItemT) -> int:
        return max(self._own_due_ns(item), self.floor_ns)

    def _is_below_floor(self) -> bool:
        """Whether nothing can be due: else each raise of the floor would touch all that was."""
        return self._opened < self.floor_ns >> BUCKET_BITS

    def _buckets(self) -> list[dict[OrderT, ItemT]]:
        opened = {id(entry[3]): entry[3] for entry in self._near}
        return [self._near_bucket, *self.by_place.values(), *opened.values()]

    def _sweep(self) -> None:
        """Drop emptied buckets, so that memory follows what is pending, not what ever was."""
        self.by_place = {place: bucket for place, bucket in self.by_place.items() if bucket}
        self._far_order = list(self.by_place)
        heapify(self._far_order)
        self._sweep_at = max(_SWEEP_BUCKETS_MIN, 2 * len(self.by_place))
