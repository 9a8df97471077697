"""Requests: their ids and bytes, what is unanswered, and how each is settled exactly once."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ticketing import _constants_gen as c
from ticketing._core.codec import Malformed
from ticketing._core.effects import Effect, Settled
from ticketing.errors import TicketingError
from ticketing.events import Key

if TYPE_CHECKING:
    from ticketing._core.deadlines import Deadlines
    from ticketing._core.link import Link
    from ticketing._core.tickets import HeldTicket

ACQUIRES = frozenset((c.OP_ACQUIRE, c.OP_ACQUIRE_SET))
ALWAYS_RESENT = frozenset((c.OP_RELEASE, c.OP_CANCEL))


class Purpose(enum.Enum):
    """What an extend is for; it decides what its reply does."""

    CALLER = "caller"
    """The program asked for it."""
    RENEWAL = "renewal"
    """The client's own: at a third of the lease, or to learn what ended while it was away."""
    CONFIRM = "confirm"
    """After a long wait, before the ticket is handed out."""
    ADOPT = "adopt"
    """Makes a ticket out of a reference."""


class Request:
    """One request over all its sendings. It keeps its id and its bytes."""

    __slots__ = (
        "acquire_id",
        "auto_extend",
        "bound_ns",
        "called_ns",
        "due_ns",
        "frame",
        "id",
        "keys",
        "lease_ms",
        "op",
        "purpose",
        "queued_ns",
        "sendings",
        "sent_serial",
        "settled",
        "shown_keys",
        "ticket",
        "token",
        "wait_ms",
        "waiter",
        "warn_ns",
    )

    def __init__(self, op: int, waiter: Any, called_ns: int) -> None:
        self.op = op
        self.waiter = waiter
        self.called_ns = called_ns
        self.id = 0
        self.frame = b""
        self.queued_ns = 0
        """The moment before the newest sending was queued."""
        self.sendings = 0
        """How often bytes of it were handed to a socket."""
        self.sent_serial = 0
        """The connection of the newest sending; only there a reply can come."""
        self.settled = False
        self.bound_ns: int | None = None
        """When the client ends it by itself."""
        self.warn_ns: int | None = None
        self.due_ns: int | None = None
        self.keys: Sequence[bytes] = ()
        self.shown_keys: tuple[Key, ...] = ()
        self.wait_ms = 0
        self.lease_ms = 0
        self.auto_extend = False
        self.ticket: HeldTicket | None = None
        self.purpose = Purpose.CALLER
        self.token = 0
        """Of an adoption: the ticket's token."""
        self.acquire_id = 0
        """Of a cancel: the acquire that it undoes."""


class RequestTable:
    """What is unanswered, in id order."""

    def __init__(self, effects: list[Effect], deadlines: Deadlines) -> None:
        self._effects = effects
        self._deadlines = deadlines
        self._next_id = 1
        self.link: Link
        self.unanswered: dict[int, Request] = {}

    def take_id(self) -> int:
        """The next id: a counter of the client's requests over all its connections."""
        request_id = self._next_id
        self._next_id += 1
        return request_id

    def issue(self, request: Request, now_ns: int) -> None:
        """Put a request on its way: at once where that is possible, else once connected."""
        self.unanswered[request.id] = request
        link = self.link
        if link.ready:
            request.queued_ns = now_ns
            link.outgoing.append(request)
        else:
            link.start(now_ns)

    def queue_again(self, now_ns: int) -> None:
        """On a new connection: everything unanswered that was not given up, in id order."""
        outgoing = self.link.outgoing
        for request in self.unanswered.values():
            request.queued_ns = now_ns
            outgoing.append(request)

    def forget_given_up(self) -> None:
        """The connection is gone on which a given-up request could still have had its reply."""
        self.unanswered = {
            request_id: request
            for request_id, request in self.unanswered.items()
            if not request.settled or request.op in ALWAYS_RESENT
        }

    def take_output(self, now_ns: int) -> bytes:
        """The bytes to write now, all in one piece; what they carry counts as handed over."""
        link = self.link
        outgoing = link.outgoing
        if not outgoing:
            return b""
        serial = link.serial
        parts: list[bytes] = []
        for item in outgoing:
            if item.__class__ is bytes:
                parts.append(item)
                continue
            assert isinstance(item, Request)
            if item.settled and item.op not in ALWAYS_RESENT:
                continue  # It was given up before a byte of it was written here.
            item.sendings += 1
            item.sent_serial = serial
            parts.append(item.frame)
        outgoing.clear()
        if parts:
            link.wrote(now_ns)
        return b"".join(parts)

    def match(self, request_id: int, ops: frozenset[int]) -> Request:
        """The request that a reply is for; raises Malformed where there is none."""
        request = self.unanswered.get(request_id)
        if request is None or request.sent_serial != self.link.serial or request.op not in ops:
            raise Malformed("state", f"a reply to request {request_id}, which can't have one")
        return request

    def answered(self, request_id: int, ops: frozenset[int]) -> Request:
        """Take out the request that a reply is for; raises Malformed where there is none."""
        request = self.match(request_id, ops)
        del self.unanswered[request_id]
        self.link.answered()
        if request.due_ns is not None:
            self._deadlines.set(request, None)
        return request

    def settle(self, request: Request, value: Any, error: TicketingError | None = None) -> None:
        """Give the caller its result; a request that has its result already keeps it."""
        if request.settled:
            return
        request.settled = True
        if request.due_ns is not None:
            self._deadlines.set(request, None)
        if request.waiter is not None:
            self._effects.append(Settled(request.waiter, value, error))
            request.waiter = None

    def withdraw(self, request: Request) -> None:
        """Drop a given-up request, unless its reply can still come on this connection."""
        if not request.sendings or request.sent_serial != self.link.serial or not self.link.ready:
            self.unanswered.pop(request.id, None)
