"""The client's core: calls, time and bytes in; effects, bytes and the next deadline out.

A shell calls the methods below from one thread at a time, each with the time of its monotonic
clock in nanoseconds, and after each call carries out `effects` in order, writes what
`take_output` returns and sets its one timer to `next_deadline_ns`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ticketing import _constants_gen as c
from ticketing._core import arguments
from ticketing._core.arguments import Duration, Forever, sanitised
from ticketing._core.codec import (
    Reply,
    acquire_frame,
    acquire_set_frame,
    cancel_frame,
    extend_frame,
    ping_frame,
)
from ticketing._core.deadlines import Deadlines
from ticketing._core.effects import Closed, Effect, Log, Notify, Settled
from ticketing._core.link import Link
from ticketing._core.replies import ReplyReading
from ticketing._core.requests import ACQUIRES, ALWAYS_RESENT, Purpose, Request, RequestTable
from ticketing._core.settings import CoreSettings
from ticketing._core.tickets import HeldTicket, TicketDesk, TicketState, lost_error, name_of
from ticketing.errors import (
    AuthError,
    ClosedError,
    LostReason,
    ProtocolError,
    ReplyTimeoutError,
    TicketingError,
    WaitTimeoutError,
)
from ticketing.events import Connected, Disconnected, Key, TimedOut

_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000


class ClientCore:
    """One client. Not thread-safe; it reads no clock, no random source and no socket."""

    def __init__(self, settings: CoreSettings) -> None:
        self.settings = settings
        self.effects: list[Effect] = []
        """What the shell is to do; it takes the list's content after each call."""
        self._deadlines = Deadlines()
        self._requests = RequestTable(self.effects, self._deadlines)
        self._tickets = TicketDesk(settings, self._requests, self._deadlines, self.effects)
        self._replies = ReplyReading(settings, self._requests, self._tickets, self.effects)
        self._link = Link(settings, self, self._deadlines, self.effects)
        self._requests.link = self._link
        self.due_ns: int | None = None
        """When a close that is under way stops waiting."""
        self._opening: Any = None
        self._opening_until_ns = 0
        self._closing: list[Any] = []
        self._is_closing = False
        self._closed_because: str | None = None
        self._round_failure = ""
        """What the last round since the last connection came to; the log says so once."""

    # The transport and the clock.

    def connected(self, serial: int, now_ns: int) -> None:
        """The connection of a Connect effect stands."""
        self._link.connected(serial, now_ns)

    def disconnected(self, serial: int, reason: str, now_ns: int) -> None:
        """The connection of a Connect effect failed or ended; `reason` is for people."""
        self._link.disconnected(serial, arguments.sanitised(reason), now_ns)

    def receive(self, serial: int, data: bytes, now_ns: int) -> None:
        """Bytes came in on a connection."""
        self._link.receive(serial, data, now_ns)
        if self._is_closing:
            self._finish_close_if_answered(now_ns)

    def has_output(self) -> bool:
        """Whether `take_output` has something to say."""
        return bool(self._link.outgoing)

    @property
    def serial(self) -> int:
        """The connection that output belongs to."""
        return self._link.serial

    def take_output(self, now_ns: int) -> bytes:
        """The bytes to write now in one piece. Once taken they count as handed to the socket."""
        return self._requests.take_output(now_ns)

    def next_deadline_ns(self) -> int | None:
        """When `on_time` is to be called at the latest."""
        return self._deadlines.next_ns()

    def on_time(self, now_ns: int) -> None:
        """Do whatever is due at `now_ns`, in the order of the deadlines."""
        while (timed := self._deadlines.pop_due(now_ns)) is not None:
            if isinstance(timed, Request):
                self._request_due(timed, now_ns)
            elif isinstance(timed, HeldTicket):
                self._tickets.due(timed, now_ns)
            elif isinstance(timed, Link):
                timed.due(now_ns)
            else:
                self._finish_close(now_ns)

    # Opening and closing.

    @property
    def connection_address(self) -> str | None:
        """The server in use, or None while there is none."""
        return str(self._link.endpoint) if self._link.ready else None

    @property
    def is_closed(self) -> bool:
        """Whether calls are refused."""
        return self._closed_because is not None

    def open(self, waiter: Any, now_ns: int) -> None:
        """Connect; settles once a server serves this client, or a round came to nothing."""
        self._opening = waiter
        self._opening_until_ns = now_ns + self.settings.connect_for_ms * _NS_PER_MS
        self._link.start(now_ns)

    def close(self, waiter: Any, now_ns: int) -> None:
        """Cancel what waits, release what is held, and end. Closing again waits for the same."""
        if self._closed_because is not None and not self._is_closing:
            self._settle(waiter, None)
            return
        self._closing.append(waiter)
        if self._is_closing:
            return
        self._closed_because = "the client is closed"
        self._is_closing = True
        if self._opening is not None:
            self._settle(self._opening, None, ClosedError(self._closed_because))
            self._opening = None
        self._write_off(now_ns)
        self._deadlines.set(self, now_ns + c.CLIENT_CLOSE_TIMEOUT_MS * _NS_PER_MS)
        self._finish_close_if_answered(now_ns)

    def _write_off(self, now_ns: int) -> None:
        """One batch: C for each acquire that waits, R for each ticket held, by acquire id."""
        error = ClosedError("the client was closed meanwhile")
        open_ends: list[tuple[int, Request | HeldTicket]] = []
        for request in list(self._requests.unanswered.values()):
            if request.op in ACQUIRES and not request.settled and request.sendings:
                open_ends.append((request.id, request))
            if request.op not in ALWAYS_RESENT:
                self._requests.settle(request, None, error)
                self._requests.withdraw(request)
        held = list(self._tickets.held.values())
        for ticket in held:
            if ticket.acquire is not None:
                self._requests.settle(ticket.acquire, None, error)
                ticket.acquire = None
        if not (self.settings.release_on_close and self._link.ready):
            self._tickets.end_all(TicketState.CLOSED)
            return
        open_ends += [(ticket.acquire_id, ticket) for ticket in held]
        for _, open_end in sorted(open_ends, key=lambda end: end[0]):
            if isinstance(open_end, HeldTicket):
                self._tickets.release(open_end, None, now_ns)
            else:
                self._send_cancel(open_end, now_ns)

    def _finish_close_if_answered(self, now_ns: int) -> None:
        waiting = any(r.op in ALWAYS_RESENT for r in self._requests.unanswered.values())
        if self._is_closing and not (waiting and self._link.ready):
            self._finish_close(now_ns)

    def _finish_close(self, now_ns: int) -> None:
        self._is_closing = False
        self._deadlines.set(self, None)
        self._end("the client is closed", now_ns)
        for waiter in self._closing:
            self._settle(waiter, None)
        self._closing.clear()

    def _end(self, because: str, now_ns: int, lost: LostReason | None = None) -> None:
        """Nothing works from here on; every call that still waits fails with `closed`."""
        self._closed_because = because
        error = ClosedError(because)
        for ticket in self._tickets.held.values():
            if ticket.acquire is not None:
                self._requests.settle(ticket.acquire, None, error)
        self._tickets.end_all(TicketState.CLOSED, lost)
        self._settle_unanswered(error, now_ns)
        self._link.close()
        self._link.outgoing.clear()
        self.effects.append(Closed())

    def _settle_unanswered(self, error: TicketingError, now_ns: int) -> None:
        """Every unanswered request has this error, and none is sent again."""
        unanswered = list(self._requests.unanswered.values())
        self._requests.unanswered.clear()
        for request in unanswered:
            self._deadlines.set(request, None)
            if request.op == c.OP_RELEASE and not request.settled:
                self._tickets.release_ended(request, error, now_ns)
            elif request.op == c.OP_EXTEND and request.ticket is not None:
                self._tickets.extend_failed(request, error, now_ns)
            else:
                self._requests.settle(request, None, error)

    # Calls.

    def acquire(
        self,
        keys: Iterable[Key],
        *,
        lease: Duration | None,
        wait_timeout: Duration | Forever | None,
        auto_extend: bool | None,
        waiter: Any,
        now_ns: int,
    ) -> Request:
        """Ask for a key or a set. The waiter's value is a HeldTicket.

        Raises InvalidArgumentError and ClosedError at once; then no id was taken.
        """
        settings = self.settings
        pairs = arguments.wire_set(keys, settings.key_prefix)
        request = Request(c.OP_ACQUIRE, waiter, now_ns)
        request.keys = [pair[0] for pair in pairs]
        request.shown_keys = tuple(pair[1] for pair in pairs)
        self._choose_lease(request, lease, auto_extend)
        request.wait_ms = settings.wait_ms
        if wait_timeout is not None:
            request.wait_ms = arguments.wait_ms(wait_timeout)
        self._check_open()
        request.id = self._requests.take_id()
        if len(request.keys) == 1:
            request.frame = acquire_frame(
                request.id, request.wait_ms, request.lease_ms, request.keys[0]
            )
        else:
            request.op = c.OP_ACQUIRE_SET
            request.frame = acquire_set_frame(
                request.id, request.wait_ms, request.lease_ms, request.keys
            )
        self._set_wait_bounds(request)
        self._requests.issue(request, now_ns)
        return request

    def _choose_lease(
        self, request: Request, lease: Duration | None, auto_extend: bool | None
    ) -> None:
        """No lease: the default, extended while held. A lease: fixed unless told otherwise."""
        settings = self.settings
        lease_ms = settings.lease_ms if lease is None else arguments.lease_ms(lease)
        if arguments.check_flag("auto_extend", auto_extend) is None:
            auto_extend = settings.auto_extend
        request.auto_extend = lease_ms is None if auto_extend is None else auto_extend
        request.lease_ms = c.CLIENT_LEASE_MS_DEFAULT if lease_ms is None else lease_ms

    def _set_wait_bounds(self, request: Request) -> None:
        called_ns, wait_ms = request.called_ns, request.wait_ms
        if wait_ms == c.WAIT_MS_TRY:
            request.bound_ns = called_ns + self.settings.reply_timeout_ms * _NS_PER_MS
            self._deadlines.set(request, request.bound_ns)
            return
        held_keys = self._tickets.held_keys
        if held_keys and any(key in held_keys for key in request.keys):
            self._warn(f"this client waits for {name_of(request)}, which it holds itself")
        if wait_ms != c.WAIT_MS_FOREVER:
            request.bound_ns = called_ns + wait_ms * _NS_PER_MS
        request.warn_ns = called_ns + c.CLIENT_WAIT_WARNING_MS * _NS_PER_MS
        self._set_wait_due(request)

    def _set_wait_due(self, request: Request) -> None:
        due_ns = request.bound_ns
        if request.warn_ns is not None and (due_ns is None or request.warn_ns < due_ns):
            due_ns = request.warn_ns
        self._deadlines.set(request, due_ns)

    def abandon(self, request: Request, now_ns: int) -> None:
        """The caller of an acquire, extend, adoption or ping was cancelled.

        It leaves neither waiter nor ticket behind, however far the request has come. The
        waiter is not settled.
        """
        request.waiter = None
        ticket = request.ticket
        if ticket is not None and (request.op in ACQUIRES or request.purpose is Purpose.ADOPT):
            if ticket.state in (TicketState.HELD, TicketState.CONFIRMING):
                ticket.acquire = None
                self._requests.settle(request, None)
                self._tickets.release(ticket, None, now_ns)
            return
        if not request.settled:
            self._give_up(request, None, now_ns)

    def extend(
        self, ticket: HeldTicket, lease: Duration | None, waiter: Any, now_ns: int
    ) -> Request:
        """Make a lease end later. Raises InvalidArgumentError at once."""
        lease_ms = ticket.lease_ms if lease is None else arguments.lease_ms(lease)
        return self._tickets.extend(ticket, lease_ms, waiter, now_ns)

    def release(self, ticket: HeldTicket, waiter: Any, now_ns: int) -> None:
        """Release a ticket; `waiter` may be None when nobody waits for the answer."""
        self._tickets.release(ticket, waiter, now_ns)

    def hand_over(self, ticket: HeldTicket, waiter: Any, now_ns: int) -> None:
        """End this client's part in a ticket; the waiter's value is the reference."""
        self._tickets.hand_over(ticket, waiter, now_ns)

    def stop_hand_over(self, ticket: HeldTicket, waiter: Any, now_ns: int) -> None:
        """The caller of a hand_over was cancelled before it had the reference."""
        if not self.is_closed:
            self._tickets.stop_hand_over(ticket, waiter, now_ns)

    def adopt(
        self,
        reference: str,
        lease: Duration | None,
        auto_extend: bool | None,
        waiter: Any,
        now_ns: int,
    ) -> Request:
        """Make a ticket out of a reference. The waiter's value is a HeldTicket."""
        token, key = arguments.parse_reference(reference)
        request = Request(c.OP_EXTEND, waiter, now_ns)
        request.purpose = Purpose.ADOPT
        request.keys = [key]
        request.shown_keys = (arguments.shown_key(key),)
        self._choose_lease(request, lease, auto_extend)
        self._check_open()
        request.token = token
        request.id = self._requests.take_id()
        request.frame = extend_frame(request.id, token, request.lease_ms, key)
        self._set_reply_bound(request)
        self._requests.issue(request, now_ns)
        return request

    def ping(self, waiter: Any, now_ns: int) -> Request:
        """Ask the server for a sign of life."""
        self._check_open()
        request = Request(c.OP_PING, waiter, now_ns)
        request.id = self._requests.take_id()
        request.frame = ping_frame(request.id)
        self._set_reply_bound(request)
        self._requests.issue(request, now_ns)
        return request

    def _set_reply_bound(self, request: Request) -> None:
        request.bound_ns = request.called_ns + self.settings.reply_timeout_ms * _NS_PER_MS
        self._deadlines.set(request, request.bound_ns)

    def _check_open(self) -> None:
        if self._closed_because is not None:
            raise ClosedError(self._closed_because)

    # Giving up.

    def _give_up(self, request: Request, error: TicketingError | None, now_ns: int) -> None:
        """Settle a request without its answer, and undo what it may have done."""
        ticket = request.ticket
        if request.op == c.OP_RELEASE:
            assert ticket is not None
            self._tickets.release_ended(request, error, now_ns)
        elif request.op == c.OP_EXTEND and ticket is not None:
            self._requests.withdraw(request)
            self._tickets.extend_failed(request, error or _UNWANTED, now_ns)
        else:
            self._requests.settle(request, None, error)
            self._requests.withdraw(request)
            if ticket is not None:
                ticket.acquire = None
                self._tickets.release(ticket, None, now_ns)
            elif request.op in ACQUIRES and request.sendings:
                self._send_cancel(request, now_ns)

    def _send_cancel(self, acquire: Request, now_ns: int) -> None:
        request = Request(c.OP_CANCEL, None, now_ns)
        request.id = self._requests.take_id()
        request.acquire_id = acquire.id
        request.frame = cancel_frame(request.id, acquire.id, acquire.keys[0])
        self._requests.issue(request, now_ns)

    def _request_due(self, request: Request, now_ns: int) -> None:
        if request.warn_ns is not None and now_ns >= request.warn_ns:
            waited_s = (now_ns - request.called_ns) / _NS_PER_S
            self._warn(f"waiting for {name_of(request)} since {waited_s:.0f} s")
            request.warn_ns = None
        bound_ns = request.bound_ns
        if bound_ns is None or now_ns < bound_ns:
            self._set_wait_due(request)
        elif request.op == c.OP_RELEASE:
            assert request.ticket is not None
            self._give_up(request, lost_error(request.ticket), now_ns)
        elif request.op not in ACQUIRES or request.wait_ms == c.WAIT_MS_TRY:
            seconds = self.settings.reply_timeout_ms / 1000
            where = self.connection_address or self._round_failure or "no server in reach"
            self._give_up(
                request, ReplyTimeoutError(f"no answer within {seconds:g} s ({where})"), now_ns
            )
        elif not self._end_wait_if_over(request, now_ns):
            overrun_ns = c.CLIENT_WAIT_OVERRUN_MS * _NS_PER_MS
            self._deadlines.set(request, bound_ns + overrun_ns)

    def _end_wait_if_over(self, request: Request, now_ns: int) -> bool:
        """End a wait at its deadline, or a little later where the server can still do it."""
        if request.bound_ns is None or request.wait_ms == c.WAIT_MS_TRY:
            return False
        overrun_ns = c.CLIENT_WAIT_OVERRUN_MS * _NS_PER_MS if self._link.ready else 0
        if now_ns < request.bound_ns + overrun_ns:
            return False
        if self.settings.observed:
            waited_s = (now_ns - request.called_ns) / _NS_PER_S
            self.effects.append(Notify(TimedOut(request.shown_keys, waited_s)))
        self._give_up(
            request,
            WaitTimeoutError(f"the wait for {name_of(request)} ended after {request.wait_ms} ms"),
            now_ns,
        )
        return True

    # What the link tells.

    def link_ready(self, now_ns: int) -> None:
        """Send what is unanswered again, then ask about the tickets that are held."""
        address = str(self._link.endpoint)
        self._round_failure = ""
        self.effects.append(Log("debug", f"connected to {address}"))
        if self.settings.observed:
            self.effects.append(Notify(Connected(address)))
        if self._opening is not None:
            self._settle(self._opening, None)
            self._opening = None
        self._requests.queue_again(now_ns)
        self._tickets.queue_after_reconnect(now_ns)

    def link_down(self, reason: str, now_ns: int) -> None:
        """The connection is gone: what was given up is forgotten, waits that are over end."""
        address = str(self._link.endpoint)
        self.effects.append(Log("info", f"disconnected from {address}: {reason}"))
        if self.settings.observed:
            self.effects.append(Notify(Disconnected(address, reason)))
        self._requests.forget_given_up()
        if self._is_closing:
            self._finish_close(now_ns)
            return
        waiting = [r for r in self._requests.unanswered.values() if r.op in ACQUIRES]
        waiting += [t.acquire for t in self._tickets.held.values() if t.acquire is not None]
        for request in waiting:
            if not request.settled:
                self._end_wait_if_over(request, now_ns)

    def link_round_failed(self, error: TicketingError, now_ns: int) -> bool:
        """Whether to go on with the next round."""
        if self._opening is not None:
            over = self._link.next_round_is_late(self._opening_until_ns)
            if not over and not isinstance(error, AuthError):
                return True
            self._settle(self._opening, None, error)
            self._opening = None
            self._end(f"the client could not be opened: {error}", now_ns)
            return False
        level = "debug" if self._round_failure else "warning"
        self._round_failure = str(error)
        self.effects.append(Log(level, str(error)))
        if isinstance(error, AuthError):
            self._settle_unanswered(error, now_ns)
            return False
        return True

    def link_reply(self, reply: Reply, now_ns: int) -> None:
        """A reply about a request or a ticket."""
        if self._replies.read(reply, now_ns):
            self._link.not_serving(_said(reply[2], sanitised(reply[3])), now_ns)

    def link_refused(self, code: int, text: str, now_ns: int) -> None:
        """The server ends this connection and says why."""
        said = _said(code, text)
        if code == c.ERROR_TAKEN_OVER:
            self._warn(said)
            self._end(f"a newer client took over: {said}", now_ns, LostReason.TAKEN_OVER)
            return
        if code == c.ERROR_BAD_FRAME:
            self._settle_unanswered(ProtocolError(said), now_ns)
        self._link.reconnect(said, now_ns)

    # Small things.

    def _settle(self, waiter: Any, value: Any, error: TicketingError | None = None) -> None:
        if waiter is not None:
            self.effects.append(Settled(waiter, value, error))

    def _warn(self, text: str) -> None:
        self.effects.append(Log("warning", text))


_UNWANTED = ClosedError("the caller gave up")


def _said(code: int, text: str) -> str:
    """What an E says, for people."""
    name = c.ERRORS[code][0]
    return f"{name}: {text}" if text else name
