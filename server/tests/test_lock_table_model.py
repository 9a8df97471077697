"""The lock table against a naive interpreter of the same rules, over any sequence of commands.

Covers REQ rules of acquire, hand-off, release, extend, cancel, lease, wait, detach, reattach,
take-over and limits at once, over changes of term and through images of the table: after each step
the whole state and every reply are compared.
"""

from __future__ import annotations

import random
from struct import pack

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from naive_table import FOREVER, MS
from table_pair import (
    CLIENTS,
    DEFAULT_LOOKS,
    FIRST_TOKEN,
    MAX_LEASE_MS,
    OPERATOR,
    VERSION_3_CLIENT,
    TablePair,
    pick_of,
    read_replies,
    u64,
)
from ticketing_server.limits import Limits
from ticketing_server.lock_table import (
    CONNECT_COMMAND,
    DISCONNECT_COMMAND,
    FORCE_RELEASE,
    RELEASE_KEYS,
    LockTable,
)
from ticketing_server.queues import Link
from ticketing_server.wire import ACQUIRE, ACQUIRE_SET, CANCEL, EXTEND, RELEASE, Command

KEYS = (b"a", b"b", b"c")
WAITS_MS = st.sampled_from((FOREVER, 0, 40, 40, 100, 3_000, FOREVER, FOREVER))
LEASES_MS = st.sampled_from((1_000, 1, 40, 40, 100, 1_000, MAX_LEASE_MS, MAX_LEASE_MS + 1))
PICK = st.integers(0, 1023)
LIMITS = st.builds(
    Limits,
    waiters_per_key=st.sampled_from((100, 100, 100, 3)),
    waiters=st.sampled_from((100, 100, 100, 5)),
    held_keys=st.sampled_from((100, 100, 1, 2)),
    reattach_grace_ms=st.sampled_from((50, 0, 100, 500)),
    restart_grace_ms=st.sampled_from((0, 0, 0, 40)),
    max_lease_ms=st.sampled_from((MAX_LEASE_MS, MAX_LEASE_MS, 100)),
)
GRACES_MS = (100, 0, 40, 500, 100)
LOOKS = (DEFAULT_LOOKS, DEFAULT_LOOKS, (1, 1), (3, 1), (4, 4))
STEPS = (MS, 1, MS, 29 * MS, 40 * MS, 70 * MS, 400 * MS, 4_000 * MS)


