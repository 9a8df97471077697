"""What the lock table costs in time and memory as things grow; its rules are tested by the model.

Times are CPU time of this thread, each the least of several rounds, and compared as ratios with a
margin that a loaded machine does not reach and a cost that grows with the queue passes by far.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable
from struct import pack

from ticketing_server.deadlines import NEVER
from ticketing_server.limits import Limits
from ticketing_server.lock_table import (
    CONNECT_COMMAND,
    DISCONNECT_COMMAND,
    RELEASE_KEYS,
    LockTable,
)
from ticketing_server.queues import Link
from ticketing_server.wire import ACQUIRE, ACQUIRE_SET, RELEASE, Command

MS = 1_000_000
FOREVER = 0xFFFFFFFF
COST_RATIO_MAX = 8.0


class Bench:
    """A table, one link, and a clock."""

    def __init__(self) -> None:
        self.table = LockTable(1 << 40)
        self.table.configure(Limits(), 0)
        self.now = 1 << 50
        self.link = Link(0, 1, b"client01")
        self.table.apply(self.now, [(self.link, [CONNECT_COMMAND])])
        self.next_id = 1

    def acquire(self, key: bytes, wait_ms: int = FOREVER, lease_ms: int = 30_000) -> Command:
        self.next_id += 1
        word = pack(">II", wait_ms, lease_ms)
        return (ACQUIRE, self.next_id.to_bytes(8, "big"), word, key)

    def release(self, token: bytes, key: bytes) -> Command:
        self.next_id += 1
        return (RELEASE, self.next_id.to_bytes(8, "big"), token, key)

    def apply(self, commands: list[Command], link: Link | None = None) -> bytes:
        link = link or self.link
        self.table.apply(self.now, [(link, commands)])
        data = b"".join(link.out)
        link.out.clear()
        return data

    def holder(self, key: bytes) -> bytes:
        ticket = self.table.ticket_of(key)
        assert ticket is not None
        return ticket[0]


def least_cpu(work: Callable[[], None], rounds: int = 7) -> float:
    times = []
    for _ in range(rounds):
        began = time.thread_time()
        work()
        times.append(time.thread_time() - began)
    return min(times)


def test_distinct_keys_one_after_another_leave_nothing_behind() -> None:
    """REQ-PRESSURE-BOUND: a million keys, at most 64 held, each length of lease its own."""
    bench = Bench()

    def some(first: int, count: int) -> None:
        for start in range(first, first + count, 64):
            keys = [b"key/%d" % number for number in range(start, start + 64)]
            bench.now += MS
            bench.apply([bench.acquire(key, lease_ms=1_000 + start % 86_000_000) for key in keys])
            bench.apply([bench.release(bench.holder(key), key) for key in keys])

    some(0, 50_000)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    some(50_000, 150_000)
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert bench.table.slots == {}
    assert bench.table.tickets == 0
    assert after - before < 1_000_000
    some(200_000, 800_000)
    assert bench.table.slots == {}
    bench.now += 100_000_000 * MS
    bench.apply([])
    assert bench.table.wake_at() == NEVER


def handoffs(waiting: int) -> float:
    """CPU of 200 hand-offs, each with a new waiter, in a queue of this many."""
    bench = Bench()
    bench.apply([bench.acquire(b"k") for _ in range(waiting + 1)])

    def work() -> None:
        for _ in range(200):
            bench.apply([bench.release(bench.holder(b"k"), b"k"), bench.acquire(b"k")])

    cpu = least_cpu(work)
    assert bench.table.attached == waiting
    return cpu


def test_hand_off_costs_the_same_however_many_wait() -> None:
    """REQ-GRANT-HANDOFF."""
    assert handoffs(100_000) < COST_RATIO_MAX * handoffs(10)


def test_passing_detached_waiters_over_costs_the_same_however_many_there_are() -> None:
    """REQ-DETACH-PASSED: 10^5 of them stay in front of the queue all the time."""

    def cost(detached: int) -> float:
        bench = Bench()
        gone = Link(0, 2, b"client02")
        bench.apply([bench.acquire(b"k")])
        bench.apply([CONNECT_COMMAND] + [bench.acquire(b"k") for _ in range(detached)], gone)
        bench.apply([bench.acquire(b"k") for _ in range(10)])
        bench.apply([DISCONNECT_COMMAND], gone)
        assert bench.table.detached == detached

        def work() -> None:
            for _ in range(200):
                bench.apply([bench.release(bench.holder(b"k"), b"k"), bench.acquire(b"k")])

        return least_cpu(work)

    assert cost(100_000) < COST_RATIO_MAX * cost(10)


def test_sets_that_cross_cost_the_same_however_many_wait() -> None:
    """REQ-GRANT-SET."""

    def cost(waiting: int) -> float:
        bench = Bench()
        keys = tuple(b"%02d" % number for number in range(16))
        word = pack(">II", FOREVER, 30_000)

        def acquire() -> Command:
            bench.next_id += 1
            chosen = keys[bench.next_id % 8 : bench.next_id % 8 + 9]
            return (ACQUIRE_SET, bench.next_id.to_bytes(8, "big"), word, chosen)

        bench.apply([acquire() for _ in range(waiting + 1)])

        def work() -> None:
            for _ in range(50):
                token = next(ticket[0] for key in keys if (ticket := bench.table.ticket_of(key)))
                key = next(key for key in keys if bench.table.ticket_of(key))
                bench.apply([bench.release(token, key), acquire()])

        return least_cpu(work)

    assert cost(20_000) < COST_RATIO_MAX * cost(10)


def test_lengths_in_use_cost_little() -> None:
    """10^5 different waits and leases against one (bench measures how little)."""

    def cost(lengths: int) -> float:
        bench = Bench()
        keys = [b"%06d" % number for number in range(1000)]
        count = iter(range(10**9))

        def work() -> None:
            bench.now += MS
            commands = []
            for key in keys:
                extra = next(count) * 7919 % lengths
                commands.append(bench.acquire(key, 1_000 + extra, 30_000 + extra))
            bench.apply(commands)
            bench.apply([bench.release(bench.holder(key), key) for key in keys])

        return least_cpu(work, 100)

    assert cost(100_000) < COST_RATIO_MAX * cost(1)


def test_many_stale_tokens_of_one_turn_cost_as_one() -> None:
    """REQ-V3-MISMATCH: finding out that no ticket has a token is what is costly about it."""

    def cost(releases: int, lengths: int = 20_000) -> float:
        bench = Bench()
        leases = [1_000 + 70 * (n % lengths) for n in range(20_000)]
        commands = [bench.acquire(b"%d" % n, lease_ms=leases[n]) for n in range(20_000)]
        bench.apply(commands)
        stale = [(RELEASE_KEYS, bench.release(b"", b"")[1], bytes(8), (b"x",))] * releases

        def work() -> None:
            bench.apply(stale)

        return least_cpu(work)

    assert cost(200) < COST_RATIO_MAX * cost(1)
    assert COST_RATIO_MAX * cost(1, lengths=1) < cost(1)


def test_tickets_that_all_end_at_once_are_all_told() -> None:
    """REQ-LEASE-TELLS: 50,000 of them, in the order of their tokens."""
    bench = Bench()
    bench.apply([bench.acquire(b"%d" % number, lease_ms=500) for number in range(50_000)])
    bench.now += 500 * MS - 1
    assert bench.apply([]) == b""
    bench.now += 1
    data = bench.apply([])
    tokens = [data[at + 3 : at + 11] for at in range(0, len(data), 12)]
    assert tokens == sorted(tokens)
    assert len(set(tokens)) == 50_000
    assert bench.table.slots == {}
    assert bench.table.dirty == [bench.link]
