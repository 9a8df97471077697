"""The lock table against a naive interpreter of the same rules, over any sequence of commands.

Covers REQ rules of acquire, hand-off, release, extend, cancel, lease, wait, detach, reattach,
take-over and limits at once: after each step the whole state and every reply are compared.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from struct import pack
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from naive_table import FOREVER, MS, NaiveTable, NaiveTicket, NaiveWaiter
from ticketing_server.limits import Limits
from ticketing_server.lock_table import (
    CONNECT_COMMAND,
    DISCONNECT_COMMAND,
    FORCE_RELEASE,
    INTERNAL,
    RELEASE_KEYS,
    LockTable,
)
from ticketing_server.queues import Link, Queue
from ticketing_server.table_state import keys_of
from ticketing_server.wire import ACQUIRE, ACQUIRE_SET, CANCEL, EXTEND, RELEASE, Command

KEYS = (b"a", b"b", b"c")
CLIENTS = (1, 2, 3, 4)
VERSION_3_CLIENT = 4
MAX_LEASE_MS = 5_000
WAITS_MS = st.sampled_from((FOREVER, 0, 40, 40, 100, 3_000, FOREVER, FOREVER))
LEASES_MS = st.sampled_from((1_000, 1, 40, 40, 100, 1_000, MAX_LEASE_MS, MAX_LEASE_MS + 1))
FIRST_TOKEN = 1 << 40
PICK = st.integers(0, 1023)
ItemT = TypeVar("ItemT")


def _u64(number: int) -> bytes:
    return number.to_bytes(8, "big")


def _pick(items: Sequence[ItemT], pick: int) -> ItemT:
    return items[pick % len(items)]


def _number(data: bytes) -> int:
    return int.from_bytes(data, "big")


def read_replies(data: bytes) -> list[tuple[object, ...]]:
    """Read what the table appended to one link, as the naive table writes it."""
    replies: list[tuple[object, ...]] = []
    while data:
        op, length = data[0], data[1] << 8 | data[2]
        body, data = data[3 : 3 + length], data[3 + length :]
        assert len(body) == length
        name, request_id = chr(op), _number(body[:8])
        if name == "A":
            replies.append((name, request_id, _number(body[8:16]), _number(body[16:])))
        elif name == "X":
            replies.append((name, request_id, _number(body[8:])))
        elif name in "DE":
            replies.append((name, request_id, body[8]))
        else:
            replies.append(("other keys" if op == 1 else name, request_id))
    return replies


class Tables(RuleBasedStateMachine):
    """Feeds both tables the same turns."""

    @initialize(
        waiters_per_key=st.sampled_from((100, 100, 100, 3)),
        waiters=st.sampled_from((100, 100, 100, 5)),
        held_keys=st.sampled_from((100, 100, 1, 2)),
        reattach_grace_ms=st.sampled_from((50, 0, 100, 500)),
        restart_grace_ms=st.sampled_from((0, 0, 0, 40)),
        commands_per_turn=st.sampled_from((1, 1, 3)),
        start=st.sampled_from((0, 123, 67_108_863, 1 << 50)),
    )
    def begin(
        self,
        waiters_per_key: int,
        waiters: int,
        held_keys: int,
        reattach_grace_ms: int,
        restart_grace_ms: int,
        commands_per_turn: int,
        start: int,
    ) -> None:
        self.now = start
        self.commands_per_turn = commands_per_turn
        limits = Limits(
            waiters_per_key=waiters_per_key,
            waiters=waiters,
            held_keys=held_keys,
            max_lease_ms=MAX_LEASE_MS,
            reattach_grace_ms=reattach_grace_ms,
            restart_grace_ms=restart_grace_ms,
        )
        self.table = LockTable(FIRST_TOKEN)
        self.table.configure(limits, start)
        self.naive = NaiveTable(
            FIRST_TOKEN,
            waiters_per_key,
            waiters,
            held_keys,
            MAX_LEASE_MS,
            reattach_grace_ms,
            start + restart_grace_ms * MS if restart_grace_ms else None,
        )
        self.links: dict[str, Link] = {}
        self.present: dict[int, str] = {}
        self.runs: list[tuple[Link, list[Command]]] = []
        self.steps: list[tuple[object, ...]] = []
        self.next_request = 1
        self.acquires: list[tuple[int, int, tuple[bytes, ...]]] = []
        self.tokens: list[int] = []
        for client in CLIENTS:
            self.connect(client)
        self.turn(0)

    # What a turn is made of

    def add(self, link: Link, command: Command, *step: object) -> None:
        """One more command: in the run of the one before where a read could have held both."""
        last, commands = self.runs[-1] if self.runs else (None, [])
        if last is link and commands[-1][0] not in INTERNAL and command[0] not in INTERNAL:
            commands.append(command)
        else:
            self.runs.append((link, [command]))
        self.steps.append(step)

    def connect(self, client: int) -> None:
        name = f"{client}.{len(self.links)}"
        link = Link(0, len(self.links), _u64(client), leaves=client == VERSION_3_CLIENT)
        self.links[name] = link
        self.present[client] = name
        self.add(link, CONNECT_COMMAND, "connect", name, client)

    def disconnect(self, client: int) -> None:
        name = self.present.pop(client)
        self.add(
            self.links[name],
            DISCONNECT_COMMAND,
            "disconnect",
            name,
            client,
            client == VERSION_3_CLIENT,
        )

    def request(self, client: int) -> tuple[str, Link, int]:
        self.next_request += 1
        name = self.present[client]
        return name, self.links[name], self.next_request

    def acquire_as(
        self, client: int, request_id: int, keys: tuple[bytes, ...], wait_ms: int, lease_ms: int
    ) -> None:
        name = self.present[client]
        word = pack(">II", wait_ms, lease_ms)
        command: Command = (
            (ACQUIRE, _u64(request_id), word, keys[0])
            if len(keys) == 1
            else (ACQUIRE_SET, _u64(request_id), word, keys)
        )
        step = ("acquire", name, client, request_id, keys, wait_ms, lease_ms)
        self.add(self.links[name], command, *step)

    # Rules

    @rule(
        client=st.sampled_from(CLIENTS),
        keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=3, unique=True),
        wait_ms=WAITS_MS,
        lease_ms=LEASES_MS,
    )
    def acquire(self, client: int, keys: list[bytes], wait_ms: int, lease_ms: int) -> None:
        if client in self.present:
            _, _, request_id = self.request(client)
            self.acquires.append((client, request_id, tuple(sorted(keys))))
            self.acquire_as(*self.acquires[-1], wait_ms, lease_ms)

    @precondition(lambda self: self.acquires)
    @rule(pick=PICK, wait_ms=WAITS_MS, lease_ms=LEASES_MS)
    def acquire_again(self, pick: int, wait_ms: int, lease_ms: int) -> None:
        client, request_id, keys = _pick(self.acquires[-8:], pick)
        if client in self.present:
            self.acquire_as(client, request_id, keys, wait_ms, lease_ms)

    @precondition(lambda self: self.acquires)
    @rule(pick=PICK, key=st.sampled_from(KEYS))
    def acquire_other_keys_with_same_id(self, pick: int, key: bytes) -> None:
        client, request_id, _ = _pick(self.acquires[-8:], pick)
        if client in self.present:
            self.acquires.append((client, request_id, (key,)))
            self.acquire_as(client, request_id, (key,), FOREVER, 1_000)

    def draw_ticket(self, pick: int) -> tuple[int, bytes]:
        tickets = [(ticket.token, ticket.keys[-1]) for ticket in self.naive.tickets]
        stale = [(token, KEYS[0]) for token in self.tokens[-3:]] or [(7, KEYS[0])]
        token, key = _pick(tickets * 3 + stale, pick)
        return token, key

    @rule(pick=PICK, client=st.sampled_from(CLIENTS))
    def release(self, pick: int, client: int) -> None:
        if client in self.present:
            token, key = self.draw_ticket(pick)
            name, link, request_id = self.request(client)
            self.add(
                link,
                (RELEASE, _u64(request_id), _u64(token), key),
                *("release", name, client, request_id, token, key),
            )

    @rule(pick=PICK)
    def release_own(self, pick: int) -> None:
        tickets = [ticket for ticket in self.naive.tickets if ticket.client in self.present]
        if tickets:
            ticket = _pick(tickets, pick)
            name, link, request_id = self.request(ticket.client)
            self.add(
                link,
                (RELEASE, _u64(request_id), _u64(ticket.token), ticket.keys[0]),
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
            name, link, request_id = self.request(VERSION_3_CLIENT)
            self.add(
                link,
                (RELEASE_KEYS, _u64(request_id), _u64(token), taken),
                *("release_keys", name, VERSION_3_CLIENT, request_id, token, taken),
            )

    @rule(pick=PICK, client=st.sampled_from(CLIENTS), lease_ms=LEASES_MS)
    def extend(self, pick: int, client: int, lease_ms: int) -> None:
        if client in self.present:
            token, key = self.draw_ticket(pick)
            name, link, request_id = self.request(client)
            self.add(
                link,
                (EXTEND, _u64(request_id), _u64(token), pack(">I", lease_ms) + key),
                *("extend", name, client, request_id, token, lease_ms, key),
            )

    @precondition(lambda self: self.acquires)
    @rule(pick=PICK, wrong=st.sampled_from((False, False, False, True)))
    def cancel(self, pick: int, wrong: bool) -> None:
        client, acquire_id, keys = _pick(self.acquires[-8:], pick)
        if client in self.present:
            key = _pick(KEYS if wrong else keys, pick // 8)
            name, link, request_id = self.request(client)
            self.add(
                link,
                (CANCEL, _u64(request_id), _u64(acquire_id), key),
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
        operator = Link(0, 0, bytes(8))
        self.add(operator, (FORCE_RELEASE, b"", _u64(token), key), "force_release", token, key)

    @rule(step=st.sampled_from((MS, 1, MS, 29 * MS, 40 * MS, 70 * MS, 400 * MS, 4_000 * MS)))
    def turn(self, step: int) -> None:
        self.end_turn(self.now + step)

    @rule(offset=st.sampled_from((-1, 0, 1)))
    def turn_at_next_deadline(self, offset: int) -> None:
        deadlines = [ticket.deadline for ticket in self.naive.tickets]
        for waiter in self.naive.waiters:
            deadlines += [time for time in (waiter.wait_end, waiter.grace_end) if time is not None]
        if deadlines:
            self.end_turn(max(self.now, min(deadlines) + offset))

    def end_turn(self, now: int) -> None:
        wake_at = self.table.wake_at()
        deadlines = [ticket.deadline for ticket in self.naive.tickets]
        for waiter in self.naive.waiters:
            deadlines += [time for time in (waiter.wait_end, waiter.grace_end) if time is not None]
        if deadlines:
            assert wake_at <= min(deadlines)
        self.now = now
        self.table.apply(now, self.runs)
        self.naive.advance(now)
        for name, *arguments in self.steps:
            timed = () if name == "connect" else (now,)
            getattr(self.naive, str(name))(*arguments, *timed)
        self.runs, self.steps = [], []
        self.compare_replies()

    def compare_replies(self) -> None:
        for name, link in self.links.items():
            expected = [reply[1:] for reply in self.naive.replies if reply[0] == name]
            assert read_replies(b"".join(link.out)) == expected
            link.out.clear()
            link.dirty = False
        self.table.dirty.clear()
        for reply in self.naive.replies:
            if reply[1] == "A" and reply[3] not in self.tokens:
                token = reply[3]
                assert isinstance(token, int)
                assert token > max(self.tokens, default=0)
                self.tokens.append(token)
        self.naive.replies.clear()

    # What must hold whatever happened

    @invariant()
    def states_are_equal(self) -> None:
        if not hasattr(self, "table"):
            return
        if len(self.steps) >= self.commands_per_turn:
            self.end_turn(self.now)
        tickets = {}
        for slot in self.table.slots.values():
            ticket = slot.holder if isinstance(slot, Queue) else slot
            if ticket is not None:
                tickets[ticket[0]] = ticket
        found = sorted(
            (
                NaiveTicket(
                    _number(token),
                    _number(ticket[1]),
                    _number(ticket[2]),
                    keys_of(ticket),
                    ticket[4][2],
                    ticket[4][1],
                    _number(ticket[5]),
                )
                for token, ticket in tickets.items()
            ),
            key=lambda ticket: ticket.token,
        )
        assert found == sorted(self.naive.tickets, key=lambda ticket: ticket.token)
        for token, ticket in tickets.items():
            assert ticket[4][0][token] is ticket
        names = {id(link): name for name, link in self.links.items()}
        waiters = sorted(
            (
                NaiveWaiter(
                    _number(waiter.client),
                    _number(waiter.request_id),
                    waiter.keys,
                    waiter.joined,
                    names[id(waiter.link)] if waiter.link else None,
                    waiter.arrived_ns,
                    waiter.wait_end_ns if waiter.wait_bucket is not None else None,
                    waiter.lease_ms,
                    waiter.grace_end_ns if waiter.grace_bucket is not None else None,
                )
                for owner in self.table.waiting.values()
                for waiter in owner
            ),
            key=lambda waiter: waiter.joined,
        )
        assert waiters == self.naive.waiters
        assert self.table.next_token == self.naive.next_token

    @invariant()
    def counts_are_right(self) -> None:
        if not hasattr(self, "table"):
            return
        table, naive = self.table, self.naive
        assert table.tickets == len(naive.tickets)
        assert table.held_keys == sum(len(ticket.keys) for ticket in naive.tickets)
        assert table.attached == sum(waiter.link is not None for waiter in naive.waiters)
        assert table.detached == sum(waiter.link is None for waiter in naive.waiters)
        needed = {key for ticket in naive.tickets for key in ticket.keys}
        needed |= {key for waiter in naive.waiters for key in waiter.keys}
        assert set(table.slots) == needed

    @invariant()
    def nobody_who_could_go_on_waits(self) -> None:
        if hasattr(self, "naive"):
            held = [key for ticket in self.naive.tickets for key in ticket.keys]
            assert len(held) == len(set(held))
            assert not any(self.naive.can_be_granted(waiter) for waiter in self.naive.waiters)
            joined = [waiter.joined for waiter in self.naive.waiters]
            assert joined == sorted(joined)


def test_sets_count_in_full_towards_the_limit_of_held_keys() -> None:
    """A run of two requests may take more than two keys."""
    tables = Tables()
    tables.begin(
        waiters_per_key=100,
        waiters=100,
        held_keys=2,
        reattach_grace_ms=50,
        restart_grace_ms=0,
        commands_per_turn=2,
        start=0,
    )
    tables.acquire(client=1, keys=list(KEYS[:2]), wait_ms=FOREVER, lease_ms=1_000)
    tables.acquire(client=1, keys=list(KEYS[2:]), wait_ms=FOREVER, lease_ms=1_000)
    tables.turn(step=0)
    tables.states_are_equal()
    assert tables.table.held_keys == 2


def test_a_wait_may_last_longer_than_its_reply_can_tell() -> None:
    """50 days and more."""
    table = LockTable(FIRST_TOKEN)
    table.configure(Limits(), 0)
    holder, waiter = (Link(0, number, _u64(number)) for number in (1, 2))
    for link in (holder, waiter):
        acquire = (ACQUIRE, _u64(1), pack(">II", FOREVER, 1_000), b"k")
        table.apply(0, [(link, [CONNECT_COMMAND]), (link, [acquire])])
    table.apply(5_000_000_000 * MS, [])
    assert read_replies(b"".join(waiter.out)) == [("A", 1, FIRST_TOKEN + 1, 0xFFFFFFFF)]


@pytest.mark.parametrize("seed", range(12))
def test_long_random_runs(seed: int) -> None:
    """Long runs reach states that short ones seldom do: deep queues, much contention."""
    draw = random.Random(seed)
    tables = Tables()
    tables.begin(
        waiters_per_key=draw.choice((100, 100, 4)),
        waiters=draw.choice((100, 100, 8)),
        held_keys=draw.choice((100, 100, 2)),
        reattach_grace_ms=draw.choice((50, 200)),
        restart_grace_ms=draw.choice((0, 0, 40)),
        commands_per_turn=draw.choice((1, 2, 5)),
        start=draw.choice((0, 123, 1 << 50)),
    )
    waits, leases = (0, 40, 100, 3_000, FOREVER), (1, 40, 100, 1_000, MAX_LEASE_MS + 1)
    steps = (1, MS, 29 * MS, 40 * MS, 70 * MS, 400 * MS)

    def timed() -> dict[str, int]:
        wait_ms = draw.choice((FOREVER, draw.choice(waits)))
        return {"wait_ms": wait_ms, "lease_ms": draw.choice((1_000, draw.choice(leases)))}

    for _ in range(1_200):
        client, pick = draw.choice(CLIENTS), draw.randrange(1024)
        what = draw.choices(range(13), (8, 3, 1, 2, 6, 1, 1, 2, 1, 1, 1, 2, 2))[0]
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
        elif draw.random() < 0.2:
            tables.force_release(pick=pick)
        else:
            tables.turn_at_next_deadline(offset=draw.choice((-1, 0, 1)))
        tables.states_are_equal()
        tables.counts_are_right()
        tables.nobody_who_could_go_on_waits()


TestTables = Tables.TestCase
TestTables.settings = settings(
    max_examples=50,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
