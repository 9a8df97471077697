"""The client's one connection: rounds over the endpoints, handshake, roles, silence.

The link knows nothing of requests. It tells its owner when requests may be sent and when the
connection is gone, and hands it every reply that is not about the connection itself.
"""

from __future__ import annotations

import enum
from typing import Protocol

from ticketing import _constants_gen as c
from ticketing._core import handshake
from ticketing._core.arguments import sanitised
from ticketing._core.codec import Malformed, Reply, ReplyReader, ping_frame
from ticketing._core.deadlines import Deadlines
from ticketing._core.effects import Connect, Disconnect, Effect
from ticketing._core.requests import Request
from ticketing._core.rounds import Backoff, Rounds
from ticketing._core.settings import CoreSettings
from ticketing._core.urls import Endpoint, parse_address
from ticketing.errors import AuthError, ConnectionFailedError, ProtocolError, TicketingError

_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000
_KEEPALIVE_ECHO = 0


class LinkState(enum.Enum):
    """Where the link is. Requests are sent in `READY` alone."""

    IDLE = "idle"
    """No round is under way: not opened yet, or the last one failed with an auth error."""
    BACKOFF = "back-off"
    """Waiting to begin the next round."""
    CONNECTING = "connecting"
    """The shell is opening a connection, or the greeting has not come whole."""
    HELLO_SENT = "hello sent"
    """Waiting for the welcome."""
    LEADERLESS = "leaderless"
    """Welcomed by a node that knows no leader; waiting a moment for L."""
    READY = "ready"
    """Welcomed by a server that serves requests."""
    CLOSED = "closed"


class LinkOwner(Protocol):
    """What the link tells the core."""

    def link_ready(self, now_ns: int) -> None:
        """Requests may be sent from now on."""

    def link_down(self, reason: str, now_ns: int) -> None:
        """A connection that was ready is gone."""

    def link_round_failed(self, error: TicketingError, now_ns: int) -> bool:
        """A round ended without success; False stops the link until it is told to start."""

    def link_reply(self, reply: Reply, now_ns: int) -> None:
        """A reply about a request or a ticket. Raises Malformed to drop the connection."""

    def link_refused(self, code: int, text: str, now_ns: int) -> None:
        """An E about the whole connection, after the welcome."""


