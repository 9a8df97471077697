"""What the lock table holds, and the moves between free, waited for and held.

`lock_table` decides which of these moves a command or a deadline makes. Everything here is as
deterministic as that: time is an argument, and nothing else is read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from struct import Struct
from typing import Any, NamedTuple

from ticketing_server import constants_gen as c
from ticketing_server.deadlines import Deadlines
from ticketing_server.engine import Event, Histogram
from ticketing_server.limits import Limits
from ticketing_server.queues import Line, Link, Queue, Waiter
from ticketing_server.wire import (
    DROPPED,
    GRANTED,
    OVERLOADED,
    TIMED_OUT,
    error,
)

MS = 1_000_000
_TOKENS_PER_BLOCK = 1024
_TOKENS_END = 1 << 64
_TOKEN_NUMBERS = Struct(f">{_TOKENS_PER_BLOCK}Q")
_TOKEN_BYTES = Struct("8s" * _TOKENS_PER_BLOCK)
_EVENTS_MAX = 1024
_U32 = Struct(">I")
_WAITED_MS_MAX = 0xFFFFFFFF
"""All that the field takes; a wait for ever may be longer, and told as less it does no harm."""

Ticket = tuple[bytes, bytes, bytes, Any, "Lease", bytes]
"""(token, owner's client id, request id, key or tuple of keys, lease, client id for drops)."""

Lease = tuple[dict[bytes, Ticket], int, int]
"""(bucket of its deadline, deadline, when it began); shared by the grants of one turn."""


def _lease_end(ticket: Ticket) -> int:
    return ticket[4][1]


def _wait_end(waiter: Waiter) -> int:
    return waiter.wait_end_ns


def _grace_end(waiter: Waiter) -> int:
    return waiter.grace_end_ns


def keys_of(ticket: Ticket) -> tuple[bytes, ...]:
    """Return the keys of a ticket."""
    keys = ticket[3]
    return keys if keys.__class__ is tuple else (keys,)


class Refused(NamedTuple):
    """A link that sent what no correct client sends; nothing more of it is applied."""

    link: Link
    frame: bytes


SECONDS = 1_000_000_000
_BOUNDS = tuple(
    int(seconds * SECONDS)
    for seconds in (
        0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300,
    )
)  # fmt: skip


def new_histogram() -> Histogram:
    """Return an empty histogram of waits or holds."""
    return Histogram(_BOUNDS, [0] * (len(_BOUNDS) + 1))


class TableState:
    """Keys, tickets, queues, leases and tokens; `LockTable` is what takes commands."""

    def __init__(self, first_token: int) -> None:
        self.slots: dict[bytes, Ticket | Queue] = {}
        """By key. A plain ticket where its one key has no queue, else a queue; absent where free
        and not waited for."""
        self.waiting: dict[bytes, list[Waiter]] = {}
        """Waiters by client id + request id, in the order of their first join."""
        self.line = Line()
        """All waiters in the order of their joining."""
        self.term = 0
        self.links: dict[bytes, Link] = {}
        """The connection of this term that each client has now."""
        self.connections: dict[int, Link] = {}
        """The connections of this term by number."""
        self.dirty: list[Link] = []
        self.refused: list[Refused] = []
        self.events: list[Event] = []
        self.first_token = first_token
        self._results: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._ended = dict.fromkeys(("released", "lease_over", "operator", "other_client"), 0)
        self._held = 0
        self._sample_at = 0
        self.handoffs = 0
        self.leases_too_long = 0
        self.set_tickets = 0
        self.set_ticket_keys = 0
        self.attached = 0
        self.held_back = 0
        self.detached = 0
        self.wait = {name: new_histogram() for name in ("granted", "timed_out", "cancelled")}
        self.hold = new_histogram()
        self._limits = Limits()
        self._grace_until: int | None = None
        self._configured = False
        self._next_token = first_token
        self._tokens: list[bytes] = []
        self._next_join = 1
        self._unheld = 0
        self._next_to_depart = self.line.end
        """The waiter that the slice of departures to come begins with."""
        self._leases: Deadlines[bytes, Ticket] = Deadlines(_lease_end)
        self._waits: Deadlines[int, Waiter] = Deadlines(_wait_end)
        self._graces: Deadlines[int, Waiter] = Deadlines(_grace_end)
        self._places: dict[bytes, dict[bytes, Ticket]] | None = None
        """Bucket by token, as of this turn's first look for a token alone that needed it."""
        self._looks = 0

    # State in numbers

    @property
    def held_keys(self) -> int:
        """How many keys are held."""
        return len(self.slots) - self._unheld

    @property
    def tickets(self) -> int:
        """How many tickets there are."""
        return self.held_keys - self.set_ticket_keys + self.set_tickets

    def results(self) -> dict[tuple[str, str], int]:
        """How many requests there were, by the names of op and result.

        What the fast path of `apply` did is not counted there: it is what is missing of all.
        """
        results = defaultdict(int, self._results)
        results["acquire", "granted"] += self._grants - self._held
        results["release", "released"] += self._released
        return dict(results)

    def ended(self) -> dict[str, int]:
        """How many tickets ended, by reason."""
        return self._ended | {"released": self._ended["released"] + self._released}

    @property
    def _grants(self) -> int:
        return self.next_token - self.first_token

    @property
    def _released(self) -> int:
        """Releases on the fast path."""
        return self._grants - self.tickets - sum(self._ended.values())

    @property
    def next_token(self) -> int:
        """The token of the next grant."""
        return self._next_token - len(self._tokens)

    # Tickets

    def ticket_of(self, key: bytes) -> Ticket | None:
        """Return the ticket that holds a key, if any."""
        slot = self.slots.get(key)
        return slot.holder if isinstance(slot, Queue) else slot

    def lease_end(self, ticket: Ticket) -> int:
        """Return when a ticket's lease ends, which is no earlier than the floor of its term."""
        return max(ticket[4][1], self._leases.floor_ns)

    def _mint(self) -> None:
        """Make the next block of tokens; the list is popped from its end."""
        first = self._next_token
        if first >= _TOKENS_END:
            raise OverflowError("every token has been given")
        self._next_token = end = min(first + _TOKENS_PER_BLOCK, _TOKENS_END)
        numbers = range(end - 1, first - 1, -1)
        if len(numbers) == _TOKENS_PER_BLOCK:
            self._tokens[:] = _TOKEN_BYTES.unpack(_TOKEN_NUMBERS.pack(*numbers))
        else:
            self._tokens[:] = [number.to_bytes(8, "big") for number in numbers]

    def _skip_tokens(self, floor: int) -> None:
        """Give no token below this any more."""
        skipped = floor - self.next_token
        if skipped > 0:
            self._tokens.clear()
            self._next_token = floor
            # The tokens in between were never given, so that they count as no grants.
            self.first_token += skipped

    def _lease(self, lease_ms: int, now: int) -> Lease:
        """Make the lease of a ticket that begins now."""
        deadline = now + lease_ms * MS
        return (self._leases.bucket(deadline), deadline, now)

    def _hold(
        self, keys: tuple[bytes, ...], client: bytes, request_id: bytes, lease: Lease
    ) -> bytes:
        """Make the ticket of free keys; return its token."""
        if not self._tokens:
            self._mint()
        token = self._tokens.pop()
        self._held += 1
        ticket: Ticket
        if len(keys) == 1:
            ticket = (token, client, request_id, keys[0], lease, client)
        else:
            ticket = (token, client, request_id, keys, lease, client)
            self.set_tickets += 1
            self.set_ticket_keys += len(keys)
        for key in keys:
            slot = self.slots.get(key)
            if isinstance(slot, Queue):
                slot.holder = ticket
                self._unheld -= 1
                self._settle(key, slot)
            elif len(keys) == 1:
                self.slots[key] = ticket
            else:
                queue = self.slots[key] = Queue()
                queue.holder = ticket
        lease[0][token] = ticket
        return token

    def _replace(self, ticket: Ticket, ended: int, began: int, client: bytes) -> None:
        """Give a ticket another lease and client; the rest of it stays."""
        token, owner, request_id, keys, (bucket, deadline, _), _ = ticket
        if ended != deadline:
            del bucket[token]
            bucket = self._leases.bucket(ended)
        changed: Ticket = (token, owner, request_id, keys, (bucket, ended, began), client)
        bucket[token] = changed
        for key in keys_of(ticket):
            slot = self.slots[key]
            if isinstance(slot, Queue):
                slot.holder = changed
            else:
                self.slots[key] = changed

    def _lease_again(self, ticket: Ticket, lease_ms: int, now: int) -> None:
        ended = max(self.lease_end(ticket), now + lease_ms * MS)
        self._replace(ticket, ended, now, ticket[5])

    def _end(self, ticket: Ticket, reason: str, now: int) -> None:
        """Take a ticket out of the table; its keys are free, and yet to be handed on."""
        token, _, _, _, (bucket, _, began), _ = ticket
        bucket.pop(token, None)
        keys = keys_of(ticket)
        if len(keys) > 1:
            self.set_tickets -= 1
            self.set_ticket_keys -= len(keys)
        for key in keys:
            slot = self.slots[key]
            if isinstance(slot, Queue):
                slot.holder = None
                self._unheld += 1
                self._settle(key, slot)
            else:
                del self.slots[key]
        self._ended[reason] += 1
        self.hold.add(now - began)

    def _end_by(self, link: Link, ticket: Ticket, now: int, freed: Iterable[bytes] = ()) -> None:
        """End a ticket at a client's wish, and hand its keys on, with others freed beside it."""
        if ticket[5] == link.client:
            self._end(ticket, "released", now)
        else:
            self._end(ticket, "other_client", now)
            self._drop(ticket, c.DROP_OTHER_CLIENT)
        self._hand_on((*keys_of(ticket), *freed), now)

    def _lease_over(self, ticket: Ticket, now: int) -> None:
        self._tell("lease_over", ticket, now)
        self._end(ticket, "lease_over", now)
        self._drop(ticket, c.DROP_LEASE_OVER)
        self._hand_on(keys_of(ticket), now)

    def _drop(self, ticket: Ticket, reason: int) -> None:
        link = self.links.get(ticket[5])
        if link is not None:
            self._reply(link, DROPPED, ticket[0], bytes((reason,)))

    # Waiters

    def _are_free(self, keys: tuple[bytes, ...]) -> bool:
        """Whether nobody holds any of these keys or queues for it attached or held back."""
        for key in keys:
            slot = self.slots.get(key)
            if slot is not None and not (isinstance(slot, Queue) and slot.is_free()):
                return False
        return True

    def _join(
        self,
        link: Link,
        op: str,
        request_id: bytes,
        keys: tuple[bytes, ...],
        wait_ms: int,
        lease_ms: int,
        now: int,
    ) -> None:
        """Put a waiter at the tail of the queue of each key."""
        if self.attached + self.held_back + self.detached >= self._limits.waiters:
            self._overloaded(link, op, request_id, "waiters")
            return
        limit = self._limits.waiters_per_key
        for key in keys:
            slot = self.slots.get(key)
            if isinstance(slot, Queue) and slot.attached + slot.detached >= limit:
                self._overloaded(link, op, request_id, "waiters_per_key")
                return
        waiter = Waiter(link.client, request_id, keys, self._next_join)
        self._next_join += 1
        self._take_place(waiter)
        self._enter(waiter, link, wait_ms, lease_ms, now)

    def _take_place(self, waiter: Waiter) -> None:
        """Put a new waiter, detached as yet, behind all others."""
        for key in waiter.keys:
            slot = self.slots.get(key)
            if not isinstance(slot, Queue):
                queue = self.slots[key] = Queue()
                queue.holder = slot
                self._unheld += slot is None
                slot = queue
            slot.detached += 1
        self.detached += 1
        self.waiting.setdefault(waiter.owner, []).append(waiter)
        self.line.add(waiter)

    def _enter(self, waiter: Waiter, link: Link, wait_ms: int, lease_ms: int, now: int) -> None:
        """Attach a detached waiter to a link, with the wait and lease it asks for now."""
        waiter.lease_ms = lease_ms
        waiter.arrived_ns = now
        if wait_ms != c.WAIT_MS_FOREVER:
            self._set_wait(waiter, now + wait_ms * MS)
        self._take_part(waiter, link)

    def _take_part(self, waiter: Waiter, link: Link) -> None:
        """Attach a detached waiter to a link."""
        waiter.link = link
        link.waiters[waiter.joined] = waiter
        for key in waiter.keys:
            self._queue(key).attach(waiter)
        self.attached += 1
        self.detached -= 1

    def _set_wait(self, waiter: Waiter, end_ns: int) -> None:
        waiter.wait_end_ns = end_ns
        waiter.wait_bucket = self._waits.bucket(end_ns)
        waiter.wait_bucket[waiter.joined] = waiter

    def _set_grace(self, waiter: Waiter, end_ns: int) -> None:
        waiter.grace_end_ns = end_ns
        waiter.grace_bucket = self._graces.bucket(end_ns)
        waiter.grace_bucket[waiter.joined] = waiter

    def is_held_back(self, waiter: Waiter) -> bool:
        """Whether a waiter's connection ended with its term, and it may yet come back."""
        return waiter.link is not None and waiter.link.term != self.term

    def _attach(self, waiter: Waiter, link: Link, wait_ms: int, lease_ms: int, now: int) -> None:
        """Take a re-sent acquire of a waiter: same place, new wait and lease, granted if it can."""
        if waiter.link is not None:
            self._pass_over(waiter)
        waiter.forget_deadlines()
        self._enter(waiter, link, wait_ms, lease_ms, now)
        if self._can_be_granted(waiter):
            self._grant(waiter, now)
        elif wait_ms == c.WAIT_MS_TRY:
            self._time_out(waiter, now)

    def _pass_over(self, waiter: Waiter) -> None:
        """Take an attached or held-back waiter from its link; it keeps its place."""
        link = waiter.link
        assert link is not None
        del link.waiters[waiter.joined]
        waiter.link = None
        for key in waiter.keys:
            self._queue(key).detach()
        if link.term == self.term:
            self.attached -= 1
        else:
            self.held_back -= 1
        self.detached += 1

    def _detach(self, waiter: Waiter, now: int) -> None:
        self._pass_over(waiter)
        self._set_grace(waiter, now + self._limits.reattach_grace_ms * MS)

    def _leave(self, waiter: Waiter) -> None:
        """Take a waiter out of every queue; who it kept back is yet to be looked at."""
        if waiter.link is not None:
            self._pass_over(waiter)
        waiter.forget_deadlines()
        self.detached -= 1
        if waiter is self._next_to_depart:
            self._next_to_depart = waiter.after
        self.line.remove(waiter)
        owner = self.waiting[waiter.owner]
        if len(owner) == 1:
            del self.waiting[waiter.owner]
        else:
            owner.remove(waiter)
        for key in waiter.keys:
            queue = self._queue(key)
            queue.detached -= 1
            self._settle(key, queue)

    def _wait_over(self, waiter: Waiter, now: int) -> None:
        if waiter.link is None:
            self._leave(waiter)
        elif waiter.link.term != self.term:
            self._leave(waiter)
            self._hand_on(waiter.keys, now)
        else:
            self._time_out(waiter, now)

    def _time_out(self, waiter: Waiter, now: int) -> None:
        link = waiter.link
        assert link is not None
        self._leave(waiter)
        self._reply(link, TIMED_OUT, waiter.request_id)
        self._results[waiter.op, "timed_out"] += 1
        self.wait["timed_out"].add(now - waiter.arrived_ns)
        self._hand_on(waiter.keys, now)

    def _can_be_granted(self, waiter: Waiter) -> bool:
        link = waiter.link
        if self._grace_until is not None or link is None or link.term != self.term:
            return False
        for key in waiter.keys:
            queue = self._queue(key)
            if queue.holder is not None or queue.first() is not waiter:
                return False
        return True

    def _hand_on(self, keys: Iterable[bytes], now: int) -> None:
        """Grant who now can be, after a change to these keys, oldest first.

        Only the first waiter of a changed key can have become grantable, and a grant makes
        nobody else so: those behind it wait for keys that are held now.
        """
        firsts = {}
        for key in keys:
            slot = self.slots.get(key)
            if isinstance(slot, Queue) and slot.holder is None:
                waiter = slot.first()
                if waiter is not None:
                    firsts[waiter.joined] = waiter
        for joined in sorted(firsts):
            if self._can_be_granted(firsts[joined]):
                self._grant(firsts[joined], now)

    def _grant(self, waiter: Waiter, now: int) -> None:
        link = waiter.link
        assert link is not None
        self._leave(waiter)
        lease = self._lease(waiter.lease_ms, now)
        token = self._hold(waiter.keys, waiter.client, waiter.request_id, lease)
        waited = now - waiter.arrived_ns
        waited_ms = _U32.pack(min(waited // MS, _WAITED_MS_MAX))
        self._reply(link, GRANTED, waiter.request_id, token, waited_ms)
        self._results[waiter.op, "granted"] += 1
        self.handoffs += 1
        self.wait["granted"].add(waited)

    def _queue(self, key: bytes) -> Queue:
        queue = self.slots[key]
        assert isinstance(queue, Queue)
        return queue

    def _settle(self, key: bytes, queue: Queue) -> None:
        """Keep only what a key needs: nothing, a plain ticket, or a queue."""
        if queue.attached or queue.detached:
            return
        holder = queue.holder
        if holder is None:
            del self.slots[key]
            self._unheld -= 1
        elif holder[3].__class__ is not tuple:
            self.slots[key] = holder

    # Replies

    def _reply(self, link: Link, *parts: bytes) -> None:
        """Reply to a link that may be another than the one whose command this is."""
        link.out += parts
        if not link.dirty:
            link.dirty = True
            self.dirty.append(link)

    def _overloaded(self, link: Link, op: str, request_id: bytes, resource: str) -> None:
        link.out += OVERLOADED, request_id
        self._results[op, "overloaded"] += 1
        if len(self.events) < _EVENTS_MAX:
            fields = {"resource": resource, "limit": getattr(self._limits, resource)}
            self.events.append(Event("limit_reached", fields))

    def _refuse_lease(self, link: Link, op: str, request_id: bytes, lease_ms: int) -> bool:
        self._results[op, "error"] += 1
        if c.LEASE_MS_MIN <= lease_ms <= c.LEASE_MS_MAX:
            text = f"lease_ms: got {lease_ms}, takes 1 to {self._limits.max_lease_ms} (max_lease)"
            link.out.append(error(c.ERROR_LEASE_TOO_LONG, text, request_id))
            self.leases_too_long += 1
            return True
        text = f"lease_ms: got {lease_ms}, takes {c.LEASE_MS_MIN} to {c.LEASE_MS_MAX}"
        link.broken = True
        self.refused.append(Refused(link, error(c.ERROR_BAD_FRAME, text, request_id)))
        return False

    def _tell(self, name: str, ticket: Ticket, now: int) -> None:
        if len(self.events) < _EVENTS_MAX:
            fields = {
                "keys": keys_of(ticket),
                "token": int.from_bytes(ticket[0], "big"),
                "client_id": int.from_bytes(ticket[5], "big"),
                "held_ns": now - ticket[4][2],
            }
            self.events.append(Event(name, fields))
