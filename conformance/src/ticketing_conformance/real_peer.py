"""The second pass of the identity suite: the same scripts against the real server.

The steps of the scripted server are answered by a recording proxy before a real one. What the
script would send is awaited from the server, with tokens, times, nonces and proofs masked; what it
expects from the client is compared as before, a token being the one that the server gave for it.
"""

from __future__ import annotations

from typing import Any

from ticketing_spec.codec import Malformed, mac

from ticketing_conformance.context import (
    SECRET,
    Arguments,
    Capture,
    Context,
    StepFailed,
    frame_fields,
)
from ticketing_conformance.proxy import ProxiedConnection, Proxy
from ticketing_conformance.server_pool import ServerPool
from ticketing_conformance.streams import (
    GREETING_BYTES,
    Fields,
    StreamEnded,
    StreamSilent,
    read_piece,
    the_spec,
)

# What differs from run to run, in frames of the server.
MASKED = {"nonce", "proof", "waited_ms", "keepalive_s", "text"}
KEEPALIVE = "--keepalive=1h"


class RealPeer:
    """Answers the verbs `peer …` of a scenario with a real server."""

    def __init__(self, context: Context, pool: ServerPool) -> None:
        self._context = context
        self._pool = pool
        self._proxies: dict[str, Proxy] = {}
        self._taken: dict[str, int] = {}
        self._connections: dict[str, tuple[Proxy, ProxiedConnection]] = {}
        self._tokens: dict[int, int] = {}
        self._last: dict[str, Fields] = {}
        context.sources.append(self._captures)

    def _captures(self) -> list[Capture]:
        return [
            Capture(name, connection)
            for name, proxy in self._proxies.items()
            for connection in proxy.connections
        ]

    def do(self, arguments: Arguments) -> dict[str, Any]:
        """Carry out one step."""
        word = arguments.word(0, "what to do")
        method = getattr(self, f"_do_{word}", None)
        if method is None:
            raise StepFailed(f"a scenario for the real server can't use peer {word}")
        try:
            result: dict[str, Any] = method(arguments) or {}
        except (StreamEnded, StreamSilent, Malformed, TimeoutError) as error:
            raise StepFailed(str(error)) from None
        return result

    def _do_listen(self, arguments: Arguments) -> dict[str, Any]:
        name = arguments.text("as", "p")
        secret = arguments.data("secret", SECRET).decode("ascii")
        server = self._pool.take([KEEPALIVE], {"TICKETING_SECRET": secret}, "127.0.0.1:0")
        self._context.closers.append(lambda: self._pool.give_back(server))
        host, _, port = server.address.rpartition(":")
        proxy = Proxy((host, int(port)))
        self._context.closers.append(proxy.stop)
        self._proxies[name] = proxy
        url = f"ticketing://{proxy.address}"
        self._context.variables[name] = {"address": proxy.address, "url": url}
        self._context.variables["url"] = url
        return {}

    def _do_accept(self, arguments: Arguments) -> dict[str, Any]:
        self._accept(arguments)
        return {}

    def _accept(self, arguments: Arguments) -> str:
        server = arguments.word(1, "the name of a server")
        proxy = self._proxies[server]
        number = self._taken[server] = self._taken.get(server, 0) + 1
        connection = proxy.wait_connections(number, self._context.seconds_left())
        name = arguments.text("as", "k")
        self._connections[name] = (proxy, connection)
        return name

    def _do_serve(self, arguments: Arguments) -> dict[str, Any]:
        name = self._accept(arguments)
        connection = self._connections[name][1]
        seconds = self._context.seconds_left()
        greeting = connection.down.take(GREETING_BYTES, seconds, "the greeting")
        hello = self._read(name, "client", "hello")
        right = mac(
            the_spec(),
            SECRET,
            greeting,
            {key: value for key, value in hello.items() if key != "mac"},
        )
        if right != hello["mac"]:
            raise StepFailed("the hello's mac is wrong")
        self._read(name, "server", "welcome")
        return dict(hello)

    def _read(self, name: str, direction: str, frame: str) -> Fields:
        connection = self._connections[name][1]
        stream = connection.up if direction == "client" else connection.down
        piece = stream.next_frame(self._context.seconds_left(), frame)
        got, fields = read_piece(direction, 1, piece)
        if got != frame:
            raise StepFailed(f"expected {frame}, got {got} {fields}")
        return fields

    def _do_send(self, arguments: Arguments) -> None:
        """Wait until the real server sent this frame."""
        name, frame = arguments.word(1, "a connection"), arguments.word(2, "a frame")
        wanted = frame_fields(arguments.rest())
        for known in ("request_id", "echo"):
            if known in self._last.get(name, {}):
                wanted.setdefault(known, self._last[name][known])
        fields = self._read(name, "server", frame)
        for field, value in wanted.items():
            if field in MASKED or field not in fields:
                continue
            got = fields[field]
            if field == "token":
                assert isinstance(got, int)
                assert isinstance(value, int)
                value = self._tokens.setdefault(value, got)
            elif field == "lease_ms":
                continue
            if got != value:
                raise StepFailed(f"the server's {frame} has {field}={got!r}, expected {value!r}")

    def _do_expect(self, arguments: Arguments) -> dict[str, Any]:
        name, frame = arguments.word(1, "a connection"), arguments.word(2, "a frame")
        wanted = frame_fields(arguments.rest())
        fields = self._read(name, "client", frame)
        for field, value in wanted.items():
            if field == "token" and isinstance(value, int):
                value = self._tokens.get(value, value)
            if field in fields and fields[field] != value:
                raise StepFailed(f"{frame} has {field}={fields[field]!r}, expected {value!r}")
        self._last[name] = fields
        return dict(fields)

    def _cut(self, arguments: Arguments, how: str) -> None:
        proxy, connection = self._connections[arguments.word(1, "a connection")]
        proxy.cut(connection, how)

    def _do_reset(self, arguments: Arguments) -> None:
        self._cut(arguments, "reset")

    def _do_close(self, arguments: Arguments) -> None:
        self._cut(arguments, "eof")

    _do_eof = _do_close

    def _do_refuse(self, arguments: Arguments) -> None:
        self._proxies[arguments.word(1, "a server")].refuse()

    def _do_listen_again(self, arguments: Arguments) -> None:
        self._proxies[arguments.word(1, "a server")].listen()

    def _do_expect_end(self, arguments: Arguments) -> dict[str, Any]:
        connection = self._connections[arguments.word(1, "a connection")][1]
        stream = connection.up
        seconds = self._context.seconds_left()
        with stream.condition:
            if not stream.condition.wait_for(lambda: stream.ended, seconds):
                raise StepFailed(f"the client did not end the connection in {seconds:g} s")
        if stream.unread():
            raise StepFailed(f"the client sent {stream.unread().hex()} that nothing expects")
        return {}

    def _nothing(self, arguments: Arguments) -> None:
        """How the script's server cuts its bytes says nothing about the real one."""

    _do_hold = _do_flush = _do_expect_nothing = _nothing
