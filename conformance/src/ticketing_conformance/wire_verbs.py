"""The verbs `wire …`: a bare client, for what no client would send, and for version 3."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from ticketing_spec import Spec, load_spec
from ticketing_spec.codec import (
    Malformed,
    client_nonce,
    decode,
    decode_preamble,
    encode,
    fingerprint,
    mac,
    proof,
)

from ticketing_conformance.context import (
    SECRET,
    Arguments,
    Context,
    StepFailed,
    frame_fields,
)
from ticketing_conformance.scripted_server import ScriptedConnection
from ticketing_conformance.streams import (
    GREETING_BYTES,
    Fields,
    StreamEnded,
    StreamSilent,
    the_spec,
)

CONNECT_SECONDS = 10.0
ACCEPTED = b"\x01"
# Version 3 has seconds in a byte: the longest wait, and a lease that a case does not outlive.
VERSION3_WAIT_S = 250
VERSION3_LEASE_S = 60


class WireVerbs:
    """The bare clients of one run. What they receive is in the stream `up` of their connection."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._connections: dict[str, ScriptedConnection] = {}
        self._specs: dict[str, Spec] = {}

    def do(self, arguments: Arguments) -> dict[str, Any]:
        """Carry out one step; returns the fields of its answer."""
        word = arguments.word(0, "what to do")
        method = getattr(self, f"_do_{word}", None)
        if method is None:
            raise StepFailed(f"wire has no verb {word}")
        result: dict[str, Any] = method(arguments) or {}
        arguments.finish()
        return result

    def _connection(self, arguments: Arguments) -> ScriptedConnection:
        name = arguments.word(1, "the name of a connection")
        if name not in self._connections:
            raise StepFailed(f"there is no wire {name}")
        return self._connections[name]

    def _do_open(self, arguments: Arguments) -> dict[str, Any]:
        """Connect, and shake hands unless `handshake=0`; with `version=3` as such a client."""
        name = arguments.text("as", "w")
        target = arguments.text("to")
        if target.startswith("/"):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.connect(target)
        else:
            host, _, port = target.rpartition(":")
            sock = socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS)
            sock.settimeout(None)
        connection = ScriptedConnection(len(self._connections) + 1, sock)
        self._connections[name] = connection
        self._context.closers.append(connection.close)
        version = arguments.integer("version", 4)
        self._specs[name] = the_spec() if version == 4 else load_spec(f"version{version}")
        if not arguments.integer("handshake", 1):
            return {}
        secret = arguments.data("secret", SECRET)
        if version == 3:
            alone = fingerprint(self._specs[name], None)
            of = arguments.data("fingerprint", alone)
            self._shake_hands3(connection, self._specs[name], secret, of)
            return {}
        greeting = self._take(connection, GREETING_BYTES)
        number = arguments.integer("connection", 1)
        hello: Fields = {
            "version": 4,
            "client_id": arguments.integer("client_id", 0x57495245),
            "connection": number,
            "client_nonce": client_nonce(the_spec(), arguments.data("seed", bytes(16)), number),
            "label": arguments.data("label", b"wire"),
        }
        hello["mac"] = mac(the_spec(), secret, greeting, hello)
        connection.send(encode(the_spec(), "client", "hello", hello))
        welcome = self._expect(name, "welcome", self._context.seconds_left())
        nonce = hello["client_nonce"]
        assert isinstance(nonce, bytes)
        covered = {key: value for key, value in welcome.items() if key != "proof"}
        if proof(the_spec(), secret, greeting, nonce, covered) != welcome["proof"]:
            raise StepFailed("the server's proof is wrong")
        greeted = decode_preamble(the_spec(), "greeting", greeting)
        return {"mode": greeted["mode"], "slot": greeted["slot"], **welcome}

    def _shake_hands3(
        self, connection: ScriptedConnection, spec: Spec, secret: bytes, of: bytes
    ) -> None:
        greeting = self._take(connection, spec.preamble("greeting").fixed_bytes)
        connection.send(mac(spec, secret, greeting, {"fingerprint": of}))
        if self._take(connection, len(ACCEPTED)) != ACCEPTED:
            raise StepFailed("the server rejected the answer to its greeting")

    def _take(self, connection: ScriptedConnection, size: int) -> bytes:
        try:
            return connection.up.take(size, self._context.seconds_left(), f"{size} bytes")
        except (StreamEnded, StreamSilent) as error:
            raise StepFailed(str(error)) from None

    def _do_send(self, arguments: Arguments) -> None:
        connection = self._connection(arguments)
        if arguments.has("raw"):
            connection.send(arguments.data("raw", b""))
            return
        name = arguments.word(2, "the name of a frame, or raw=")
        fields = frame_fields(arguments.rest())
        try:
            connection.send(encode(self._specs[arguments.words[1]], "client", name, fields))
        except (Malformed, KeyError, TypeError) as error:
            raise StepFailed(f"the script's {name} can't be encoded: {error}") from None

    def _do_expect(self, arguments: Arguments) -> dict[str, Any]:
        self._connection(arguments)
        name = arguments.word(2, "the name of a frame")
        within = arguments.integer("within_ms", 20_000) / 1000
        skip = arguments.text("skip", "")
        wanted = frame_fields(arguments.rest())
        seconds = self._context.seconds_left(within)
        fields = self._expect(arguments.words[1], name, seconds, skip)
        for field, value in wanted.items():
            if fields.get(field) != value:
                raise StepFailed(f"{name} has {field}={fields.get(field)!r}, expected {value!r}")
        self._context.variables[arguments.words[1]] = fields
        return dict(fields)

    def _expect(self, wire: str, name: str, seconds: float, skip: str = "") -> Fields:
        try:
            got = skip
            while got == skip:
                raw = self._connections[wire].up.next_frame(seconds, name)
                got, fields = decode(self._specs[wire], "server", raw)
        except (StreamEnded, StreamSilent, Malformed) as error:
            raise StepFailed(f"expected {name}: {error}") from None
        if got != name:
            raise StepFailed(f"expected {name}, got {got} {fields}")
        return dict(fields)

    def _do_contend(self, arguments: Arguments) -> None:
        """What the adapters' verb does, with a version 3 client: `key=`, `times=`, `file=`."""
        connection = self._connection(arguments)
        wire = arguments.words[1]
        spec = self._specs[wire]
        key, times = arguments.data("key", b""), arguments.integer("times", 1)
        path = Path(arguments.text("file"))
        for number in range(1, times + 1):
            request: Fields = {"request_id": 2 * number - 1, "key": key}
            bounds: Fields = {"wait_s": VERSION3_WAIT_S, "lease_s": VERSION3_LEASE_S}
            connection.send(encode(spec, "client", "acquire", request | bounds))
            token = self._expect(wire, "granted", self._context.seconds_left())["token"]
            path.write_text(str(int(path.read_text() or "0") + 1))
            with Path(f"{path}.tokens").open("a") as tokens:
                tokens.write(f"{token!r}\n")
            request = {"request_id": 2 * number, "key": key, "token": token}
            connection.send(encode(spec, "client", "release", request))
            self._expect(wire, "released", self._context.seconds_left())

    def _do_eof(self, arguments: Arguments) -> None:
        self._connection(arguments).eof()

    def _do_reset(self, arguments: Arguments) -> None:
        self._connection(arguments).reset()

    def _do_close(self, arguments: Arguments) -> None:
        self._connection(arguments).close()

    def _do_expect_end(self, arguments: Arguments) -> None:
        connection = self._connection(arguments)
        seconds = self._context.seconds_left(arguments.integer("within_ms", 20_000) / 1000)
        try:
            connection.up.wait(lambda: bool(connection.up.ended), seconds, "the end")
        except StreamSilent as error:
            raise StepFailed(str(error)) from None
