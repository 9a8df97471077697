"""The lock table as bytes, and back: what a snapshot keeps.

An image has all that `LockTable.apply` depends on and nothing else: no counter, no histogram, no
reply that is not sent yet. It is canonical: tables in the same state have the same image, whatever
they went through, so images can be compared. Tickets are in the order of their tokens, waiters in
that of their joining, connections in that of their numbers; integers are big-endian; what does not
apply (the end of a wait for ever) is 0.

This module alone reaches into what a table keeps to itself.
"""

from __future__ import annotations

from operator import itemgetter
from struct import Struct
from typing import Any

from ticketing_server import constants_gen as c
from ticketing_server.limits import Limits
from ticketing_server.lock_table import HELD_BACK_DETACH, LEAVERS_LEAVE, LockTable
from ticketing_server.queues import AFTER_ALL, Link, Queue, Waiter
from ticketing_server.table_state import Lease, Ticket, keys_of

IMAGE_VERSION = 1

_LIMITS = (
    "connections",
    "handshakes",
    "waiters_per_key",
    "waiters",
    "held_keys",
    "unsent_bytes",
    "max_lease_ms",
    "keepalive_s",
    "reattach_grace_ms",
    "restart_grace_ms",
)
"""In the order of an image; another field of `Limits` needs another version."""

_VERSION = Struct(">B")
_LIMIT_NUMBERS = Struct(f">{len(_LIMITS)}Q")
_HEAD = Struct(">BQQQQBQQQQIII")
"""Flags, end of the restart grace, term, floor of leases, end of holding back, departures to come,
waiter that they begin with, join number above those of earlier terms, last token given, next join
number, and how many connections, tickets and waiters follow."""
_CONNECTION = Struct(">Q8sB")
"""Number, client, flags."""
_TICKET = Struct(">8s8s8s8sQQ")
"""Token, owner's client and request id, client for drops, end and beginning of the lease."""
_WAITER = Struct(">Q8s8sBQQQQQI")
"""Join number, client, request id, flags, term and number of its connection, arrival, end of wait,
end of reattach grace, lease."""

_IS_CONFIGURED, _HAS_RESTART_GRACE = 1, 2
_LEAVES, _IS_BROKEN, _IS_ITS_CLIENTS = 1, 2, 4
_HAS_LINK, _LINK_LEAVES, _HAS_WAIT = 1, 2, 4


def dump(table: LockTable) -> bytes:
    """Return the image of a table."""
    tickets = _tickets_of(table)
    grace = table._grace_until
    image = bytearray(_VERSION.pack(IMAGE_VERSION))
    image += _LIMIT_NUMBERS.pack(*(getattr(table._limits, name) for name in _LIMITS))
    image += _HEAD.pack(
        _IS_CONFIGURED * table._configured + _HAS_RESTART_GRACE * (grace is not None),
        grace or 0,
        table.term,
        table._leases.floor_ns,
        table._held_until,
        table._departures,
        _number_of(table._next_to_depart),
        table._older_below,
        table.next_token - 1,
        table._next_join,
        len(table.connections),
        len(tickets),
        table.attached + table.held_back + table.detached,
    )
    for _, link in sorted(table.connections.items()):
        is_its_clients = table.links.get(link.client) is link
        flags = _LEAVES * link.leaves + _IS_BROKEN * link.broken + _IS_ITS_CLIENTS * is_its_clients
        image += _CONNECTION.pack(link.number, link.client, flags)
    for ticket in tickets:
        token, owner, request_id, _, (_, deadline, began), client = ticket
        image += _TICKET.pack(token, owner, request_id, client, deadline, began)
        _put_keys(image, keys_of(ticket))
    for waiter in table.line:
        _put_waiter(image, waiter)
        _put_keys(image, waiter.keys)
    return bytes(image)


def load(image: bytes) -> LockTable:
    """Return the table of an image; `ValueError` says what is wrong with it."""
    return _Loader(image).load()


def _tickets_of(table: LockTable) -> list[Ticket]:
    """Return every ticket once, in the order of their tokens."""
    found: dict[bytes, Ticket] = {}
    for slot in table.slots.values():
        ticket = slot.holder if isinstance(slot, Queue) else slot
        if ticket is not None:
            found[ticket[0]] = ticket
    return sorted(found.values(), key=itemgetter(0))


