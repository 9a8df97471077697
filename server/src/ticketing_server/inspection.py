"""What administration and metrics see of an engine: pages of its state, and its counters."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge, nsmallest
from itertools import chain, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Literal

from ticketing_server.constants_gen import ERROR_LEASE_TOO_LONG, SET_KEYS_MAX
from ticketing_server.engine import (
    ConnectionInfo,
    Counters,
    Info,
    Inspected,
    KeyInfo,
    Page,
    TicketInfo,
    WaiterInfo,
)
from ticketing_server.lock_table import LockTable
from ticketing_server.queues import Queue, Waiter
from ticketing_server.table_state import Ticket, keys_of

if TYPE_CHECKING:
    from ticketing_server.connection_engine import ConnectionEngine

LOOKS_PER_STEP = 4_096
"""How many keys or waiters `walk` looks at before others get their turn: some milliseconds."""
INFOS_PER_STEP = 512
_TOKEN = itemgetter(0)


def inspect(
    engine: ConnectionEngine,
    what: Inspected,
    after: bytes | int | None,
    limit: int,
    key: bytes | None = None,
) -> list[Info]:
    """Return one page; see `Engine.inspect`."""
    if key is not None and what != "connections":
        return _of_key(engine, what, after, limit, key)
    if what == "tickets":
        after_token = (after if isinstance(after, int) else 0).to_bytes(8, "big")
        later = (ticket for ticket in _tickets(engine.table) if ticket[0] > after_token)
        return [_ticket(engine, ticket) for ticket in nsmallest(limit, later, key=itemgetter(0))]
    if what == "waiters":
        joined = after if isinstance(after, int) else 0
        waiters = (waiter for waiter in engine.table.line if waiter.joined > joined)
        return [_waiter(engine, waiter) for waiter in islice(waiters, limit)]
    if what == "keys":
        after_key = after if isinstance(after, bytes) else b""
        keys = nsmallest(limit, (found for found in engine.table.slots if found > after_key))
        return [_key(engine.table, found) for found in keys]
    number = after if isinstance(after, int) else -1
    return list(islice(_connections(engine, number), limit))


def _of_key(
    engine: ConnectionEngine, what: Inspected, after: bytes | int | None, limit: int, key: bytes
) -> list[Info]:
    """Return what concerns one key; tickets and keys without a look at any other."""
    table = engine.table
    if key not in table.slots or limit < 1:
        return []
    if what == "keys":
        is_next = not isinstance(after, bytes) or key > after
        return [_key(table, key)] if is_next else []
    number = after if isinstance(after, int) else 0
    if what == "tickets":
        ticket = table.ticket_of(key)
        is_next = ticket is not None and int.from_bytes(ticket[0], "big") > number
        return [_ticket(engine, ticket)] if ticket is not None and is_next else []
    if not isinstance(table.slots[key], Queue):
        return []
    waiters = (w for w in table.line if w.joined > number and key in w.keys)
    return [_waiter(engine, waiter) for waiter in islice(waiters, limit)]


def walk_tickets(
    engine: ConnectionEngine, after: int, limit: int, key: bytes | None
) -> Iterator[Page | None]:
    """Make a page of tickets in steps; see `Engine.walk`."""
    table = engine.table
    after_token = after.to_bytes(8, "big")
    keys = list(table.slots) if key is None else [key]
    runs: list[list[Ticket]] = []
    for begin in range(0, len(keys), LOOKS_PER_STEP):
        if begin:
            yield None
        run = []
        for found in keys[begin : begin + LOOKS_PER_STEP]:
            ticket = table.ticket_of(found)
            if ticket is None or ticket[0] <= after_token:
                continue
            # A set is found at its first key, unless one of them was asked for.
            if key is not None or keys_of(ticket)[0] == found:
                run.append(ticket)
        run.sort(key=_TOKEN)
        runs.append(run[: limit + 1])
    first = list(islice(merge(*runs, key=_TOKEN), limit + 1))
    infos: list[Info] = []
    for place, ticket in enumerate(first[:limit], start=1):
        now = table.ticket_of(keys_of(ticket)[0])
        if now is not None and now[0] == ticket[0]:
            infos.append(_ticket(engine, now))
        if place % INFOS_PER_STEP == 0:
            yield None
    is_last = len(first) <= limit
    yield Page(infos, None if is_last else int.from_bytes(first[limit - 1][0], "big"))


def walk_waiters(
    engine: ConnectionEngine, after: int, limit: int, key: bytes | None
) -> Iterator[Page | None]:
    """Make a page of waiters in steps; see `Engine.walk`."""
    line = engine.table.line
    passed = [line.end]
    found: list[Waiter] = []
    waiter, looks = line.end.after, 0
    while waiter is not line.end and len(found) <= limit:
        if waiter.joined > after:
            after = waiter.joined
            if key is None or key in waiter.keys:
                found.append(waiter)
        looks += 1
        if looks % LOOKS_PER_STEP == 0:
            passed.append(waiter)
            yield None
            # It goes on behind the last one of these that is still there.
            while not _is_in(passed[-1]):
                passed.pop()
            waiter = passed[-1]
        waiter = waiter.after
    infos: list[Info] = []
    for place, waiter in enumerate(found[:limit], start=1):
        if _is_in(waiter):
            infos.append(_waiter(engine, waiter))
        if place % INFOS_PER_STEP == 0:
            yield None
    yield Page(infos, None if len(found) <= limit else found[limit - 1].joined)


def _is_in(waiter: Waiter) -> bool:
    """Whether a waiter is still in the line: one that left it has no neighbours."""
    return hasattr(waiter, "after")


def overview(engine: ConnectionEngine, limit: int) -> tuple[list[TicketInfo], list[WaiterInfo]]:
    """Return what is looked at most; see `Engine.overview`."""
    slots = engine.table.slots
    waiters = list(islice(engine.table.line, limit))
    wanted = (key for waiter in waiters for key in waiter.keys)
    found: dict[bytes, Ticket] = {}
    for key in chain(wanted, islice(slots, limit * SET_KEYS_MAX)):
        slot = slots.get(key)
        ticket = slot.holder if isinstance(slot, Queue) else slot
        if ticket is not None:
            found[ticket[0]] = ticket
        if len(found) == limit:
            break
    tickets = [_ticket(engine, ticket) for ticket in found.values()]
    return tickets, [_waiter(engine, waiter) for waiter in waiters]


def _tickets(table: LockTable) -> Iterator[Ticket]:
    """Every ticket once: a set at its first key."""
    for key, slot in table.slots.items():
        ticket = slot.holder if isinstance(slot, Queue) else slot
        if ticket is not None and keys_of(ticket)[0] == key:
            yield ticket


def _ticket(engine: ConnectionEngine, ticket: Ticket) -> TicketInfo:
    token, owner, _, _, (_, _, began), client = ticket
    connection = engine.connection_of(client)
    return TicketInfo(
        int.from_bytes(token, "big"),
        keys_of(ticket),
        int.from_bytes(owner, "big"),
        int.from_bytes(client, "big"),
        connection.number if connection else None,
        connection.label if connection else "",
        connection.peer.address if connection else "",
        max(0, engine.now_ns - began),
        max(0, engine.table.lease_end(ticket) - engine.now_ns),
    )


def _waiter(engine: ConnectionEngine, waiter: Waiter) -> WaiterInfo:
    link = waiter.link
    connection = engine.connections.get(link.number) if link else None
    if connection is not None and connection.link is not link:
        # Another node's connection of the same number.
        connection = None
    state: Literal["attached", "held_back", "detached"] = "attached" if link else "detached"
    if engine.table.is_held_back(waiter):
        state = "held_back"
    left = max(0, waiter.wait_end_ns - engine.now_ns) if waiter.wait_bucket is not None else None
    return WaiterInfo(
        waiter.joined,
        waiter.keys,
        int.from_bytes(waiter.client, "big"),
        state,
        link.number if link else None,
        connection.label if connection else "",
        connection.peer.address if connection else "",
        max(0, engine.now_ns - waiter.arrived_ns),
        left,
    )


def _key(table: LockTable, key: bytes) -> KeyInfo:
    slot = table.slots[key]
    if isinstance(slot, Queue):
        token = int.from_bytes(slot.holder[0], "big") if slot.holder else None
        return KeyInfo(key, token, slot.attached, slot.detached)
    return KeyInfo(key, int.from_bytes(slot[0], "big"), 0, 0)


def _connections(engine: ConnectionEngine, after: int) -> Iterator[ConnectionInfo]:
    for number, connection in engine.connections.items():
        link = connection.link
        if link is not None and number > after and not connection.closing:
            yield ConnectionInfo(
                number,
                connection.peer,
                int.from_bytes(link.client, "big"),
                connection.hello_number,
                connection.label,
                connection.secret,
                len(link.waiters),
                connection.paused,
            )


def counters(engine: ConnectionEngine) -> Counters:
    """Return the numbers behind the metrics; see `Engine.counters`."""
    table = engine.table
    grants = table.next_token - table.first_token
    oldest = next(iter(table.line), None)
    waited_for = {key for waiter in table.line for key in waiter.keys}
    queues = (slot for slot in map(table.slots.get, waited_for) if isinstance(slot, Queue))
    errors = dict(engine.errors)
    if table.leases_too_long:
        errors[ERROR_LEASE_TOO_LONG] = table.leases_too_long
    return Counters(
        requests=table.results(),
        errors=errors,
        grants_immediate=grants - table.handoffs,
        grants_handoff=table.handoffs,
        tickets_ended=table.ended(),
        tickets=table.tickets,
        held_keys=table.held_keys,
        waiters_attached=table.attached,
        waiters_held_back=table.held_back,
        waiters_detached=table.detached,
        longest_queue=max((queue.attached + queue.detached for queue in queues), default=0),
        oldest_waiter_age_ns=max(0, engine.now_ns - oldest.arrived_ns) if oldest else 0,
        wait=dict(table.wait),
        hold=table.hold,
        connections={kind: count for kind, count in engine.welcomed.items() if count},
        handshakes=len(engine.handshaking),
        connections_closed=dict(engine.closed),
        handshake_failures=dict(engine.handshake_failures),
        received_bytes=engine.received_bytes,
        sent_bytes=engine.sent_bytes,
        draining=engine.draining,
    )
