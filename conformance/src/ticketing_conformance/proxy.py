"""A TCP proxy that records, holds back, delays and cuts, as a script tells it.

It forwards whole frames (`framed`), so that a rule can act exactly between two of them, or bytes
as they come (for TLS). What it recorded is what it read, whether or not it was forwarded.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ticketing_conformance.scripted_server import (
    READ_BYTES,
    close_both,
    close_with_reset,
)
from ticketing_conformance.streams import Connection, cut, the_spec

ACTIONS = ("hold", "cut", "cut_after", "eof")
CONNECT_SECONDS = 5.0
JOIN_SECONDS = 10.0
DIRECTIONS = {"up": "client", "down": "server"}


@dataclass
class Rule:
    """Act once, when a frame comes (`frame`, the `nth` from now) or at a byte of the stream.

    hold: keep it and what follows in this direction. cut: reset both sides, it is not forwarded.
    cut_after: forward it, then reset. eof: it is not forwarded, both sides are closed with FIN.
    """

    direction: str
    action: str
    frame: str = ""
    nth: int = 1
    at_byte: int | None = None
    done: bool = False


class ProxiedConnection(Connection):
    """One client's connection and its twin to the server."""

    def __init__(self, number: int, client: socket.socket, server: socket.socket) -> None:
        super().__init__(number)
        self.client = client
        self.server = server
        self.closed = False
        self.sent = {"up": 0, "down": 0}


