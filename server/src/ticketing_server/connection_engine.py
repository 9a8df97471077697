"""What every engine does with its connections: handshakes, take-over, limits, timers, ends.

What is read from a welcomed connection, and when it is answered, is the engine's own part: the
memory mode's in `standalone`, a node's in `cluster.node`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Literal

from ticketing_server import constants_gen as c
from ticketing_server import inspection
from ticketing_server.auth import Secrets
from ticketing_server.connections import CLOSE_REASONS, Connection, due_ns
from ticketing_server.deadlines import Deadlines
from ticketing_server.engine import (
    Counters,
    Event,
    Info,
    Inspected,
    NamedSecret,
    Output,
    Page,
    Peer,
    TicketInfo,
    WaiterInfo,
)
from ticketing_server.limits import Limits
from ticketing_server.lock_table import LockTable
from ticketing_server.queues import Link
from ticketing_server.session import (
    STANDALONE,
    Authority,
    Closing,
    Face,
    FaceFactory,
    Place,
    Welcome,
)
from ticketing_server.table_state import MS

SECOND = 1_000_000_000
_EVENTS_MAX = 4096
new_output: Callable[[tuple[int, bytes, str]], Output] = partial(tuple.__new__, Output)
"""As `Output`, but without what its own constructor costs for each connection in each turn."""


class ConnectionEngine(ABC):
    """Connections, and what is seen of them from outside; see `engine.Engine`."""

    table: LockTable

    def __init__(self, faces: Mapping[int, FaceFactory], place: Place = STANDALONE) -> None:
        """Serve with one kind of session per protocol version, made from its entropy."""
        self.connections: dict[int, Connection] = {}
        self.handshaking: dict[int, Connection] = {}
        self.welcomed: defaultdict[tuple[int, str, str], int] = defaultdict(int)
        self.closed: defaultdict[str, int] = defaultdict(int)
        self.handshake_failures: defaultdict[str, int] = defaultdict(int)
        self.errors: defaultdict[int, int] = defaultdict(int)
        self.received_bytes = 0
        self.sent_bytes = 0
        self.draining = False
        self.now_ns = 0
        """The table's time as of the last turn."""
        self._faces = faces
        self._place = place
        self._limits = Limits()
        self._authority = Authority(Secrets(()), self._limits.keepalive_s)
        self._clients: dict[bytes, Connection] = {}
        self._ending: list[Connection] = []
        self._fresh: list[Connection] = []
        self._timers: Deadlines[int, Connection] = Deadlines(due_ns)
        self._events: list[Event] = []

    # What an engine adds

    @abstractmethod
    def _connected(self, connection: Connection, link: Link, frame: bytes) -> None:
        """Take that a connection was welcomed, and answer it with this frame."""

    @abstractmethod
    def _disconnected(self, connection: Connection, link: Link) -> None:
        """Take that a welcomed connection ends: nothing more is read from it."""

    @abstractmethod
    def _farewell(self, face: Face) -> bytes:
        """Return what sends a welcomed client away in a drain."""

    # What the shell tells

    def open(self, connection: int, peer: Peer, entropy: bytes, now_ns: int) -> None:
        """Begin a connection; see `Engine.open`."""
        face = self._faces[peer.protocol](entropy, self._place)
        opened = Connection(connection, peer, face, now_ns)
        self.connections[connection] = opened
        self.handshaking[connection] = opened
        self._fresh.append(opened)
        if self.draining:
            self._close(opened, Closing(c.ERROR_NOT_SERVING, "draining"))
        elif self._is_full():
            self._refuse_full(opened)
        else:
            self._set_timer(opened, now_ns + c.HANDSHAKE_TIMEOUT_MS * MS)
            if len(self.handshaking) > self._limits.handshakes:
                oldest = next(iter(self.handshaking.values()))
                self._event("limit_reached", resource="handshakes", limit=self._limits.handshakes)
                self._close(
                    oldest, Closing(c.ERROR_TOO_MANY_CONNECTIONS, "too many without a hello")
                )

    def eof(self, connection: int) -> None:
        """See `Engine.eof`."""
        ended = self.connections.get(connection)
        if ended is not None and not ended.closing:
            self._close_with(ended, "eof", b"")

    def close(self, connection: int) -> None:
        """Forget a connection whose socket is gone; see `Engine.close`."""
        gone = self.connections.get(connection)
        if gone is not None and not gone.closing:
            gone.closing = "eof"
            self._end(gone)
            del self.connections[connection]

    def pause(self, connection: int, now_ns: int) -> None:
        """See `Engine.pause`."""
        paused = self.connections.get(connection)
        if paused is not None and paused.link is not None and not paused.closing:
            paused.paused = True
            self._set_timer(paused, now_ns + c.SLOW_READER_TIMEOUT_MS * MS)

    def resume(self, connection: int, now_ns: int) -> None:
        """See `Engine.resume`."""
        resumed = self.connections.get(connection)
        if resumed is not None and resumed.paused and not resumed.closing:
            resumed.paused = False
            resumed.heard_ns = now_ns
            self._watch_silence(resumed)

    def configure(self, limits: Limits, secrets: Sequence[NamedSecret], now_ns: int) -> None:
        """See `Engine.configure`."""
        self._limits = limits
        self._authority = self._authority._replace(
            secrets=Secrets(secrets), keepalive_s=limits.keepalive_s
        )

    def drain(self, now_ns: int) -> None:
        """See `Engine.drain`."""
        self.draining = True
        for connection in list(self.connections.values()):
            if connection.link is None:
                self._close(connection, Closing(c.ERROR_NOT_SERVING, "draining"))
            elif not connection.closing:
                self._close_with(connection, "drained", self._farewell(connection.face))
        self._event("drained")

    # Handshakes

    def _handshake(self, connection: Connection, data: bytes, now_ns: int) -> Link | None:
        try:
            welcome = connection.face.handshake(data, self._authority)
        except Closing as closing:
            self._refuse(connection, closing, now_ns)
            return None
        if welcome is None:
            return None
        rival = self._clients.get(welcome.client_id)
        if rival is None and self._is_full():
            self._refuse_full(connection)
            return None
        if rival is not None:
            newer = welcome.number > rival.hello_number
            loser = rival if newer else connection
            connection.label = welcome.label.decode("ascii", "replace")
            text = f"connection {max(welcome.number, rival.hello_number)} of this client id"
            self._close(loser, Closing(c.ERROR_TAKEN_OVER, text))
            if not newer:
                return None
        return self._welcome(connection, welcome, now_ns)

    def _welcome(self, connection: Connection, welcome: Welcome, now_ns: int) -> Link:
        link = Link(0, connection.number, welcome.client_id, leaves=connection.face.leaves)
        connection.link = link
        connection.hello_number = welcome.number
        connection.label = welcome.label.decode("ascii", "replace")
        connection.secret = welcome.secret
        connection.heard_ns = now_ns
        del self.handshaking[connection.number]
        self._clients[welcome.client_id] = connection
        self.welcomed[connection.kind] += 1
        self._connected(connection, link, welcome.frame)
        self._watch_silence(connection)
        self._event("connected", **named(connection))
        return link

    def _refuse(self, connection: Connection, closing: Closing, now_ns: int) -> None:
        if closing.delay_ms:
            connection.refusal = closing
            self._set_timer(connection, now_ns + closing.delay_ms * MS)
        else:
            self._close(connection, closing)

    def _is_full(self) -> bool:
        return sum(self.welcomed.values()) >= self._limits.connections

    def _refuse_full(self, connection: Connection) -> None:
        limit = self._limits.connections
        self._event("limit_reached", resource="connections", limit=limit)
        self._close(
            connection, Closing(c.ERROR_TOO_MANY_CONNECTIONS, "too many connections; try later")
        )

    # Ends

    def _close(self, connection: Connection, closing: Closing) -> None:
        """Close with the error as the last frame."""
        if connection.closing:
            return
        reason = CLOSE_REASONS[closing.code]
        self.errors[closing.code] += 1
        if connection.link is None:
            self.handshake_failures[reason] += 1
        if reason not in ("drained", "too_many_connections"):
            self._event(reason, text=closing.text, **named(connection))
        self._close_with(connection, reason, connection.face.last_words(closing))

    def _close_with(self, connection: Connection, reason: str, last_bytes: bytes) -> None:
        connection.closing = reason
        connection.last_bytes = last_bytes
        self._ending.append(connection)
        self._end(connection)

    def _close_refused(self, link: Link, frame: bytes) -> None:
        """Close a connection whose command the table refused for good."""
        connection = self.connections.get(link.number)
        if connection is not None and not connection.closing:
            self.errors[c.ERROR_BAD_FRAME] += 1
            text = frame[12:].decode("ascii")
            self._event("bad_frame", text=text, **named(connection))
            self._close_with(connection, "bad_frame", connection.face.refused(frame))

    def _end(self, connection: Connection) -> None:
        """Take a connection out of everything but the outputs to come."""
        self._stop_timer(connection)
        self.closed[connection.closing] += 1
        link = connection.link
        if link is None:
            del self.handshaking[connection.number]
            return
        self.welcomed[connection.kind] -= 1
        if self._clients.get(link.client) is connection:
            del self._clients[link.client]
        self._disconnected(connection, link)
        self._event("disconnected", reason=connection.closing, **named(connection))

    # Outputs

    def _greet(self, outputs: list[Output]) -> int:
        """Put the greetings of new connections out; return how many bytes they are."""
        sent = 0
        for fresh in self._fresh:
            outputs.append(Output(fresh.number, fresh.face.greeting))
            sent += len(fresh.face.greeting)
        self._fresh.clear()
        return sent

    # Timers

    def _set_timer(self, connection: Connection, due_ns: int) -> None:
        self._stop_timer(connection)
        connection.due_ns = due_ns
        connection.timer = self._timers.bucket(due_ns)
        connection.timer[connection.number] = connection

    def _stop_timer(self, connection: Connection) -> None:
        if connection.timer is not None:
            connection.timer.pop(connection.number, None)
            connection.timer = None

    def _watch_silence(self, connection: Connection) -> None:
        if connection.face.silent_is_dead:
            allowed = c.SILENCE_KEEPALIVES * self._authority.keepalive_s * SECOND
            self._set_timer(connection, connection.heard_ns + allowed)
        else:
            self._stop_timer(connection)

    def _do_timers(self, now_ns: int) -> None:
        timers = self._timers
        timers.open(now_ns)
        while (due := timers.first_due()) is not None and due <= now_ns:
            connection = timers.take_first()
            connection.timer = None
            if connection.refusal is not None:
                self._close(connection, connection.refusal)
            elif connection.link is None:
                self._close(connection, Closing(c.ERROR_HANDSHAKE_TIMEOUT, "no hello within 5 s"))
            elif connection.paused:
                text = f"over {self._limits.unsent_bytes} bytes unread for 30 s"
                self._close(connection, Closing(c.ERROR_SLOW_READER, text))
            else:
                self._check_silence(connection, now_ns)
        timers.look_ahead()

    def _check_silence(self, connection: Connection, now_ns: int) -> None:
        keepalive_s = self._authority.keepalive_s
        allowed_s = c.SILENCE_KEEPALIVES * keepalive_s
        if connection.heard_ns + allowed_s * SECOND > now_ns:
            self._watch_silence(connection)
        else:
            text = f"nothing received for {allowed_s} s; ping each {keepalive_s} s"
            self._close(connection, Closing(c.ERROR_IDLE_TIMEOUT, text))

    # What is seen from outside

    def inspect(
        self, what: Inspected, after: bytes | int | None, limit: int, key: bytes | None = None
    ) -> list[Info]:
        """See `Engine.inspect`."""
        return inspection.inspect(self, what, after, limit, key)

    def walk(
        self, what: Literal["tickets", "waiters"], after: int, limit: int, key: bytes | None = None
    ) -> Iterator[Page | None]:
        """See `Engine.walk`."""
        if what == "waiters":
            return inspection.walk_waiters(self, after, limit, key)
        return inspection.walk_tickets(self, after, limit, key)

    def overview(self, limit: int) -> tuple[list[TicketInfo], list[WaiterInfo]]:
        """Return what is looked at most; see `Engine.overview`."""
        return inspection.overview(self, limit)

    def counters(self) -> Counters:
        """See `Engine.counters`."""
        return inspection.counters(self)

    def take_events(self) -> list[Event]:
        """See `Engine.take_events`."""
        events, self._events = self._events, []
        return events

    def connection_of(self, client: bytes) -> Connection | None:
        """Return the connection that a client has now."""
        return self._clients.get(client)

    def _event(self, name: str, **fields: object) -> None:
        if len(self._events) < _EVENTS_MAX:
            self._events.append(Event(name, fields))

    def _name_events(self) -> None:
        """Put the table's events among ours, with label and peer of the client where it is."""
        for name, fields in self.table.events:
            client = fields.get("client_id")
            if isinstance(client, int):
                connection = self._clients.get(client.to_bytes(8, "big"))
                if connection is not None:
                    fields.update(label=connection.label, peer=connection.peer.address)
            self._event(name, **fields)
        self.table.events.clear()


def named(connection: Connection) -> dict[str, object]:
    """Return what names a connection in an event."""
    fields: dict[str, object] = {"connection": connection.number, "peer": connection.peer.address}
    if connection.label:
        fields["label"] = connection.label
    if connection.secret:
        fields["secret"] = connection.secret
    if connection.link is not None:
        fields["client_id"] = int.from_bytes(connection.link.client, "big")
    return fields