class Link:
    """One connection at a time, made again for as long as the owner wants it."""

    due_ns: int | None = None

    def __init__(
        self,
        settings: CoreSettings,
        owner: LinkOwner,
        deadlines: Deadlines,
        effects: list[Effect],
    ) -> None:
        self._settings = settings
        self._owner = owner
        self._deadlines = deadlines
        self._effects = effects
        self.outgoing: list[bytes | Request] = []
        self._rounds = Rounds(settings.endpoints)
        self._backoff = Backoff(settings.seed)
        self.state = LinkState.IDLE
        self.serial = 0
        self.endpoint: Endpoint | None = None
        self._hellos = 0
        self._reader = ReplyReader()
        self._greeting = b""
        self._nonce = b""
        self._keepalive_ns = 0
        self._ready_ns = 0
        self._received_ns = 0
        self._sent_ns = 0
        self._ping_unanswered = False
        self._answered = False
        self._first_connection = False
        """The connection that this round may bring is the first since `start`."""

    @property
    def ready(self) -> bool:
        """Whether requests may be sent."""
        return self.state is LinkState.READY

    # What the owner asks for.

    def start(self, now_ns: int) -> None:
        """Begin a round, unless one is under way or a connection stands."""
        if self.state is LinkState.IDLE:
            self._backoff.reset()
            self._first_connection = True
            self._schedule_round(now_ns)

    def answered(self) -> None:
        """A request was answered on this connection, so the next back-off starts afresh."""
        self._answered = True

    def reconnect(self, reason: str, now_ns: int) -> None:
        """Leave this connection for another, as after a loss."""
        self._drop(ConnectionFailedError(reason), now_ns)

    def not_serving(self, reason: str, now_ns: int) -> None:
        """Leave a server that does not serve requests for another endpoint."""
        assert self.endpoint is not None
        self._rounds.does_not_lead(self.endpoint)
        self.reconnect(reason, now_ns)

    def close(self) -> None:
        """End for good."""
        if self.state not in (LinkState.CLOSED, LinkState.IDLE, LinkState.BACKOFF):
            self._effects.append(Disconnect(self.serial))
        self.state = LinkState.CLOSED
        self._deadlines.set(self, None)

    # What the shell reports.

    def connected(self, serial: int, now_ns: int) -> None:
        """The transport stands. The greeting is still to come, within the same bound."""
        if serial == self.serial and self.state is LinkState.CONNECTING:
            self._received_ns = self._sent_ns = now_ns

    def disconnected(self, serial: int, reason: str, now_ns: int) -> None:
        """The transport failed or ended."""
        if serial == self.serial and self._connection_exists():
            self._drop(ConnectionFailedError(reason), now_ns, told=False)

    def receive(self, serial: int, data: bytes, now_ns: int) -> None:
        """Bytes from the transport; those of an earlier connection don't count any more."""
        if serial != self.serial or not self._connection_exists():
            return
        self._received_ns = now_ns
        try:
            if self.state is LinkState.CONNECTING:
                data = self._read_greeting(data, now_ns)
            if data and self.state is not LinkState.CONNECTING:
                self._read_replies(serial, data, now_ns)
        except Malformed as error:
            self._drop(ConnectionFailedError(f"the server broke the protocol: {error}"), now_ns)

    def wrote(self, now_ns: int) -> None:
        """Bytes were handed to the transport."""
        self._sent_ns = now_ns

    def due(self, now_ns: int) -> None:
        """The deadline that was set is reached."""
        if self.state is LinkState.BACKOFF:
            self._rounds.begin()
            self._try_next(now_ns)
        elif self.state is LinkState.CONNECTING:
            self._drop(
                ConnectionFailedError(
                    f"no greeting within {self._connect_ms()} ms (check the port, and whether it"
                    " speaks TLS: ticketings://, or not: ticketing://)"
                ),
                now_ns,
            )
        elif self.state is LinkState.HELLO_SENT:
            self._drop(
                ConnectionFailedError(f"no welcome within {c.CLIENT_HANDSHAKE_TIMEOUT_MS} ms"),
                now_ns,
            )
        elif self.state is LinkState.LEADERLESS:
            self._drop(ConnectionFailedError("the node knows no leader"), now_ns)
        elif self.state is LinkState.READY:
            self._watch_silence(now_ns)

    # Rounds.

    def _connection_exists(self) -> bool:
        return self.state in (
            LinkState.CONNECTING,
            LinkState.HELLO_SENT,
            LinkState.LEADERLESS,
            LinkState.READY,
        )

    def _connect_ms(self) -> int:
        if self._rounds.several:
            return c.CLIENT_CONNECT_TIMEOUT_SEVERAL_MS
        return c.CLIENT_CONNECT_TIMEOUT_MS

    def _schedule_round(self, now_ns: int) -> None:
        delay_ns = self._backoff.next_delay_ns()
        self.state = LinkState.BACKOFF
        if delay_ns:
            self._deadlines.set(self, now_ns + delay_ns)
        else:
            self._rounds.begin()
            self._try_next(now_ns)

    def next_round_is_late(self, deadline_ns: int) -> bool:
        """Whether the round that is waited for would begin only after a time."""
        return self.due_ns is not None and self.due_ns > deadline_ns

    def _try_next(self, now_ns: int) -> None:
        endpoint = self._rounds.next()
        if endpoint is None:
            self.state = LinkState.IDLE
            self._deadlines.set(self, None)
            self._schedule_unless_stopped(self._rounds.outcome(), now_ns)
            return
        self.serial += 1
        self.endpoint = endpoint
        self.state = LinkState.CONNECTING
        self.outgoing.clear()
        self._reader = ReplyReader()
        self._greeting = b""
        self._answered = False
        self._ping_unanswered = False
        self._deadlines.set(self, now_ns + self._connect_ms() * _NS_PER_MS)
        self._effects.append(Connect(self.serial, endpoint))

    def _schedule_unless_stopped(self, error: TicketingError, now_ns: int) -> None:
        if isinstance(error, AuthError):
            self._owner.link_round_failed(error, now_ns)
            return  # Whether to try again is for the next call to say.
        self._schedule_round(now_ns)
        if not self._owner.link_round_failed(error, now_ns) and self.state is LinkState.BACKOFF:
            self.state = LinkState.IDLE
            self._deadlines.set(self, None)

    def _drop(self, error: TicketingError, now_ns: int, *, told: bool = True) -> None:
        """End this connection: rule the endpoint out for this round, or begin a new one."""
        assert self.endpoint is not None
        was_ready = self.state is LinkState.READY
        if told:
            self._effects.append(Disconnect(self.serial))
        self._deadlines.set(self, None)
        if not was_ready:
            self._rounds.failed(self.endpoint, error)
            self._try_next(now_ns)
            return
        self.state = LinkState.BACKOFF
        self.outgoing.clear()
        self._rounds.lost(self.endpoint)
        if self._answered or now_ns - self._ready_ns >= c.CLIENT_BACKOFF_RESET_MS * _NS_PER_MS:
            self._backoff.reset()
        self._owner.link_down(str(error), now_ns)
        if self.state is LinkState.BACKOFF:
            self._schedule_round(now_ns)

    # Handshake.

    def _read_greeting(self, data: bytes, now_ns: int) -> bytes:
        """Collect the greeting and answer it with a hello; returns what came after it."""
        missing = c.GREETING_BYTES - len(self._greeting)
        self._greeting += data[:missing]
        if not handshake.looks_like_greeting(self._greeting):
            hint = (
                " (it speaks TLS: use ticketings://)" if self._greeting[0] in (0x15, 0x16) else ""
            )
            raise Malformed("stream", f"no greeting of a ticketing server{hint}")
        if len(self._greeting) < c.GREETING_BYTES:
            return b""
        greeting = handshake.parse_greeting(self._greeting)
        if not greeting.speaks_our_version:
            self._drop(
                ProtocolError(
                    f"no common version: the server speaks {greeting.min_version} to"
                    f" {greeting.max_version}, this client {c.PROTOCOL_VERSION}"
                ),
                now_ns,
            )
            return b""
        self._hellos += 1
        settings = self._settings
        self._nonce = handshake.client_nonce(settings.seed, self._hellos)
        self.outgoing.append(
            handshake.hello_frame(
                settings.secret,
                self._greeting,
                settings.client_id,
                self._hellos,
                self._nonce,
                settings.label,
            )
        )
        self.state = LinkState.HELLO_SENT
        self._deadlines.set(self, now_ns + c.CLIENT_HANDSHAKE_TIMEOUT_MS * _NS_PER_MS)
        return data[missing:]

    def _read_replies(self, serial: int, data: bytes, now_ns: int) -> None:
        reply_to_owner = self._owner.link_reply
        for reply in self._reader.feed(data):
            if self.state is LinkState.READY and reply[0] not in _ABOUT_THE_CONNECTION:
                reply_to_owner(reply, now_ns)
            else:
                self._connection_reply(reply, now_ns)
            if serial != self.serial or not self._connection_exists():
                return

    def _connection_reply(self, reply: Reply, now_ns: int) -> None:
        op = reply[0]
        if op == c.REPLY_ERROR:
            self._error(reply[1], reply[2], sanitised(reply[3]), now_ns, reply)
        elif self.state is LinkState.HELLO_SENT and op == c.REPLY_WELCOME:
            self._welcome(*reply[1:], now_ns=now_ns)
        elif self.state in (LinkState.READY, LinkState.LEADERLESS) and op == c.REPLY_LEADER:
            self._leader_moved(reply[1], now_ns)
        elif self.state is LinkState.READY and op == c.REPLY_PING:
            if reply[1] != _KEEPALIVE_ECHO:
                self._owner.link_reply(reply, now_ns)
            elif self._ping_unanswered:
                self._ping_unanswered = False
                self._set_silence_deadline()  # The next ping may be due before the death was.
            else:
                raise Malformed("state", "a reply to a ping that was not sent")
        else:
            raise Malformed("state", f"a frame {chr(op)} while {self.state.value}")

    def _welcome(
        self,
        role: int,
        keepalive_s: int,
        fingerprint: bytes,
        proof: bytes,
        leader: bytes,
        *,
        now_ns: int,
    ) -> None:
        settings = self._settings
        expected = handshake.server_proof(
            settings.secret, self._greeting, self._nonce, role, keepalive_s, fingerprint, leader
        )
        if not handshake.same_proof(expected, proof):
            error = "the server can't prove that it knows the secret of this client"
            self._drop(AuthError(error), now_ns)
            return
        if settings.fingerprint is not None and settings.fingerprint != fingerprint:
            error = f"the server is of another cluster: its fingerprint is {fingerprint.hex()}"
            self._drop(AuthError(error), now_ns)
            return
        if not c.KEEPALIVE_S_MIN <= keepalive_s <= c.KEEPALIVE_S_MAX:
            raise Malformed("body", f"keepalive_s {keepalive_s} is out of bounds")
        if role > c.ROLE_UNKNOWN:
            raise Malformed("body", f"role {role} is unknown")
        assert self.endpoint is not None
        named = _leader_endpoint(leader)
        self._rounds.welcomed()
        self._keepalive_ns = keepalive_s * _NS_PER_S
        if role == c.ROLE_FOLLOWER:
            if named is None:
                raise Malformed("body", "a follower names no leader")
            self._rounds.leader_named(named, self.endpoint)
            self._drop(ConnectionFailedError(f"a follower; it names {named} as leader"), now_ns)
        elif role == c.ROLE_UNKNOWN:
            self.state = LinkState.LEADERLESS
            self._deadlines.set(self, now_ns + c.CLIENT_NO_LEADER_WAIT_MS * _NS_PER_MS)
        else:
            if named is not None:
                self._rounds.leader_named(named, self.endpoint)
            self.state = LinkState.READY
            if self._first_connection:
                self._first_connection = False
                self._backoff.reset()
            self._ready_ns = self._received_ns = now_ns
            self._set_silence_deadline()
            self._owner.link_ready(now_ns)

    def _error(self, request_id: int, code: int, text: str, now_ns: int, reply: Reply) -> None:
        if code not in c.ERRORS:
            raise Malformed("body", f"code {code} is unknown")
        name, kind, closes, _ = c.ERRORS[code]
        if self.state is LinkState.READY:
            if request_id:
                self._owner.link_reply(reply, now_ns)
            elif code == c.ERROR_NOT_SERVING:
                self.not_serving(f"{name}: {text}", now_ns)
            elif not closes:
                raise Malformed("body", f"{name} without a request")
            else:
                self._owner.link_refused(code, text, now_ns)
            return
        said = f"{name}: {text}" if text else name
        if code == c.ERROR_AUTH_FAILED:
            said += " (set the server's secret as option `secret` or in TICKETING_SECRET)"
        error: TicketingError = ConnectionFailedError(said)
        if kind == "auth":
            error = AuthError(said)
        elif kind == "protocol":
            error = ProtocolError(said)
        self._drop(error, now_ns)

    def _leader_moved(self, leader: bytes, now_ns: int) -> None:
        assert self.endpoint is not None
        named = _leader_endpoint(leader)
        self._rounds.leader_named(named, self.endpoint, once_more=True)
        where = "elsewhere" if named is None else f"to {named}"
        self._drop(ConnectionFailedError(f"the server sends its clients {where}"), now_ns)

    # Silence.

    def _set_silence_deadline(self) -> None:
        dead_ns = self._received_ns + c.SILENCE_KEEPALIVES * self._keepalive_ns
        if self._ping_unanswered:
            self._deadlines.set(self, dead_ns)
        else:
            ping_ns = min(self._received_ns, self._sent_ns) + self._keepalive_ns
            self._deadlines.set(self, min(dead_ns, ping_ns))

    def _watch_silence(self, now_ns: int) -> None:
        if now_ns - self._received_ns >= c.SILENCE_KEEPALIVES * self._keepalive_ns:
            silent_s = (now_ns - self._received_ns) / _NS_PER_S
            self._drop(ConnectionFailedError(f"nothing received for {silent_s:.1f} s"), now_ns)
            return
        quiet_since_ns = min(self._received_ns, self._sent_ns)
        if not self._ping_unanswered and now_ns - quiet_since_ns >= self._keepalive_ns:
            self._ping_unanswered = True
            self._sent_ns = now_ns
            self.outgoing.append(ping_frame(_KEEPALIVE_ECHO))
        self._set_silence_deadline()


_ABOUT_THE_CONNECTION = frozenset((c.REPLY_WELCOME, c.REPLY_LEADER, c.REPLY_ERROR, c.REPLY_PING))


def _leader_endpoint(leader: bytes) -> Endpoint | None:
    """The endpoint that a server names; raises Malformed for anything but nothing or an address."""
    if not leader:
        return None
    endpoint = parse_address(leader.decode("ascii", "replace"))
    if endpoint is None:
        raise Malformed("body", f"the leader {sanitised(leader)!r} is no host:port")
    return endpoint