def _number_of(waiter: Waiter) -> int:
    """Return a waiter's join number, 0 for what comes after the last one."""
    return waiter.joined % AFTER_ALL


def _put_waiter(image: bytearray, waiter: Waiter) -> None:
    link = waiter.link
    has_wait = waiter.wait_bucket is not None
    flags = _HAS_WAIT * has_wait
    if link is not None:
        flags += _HAS_LINK + _LINK_LEAVES * link.leaves
    image += _WAITER.pack(
        waiter.joined,
        waiter.client,
        waiter.request_id,
        flags,
        link.term if link is not None else 0,
        link.number if link is not None else 0,
        waiter.arrived_ns,
        waiter.wait_end_ns if has_wait else 0,
        waiter.grace_end_ns if waiter.grace_bucket is not None else 0,
        waiter.lease_ms,
    )


def _put_keys(image: bytearray, keys: tuple[bytes, ...]) -> None:
    image.append(len(keys))
    for key in keys:
        image.append(len(key))
        image += key


class _Loader:
    """Reads one image, from its beginning to its end."""

    def __init__(self, image: bytes) -> None:
        self._image = image
        self._at = 0
        self._at_what: tuple[str, int | bytes] = ("byte", 0)
        """What is read just now: a name and a number of it, or a token."""
        self._last_token = bytes(8)
        self._token_max = b""
        self._older: dict[tuple[int, int], Link] = {}
        """Connections of earlier terms that still have waiters."""

    def load(self) -> LockTable:
        (version,) = self._take(_VERSION)
        if version != IMAGE_VERSION:
            raise self._wrong(f"version {version}, this reads {IMAGE_VERSION}")
        limits = Limits(**dict(zip(_LIMITS, self._take(_LIMIT_NUMBERS), strict=True)))
        (
            flags, grace, term, floor, held_until, departures, next_to_depart, older_below,
            last_token, next_join, connections, tickets, waiters,
        ) = self._take(_HEAD)  # fmt: skip
        self._check(flags <= _IS_CONFIGURED + _HAS_RESTART_GRACE, "unknown flags")
        has_grace = bool(flags & _HAS_RESTART_GRACE)
        self._check(has_grace or not grace, "end of a restart grace that does not run")
        self._token_max = last_token.to_bytes(8, "big")
        table = LockTable(last_token + 1)
        table._limits = limits
        table._configured = bool(flags & _IS_CONFIGURED)
        table._grace_until = grace if has_grace else None
        table.term = term
        table._leases.floor_ns = floor
        table._held_until = held_until
        table._older_below = older_below
        self._check(departures <= HELD_BACK_DETACH, "unknown departures")
        self._check(older_below <= next_join, "earlier terms had later waiters")
        has_next = departures in (LEAVERS_LEAVE, HELD_BACK_DETACH)
        self._check(has_next or not next_to_depart, "departures that are not under way")
        table._plan_departures(departures)
        for _ in range(connections):
            self._connection(table)
        for _ in range(tickets):
            self._ticket(table)
        # As if these were all that were ever given, so that counters begin at 0.
        table.first_token -= tickets
        table._held = tickets
        for _ in range(waiters):
            waiter = self._waiter(table)
            if waiter.joined == next_to_depart:
                table._next_to_depart = waiter
        self._at_what = ("byte", self._at)
        self._check(table._next_join <= next_join, "next join number was given")
        table._next_join = next_join
        begins_with = _number_of(table._next_to_depart)
        self._check(begins_with == next_to_depart, "departures begin with nobody")
        self._check(self._at == len(self._image), "too many bytes")
        return table

    def _connection(self, table: LockTable) -> None:
        number, client, flags = self._take(_CONNECTION)
        self._at_what = ("connection", number)
        self._check(number > next(reversed(table.connections), -1), "out of order")
        self._check(flags <= _LEAVES + _IS_BROKEN + _IS_ITS_CLIENTS, "unknown flags")
        link = Link(table.term, number, client, leaves=bool(flags & _LEAVES))
        link.broken = bool(flags & _IS_BROKEN)
        table.connections[number] = link
        if flags & _IS_ITS_CLIENTS:
            self._check(client not in table.links, "its client has another")
            table.links[client] = link

    def _ticket(self, table: LockTable) -> None:
        token, owner, request_id, client, deadline, began = self._take(_TICKET)
        self._at_what = ("ticket", token)
        keys = self._keys()
        self._check(self._last_token < token <= self._token_max, "out of order")
        self._last_token = token
        slots = table.slots
        bucket = table._leases.bucket(deadline)
        lease: Lease = (bucket, deadline, began)
        ticket: Ticket
        if len(keys) == 1:
            key = keys[0]
            self._check(key not in slots, "its key is held already")
            ticket = (token, owner, request_id, key, lease, client)
            slots[key] = ticket
        else:
            ticket = (token, owner, request_id, keys, lease, client)
            table.set_tickets += 1
            table.set_ticket_keys += len(keys)
            for key in keys:
                self._check(key not in slots, "one of its keys is held already")
                queue = slots[key] = Queue()
                queue.holder = ticket
        bucket[token] = ticket

    def _waiter(self, table: LockTable) -> Waiter:
        (
            joined, client, request_id, flags, term, number,
            arrived, wait_end, grace_end, lease_ms,
        ) = self._take(_WAITER)  # fmt: skip
        self._at_what = ("waiter", joined)
        check = self._check
        check(table._next_join <= joined < AFTER_ALL, "out of order")
        table._next_join = joined + 1
        waiter = Waiter(client, request_id, self._keys(), joined)
        for other in table.waiting.get(waiter.owner, ()):
            check(other.keys != waiter.keys, "is there twice")
        waiter.lease_ms = lease_ms
        waiter.arrived_ns = arrived
        table._take_place(waiter)
        check(flags <= _HAS_LINK + _LINK_LEAVES + _HAS_WAIT, "unknown flags")
        if flags & _HAS_WAIT:
            table._set_wait(waiter, wait_end)
        else:
            check(not wait_end, "end of a wait for ever")
        if flags & _HAS_LINK:
            check(not grace_end, "reattach grace of one that is not detached")
            leaves = bool(flags & _LINK_LEAVES)
            table._take_part(waiter, self._link(table, waiter, term, number, leaves))
            if term != table.term:
                table.attached -= 1
                table.held_back += 1
        else:
            check(not (term or number or flags & _LINK_LEAVES), "detached, but has a connection")
            table._set_grace(waiter, grace_end)
        return waiter

    def _link(self, table: LockTable, waiter: Waiter, term: int, number: int, leaves: bool) -> Link:
        """Return the connection of a waiter."""
        if term == table.term:
            link = table.connections.get(number)
        else:
            is_older = term < table.term and waiter.joined < table._older_below
            self._check(is_older, "of a term that was not")
            link = self._older.get((term, number))
            if link is None:
                link = self._older[term, number] = Link(term, number, waiter.client, leaves=leaves)
        if link is None or link.leaves != leaves or link.client != waiter.client:
            raise self._wrong("unlike its connection")
        return link

    def _keys(self) -> tuple[bytes, ...]:
        image = self._image
        at = self._at
        # What is cut short fails here or below: nothing is longer than what is left of it.
        count = image[at] if at < len(image) else 0
        self._check(1 <= count <= c.SET_KEYS_MAX, "unknown number of keys")
        at += 1
        keys = []
        last = b""
        for _ in range(count):
            length = image[at] if at < len(image) else 0
            key = image[at + 1 : at + 1 + length]
            self._check(len(key) == length <= c.KEY_BYTES_MAX and key > last, "wrong keys")
            at += 1 + length
            last = key
            keys.append(key)
        self._at = at
        return tuple(keys)

    def _take(self, layout: Struct) -> tuple[Any, ...]:
        at = self._at
        self._at += layout.size
        self._check(self._at <= len(self._image), "ends too soon")
        return layout.unpack_from(self._image, at)

    def _check(self, is_so: object, text: str) -> None:
        if not is_so:
            raise self._wrong(text)

    def _wrong(self, text: str) -> ValueError:
        what, number = self._at_what
        if isinstance(number, bytes):
            number = int.from_bytes(number, "big")
        return ValueError(f"image of a lock table: {what} {number}: {text}")
