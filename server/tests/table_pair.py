"""Drives lock tables and the naive one through the same turns, and compares all that they do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from naive_table import MS, NaiveTable, NaiveTicket, NaiveWaiter
from ticketing_server import lock_table
from ticketing_server.limits import Limits, Term
from ticketing_server.lock_table import CONNECT_COMMAND, DISCONNECT_COMMAND, INTERNAL, LockTable
from ticketing_server.queues import Link, Queue
from ticketing_server.table_image import dump, load
from ticketing_server.table_state import keys_of
from ticketing_server.wire import Command

CLIENTS = (1, 2, 3, 4)
VERSION_3_CLIENT = 4
MAX_LEASE_MS = 5_000
FIRST_TOKEN = 1 << 40
OPERATOR = "operator"
DEFAULT_LOOKS = (lock_table.LOOKS_PER_SLICE, lock_table.LOOKS_PER_DEPARTURE)
ItemT = TypeVar("ItemT")


def u64(number: int) -> bytes:
    return number.to_bytes(8, "big")


def number_of(data: bytes) -> int:
    return int.from_bytes(data, "big")


def pick_of(items: Sequence[ItemT], pick: int) -> ItemT:
    return items[pick % len(items)]


def read_replies(data: bytes) -> list[tuple[object, ...]]:
    """Read what the table appended to one link, as the naive table writes it."""
    replies: list[tuple[object, ...]] = []
    while data:
        op, length = data[0], data[1] << 8 | data[2]
        body, data = data[3 : 3 + length], data[3 + length :]
        assert len(body) == length
        name, request_id = chr(op), number_of(body[:8])
        if name == "A":
            replies.append((name, request_id, number_of(body[8:16]), number_of(body[16:])))
        elif name == "X":
            replies.append((name, request_id, number_of(body[8:])))
        elif name in "DE":
            replies.append((name, request_id, body[8]))
        else:
            replies.append(("other keys" if op == 1 else name, request_id))
    return replies


class Side:
    """One lock table, and its links by name: `<term>.<number>.<client>`."""

    def __init__(self, table: LockTable) -> None:
        self.table = table
        self.links: dict[str, Link] = {}
        for link in table.connections.values():
            self.links[self.name_of(link)] = link

    @staticmethod
    def name_of(link: Link) -> str:
        return f"{link.term}.{link.number}.{number_of(link.client)}"

    def link(self, name: str) -> Link:
        """The link of this name; made anew if this table has not met it."""
        if name not in self.links:
            term, number, client = (0, 0, 0) if name == OPERATOR else map(int, name.split("."))
            leaves = client == VERSION_3_CLIENT
            self.links[name] = Link(term, number, u64(client), leaves=leaves)
        return self.links[name]

    def take_replies(self) -> dict[str, list[tuple[object, ...]]]:
        replies = {}
        for name, link in self.links.items():
            if link.out:
                replies[name] = read_replies(b"".join(link.out))
            link.out.clear()
            link.dirty = False
        self.table.dirty.clear()
        return replies


class TablePair:
    """Any number of equal lock tables, a naive one, and the turn that they are fed next."""

    def start(
        self,
        *,
        limits: Limits,
        commands_per_turn: int = 1,
        start: int = 0,
        term: int = 0,
        looks: tuple[int, int] = DEFAULT_LOOKS,
    ) -> None:
        self.now = start
        self.commands_per_turn = commands_per_turn
        lock_table.LOOKS_PER_SLICE, lock_table.LOOKS_PER_DEPARTURE = looks
        self.naive = NaiveTable(
            FIRST_TOKEN,
            limits.waiters_per_key,
            limits.waiters,
            limits.held_keys,
            limits.max_lease_ms,
            limits.reattach_grace_ms,
            start + limits.restart_grace_ms * MS if limits.restart_grace_ms else None,
        )
        self.naive.looks_per_slice, self.naive.looks_per_departure = looks
        table = LockTable(FIRST_TOKEN)
        if term:
            table.begin_term(Term(term, limits), start)
            self.naive.begin_term(5_000, 0, start)
        else:
            table.configure(limits, start)
        self.sides = [Side(table)]
        self.limits = limits
        self.term = term
        self.connected = 0
        self.present: dict[int, str] = {}
        self.older: list[str] = []
        """Links that ended with their term, whose ends may yet be told."""
        self.runs: list[tuple[str, list[Command]]] = []
        self.steps: list[tuple[object, ...]] = []
        self.tokens: list[int] = []
        for client in CLIENTS:
            self.connect(client)
        self.end_turn(start)

    def stop(self) -> None:
        lock_table.LOOKS_PER_SLICE, lock_table.LOOKS_PER_DEPARTURE = DEFAULT_LOOKS

    @property
    def table(self) -> LockTable:
        return self.sides[-1].table

    # What a turn is made of

    def add(self, name: str, command: Command, *step: object) -> None:
        """One more command: in the run of the one before where a read could have held both."""
        last, commands = self.runs[-1] if self.runs else ("", [])
        if last == name and commands[-1][0] not in INTERNAL and command[0] not in INTERNAL:
            commands.append(command)
        else:
            self.runs.append((name, [command]))
        self.steps.append(step)

    def connect(self, client: int) -> None:
        name = f"{self.term}.{self.connected}.{client}"
        self.connected += 1
        self.present[client] = name
        self.add(name, CONNECT_COMMAND, "connect", name, client, client == VERSION_3_CLIENT)

    def disconnect(self, client: int) -> None:
        name = self.present.pop(client)
        self.add(name, DISCONNECT_COMMAND, "disconnect", name, client)

    # Turns, terms and images

    def end_turn(self, now: int) -> None:
        wake_at = self.table.wake_at()
        due = self.naive.due()
        if due:
            assert wake_at <= due[0][0]
        self.now = now
        for side in self.sides:
            side.table.apply(now, [(side.link(name), commands) for name, commands in self.runs])
        self.naive.advance(now)
        for name, *arguments in self.steps:
            timed = () if name == "connect" else (now,)
            getattr(self.naive, str(name))(*arguments, *timed)
        self.runs, self.steps = [], []
        self.compare_replies()
        assert len({dump(side.table) for side in self.sides}) == 1

    def begin_term(
        self, limits: Limits, failover_grace_ms: int, token_floor: int, now: int
    ) -> None:
        """Begin the next term, in which no client has a connection yet."""
        self.end_turn(self.now)
        self.now = now
        self.term += 1
        self.limits = limits
        for side in self.sides:
            term = Term(self.term, limits, failover_grace_ms, token_floor)
            side.table.begin_term(term, now)
        naive = self.naive
        naive.waiters_per_key, naive.waiters_max = limits.waiters_per_key, limits.waiters
        naive.held_keys, naive.max_lease_ms = limits.held_keys, limits.max_lease_ms
        naive.reattach_grace_ms = limits.reattach_grace_ms
        naive.begin_term(failover_grace_ms, token_floor, now)
        self.older += self.present.values()
        self.present.clear()
        self.connected = 0

    def reload(self, *, keeps_old: bool) -> None:
        """Go on with the image of the table, beside the table itself or instead of it."""
        image = dump(self.table)
        loaded = load(image)
        assert dump(loaded) == image
        self.sides = [*self.sides[-1:], Side(loaded)] if keeps_old else [Side(loaded)]

    def compare_replies(self) -> None:
        expected: dict[str, list[tuple[object, ...]]] = {}
        for name, *reply in self.naive.replies:
            expected.setdefault(str(name), []).append(tuple(reply))
        for side in self.sides:
            assert side.take_replies() == expected
        for name, op, _, *rest in self.naive.replies:
            assert str(name).startswith(f"{self.term}."), "a reply to a link of an earlier term"
            if op == "A" and rest[0] not in self.tokens:
                token = rest[0]
                assert isinstance(token, int)
                assert token > max(self.tokens, default=0)
                self.tokens.append(token)
        self.naive.replies.clear()

    # What must hold whatever happened

    def check_state(self) -> None:
        for side in self.sides:
            self._check_tickets(side.table)
            self._check_waiters(side.table)
            self._check_counts(side.table)
        held = [key for ticket in self.naive.tickets for key in ticket.keys]
        assert len(held) == len(set(held))
        assert not any(self.naive.can_be_granted(waiter) for waiter in self.naive.waiters)
        joined = [waiter.joined for waiter in self.naive.waiters]
        assert joined == sorted(joined)

    def _check_tickets(self, table: LockTable) -> None:
        tickets = {}
        for slot in table.slots.values():
            ticket = slot.holder if isinstance(slot, Queue) else slot
            if ticket is not None:
                tickets[ticket[0]] = ticket
        found = sorted(
            (
                NaiveTicket(
                    number_of(token),
                    number_of(ticket[1]),
                    number_of(ticket[2]),
                    keys_of(ticket),
                    ticket[4][2],
                    ticket[4][1],
                    number_of(ticket[5]),
                )
                for token, ticket in tickets.items()
            ),
            key=lambda ticket: ticket.token,
        )
        assert found == sorted(self.naive.tickets, key=lambda ticket: ticket.token)
        for token, ticket in tickets.items():
            assert ticket[4][0][token] is ticket
            assert table.lease_end(ticket) == max(ticket[4][1], self.naive.floor)
        assert table.next_token == self.naive.next_token

    def _check_waiters(self, table: LockTable) -> None:
        found = [
            NaiveWaiter(
                number_of(waiter.client),
                number_of(waiter.request_id),
                waiter.keys,
                waiter.joined,
                Side.name_of(waiter.link) if waiter.link else None,
                waiter.arrived_ns,
                waiter.wait_end_ns if waiter.wait_bucket is not None else None,
                waiter.lease_ms,
                waiter.grace_end_ns if waiter.grace_bucket is not None else None,
                table.is_held_back(waiter),
                waiter.link is not None and waiter.link.leaves,
            )
            for waiter in table.line
        ]
        assert found == self.naive.waiters
        assert found == sorted(found, key=lambda waiter: waiter.joined)
        known = {id(waiter) for owner in table.waiting.values() for waiter in owner}
        assert known == {id(waiter) for waiter in table.line}
        for waiter in table.line:
            if waiter.link is not None:
                assert waiter.link.waiters[waiter.joined] is waiter

    def _check_counts(self, table: LockTable) -> None:
        naive = self.naive
        assert table.tickets == len(naive.tickets)
        assert table.held_keys == sum(len(ticket.keys) for ticket in naive.tickets)
        held_back = sum(waiter.is_held_back for waiter in naive.waiters)
        assert table.held_back == held_back
        assert table.attached == sum(w.link is not None for w in naive.waiters) - held_back
        assert table.detached == sum(waiter.link is None for waiter in naive.waiters)
        needed = {key for ticket in naive.tickets for key in ticket.keys}
        needed |= {key for waiter in naive.waiters for key in waiter.keys}
        assert set(table.slots) == needed
        connecting = {step[1] for step in self.steps if step[0] == "connect"}
        ending = {step[1] for step in self.steps if step[0] == "disconnect"} - set(self.older)
        known = {Side.name_of(link) for link in table.connections.values()}
        assert known == (set(self.present.values()) | ending) - connecting
