"""One key's queue: its order, and what it costs when it is long."""

from __future__ import annotations

from ticketing_server.queues import Line, Link, Queue, Waiter

LINK = Link(0, 1, bytes(8))


def join(queue: Queue, joined: int) -> Waiter:
    waiter = Waiter(bytes(8), joined.to_bytes(8, "big"), (b"k",), joined)
    queue.detached += 1
    waiter.link = LINK
    queue.attach(waiter)
    return waiter


def detach(queue: Queue, waiter: Waiter) -> None:
    waiter.link = None
    queue.detach()


def attach(queue: Queue, waiter: Waiter) -> None:
    waiter.link = LINK
    queue.attach(waiter)


def test_first_is_the_oldest_attached() -> None:
    queue = Queue()
    assert queue.first() is None
    first, second, third = (join(queue, joined) for joined in (1, 2, 3))
    assert queue.first() is first
    detach(queue, first)
    detach(queue, third)
    assert queue.first() is second
    attach(queue, first)
    assert queue.first() is first
    detach(queue, first)
    detach(queue, second)
    assert queue.first() is None
    assert queue.is_free()
    attach(queue, third)
    attach(queue, second)
    assert (queue.first(), queue.attached, queue.detached) == (second, 2, 1)
    assert not queue.is_free()


def test_line_stays_short_however_often_its_waiters_come_and_go() -> None:
    queue = Queue()
    waiters = [join(queue, joined) for joined in range(100)]
    for _ in range(200):
        for waiter in waiters:
            detach(queue, waiter)
        for waiter in reversed(waiters):
            attach(queue, waiter)
        assert queue.first() is waiters[0]
        assert len(queue.line) <= 2 * len(waiters) + 65


def test_passing_many_detached_waiters_over_is_paid_once() -> None:
    queue = Queue()
    waiters = [join(queue, joined) for joined in range(10_000)]
    for waiter in waiters[:-1]:
        detach(queue, waiter)
    assert queue.first() is waiters[-1]
    assert len(queue.line) == 1


def test_the_line_is_walked_in_the_order_of_joining_whatever_leaves() -> None:
    line = Line()
    assert list(line) == []
    waiters = [Waiter(bytes(8), bytes(8), (b"k",), joined) for joined in range(1, 6)]
    for waiter in waiters:
        line.add(waiter)
    assert list(line) == waiters
    for place in (0, -1, 1):
        left = waiters.pop(place)
        line.remove(left)
        assert list(line) == waiters
        assert not hasattr(left, "after")
    assert line.end.after is waiters[0]
    assert line.end.joined > waiters[-1].joined
