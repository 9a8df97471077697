"""Deadlines against a sorted list, and their cost and memory."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from ticketing_server.deadlines import NEVER, Deadlines

MS = 1_000_000


class Item:
    def __init__(self, order: int, due_ns: int) -> None:
        self.order = order
        self.due_ns = due_ns
        self.bucket: dict[int, Item] = {}


def make() -> Deadlines[int, Item]:
    return Deadlines(lambda item: item.due_ns)


STEP = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 300 * MS)),
    st.tuples(st.just("add"), st.sampled_from((0, 1, 67 * MS, 10**12))),
    st.tuples(st.just("remove"), st.integers(0, 50)),
    st.tuples(st.just("move"), st.integers(0, 200 * MS)),
    st.tuples(st.just("advance"), st.integers(0, 100 * MS)),
    st.tuples(st.just("wake"), st.just(0)),
    st.tuples(st.just("raise floor"), st.integers(0, 200 * MS)),
)


@settings(max_examples=300)
@given(st.lists(STEP, max_size=60))
def test_same_as_a_sorted_list(steps: list[tuple[str, int]]) -> None:
    deadlines = make()
    pending: dict[int, Item] = {}
    now = 1 << 40
    deadlines.open(now)

    def put(item: Item, due_ns: int) -> None:
        item.due_ns = due_ns
        item.bucket = deadlines.bucket(due_ns)
        item.bucket[item.order] = item
        pending[item.order] = item

    for order, (what, value) in enumerate(steps):
        if what == "add":
            put(Item(order, 0), now + value)
        elif what in ("remove", "move") and pending:
            item = pending.pop(sorted(pending)[value % len(pending)])
            del item.bucket[item.order]
            if what == "move":
                put(item, now + value)
        elif what == "raise floor":
            deadlines.floor_ns = max(deadlines.floor_ns, now + value)
        elif what == "wake":
            now = max(now, deadlines.earliest_ns % NEVER)
        else:
            now += value
        deadlines.open(now)
        floor = deadlines.floor_ns
        times = [(max(item.due_ns, floor), item.order) for item in pending.values()]
        due = sorted(time for time in times if time[0] <= now)
        taken = []
        while (first := deadlines.first_due()) is not None and first <= now:
            item = deadlines.take_first()
            assert max(item.due_ns, floor) == first
            taken.append((first, item.order))
            del pending[item.order]
        assert taken == due
        earliest = min((max(item.due_ns, floor) for item in pending.values()), default=NEVER)
        assert deadlines.earliest_ns <= earliest
        deadlines.look_ahead()
        is_near = earliest - (1 << 26) <= deadlines.earliest_ns <= earliest
        assert is_near or deadlines.earliest_ns == floor > now - (1 << 26)
        if not pending and now >= floor:
            assert deadlines.earliest_ns == NEVER
        assert all(deadlines.has(order) for order in pending)
        assert all(order in deadlines.places()[order] for order in pending)
        assert deadlines.places().keys() == pending.keys()
        assert not deadlines.has(-1)


def test_an_item_may_come_back_to_a_deadline_it_had() -> None:
    """The heap then holds two entries for it that are alike; only one may count."""
    deadlines = make()
    item = Item(1, 50 * MS)
    bucket = deadlines.bucket(item.due_ns)
    bucket[1] = item
    deadlines.open(10 * MS)
    del bucket[1]
    for due_ns in (60 * MS, 50 * MS):
        item.due_ns = due_ns
        bucket = deadlines.bucket(due_ns)
        bucket[1] = item
        if due_ns == 60 * MS:
            del bucket[1]
    assert deadlines.first_due() == 50 * MS
    assert deadlines.take_first() is item
    assert deadlines.first_due() is None


def test_memory_follows_what_is_pending() -> None:
    """A million lengths, each used once and dropped, leave nothing behind."""
    deadlines = make()
    for number in range(200_000):
        item = Item(number, (number + 1) * 100 * MS)
        bucket = deadlines.bucket(item.due_ns)
        bucket[number] = item
        del bucket[number]
        deadlines.open(number)
    deadlines.look_ahead()
    assert deadlines.earliest_ns == NEVER
    assert len(deadlines.by_place) == 0
