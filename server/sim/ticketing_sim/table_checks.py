"""What must hold of a lock table after each step, found by looking at all of it.

The tables of a simulation are small, so that a look at everything costs little; what is compared
are two views, and what was asked for between them. How the table came from one to the other is
not looked at: a rule that could be broken and mended again within one step is not seen.
"""

from __future__ import annotations

from collections.abc import Iterable

from ticketing_server import lock_table, wire

from ticketing_sim.schedule import Broken
from ticketing_sim.table_view import ATTACHED, DETACHED, HELD_BACK, Owner, SeenWaiter, View


class Asked:
    """What the commands of one step named."""

    def __init__(self) -> None:
        self.acquired: set[tuple[bytes, bytes]] = set()
        """Client and request id of acquires."""
        self.cancelled: set[tuple[bytes, bytes]] = set()
        """Client and request id of acquires that were cancelled."""
        self.released: set[int] = set()
        """Tokens named in releases, forced ones too."""
        self.ended_links: set[tuple[int, int]] = set()
        self.began_term = False


def asked_by(runs: Iterable[lock_table.Run]) -> Asked:
    """Return what the runs of one step ask for."""
    asked = Asked()
    for link, commands in runs:
        for op, request_id, word, _ in commands:
            if op in (wire.ACQUIRE, wire.ACQUIRE_SET):
                asked.acquired.add((link.client, request_id))
            elif op == wire.CANCEL:
                asked.cancelled.add((link.client, word))
            elif op in (wire.RELEASE, lock_table.RELEASE_KEYS, lock_table.FORCE_RELEASE):
                asked.released.add(int.from_bytes(word, "big"))
            elif op == lock_table.DISCONNECT:
                asked.ended_links.add((link.term, link.number))
    return asked


class TableChecks:
    """Follows one table, or one log's."""

    def __init__(self) -> None:
        self.before: View | None = None
        self.granted: dict[int, Owner] = {}
        """Owner of each token ever given."""
        self.ended: set[int] = set()
        self.highest = 0
        """Greatest token ever given."""

    def after(self, seen: View, now_ns: int, asked: Asked) -> None:
        """Take what a table has after a step at this time."""
        _is_whole(seen)
        _grants_who_can_be(seen)
        before = self.before
        self.before = seen
        if before is None:
            before = View({}, {}, {}, 0, True)
        for ticket in seen.tickets.values():
            if ticket.deadline_ns <= now_ns and not asked.began_term:
                raise Broken(f"{ticket} is there after its end, at {now_ns}")
        self._tickets(before, seen, now_ns, asked)
        _waiters(before, seen, now_ns, asked)
        if seen.next_token < before.next_token:
            raise Broken(f"the next token falls from {before.next_token} to {seen.next_token}")

    def _tickets(self, before: View, seen: View, now_ns: int, asked: Asked) -> None:
        for token, ticket in seen.tickets.items():
            if token in before.tickets:
                if before.tickets[token].owner != ticket.owner:
                    raise Broken(f"{ticket} was {before.tickets[token]}")
                continue
            if token in self.granted:
                raise Broken(f"token {token} is given twice: {ticket}, {self.granted[token]}")
            if token < before.next_token:
                raise Broken(f"token {token} is given, and the next one was {before.next_token}")
            if ticket.began_ns != now_ns:
                raise Broken(f"{ticket} is given at {now_ns}")
            self.granted[token] = ticket.owner
            _passes_nobody(before, seen, ticket.owner, asked)
        new = seen.tickets.keys() - before.tickets.keys()
        if new:
            if min(new) <= self.highest:
                raise Broken(f"token {min(new)} is given after {self.highest}")
            self.highest = max(new)
        for token, ticket in before.tickets.items():
            if token not in seen.tickets:
                self.ended.add(token)
                owner = ticket.owner[:2]
                is_asked = token in asked.released or owner in asked.cancelled
                if not is_asked and ticket.deadline_ns > now_ns:
                    raise Broken(f"{ticket} is gone at {now_ns}, and nobody asked for it")


def _is_whole(seen: View) -> None:
    for ticket in seen.tickets.values():
        for key in ticket.owner[2]:
            if seen.holders.get(key) != ticket.token:
                raise Broken(f"{ticket} is half held: {key!r} is {seen.holders.get(key)}'s")
    for key, token in seen.holders.items():
        if key not in seen.tickets[token].owner[2]:
            raise Broken(f"{key!r} is held by {seen.tickets[token]}")
    owners = [waiter.owner for waiter in seen.waiters.values()]
    owners += [ticket.owner for ticket in seen.tickets.values()]
    if len(set(owners)) != len(owners):
        raise Broken(f"an owner is there twice: {sorted(owners)}")


def _grants_who_can_be(seen: View) -> None:
    """Nobody waits who could be granted."""
    if not seen.is_free_to_grant:
        return
    taken = set(seen.holders)
    for waiter in seen.waiters.values():
        if waiter.state != DETACHED:
            if waiter.state == ATTACHED and taken.isdisjoint(waiter.keys):
                raise Broken(f"{waiter} could be granted, and waits")
            taken.update(waiter.keys)


def _stayed(before: View, seen: View) -> Iterable[SeenWaiter]:
    """Return who was attached or held back all the time."""
    for joined, waiter in seen.waiters.items():
        was = before.waiters.get(joined)
        if was is None or DETACHED in (was.state, waiter.state):
            continue
        if was.link == waiter.link and was.arrived_ns == waiter.arrived_ns:
            yield waiter


def _passes_nobody(before: View, seen: View, owner: Owner, asked: Asked) -> None:
    """First come, first served, for who got a ticket in this step."""
    places = [waiter for waiter in before.waiters.values() if waiter.owner == owner]
    if places and places[0].state == HELD_BACK and owner[:2] not in asked.acquired:
        raise Broken(f"{places[0]} is granted before it came back")
    joined = places[0].joined if places else None
    for waiter in _stayed(before, seen):
        is_before = joined is None or waiter.joined < joined
        if is_before and not set(waiter.keys).isdisjoint(owner[2]):
            raise Broken(f"{owner} is granted and passes {waiter}")


def _waiters(before: View, seen: View, now_ns: int, asked: Asked) -> None:
    """Nobody is lost, and nobody keeps a place too long."""
    granted = {
        ticket.owner for token, ticket in seen.tickets.items() if token not in before.tickets
    }
    for joined, waiter in before.waiters.items():
        now = seen.waiters.get(joined)
        if now is not None:
            if now.owner != waiter.owner:
                raise Broken(f"{waiter} became {now}")
            continue
        owner = waiter.owner[:2]
        ends = [end for end in (waiter.wait_end_ns, waiter.grace_end_ns) if end is not None]
        is_told = owner in asked.cancelled or owner in asked.acquired
        is_gone = waiter.link in asked.ended_links or (waiter.leaves and waiter.state == HELD_BACK)
        is_granted = waiter.owner in granted or waiter.keys == () or _was_granted(seen, before)
        if not (is_told or is_gone or is_granted or any(end <= now_ns for end in ends)):
            raise Broken(f"{waiter} is lost at {now_ns}")


def _was_granted(seen: View, before: View) -> bool:
    """Whether a ticket began and ended within the step, which may have been anybody's."""
    return seen.next_token - before.next_token > len(seen.tickets.keys() - before.tickets.keys())
