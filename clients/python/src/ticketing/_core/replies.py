"""What each reply of the server does to the request or the ticket that it is about."""

from __future__ import annotations

from ticketing import _constants_gen as c
from ticketing._core.arguments import sanitised
from ticketing._core.codec import Malformed, Reply
from ticketing._core.effects import Effect, Notify
from ticketing._core.requests import ACQUIRES, Purpose, RequestTable
from ticketing._core.settings import CoreSettings
from ticketing._core.tickets import TicketDesk, name_of
from ticketing.errors import (
    AuthError,
    HeldError,
    InvalidArgumentError,
    LostReason,
    NotHeldError,
    OverloadedError,
    ProtocolError,
    TicketingError,
    WaitTimeoutError,
)
from ticketing.events import TimedOut

_NS_PER_S = 1_000_000_000
_RELEASE = frozenset((c.OP_RELEASE,))
_EXTEND = frozenset((c.OP_EXTEND,))
_RELEASE_OR_EXTEND = _RELEASE | _EXTEND
_CANCEL = frozenset((c.OP_CANCEL,))
_PING = frozenset((c.OP_PING,))
_ANY = ACQUIRES | _RELEASE_OR_EXTEND | _CANCEL | _PING

_DROP_REASONS = {
    c.DROP_LEASE_OVER: LostReason.LEASE_OVER,
    c.DROP_OPERATOR: LostReason.OPERATOR,
    c.DROP_OTHER_CLIENT: LostReason.OTHER_CLIENT,
}


class ReplyReading:
    """Matches replies with requests; each method raises Malformed for what can't be a reply."""

    def __init__(
        self,
        settings: CoreSettings,
        requests: RequestTable,
        tickets: TicketDesk,
        effects: list[Effect],
    ) -> None:
        self._settings = settings
        self._requests = requests
        self._tickets = tickets
        self._effects = effects
        self._readers = {
            c.REPLY_GRANTED: self._granted,
            c.REPLY_TIMED_OUT: self._timed_out,
            c.REPLY_OVERLOADED: self._overloaded,
            c.REPLY_RELEASED: self._released,
            c.REPLY_NOT_HELD: self._not_held,
            c.REPLY_EXTENDED: self._extended,
            c.REPLY_CANCELLED: self._cancelled,
            c.REPLY_DROPPED: self._dropped,
            c.REPLY_PING: self._ping,
        }

    def read(self, reply: Reply, now_ns: int) -> bool:
        """Carry out one reply; True if the connection has to be left for another."""
        if reply[0] == c.REPLY_ERROR:
            return self._error(reply, now_ns)
        reader = self._readers.get(reply[0])
        if reader is None:
            raise Malformed("state", f"a frame {chr(reply[0])} after the handshake")
        reader(reply, now_ns)
        return False

    def _granted(self, reply: Reply, now_ns: int) -> None:
        _, request_id, token, waited_ms = reply
        if token == 0 or token in self._tickets.held:
            raise Malformed("body", f"token {token}, which no new ticket can have")
        request = self._requests.answered(request_id, ACQUIRES)
        if request.settled:
            return  # It was given up; its cancel is on the way and releases the ticket.
        self._tickets.granted(request, token, waited_ms, now_ns)

    def _timed_out(self, reply: Reply, now_ns: int) -> None:
        request = self._requests.answered(reply[1], ACQUIRES)
        if request.settled:
            return
        keys = name_of(request)
        if request.wait_ms == c.WAIT_MS_TRY:
            self._requests.settle(request, None, HeldError(f"{keys} is held"))
            return
        if self._settings.observed:
            waited_s = (now_ns - request.called_ns) / _NS_PER_S
            self._effects.append(Notify(TimedOut(request.shown_keys, waited_s)))
        text = f"the wait for {keys} ended after {request.wait_ms} ms"
        self._requests.settle(request, None, WaitTimeoutError(text))

    def _overloaded(self, reply: Reply, now_ns: int) -> None:
        request = self._requests.answered(reply[1], ACQUIRES)
        error = OverloadedError(f"the server has no room for {name_of(request)} now")
        self._requests.settle(request, None, error)

    def _released(self, reply: Reply, now_ns: int) -> None:
        request = self._requests.answered(reply[1], _RELEASE)
        self._tickets.release_answered(request, True, now_ns)

    def _not_held(self, reply: Reply, now_ns: int) -> None:
        request = self._requests.answered(reply[1], _RELEASE_OR_EXTEND)
        if request.op == c.OP_RELEASE:
            self._tickets.release_answered(request, False, now_ns)
        elif request.purpose is Purpose.ADOPT:
            text = f"no ticket with token {request.token} has {name_of(request)}"
            self._requests.settle(request, None, NotHeldError(text))
        else:
            self._tickets.extend_refused(request, now_ns)

    def _extended(self, reply: Reply, now_ns: int) -> None:
        _, request_id, lease_ms = reply
        request = self._requests.answered(request_id, _EXTEND)
        if request.purpose is not Purpose.ADOPT:
            self._tickets.extend_answered(request, lease_ms, now_ns)
        elif not request.settled:
            self._tickets.adopted(request, lease_ms, now_ns)

    def _cancelled(self, reply: Reply, now_ns: int) -> None:
        request = self._requests.answered(reply[1], _CANCEL)
        self._requests.unanswered.pop(request.acquire_id, None)

    def _dropped(self, reply: Reply, now_ns: int) -> None:
        _, token, code = reply
        reason = _DROP_REASONS.get(code)
        if reason is None:
            raise Malformed("body", f"reason {code} is unknown")
        self._tickets.dropped(token, reason)

    def _ping(self, reply: Reply, now_ns: int) -> None:
        self._requests.settle(self._requests.answered(reply[1], _PING), None)

    def _error(self, reply: Reply, now_ns: int) -> bool:
        _, request_id, code, text = reply
        if code == c.ERROR_NOT_SERVING:
            self._requests.match(request_id, _ANY)  # It stays unanswered: nothing was done.
            return True
        if code not in _ABOUT_A_REQUEST:
            raise Malformed("body", f"{c.ERRORS[code][0]} about request {request_id}")
        request = self._requests.answered(request_id, _ANY)
        said = f"{c.ERRORS[code][0]}: {sanitised(text)}"
        error: TicketingError = _ABOUT_A_REQUEST[code](said)
        if request.op == c.OP_RELEASE:
            if not request.settled:
                self._tickets.release_ended(request, error, now_ns)
        elif request.op == c.OP_EXTEND and request.ticket is not None:
            self._tickets.extend_failed(request, error, now_ns)
        else:
            self._requests.settle(request, None, error)
        return bool(code == c.ERROR_BAD_FRAME)


_ABOUT_A_REQUEST: dict[int, type[TicketingError]] = {
    c.ERROR_BAD_FRAME: ProtocolError,
    c.ERROR_LEASE_TOO_LONG: InvalidArgumentError,
    c.ERROR_FORBIDDEN: AuthError,
}
