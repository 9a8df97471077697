"""What is in a lock table, read whole: tickets, waiters and who queues for what."""

from __future__ import annotations

from typing import NamedTuple

from ticketing_server.lock_table import LockTable
from ticketing_server.queues import Queue, Waiter
from ticketing_server.table_state import keys_of

ATTACHED = "attached"
HELD_BACK = "held back"
DETACHED = "detached"

Owner = tuple[bytes, bytes, tuple[bytes, ...]]
"""Client id, request id, keys."""


class SeenTicket(NamedTuple):
    """A ticket."""

    token: int
    owner: Owner
    deadline_ns: int
    began_ns: int
    client: bytes
    """Who is told of its end."""


class SeenWaiter(NamedTuple):
    """A waiter."""

    joined: int
    owner: Owner
    state: str
    link: tuple[int, int] | None
    """Term and number of the connection it is attached to, or was."""
    arrived_ns: int
    wait_end_ns: int | None
    grace_end_ns: int | None
    leaves: bool
    """Whether it can't come back once its connection ended."""

    @property
    def keys(self) -> tuple[bytes, ...]:
        """What it waits for."""
        return self.owner[2]


class View(NamedTuple):
    """One table at one moment."""

    tickets: dict[int, SeenTicket]
    """By token."""
    holders: dict[bytes, int]
    """Token by key, as the keys have it."""
    waiters: dict[int, SeenWaiter]
    """By join number, rising."""
    next_token: int
    is_free_to_grant: bool
    """Whether no grace keeps all keys."""

    @property
    def has_held_back(self) -> bool:
        """Whether some wait for who may come back after a change of leaders."""
        return any(waiter.state == HELD_BACK for waiter in self.waiters.values())


def view(table: LockTable) -> View:
    """Read a table."""
    tickets: dict[int, SeenTicket] = {}
    holders: dict[bytes, int] = {}
    for key, slot in table.slots.items():
        ticket = slot.holder if isinstance(slot, Queue) else slot
        if ticket is not None:
            token = int.from_bytes(ticket[0], "big")
            holders[key] = token
            owner = (ticket[1], ticket[2], keys_of(ticket))
            tickets[token] = SeenTicket(
                token, owner, table.lease_end(ticket), ticket[4][2], ticket[5]
            )
    waiters = [
        SeenWaiter(
            waiter.joined,
            (waiter.client, waiter.request_id, waiter.keys),
            _state(table, waiter),
            None if waiter.link is None else (waiter.link.term, waiter.link.number),
            waiter.arrived_ns,
            waiter.wait_end_ns if waiter.wait_bucket is not None else None,
            waiter.grace_end_ns if waiter.grace_bucket is not None else None,
            waiter.link is not None and waiter.link.leaves,
        )
        for owned in table.waiting.values()
        for waiter in owned
    ]
    waiters.sort()
    return View(
        tickets, holders, {waiter.joined: waiter for waiter in waiters}, table.next_token,
        table._grace_until is None,
    )  # fmt: skip


def _state(table: LockTable, waiter: Waiter) -> str:
    if waiter.link is None:
        return DETACHED
    return HELD_BACK if table.is_held_back(waiter) else ATTACHED