class Proxy:
    """Listens on a free port of loopback and forwards to `target` (host and port, or a path)."""

    def __init__(self, target: tuple[str, int] | Path, framed: bool = True) -> None:
        self.target = target
        self.framed = framed
        self.connections: list[ProxiedConnection] = []
        self.condition = threading.Condition()
        self._held = {"up": False, "down": False}
        self._delay = {"up": 0.0, "down": 0.0}
        self._rules: list[Rule] = []
        self._threads: list[threading.Thread] = []
        self._listener: socket.socket | None = None
        self._address = ("127.0.0.1", 0)
        self._stopped = False
        self.listen()

    @property
    def address(self) -> str:
        """host:port for clients."""
        return f"{self._address[0]}:{self._address[1]}"

    def listen(self) -> None:
        """Take connections; after `refuse` on the same port as before."""
        if self._listener is not None:
            return
        listener = socket.create_server(self._address, backlog=1024)
        self._address = listener.getsockname()[:2]
        self._listener = listener
        self._start(self._accept, listener)

    def refuse(self) -> None:
        """Stop listening: who connects is refused. Open connections stay."""
        listener, self._listener = self._listener, None
        if listener is not None:
            close_both(listener)

    def _start(self, target: object, *arguments: object) -> None:
        assert callable(target)
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                server = self._connect()
            except OSError:
                close_with_reset(client)
                continue
            with self.condition:
                connection = ProxiedConnection(len(self.connections) + 1, client, server)
                self.connections.append(connection)
                self.condition.notify_all()
            self._start(self._pump, connection, "up")
            self._start(self._pump, connection, "down")

    def _connect(self) -> socket.socket:
        if isinstance(self.target, Path):
            server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            server.connect(str(self.target))
            return server
        server = socket.create_connection(self.target, CONNECT_SECONDS)
        server.settimeout(None)
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return server

    def _pump(self, connection: ProxiedConnection, way: str) -> None:
        stream = connection.stream(way)
        source, sink = connection.client, connection.server
        if way == "down":
            source, sink = sink, source
        rest, greeting = b"", way == "down"
        while True:
            try:
                data = source.recv(READ_BYTES)
            except OSError:
                stream.end("reset")
                self.cut(connection)
                return
            stream.append(data)
            with self.condition:
                self.condition.notify_all()
            if self._delay[way]:
                time.sleep(self._delay[way])
            pieces, rest = [rest + data], b""
            if self.framed and data:
                pieces, rest = cut("server" if greeting else "client", pieces[0])
                greeting = greeting and not pieces
            for piece in filter(None, pieces):
                if not self._forward(connection, way, sink, piece):
                    return
            if not data:
                stream.end("eof")
                self._pass_eof(connection, way, sink)
                return

    def _forward(
        self, connection: ProxiedConnection, way: str, sink: socket.socket, piece: bytes
    ) -> bool:
        for rule in self._due(connection, way, piece):
            if rule.action == "hold":
                self.hold(way)
            elif rule.at_byte is not None:
                self._send(connection, way, sink, piece[: rule.at_byte - connection.sent[way]])
                self.cut(connection, how="eof" if rule.action == "eof" else "reset")
                return False
            elif rule.action == "cut_after":
                self._send(connection, way, sink, piece)
                self.cut(connection)
                return False
            else:
                self.cut(connection, how="eof" if rule.action == "eof" else "reset")
                return False
        with self.condition:
            while self._held[way] and not connection.closed and not self._stopped:
                self.condition.wait()
        return not connection.closed and self._send(connection, way, sink, piece)

    def _due(self, connection: ProxiedConnection, way: str, piece: bytes) -> Iterator[Rule]:
        name = frame_name(DIRECTIONS[way], piece, first=connection.sent[way] == 0)
        for rule in self._rules:
            if rule.done or rule.direction != way:
                continue
            if rule.at_byte is not None:
                if connection.sent[way] + len(piece) < rule.at_byte:
                    continue
            elif rule.frame == name:
                rule.nth -= 1
                if rule.nth:
                    continue
            else:
                continue
            rule.done = True
            yield rule

    def _send(
        self, connection: ProxiedConnection, way: str, sink: socket.socket, data: bytes
    ) -> bool:
        try:
            sink.sendall(data)
        except OSError:
            self.cut(connection)
            return False
        connection.sent[way] += len(data)
        return True

    def _pass_eof(self, connection: ProxiedConnection, way: str, sink: socket.socket) -> None:
        with self.condition:
            while self._held[way] and not connection.closed and not self._stopped:
                self.condition.wait()
        try:
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # The other side was first.
        if connection.up.ended and connection.down.ended:
            self.cut(connection, how="eof")

    # What scripts use.

    def rule(self, rule: Rule) -> None:
        """Add a rule; it acts once."""
        with self.condition:
            self._rules.append(rule)

    def hold(self, way: str = "both") -> None:
        """Forward nothing more (up, down or both); bytes and ends of streams are kept."""
        self._set_held(way, True)

    def let_go(self, way: str = "both") -> None:
        """Forward what was held, and go on."""
        self._set_held(way, False)

    def _set_held(self, way: str, value: bool) -> None:
        with self.condition:
            for name in DIRECTIONS if way == "both" else (way,):
                self._held[name] = value
            self.condition.notify_all()

    def delay(self, way: str, seconds: float) -> None:
        """Keep every read of a direction for a time before it is forwarded."""
        for name in DIRECTIONS if way == "both" else (way,):
            self._delay[name] = seconds

    def cut(self, connection: ProxiedConnection | None = None, how: str = "reset") -> None:
        """End one connection, or all there are, at both sides: `reset` or `eof`."""
        with self.condition:
            ending = [connection] if connection else list(self.connections)
            ending = [one for one in ending if not one.closed]
            for one in ending:
                one.closed = True
            self.condition.notify_all()
        for one in ending:
            for sock in (one.client, one.server):
                if how == "reset":
                    close_with_reset(sock)
                else:
                    close_both(sock)
            one.up.end(how)
            one.down.end(how)

    def wait_connections(self, count: int, seconds: float) -> ProxiedConnection:
        """Wait until there were `count` connections; returns the last of them."""
        deadline = time.monotonic() + seconds
        with self.condition:
            while len(self.connections) < count:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError(
                        f"{len(self.connections)} of {count} connections within {seconds:g} s"
                    )
                self.condition.wait(left)
            return self.connections[count - 1]

    def stop(self) -> None:
        """Stop listening, end every connection and every thread."""
        self._stopped = True
        self.refuse()
        self.cut(how="eof")
        for thread in self._threads:
            thread.join(JOIN_SECONDS)


def frame_name(direction: str, piece: bytes, first: bool) -> str:
    """The name of a frame by its op; `greeting` for a server's first piece, "" if unknown."""
    if direction == "server" and first:
        return "greeting"
    for frame in the_spec().frames_of(direction):
        if piece and frame.op == piece[0]:
            return frame.name
    return ""