class Tables(RuleBasedStateMachine, TablePair):
    """Feeds all tables the same turns."""

    def __init__(self) -> None:
        super().__init__()
        self.next_request = 1
        self.acquires: list[tuple[int, int, tuple[bytes, ...]]] = []

    @initialize(
        limits=LIMITS,
        commands_per_turn=st.sampled_from((1, 1, 3)),
        start=st.sampled_from((0, 123, 67_108_863, 1 << 50)),
        term=st.sampled_from((0, 0, 1)),
        looks=st.sampled_from(LOOKS),
    )
    def begin(
        self, limits: Limits, commands_per_turn: int, start: int, term: int, looks: tuple[int, int]
    ) -> None:
        self.start(
            limits=limits,
            commands_per_turn=commands_per_turn,
            start=start,
            term=term,
            looks=looks,
        )

    def teardown(self) -> None:
        self.stop()

    def request(self, client: int) -> tuple[str, int]:
        self.next_request += 1
        return self.present[client], self.next_request

    def acquire_as(
        self, client: int, request_id: int, keys: tuple[bytes, ...], wait_ms: int, lease_ms: int
    ) -> None:
        name = self.present[client]
        word = pack(">II", wait_ms, lease_ms)
        command: Command = (
            (ACQUIRE, u64(request_id), word, keys[0])
            if len(keys) == 1
            else (ACQUIRE_SET, u64(request_id), word, keys)
        )
        step = ("acquire", name, client, request_id, keys, wait_ms, lease_ms)
        self.add(name, command, *step)

    # Rules

    @rule(
        client=st.sampled_from(CLIENTS),
        keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=3, unique=True),
        wait_ms=WAITS_MS,
        lease_ms=LEASES_MS,
    )
    def acquire(self, client: int, keys: list[bytes], wait_ms: int, lease_ms: int) -> None:
        if client in self.present:
            _, request_id = self.request(client)
            self.acquires.append((client, request_id, tuple(sorted(keys))))
            self.acquire_as(*self.acquires[-1], wait_ms, lease_ms)

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=2, unique=True))
    def queue_up(self, keys: list[bytes]) -> None:
        for client in self.present:
            self.acquire(client, keys, FOREVER, 1_000)

    @precondition(lambda self: self.acquires)
    @rule(pick=PICK, wait_ms=WAITS_MS, lease_ms=LEASES_MS)
    def acquire_again(self, pick: int, wait_ms: int, lease_ms: int) -> None:
        client, request_id, keys = pick_of(self.acquires[-8:], pick)
        if client in self.present:
            self.acquire_as(client, request_id, keys, wait_ms, lease_ms)

    @precondition(lambda self: self.acquires)
    @rule(pick=PICK, key=st.sampled_from(KEYS))
    def acquire_other_keys_with_same_id(self, pick: int, key: bytes) -> None:
        client, request_id, _ = pick_of(self.acquires[-8:], pick)
        if client in self.present:
            self.acquires.append((client, request_id, (key,)))
            self.acquire_as(client, request_id, (key,), FOREVER, 1_000)

    def draw_ticket(self, pick: int) -> tuple[int, bytes]:
        tickets = [(ticket.token, ticket.keys[-1]) for ticket in self.naive.tickets]
        stale = [(token, KEYS[0]) for token in self.tokens[-3:]] or [(7, KEYS[0])]
        token, key = pick_of(tickets * 3 + stale, pick)
        return token, key

    @rule(pick=PICK, client=st.sampled_from(CLIENTS))
    def release(self, pick: int, client: int) -> None:
        if client in self.present:
            token, key = self.draw_ticket(pick)
            name, request_id = self.request(client)
            self.add(
                name,
                (RELEASE, u64(request_id), u64(token), key),
                *("release", name, client, request_id, token, key),
            )

    @rule(pick=PICK)
    def release_own(self, pick: int) -> None:
        tickets = [ticket for ticket in self.naive.tickets if ticket.client in self.present]
        if tickets:
            ticket = pick_of(tickets, pick)
            name, request_id = self.request(ticket.client)
            self.add(
                name,
                (RELEASE, u64(request_id), u64(ticket.token), ticket.keys[0]),
                *("release", name, ticket.client, request_id, ticket.token, ticket.keys[0]),
            )

    @rule(
        pick=PICK,
        keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=2, unique=True),
        named=st.booleans(),
    )
    def release_keys(self, pick: int, keys: list[bytes], named: bool) -> None:
        if VERSION_3_CLIENT in self.present:
            token, _ = self.draw_ticket(pick)
            right = next((t.keys for t in self.naive.tickets if t.token == token), None)
            taken = right if named and right else tuple(sorted(keys))
            name, request_id = self.request(VERSION_3_CLIENT)
            self.add(
                name,
                (RELEASE_KEYS, u64(request_id), u64(token), taken),
                *("release_keys", name, VERSION_3_CLIENT, request_id, token, taken),
            )

    @rule(pick=PICK, client=st.sampled_from(CLIENTS), lease_ms=LEASES_MS)
    def extend(self, pick: int, client: int, lease_ms: int) -> None:
        if client in self.present:
            token, key = self.draw_ticket(pick)
            name, request_id = self.request(client)
            self.add(
                name,
                (EXTEND, u64(request_id), u64(token), pack(">I", lease_ms) + key),
                *("extend", name, client, request_id, token, lease_ms, key),
            )

    @precondition(lambda self: self.acquires)
    @rule(pick=PICK, wrong=st.sampled_from((False, False, False, True)))
    def cancel(self, pick: int, wrong: bool) -> None:
        client, acquire_id, keys = pick_of(self.acquires[-8:], pick)
        if client in self.present:
            key = pick_of(KEYS if wrong else keys, pick // 8)
            name, request_id = self.request(client)
            self.add(
                name,
                (CANCEL, u64(request_id), u64(acquire_id), key),
                *("cancel", name, client, request_id, acquire_id, key),
            )

    @rule(client=st.sampled_from(CLIENTS))
    def cut(self, client: int) -> None:
        if client in self.present:
            self.disconnect(client)

    @precondition(lambda self: len(self.present) < len(CLIENTS))
    @rule()
    def reconnect(self) -> None:
        for client in CLIENTS:
            if client not in self.present:
                self.connect(client)

    @rule(client=st.sampled_from(CLIENTS))
    def take_over(self, client: int) -> None:
        if client in self.present:
            self.disconnect(client)
            self.connect(client)

    @rule(pick=PICK)
    def force_release(self, pick: int) -> None:
        token, key = self.draw_ticket(pick)
        command: Command = (FORCE_RELEASE, b"", u64(token), key)
        self.add(OPERATOR, command, "force_release", token, key)

    @rule(step=st.sampled_from(STEPS))
    def turn(self, step: int) -> None:
        self.end_turn(self.now + step)

    @rule(offset=st.sampled_from((-1, 0, 1)))
    def turn_at_next_deadline(self, offset: int) -> None:
        due = self.naive.due()
        if due:
            self.end_turn(max(self.now, due[0][0] + offset))

    @rule(
        limits=st.one_of(st.none(), LIMITS),
        failover_grace_ms=st.sampled_from(GRACES_MS),
        skipped=st.sampled_from((0, -5, 1, 5_000, 1 << 63)),
        step=st.sampled_from((0, MS, 40 * MS, 400 * MS)),
        returning=st.sampled_from((0, 1, 2, len(CLIENTS))),
    )
    def next_term(
        self, limits: Limits | None, failover_grace_ms: int, skipped: int, step: int, returning: int
    ) -> None:
        floor = self.naive.next_token + skipped
        self.begin_term(limits or self.limits, failover_grace_ms, floor, self.now + step)
        for client in CLIENTS[-returning:] if returning else ():
            self.connect(client)

    @precondition(lambda self: any(waiter.is_held_back for waiter in self.naive.waiters))
    @rule(pick=PICK, wait_ms=WAITS_MS, lease_ms=LEASES_MS)
    def come_back(self, pick: int, wait_ms: int, lease_ms: int) -> None:
        waiter = pick_of([waiter for waiter in self.naive.waiters if waiter.is_held_back], pick)
        if waiter.client not in self.present:
            self.connect(waiter.client)
        self.acquire_as(waiter.client, waiter.request_id, waiter.keys, wait_ms, lease_ms)

    @precondition(lambda self: self.older)
    @rule(pick=PICK)
    def end_link_of_earlier_term(self, pick: int) -> None:
        name = pick_of(self.older[-8:], pick)
        self.add(name, DISCONNECT_COMMAND, "disconnect", name, int(name.split(".")[2]))

    @rule(keeps_old=st.booleans())
    def go_on_from_image(self, keeps_old: bool) -> None:
        self.reload(keeps_old=keeps_old)

    @invariant()
    def all_is_equal(self) -> None:
        if hasattr(self, "naive"):
            if len(self.steps) >= self.commands_per_turn:
                self.end_turn(self.now)
            self.check_state()


def test_sets_count_in_full_towards_the_limit_of_held_keys() -> None:
    """A run of two requests may take more than two keys."""
    tables = Tables()
    tables.start(limits=Limits(held_keys=2, max_lease_ms=MAX_LEASE_MS), commands_per_turn=2)
    tables.acquire(client=1, keys=list(KEYS[:2]), wait_ms=FOREVER, lease_ms=1_000)
    tables.acquire(client=1, keys=list(KEYS[2:]), wait_ms=FOREVER, lease_ms=1_000)
    tables.turn(step=0)
    tables.all_is_equal()
    assert tables.table.held_keys == 2


def test_a_cancel_may_end_several_waiters() -> None:
    """Of one request id with other keys each: the leaving of the first lets the second go on."""
    tables = Tables()
    tables.start(limits=Limits(max_lease_ms=MAX_LEASE_MS))
    tables.acquire(client=1, keys=[b"b"], wait_ms=FOREVER, lease_ms=1_000)
    for keys in ((b"a", b"b"), (b"a",)):
        tables.acquire_as(2, 99, keys, FOREVER, 1_000)
        tables.acquires.append((2, 99, keys))
    tables.cancel(pick=1, wrong=False)
    tables.end_turn(MS)
    tables.check_state()
    assert tables.table.attached == 0
    assert tables.table.tickets == 1


def test_a_wait_may_last_longer_than_its_reply_can_tell() -> None:
    """50 days and more."""
    table = LockTable(FIRST_TOKEN)
    table.configure(Limits(), 0)
    holder, waiter = (Link(0, number, u64(number)) for number in (1, 2))
    for link in (holder, waiter):
        acquire = (ACQUIRE, u64(1), pack(">II", FOREVER, 1_000), b"k")
        table.apply(0, [(link, [CONNECT_COMMAND]), (link, [acquire])])
    table.apply(5_000_000_000 * MS, [])
    assert read_replies(b"".join(waiter.out)) == [("A", 1, FIRST_TOKEN + 1, 0xFFFFFFFF)]


@pytest.mark.parametrize("seed", range(20))
def test_long_random_runs(seed: int) -> None:
    """Long runs reach states that short ones seldom do: deep queues, much contention."""
    run_randomly(seed)


def run_randomly(seed: int) -> None:
    """Feed the tables 1,200 random steps."""
    tables = Tables()
    try:
        feed_randomly(tables, random.Random(seed))
    finally:
        tables.stop()


def feed_randomly(tables: Tables, draw: random.Random) -> None:

    def limits() -> Limits:
        return Limits(
            waiters_per_key=draw.choice((100, 100, 4)),
            waiters=draw.choice((100, 100, 8)),
            held_keys=draw.choice((100, 100, 2)),
            max_lease_ms=draw.choice((MAX_LEASE_MS, 100)),
            reattach_grace_ms=draw.choice((50, 200)),
            restart_grace_ms=draw.choice((0, 0, 40)),
        )

    tables.start(
        limits=limits(),
        commands_per_turn=draw.choice((1, 2, 5)),
        start=draw.choice((0, 123, 1 << 50)),
        term=draw.choice((0, 1)),
        looks=draw.choice(LOOKS),
    )
    waits, leases = (0, 40, 100, 3_000, FOREVER), (1, 40, 100, 1_000, MAX_LEASE_MS + 1)
    steps = (1, MS, 29 * MS, 40 * MS, 70 * MS, 400 * MS)

    def timed() -> dict[str, int]:
        wait_ms = draw.choice((FOREVER, draw.choice(waits)))
        return {"wait_ms": wait_ms, "lease_ms": draw.choice((1_000, draw.choice(leases)))}

    for _ in range(1_200):
        client, pick = draw.choice(CLIENTS), draw.randrange(1024)
        what = draw.choices(range(17), (8, 3, 1, 2, 6, 1, 1, 2, 1, 1, 1, 2, 1, 1, 1, 1, 2))[0]
        if what == 0:
            keys = draw.sample(KEYS, draw.choice((1, 1, 1, 2, 3)))
            tables.acquire(client=client, keys=keys, **timed())
        elif what == 1 and tables.acquires:
            tables.acquire_again(pick=pick, **timed())
        elif what == 2 and tables.acquires:
            tables.acquire_other_keys_with_same_id(pick=pick, key=draw.choice(KEYS))
        elif what == 3:
            tables.release(pick=pick, client=client)
        elif what == 4:
            tables.release_own(pick=pick)
        elif what == 5:
            tables.release_keys(pick=pick, keys=draw.sample(KEYS, 2), named=draw.random() < 0.5)
        elif what == 6:
            tables.extend(pick=pick, client=client, lease_ms=draw.choice(leases))
        elif what == 7 and tables.acquires:
            tables.cancel(pick=pick, wrong=draw.random() < 0.2)
        elif what == 8:
            tables.cut(client=client)
        elif what == 9:
            tables.take_over(client=client)
        elif what == 10:
            tables.reconnect()
        elif what == 11:
            tables.turn(step=draw.choice(steps))
        elif what == 12 and draw.random() < 0.2:
            tables.force_release(pick=pick)
        elif what == 13:
            tables.next_term(
                limits=draw.choice((None, limits())),
                failover_grace_ms=draw.choice(GRACES_MS),
                skipped=draw.choice((0, -5, 1, 5_000, 1 << 63)),
                step=draw.choice((0, MS, 40 * MS)),
                returning=draw.choice((0, 2, len(CLIENTS), len(CLIENTS))),
            )
        elif what == 14 and tables.older:
            tables.end_link_of_earlier_term(pick=pick)
        elif what == 15:
            tables.go_on_from_image(keeps_old=draw.random() < 0.5)
        elif what == 16 and any(waiter.is_held_back for waiter in tables.naive.waiters):
            tables.come_back(pick=pick, **timed())
        else:
            tables.turn_at_next_deadline(offset=draw.choice((-1, 0, 1)))
        tables.all_is_equal()


TestTables = Tables.TestCase
TestTables.settings = settings(
    max_examples=100,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
