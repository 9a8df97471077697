"""The rules of the lock table (protocol.md §4) as a list interpreter: slow, and plain to read."""

from __future__ import annotations

from dataclasses import dataclass, field

MS = 1_000_000
FOREVER = 0xFFFFFFFF


@dataclass
class NaiveTicket:
    token: int
    client: int
    request_id: int
    keys: tuple[bytes, ...]
    begun: int
    deadline: int
    drops_to: int


@dataclass
class NaiveWaiter:
    client: int
    request_id: int
    keys: tuple[bytes, ...]
    joined: int
    link: str | None
    arrived: int
    wait_end: int | None
    lease_ms: int
    grace_end: int | None = None
    is_held_back: bool = False
    leaves: bool = False
    """Whether its link was of version 3; what a detached one had does not matter."""


@dataclass
class NaiveTable:
    next_token: int
    waiters_per_key: int
    waiters_max: int
    held_keys: int
    max_lease_ms: int
    reattach_grace_ms: int
    grace_until: int | None = None
    next_join: int = 1
    floor: int = 0
    """No lease ends before this."""
    held_until: int = 0
    older_below: int = 0
    departures: str = ""
    """What comes next: "leave" (version 3 now), "grace", "detach" (all of earlier terms)."""
    departs_from: int = 0
    """The join number that the next slice of them begins with."""
    looks_per_slice: int = 0
    looks_per_departure: int = 0
    tickets: list[NaiveTicket] = field(default_factory=list)
    waiters: list[NaiveWaiter] = field(default_factory=list)
    client_links: dict[int, str] = field(default_factory=dict)
    leaves: dict[str, bool] = field(default_factory=dict)
    """By link, whether it is of version 3."""
    replies: list[tuple[object, ...]] = field(default_factory=list)
    """(link, op, …), in the order in which they were made."""

    # Time

    def due(self) -> list[tuple[int, int, int, object]]:
        """Everything that has a time: (time, kind, order at the same time, what)."""
        due: list[tuple[int, int, int, object]] = []
        due += [(max(t.deadline, self.floor), 0, t.token, t) for t in self.tickets]
        due += [(w.wait_end, 1, w.joined, w) for w in self.waiters if w.wait_end is not None]
        due += [(w.grace_end, 2, w.joined, w) for w in self.waiters if w.grace_end is not None]
        if self.grace_until is not None:
            due.append((self.grace_until, 3, 0, None))
        if self.departures:
            due.append((self.held_until if self.departures == "grace" else 0, 4, 0, None))
        return sorted(due, key=lambda entry: entry[:3])

    def advance(self, now: int) -> None:
        has_sliced = False
        while True:
            due = [entry for entry in self.due() if not (has_sliced and entry[1] == 4)]
            if not due or due[0][0] > now:
                return
            _, kind, _, item = due[0]
            if isinstance(item, NaiveTicket):
                self.end(item, 1)
            elif isinstance(item, NaiveWaiter):
                self.waiters.remove(item)
                if kind == 1 and item.link is not None and not item.is_held_back:
                    self.replies.append((item.link, "T", item.request_id))
            elif kind == 3:
                self.grace_until = None
            else:
                self.depart(now)
                has_sliced = True
            self.hand_on(now)

    def depart(self, now: int) -> None:
        """One slice of the waiters of earlier terms leaves or detaches."""
        if self.departures == "grace":
            self.departures, self.departs_from = "detach", 0
        looks = self.looks_per_slice
        while looks > 0 and self.has_departures():
            waiter = next(w for w in self.waiters if w.joined >= self.departs_from)
            self.departs_from = waiter.joined + 1
            looks -= 1
            if waiter.is_held_back and (waiter.leaves or self.departures == "detach"):
                looks -= self.looks_per_departure
                if waiter.leaves:
                    self.waiters.remove(waiter)
                else:
                    self.detach(waiter, now)
        if not self.has_departures():
            is_grace_next = self.departures == "leave" and any(w.is_held_back for w in self.waiters)
            self.departures = "grace" if is_grace_next else ""

    def has_departures(self) -> bool:
        left = any(self.departs_from <= w.joined < self.older_below for w in self.waiters)
        return left and any(w.is_held_back for w in self.waiters)

    def detach(self, waiter: NaiveWaiter, now: int) -> None:
        waiter.link, waiter.is_held_back, waiter.leaves = None, False, False
        waiter.grace_end = now + self.reattach_grace_ms * MS

    # What is so

    def holder(self, key: bytes) -> NaiveTicket | None:
        return next((ticket for ticket in self.tickets if key in ticket.keys), None)

    def is_free(self, keys: tuple[bytes, ...]) -> bool:
        return self.grace_until is None and not any(
            self.holder(key) or any(w.link is not None and key in w.keys for w in self.waiters)
            for key in keys
        )

    def can_be_granted(self, waiter: NaiveWaiter) -> bool:
        if self.grace_until is not None or waiter.link is None or waiter.is_held_back:
            return False
        for key in waiter.keys:
            if self.holder(key):
                return False
            queue = [w for w in self.waiters if key in w.keys and w.link is not None]
            if queue[0] is not waiter:
                return False
        return True

    # What is done

    def hand_on(self, now: int) -> None:
        while True:
            waiter = next((w for w in self.waiters if self.can_be_granted(w)), None)
            if waiter is None:
                return
            self.waiters.remove(waiter)
            waited_ms = (now - waiter.arrived) // MS
            self.grant(waiter.link, waiter.client, waiter.request_id, waiter.keys, now,
                       waiter.lease_ms, waited_ms)  # fmt: skip

    def grant(
        self,
        link: str | None,
        client: int,
        request_id: int,
        keys: tuple[bytes, ...],
        now: int,
        lease_ms: int,
        waited_ms: int,
    ) -> None:
        token = self.next_token
        self.next_token += 1
        deadline = now + lease_ms * MS
        self.tickets.append(NaiveTicket(token, client, request_id, keys, now, deadline, client))
        self.replies.append((link, "A", request_id, token, waited_ms))

    def end(self, ticket: NaiveTicket, drop: int | None) -> None:
        self.tickets.remove(ticket)
        link = self.client_links.get(ticket.drops_to)
        if drop is not None and link is not None:
            self.replies.append((link, "D", ticket.token, drop))

    # Commands

    def acquire(
        self,
        link: str,
        client: int,
        request_id: int,
        keys: tuple[bytes, ...],
        wait_ms: int,
        lease_ms: int,
        now: int,
    ) -> None:
        owner = (client, request_id, keys)
        for ticket in self.tickets:
            if (ticket.client, ticket.request_id, ticket.keys) == owner:
                ticket.begun = now
                ticket.deadline = max(ticket.deadline, self.floor, now + lease_ms * MS)
                self.replies.append((link, "A", request_id, ticket.token, 0))
                return
        wait_end = None if wait_ms == FOREVER else now + wait_ms * MS
        for waiter in self.waiters:
            if (waiter.client, waiter.request_id, waiter.keys) == owner:
                waiter.link, waiter.arrived, waiter.lease_ms = link, now, lease_ms
                waiter.is_held_back, waiter.leaves = False, self.leaves[link]
                waiter.wait_end, waiter.grace_end = wait_end, None
                self.hand_on(now)
                if waiter in self.waiters and wait_ms == 0:
                    self.waiters.remove(waiter)
                    self.replies.append((link, "T", request_id))
                    self.hand_on(now)
                return
        if lease_ms > self.max_lease_ms:
            self.replies.append((link, "E", request_id, 2))
            return
        queues = [[w for w in self.waiters if key in w.keys] for key in keys]
        if self.is_free(keys):
            if sum(len(t.keys) for t in self.tickets) + len(keys) > self.held_keys:
                self.replies.append((link, "B", request_id))
            else:
                self.grant(link, client, request_id, keys, now, lease_ms, 0)
        elif wait_ms == 0:
            self.replies.append((link, "T", request_id))
        elif len(self.waiters) >= self.waiters_max or any(
            len(queue) >= self.waiters_per_key for queue in queues
        ):
            self.replies.append((link, "B", request_id))
        else:
            joined = self.next_join
            self.next_join += 1
            waiter = NaiveWaiter(client, request_id, keys, joined, link, now, wait_end, lease_ms)
            waiter.leaves = self.leaves[link]
            self.waiters.append(waiter)

    def release(
        self, link: str, client: int, request_id: int, token: int, key: bytes, now: int
    ) -> None:
        ticket = self.holder(key)
        if ticket is None or ticket.token != token:
            self.replies.append((link, "N", request_id))
            return
        self.replies.append((link, "R", request_id))
        self.end(ticket, None if ticket.drops_to == client else 3)
        self.hand_on(now)

    def release_keys(
        self,
        link: str,
        client: int,
        request_id: int,
        token: int,
        keys: tuple[bytes, ...],
        now: int,
    ) -> None:
        ticket = next((ticket for ticket in self.tickets if ticket.token == token), None)
        if ticket is None:
            self.replies.append((link, "N", request_id))
        elif ticket.keys != keys:
            self.replies.append((link, "other keys", request_id))
        else:
            self.release(link, client, request_id, token, keys[0], now)

    def extend(
        self,
        link: str,
        client: int,
        request_id: int,
        token: int,
        lease_ms: int,
        key: bytes,
        now: int,
    ) -> None:
        if lease_ms > self.max_lease_ms:
            self.replies.append((link, "E", request_id, 2))
            return
        ticket = self.holder(key)
        if ticket is None or ticket.token != token:
            self.replies.append((link, "N", request_id))
            return
        ticket.deadline = max(ticket.deadline, self.floor, now + lease_ms * MS)
        ticket.drops_to = client
        self.replies.append((link, "X", request_id, (ticket.deadline - now) // MS))

    def cancel(
        self, link: str, client: int, request_id: int, acquire_id: int, key: bytes, now: int
    ) -> None:
        self.replies.append((link, "C", request_id))
        for waiter in list(self.waiters):
            if (waiter.client, waiter.request_id) == (client, acquire_id) and key in waiter.keys:
                self.waiters.remove(waiter)
        ticket = self.holder(key)
        if ticket and (ticket.client, ticket.request_id) == (client, acquire_id):
            self.end(ticket, None if ticket.drops_to == client else 3)
        self.hand_on(now)

    def connect(self, link: str, client: int, leaves: bool) -> None:
        self.client_links[client] = link
        self.leaves[link] = leaves

    def disconnect(self, link: str, client: int, now: int) -> None:
        if self.client_links.get(client) == link:
            del self.client_links[client]
        for waiter in list(self.waiters):
            if waiter.link == link and not waiter.is_held_back:
                if waiter.leaves:
                    self.waiters.remove(waiter)
                else:
                    self.detach(waiter, now)
        self.hand_on(now)

    def begin_term(self, failover_grace_ms: int, token_floor: int, now: int) -> None:
        self.client_links.clear()
        for waiter in self.waiters:
            waiter.is_held_back = waiter.link is not None
        self.held_until = now + failover_grace_ms * MS
        self.floor = max(self.floor, self.held_until)
        if token_floor < 1 << 63:
            self.next_token = max(self.next_token, token_floor)
        self.older_below = self.next_join
        self.departs_from = 0
        self.departures = "leave" if any(w.is_held_back for w in self.waiters) else ""

    def force_release(self, token: int, key: bytes, now: int) -> None:
        ticket = self.holder(key)
        if ticket and ticket.token == token:
            self.end(ticket, 2)
            self.hand_on(now)
