"""Tickets: lease arithmetic, extending, losing, releasing, handing over and adopting."""

from __future__ import annotations

import enum
import weakref
from typing import TYPE_CHECKING, Any

from ticketing import _constants_gen as c
from ticketing._core.arguments import format_reference
from ticketing._core.codec import extend_frame, release_frame
from ticketing._core.effects import Effect, Log, Notify, Settled, TicketEnded
from ticketing._core.requests import Purpose, Request
from ticketing.errors import (
    ClosedError,
    LostError,
    LostReason,
    NotHeldError,
    ReplyTimeoutError,
    TicketingError,
)
from ticketing.events import Extended, Granted, Lost, Released

if TYPE_CHECKING:
    from ticketing._core.deadlines import Deadlines
    from ticketing._core.requests import RequestTable
    from ticketing._core.settings import CoreSettings

_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000


class TicketState(enum.Enum):
    """Where a ticket is in its life."""

    CONFIRMING = "confirming"
    """Granted after so long a wait that an extend must first say what is left."""
    HELD = "held"
    RELEASING = "releasing"
    RELEASED = "released"
    LOST = "lost"
    HANDED_OVER = "handed over"
    CLOSED = "closed"
    """The client ended, or this process is a child of the ticket's."""


class HeldTicket:
    """A granted acquisition as the core sees it; the shells' tickets stand in front of it."""

    __slots__ = (
        "__weakref__",
        "acquire",
        "acquire_id",
        "auto_extend",
        "deferred",
        "due_ns",
        "expires_ns",
        "extend_ns",
        "extending",
        "gone",
        "granted_ns",
        "hand_over_waiter",
        "keys",
        "lease_ms",
        "listeners",
        "lost_reason",
        "release_error",
        "release_request",
        "release_waiters",
        "shown_keys",
        "state",
        "token",
    )

    def __init__(self, token: int, request: Request, now_ns: int) -> None:
        self.token = token
        self.keys = tuple(request.keys)
        self.shown_keys = request.shown_keys
        self.lease_ms = request.lease_ms
        self.auto_extend = request.auto_extend
        self.acquire_id = request.id
        self.acquire: Request | None = request
        """The acquire whose caller still waits for this ticket."""
        self.granted_ns = now_ns
        self.expires_ns = 0
        self.state = TicketState.CONFIRMING
        self.due_ns: int | None = None
        self.extend_ns: int | None = None
        """When the client extends by itself next."""
        self.extending: Request | None = None
        """The one extend that is unanswered."""
        self.deferred: list[Request] = []
        """Extends of callers that wait for that one."""
        self.hand_over_waiter: Any = None
        self.lost_reason: LostReason | None = None
        self.gone = False
        """The server has said that the ticket ended: nothing more is sent about it."""
        self.release_request: Request | None = None
        self.release_waiters: list[Any] = []
        self.release_error: TicketingError | None = None
        self.listeners: list[Any] = []
        """What the shell calls when the ticket is no longer held."""


def margin_ns(sum_ns: int) -> int:
    """What two clocks may differ by over this time: 0.2 %, rounded up."""
    return -(-sum_ns * c.CLIENT_EXPIRY_MARGIN_PER_MILLE // 1000)


def lost_error(ticket: HeldTicket) -> LostError:
    """The error that a caller sees for a lost ticket."""
    reason = ticket.lost_reason or LostReason.EXPIRED
    return LostError(
        f"the ticket for {name_of(ticket)} with token {ticket.token} is lost ({reason.value})",
        reason,
    )


def not_held_error(ticket: HeldTicket) -> TicketingError | None:
    """The error that a caller sees for a ticket that ended in another way; None while held."""
    if ticket.state is TicketState.CLOSED:
        return ClosedError(f"the client of the ticket for {name_of(ticket)} is closed")
    if ticket.state is not TicketState.HELD or ticket.hand_over_waiter is not None:
        was = "handed over" if ticket.hand_over_waiter is not None else ticket.state.value
        return NotHeldError(f"the ticket for {name_of(ticket)} is {was}")
    return None


def name_of(subject: HeldTicket | Request) -> str:
    """The keys of a ticket or of an acquire, as a message shows them."""
    return ", ".join(repr(key) for key in subject.shown_keys)


class TicketDesk:
    """All tickets of one client, by token."""

    def __init__(
        self,
        settings: CoreSettings,
        requests: RequestTable,
        deadlines: Deadlines,
        effects: list[Effect],
    ) -> None:
        self._settings = settings
        self._requests = requests
        self._deadlines = deadlines
        self._effects = effects
        self.held: dict[int, HeldTicket] = {}
        """Held tickets, those that are being confirmed included."""
        self.held_keys: dict[bytes, int] = {}
        """Keys of held tickets, with their tokens."""
        self._expired: weakref.WeakValueDictionary[int, HeldTicket] = weakref.WeakValueDictionary()
        """Lost by the clock alone: a D about one of them still means something."""

    # Beginning.

    def granted(self, request: Request, token: int, waited_ms: int, now_ns: int) -> None:
        """An acquire was answered with A and its caller still wants it."""
        ticket = self._enter(token, request, now_ns)
        lease_ns = ticket.lease_ms * _NS_PER_MS
        sum_ns = waited_ms * _NS_PER_MS + lease_ns
        margin = margin_ns(sum_ns)
        if margin * c.CLIENT_LONG_WAIT_DIVISOR > lease_ns:
            self._send_extend(ticket, ticket.lease_ms, Purpose.CONFIRM, now_ns)
            self._deadlines.set(request, request.bound_ns)  # The caller still waits.
            return
        ticket.expires_ns = request.queued_ns + sum_ns - margin
        if ticket.auto_extend:
            begin_ns = request.queued_ns + waited_ms * _NS_PER_MS
            ticket.extend_ns = begin_ns + lease_ns // c.CLIENT_EXTEND_DIVISOR
        self._hand_out(ticket, now_ns)

    def adopted(self, request: Request, lease_ms: int, now_ns: int) -> None:
        """The extend of an adoption was answered with X."""
        if request.token in self.held:
            error = NotHeldError(f"this client holds token {request.token} already")
            self._requests.settle(request, None, error)
            return
        ticket = self._enter(request.token, request, now_ns)
        self._prolong(ticket, request.queued_ns, lease_ms)
        self._hand_out(ticket, now_ns)

    def _enter(self, token: int, request: Request, now_ns: int) -> HeldTicket:
        ticket = HeldTicket(token, request, now_ns)
        request.ticket = ticket
        self._take_in(ticket)
        return ticket

    def _take_in(self, ticket: HeldTicket) -> None:
        self.held[ticket.token] = ticket
        for key in ticket.keys:
            self.held_keys[key] = ticket.token

    def _hand_out(self, ticket: HeldTicket, now_ns: int) -> None:
        request = ticket.acquire
        assert request is not None
        if now_ns >= ticket.expires_ns:
            ticket.lost_reason = LostReason.EXPIRED
            self._leave(ticket, TicketState.LOST)
            self._requests.settle(request, None, lost_error(ticket))
            return
        ticket.state = TicketState.HELD
        ticket.granted_ns = now_ns
        ticket.acquire = None
        self._set_due(ticket)
        self._requests.settle(request, ticket)
        if self._settings.observed:
            waited_s = (now_ns - request.called_ns) / _NS_PER_S
            self._effects.append(Notify(Granted(ticket.shown_keys, ticket.token, waited_s)))

    # Time.

    def _set_due(self, ticket: HeldTicket) -> None:
        due_ns = ticket.expires_ns if ticket.state is TicketState.HELD else None
        extend_ns = ticket.extend_ns
        if extend_ns is not None and ticket.extending is None:
            due_ns = extend_ns if due_ns is None or extend_ns < due_ns else due_ns
        if due_ns != ticket.due_ns:
            self._deadlines.set(ticket, due_ns)

    def due(self, ticket: HeldTicket, now_ns: int) -> None:
        """Time for the next extend, or the end."""
        if self.lose_if_over(ticket, now_ns):
            return
        extend_ns = ticket.extend_ns
        if extend_ns is not None and now_ns >= extend_ns and ticket.extending is None:
            self._extend_by_itself(ticket, now_ns)
        self._set_due(ticket)

    def lose_if_over(self, ticket: HeldTicket, now_ns: int) -> bool:
        """Whether the ticket is lost; one whose time has come is lost now."""
        if ticket.state is TicketState.HELD and now_ns >= ticket.expires_ns:
            self._expired[ticket.token] = ticket
            self.lose(ticket, LostReason.EXPIRED)
        return ticket.state is TicketState.LOST

    def _prolong(self, ticket: HeldTicket, queued_ns: int, lease_ms: int) -> None:
        left_ns = lease_ms * _NS_PER_MS
        ticket.expires_ns = max(ticket.expires_ns, queued_ns + left_ns - margin_ns(left_ns))
        ticket.extend_ns = None
        if ticket.auto_extend:
            third_ns = ticket.lease_ms * _NS_PER_MS // c.CLIENT_EXTEND_DIVISOR
            ticket.extend_ns = queued_ns + third_ns

    # Extending.

    def extend(self, ticket: HeldTicket, lease_ms: int, waiter: Any, now_ns: int) -> Request:
        """A caller's extend; it waits for one that is under way."""
        request = Request(c.OP_EXTEND, waiter, now_ns)
        request.ticket = ticket
        request.lease_ms = lease_ms
        error = self._not_usable(ticket, now_ns)
        if error is not None:
            self._requests.settle(request, None, error)
        elif ticket.extending is not None:
            ticket.deferred.append(request)
        else:
            self._issue_extend(ticket, request, now_ns)
        return request

    def _not_usable(self, ticket: HeldTicket, now_ns: int) -> TicketingError | None:
        if self.lose_if_over(ticket, now_ns):
            return lost_error(ticket)
        return not_held_error(ticket)

    def _extend_by_itself(self, ticket: HeldTicket, now_ns: int) -> None:
        ticket.extend_ns = None
        if ticket.state is TicketState.CONFIRMING:
            self._send_extend(ticket, ticket.lease_ms, Purpose.CONFIRM, now_ns)
        else:
            lease_ms = ticket.lease_ms if ticket.auto_extend else c.LEASE_MS_MIN
            self._send_extend(ticket, lease_ms, Purpose.RENEWAL, now_ns)

    def _send_extend(
        self, ticket: HeldTicket, lease_ms: int, purpose: Purpose, now_ns: int
    ) -> None:
        request = Request(c.OP_EXTEND, None, now_ns)
        request.ticket = ticket
        request.lease_ms = lease_ms
        request.purpose = purpose
        self._issue_extend(ticket, request, now_ns)

    def _issue_extend(self, ticket: HeldTicket, request: Request, now_ns: int) -> None:
        request.id = self._requests.take_id()
        request.frame = extend_frame(request.id, ticket.token, request.lease_ms, ticket.keys[0])
        request.bound_ns = request.called_ns + self._settings.reply_timeout_ms * _NS_PER_MS
        ticket.extending = request
        self._deadlines.set(request, request.bound_ns)
        self._requests.issue(request, now_ns)

    def extend_answered(self, request: Request, lease_ms: int, now_ns: int) -> None:
        """X: the lease goes on."""
        ticket = request.ticket
        assert ticket is not None
        if ticket.extending is request:
            ticket.extending = None
        if request.settled:
            self.extend_settled(ticket, now_ns)
            return
        if ticket.state is TicketState.CONFIRMING:
            self._prolong(ticket, request.queued_ns, lease_ms)
            self._requests.settle(request, None)
            self._hand_out(ticket, now_ns)
            return
        if self.lose_if_over(ticket, now_ns):
            self._requests.settle(request, None, lost_error(ticket))
            return
        if ticket.state is TicketState.HELD:
            self._prolong(ticket, request.queued_ns, lease_ms)
            if self._settings.observed:
                left_s = max(0, ticket.expires_ns - now_ns) / _NS_PER_S
                self._effects.append(Notify(Extended(ticket.shown_keys, ticket.token, left_s)))
        self._requests.settle(request, None)
        self.extend_settled(ticket, now_ns)

    def extend_refused(self, request: Request, now_ns: int) -> None:
        """N to an extend: the ticket is gone."""
        ticket = request.ticket
        assert ticket is not None
        if ticket.extending is request:
            ticket.extending = None
        if request.settled:
            self.extend_settled(ticket, now_ns)
            return
        if ticket.state in (TicketState.HELD, TicketState.CONFIRMING):
            ticket.gone = True
            self.lose(ticket, LostReason.NOT_HELD)
        error = NotHeldError(f"the ticket for {name_of(ticket)} was released")
        self._requests.settle(
            request, None, lost_error(ticket) if ticket.state is TicketState.LOST else error
        )

    def extend_failed(self, request: Request, error: TicketingError, now_ns: int) -> None:
        """An extend ended without X or N; where the client needs it, a new one follows."""
        ticket = request.ticket
        assert ticket is not None
        self._requests.settle(request, None, error)
        if ticket.extending is request:
            ticket.extending = None
            needed = ticket.auto_extend or request.purpose is not Purpose.CALLER
            if needed and ticket.state in (TicketState.HELD, TicketState.CONFIRMING):
                ticket.extend_ns = now_ns + c.CLIENT_EXTEND_RETRY_MS * _NS_PER_MS
        self.extend_settled(ticket, now_ns)

    def extend_settled(self, ticket: HeldTicket, now_ns: int) -> None:
        """Nothing is unanswered now: go on with what had to wait for that."""
        if ticket.hand_over_waiter is not None and ticket.extending is None:
            waiter, ticket.hand_over_waiter = ticket.hand_over_waiter, None
            if ticket.state is TicketState.HELD:
                self._finish_hand_over(ticket, waiter)
        while ticket.deferred and ticket.extending is None:
            request = ticket.deferred.pop(0)
            if request.settled:
                continue
            error = self._not_usable(ticket, now_ns)
            bound_ns = request.called_ns + self._settings.reply_timeout_ms * _NS_PER_MS
            if error is None and now_ns >= bound_ns:
                error = ReplyTimeoutError("an extend before this one had no answer in time")
            if error is not None:
                self._requests.settle(request, None, error)
            else:
                self._issue_extend(ticket, request, now_ns)
        self._set_due(ticket)

    def queue_after_reconnect(self, now_ns: int) -> None:
        """In token order, an extend for each held ticket that has none unanswered."""
        for token in sorted(self.held):
            ticket = self.held[token]
            if not self.lose_if_over(ticket, now_ns) and ticket.extending is None:
                self._extend_by_itself(ticket, now_ns)
                self._set_due(ticket)

    # Losing.

    def dropped(self, token: int, reason: LostReason) -> None:
        """D: the ticket ended without its client. An unknown token means nothing."""
        ticket = self.held.get(token)
        if ticket is not None:
            ticket.gone = True
            self.lose(ticket, reason)
            return
        expired = self._expired.pop(token, None)
        if expired is not None:
            expired.gone = True

    def lose(self, ticket: HeldTicket, reason: LostReason) -> None:
        """The ticket is lost: say so once, to everybody who waits for it or on it."""
        ticket.lost_reason = reason
        self._leave(ticket, TicketState.LOST)
        error = lost_error(ticket)
        if ticket.acquire is not None:
            self._requests.settle(ticket.acquire, None, error)
            ticket.acquire = None
            return
        self._effects.append(Log("warning", str(error)))
        if self._settings.observed:
            self._effects.append(Notify(Lost(ticket.shown_keys, ticket.token, reason)))
        self._fail_waiting(ticket, error)

    def _fail_waiting(self, ticket: HeldTicket, error: TicketingError) -> None:
        """End the calls that wait for something of a ticket that is no longer held."""
        if ticket.extending is not None:
            self._requests.settle(ticket.extending, None, error)
            self._requests.withdraw(ticket.extending)
            ticket.extending = None
        for request in ticket.deferred:
            self._requests.settle(request, None, error)
        ticket.deferred.clear()
        if ticket.hand_over_waiter is not None:
            self._effects.append(Settled(ticket.hand_over_waiter, None, error))
            ticket.hand_over_waiter = None

    def _leave(self, ticket: HeldTicket, state: TicketState) -> None:
        """The ticket is no longer held."""
        ticket.state = state
        self.held.pop(ticket.token, None)
        for key in ticket.keys:
            if self.held_keys.get(key) == ticket.token:
                del self.held_keys[key]
        ticket.extend_ns = None
        if ticket.due_ns is not None:
            self._deadlines.set(ticket, None)
        if ticket.listeners:
            self._effects.append(TicketEnded(ticket))

    # Releasing.

    def release(self, ticket: HeldTicket, waiter: Any, now_ns: int) -> None:
        """Release once; every further call gets what the first one gets."""
        lost = self.lose_if_over(ticket, now_ns)
        state = ticket.state
        error: TicketingError | None = None
        if ticket.release_request is not None:
            if not ticket.release_request.settled:
                if waiter is not None:
                    ticket.release_waiters.append(waiter)
                return
            error = ticket.release_error
        elif lost and ticket.gone:
            error = lost_error(ticket)
        elif state is TicketState.CLOSED:
            error = ClosedError(f"the client of the ticket for {name_of(ticket)} is closed")
        elif state in (TicketState.HELD, TicketState.LOST, TicketState.CONFIRMING):
            if waiter is not None:
                ticket.release_waiters.append(waiter)
            self._send_release(ticket, now_ns)
            return
        if waiter is not None:
            self._effects.append(Settled(waiter, None, error))

    def _send_release(self, ticket: HeldTicket, now_ns: int) -> None:
        if ticket.state is TicketState.LOST:
            self._expired.pop(ticket.token, None)
            ticket.release_error = lost_error(ticket)
        else:
            self._leave(ticket, TicketState.RELEASING)
            if ticket.hand_over_waiter is not None or ticket.deferred:
                unanswered, ticket.extending = ticket.extending, None
                self._fail_waiting(ticket, NotHeldError(f"{name_of(ticket)} was released"))
                ticket.extending = unanswered
        request = Request(c.OP_RELEASE, None, now_ns)
        request.ticket = ticket
        request.id = self._requests.take_id()
        request.frame = release_frame(request.id, ticket.token, ticket.keys[0])
        request.bound_ns = max(
            ticket.expires_ns, now_ns + c.CLIENT_RELEASE_BOUND_MS_MIN * _NS_PER_MS
        )
        ticket.release_request = request
        self._deadlines.set(request, request.bound_ns)
        self._requests.issue(request, now_ns)

    def release_answered(self, request: Request, released: bool, now_ns: int) -> None:
        """R, or N; an N after an earlier sending only says that the earlier one did it."""
        ticket = request.ticket
        assert ticket is not None
        if request.settled:
            return
        if released or request.sendings > 1:
            self.release_ended(request, None, now_ns)
        else:
            ticket.lost_reason = ticket.lost_reason or LostReason.NOT_HELD
            self.release_ended(request, lost_error(ticket), now_ns)

    def release_ended(self, request: Request, error: TicketingError | None, now_ns: int) -> None:
        """Tell everybody who waits for this release; a ticket that was lost before stays lost."""
        ticket = request.ticket
        assert ticket is not None
        self._requests.settle(request, None)
        if ticket.release_error is None:
            ticket.release_error = error
        if ticket.state is TicketState.RELEASING:
            ticket.state = TicketState.RELEASED
            if self._settings.observed and ticket.release_error is None:
                held_s = (now_ns - ticket.granted_ns) / _NS_PER_S
                self._effects.append(Notify(Released(ticket.shown_keys, ticket.token, held_s)))
        for waiter in ticket.release_waiters:
            self._effects.append(Settled(waiter, None, ticket.release_error))
        ticket.release_waiters.clear()

    # Handing over.

    def hand_over(self, ticket: HeldTicket, waiter: Any, now_ns: int) -> None:
        """End this client's part in the ticket, once nothing about it is unanswered."""
        error = self._not_usable(ticket, now_ns)
        if error is not None:
            self._effects.append(Settled(waiter, None, error))
        elif ticket.extending is not None:
            ticket.hand_over_waiter = waiter
        else:
            self._finish_hand_over(ticket, waiter)

    def stop_hand_over(self, ticket: HeldTicket, waiter: Any, now_ns: int) -> None:
        """The caller never saw the reference: the ticket stays here, or comes back."""
        if ticket.hand_over_waiter is waiter:
            ticket.hand_over_waiter = None
        elif ticket.state is TicketState.HANDED_OVER and ticket.token not in self.held:
            self._take_in(ticket)
            ticket.state = TicketState.HELD
            if ticket.auto_extend:
                ticket.extend_ns = now_ns
            self._set_due(ticket)

    def _finish_hand_over(self, ticket: HeldTicket, waiter: Any) -> None:
        self._leave(ticket, TicketState.HANDED_OVER)
        reference = format_reference(ticket.token, ticket.keys[0])
        self._effects.append(Settled(waiter, reference, None))

    # Ending.

    def end_all(self, state: TicketState, reason: LostReason | None = None) -> None:
        """The client ends: its tickets are lost with it (`reason`), or just closed."""
        for expired in self._expired.values():
            expired.gone = True
        for ticket in list(self.held.values()):
            if reason is not None:
                ticket.gone = True
                self.lose(ticket, reason)
            else:
                self._leave(ticket, state)
                closed = ClosedError(f"the client of the ticket for {name_of(ticket)} is closed")
                self._fail_waiting(ticket, closed)
