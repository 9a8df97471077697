"""The verbs `peer …`: a scripted server, step by step."""

from __future__ import annotations

import time
from typing import Any

from ticketing_spec.codec import Malformed, encode, mac

from ticketing_conformance.context import (
    SECRET,
    Arguments,
    Capture,
    Context,
    StepFailed,
    frame_fields,
)
from ticketing_conformance.loose_codec import encode_loose, proof_of_any
from ticketing_conformance.scripted_server import ScriptedConnection, ScriptedServer
from ticketing_conformance.streams import (
    Fields,
    StreamEnded,
    StreamSilent,
    read_piece,
    the_spec,
)

# So long that no ping falls due unless a case is about pings.
KEEPALIVE_S = 3600
EXPECT_NOTHING_MS = 300
GREETING_FIELDS = ("min_version", "max_version", "mode", "slot", "nonce")
HELLO_FIELDS = ("version", "client_id", "connection", "client_nonce", "label")


class Conversation:
    """What the handshake of one connection needs to remember."""

    def __init__(self, connection: ScriptedConnection, secret: bytes) -> None:
        self.connection = connection
        self.secret = secret
        self.greeting = b""
        self.hello: Fields = {}
        self.last: Fields = {}


def greeting_fields(values: dict[str, Any], number: int) -> Fields:
    """Fields of a greeting, with the defaults of a standalone server and a nonce by number."""
    fields = frame_fields(values)
    defaults: Fields = {
        "min_version": 4,
        "max_version": 4,
        "mode": 0,
        "slot": 255,
        "nonce": bytes([number % 256]) * 16,
    }
    return {**defaults, **fields}


def welcome_fields(values: dict[str, Any], secret: bytes, greeting: bytes, nonce: bytes) -> Fields:
    """Fields of a welcome; the proof is worked out where none is given."""
    defaults: Fields = {
        "role": 0,
        "keepalive_s": KEEPALIVE_S,
        "fingerprint": bytes(32),
        "leader": b"",
    }
    fields = {**defaults, **frame_fields(values)}
    if "proof" not in fields:
        fields["proof"] = proof_of_any(secret, greeting, nonce, fields)
    return fields


class PeerVerbs:
    """The scripted servers of one run."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._servers: dict[str, ScriptedServer] = {}
        self._secrets: dict[str, bytes] = {}
        self._conversations: dict[str, Conversation] = {}
        context.sources.append(self._captures)

    def _captures(self) -> list[Capture]:
        return [
            Capture(name, connection)
            for name, server in self._servers.items()
            for connection in server.connections
        ]

    def do(self, arguments: Arguments) -> dict[str, Any]:
        """Carry out one step; returns the fields of its answer."""
        word = arguments.word(0, "what to do")
        method = getattr(self, f"_do_{word}", None)
        if method is None:
            raise StepFailed(f"peer has no verb {word}")
        result: dict[str, Any] = method(arguments) or {}
        arguments.finish()
        return result

    def _server(self, arguments: Arguments) -> ScriptedServer:
        name = arguments.word(1, "the name of a scripted server")
        if name not in self._servers:
            raise StepFailed(f"there is no scripted server {name}")
        return self._servers[name]

    def _conversation(self, arguments: Arguments) -> Conversation:
        name = arguments.word(1, "the name of a connection")
        if name not in self._conversations:
            raise StepFailed(f"there is no connection {name}")
        return self._conversations[name]

    def _do_listen(self, arguments: Arguments) -> dict[str, Any]:
        name = arguments.text("as", "p")
        secret = arguments.data("secret", SECRET)
        if arguments.integer("unix", 0):
            path = self._context.directory / f"{name}.sock"
            server = ScriptedServer(unix_path=path)
            url = f"ticketing+unix://{path}"
        else:
            server = ScriptedServer(arguments.text("host", "127.0.0.1"))
            url = f"ticketing://{server.address}"
        self._servers[name] = server
        self._secrets[name] = secret
        self._context.closers.append(server.stop)
        values = {"address": server.address, "url": url}
        self._context.variables[name] = values
        self._context.variables["url"] = url
        return values

    def _do_refuse(self, arguments: Arguments) -> None:
        self._server(arguments).refuse()

    def _do_listen_again(self, arguments: Arguments) -> None:
        self._server(arguments).listen()

    def _do_connections(self, arguments: Arguments) -> dict[str, Any]:
        return {"count": len(self._server(arguments).connections)}

    def _do_accept(self, arguments: Arguments) -> dict[str, Any]:
        server_name = arguments.word(1, "the name of a scripted server")
        server = self._server(arguments)
        within = arguments.integer("within_ms", 20_000) / 1000
        try:
            connection = server.accept(self._context.seconds_left(within))
        except TimeoutError as error:
            raise StepFailed(str(error)) from None
        name = arguments.text("as", "k")
        self._conversations[name] = Conversation(connection, self._secrets[server_name])
        return {"number": connection.number}

    def _do_serve(self, arguments: Arguments) -> dict[str, Any]:
        """Accept, greet, read the hello, check its mac, welcome.

        Fields of greeting and welcome are taken as they are, those of the hello are compared.
        """
        name = arguments.text("as", "k")
        server = arguments.word(1, "the name of a scripted server")
        greeting = _take(arguments, GREETING_FIELDS)
        wanted = frame_fields(_take(arguments, HELLO_FIELDS))
        self._do_accept(Arguments("peer", ["accept", server], {"as": name}))
        conversation = self._conversations[name]
        self._greet(conversation, greeting)
        wanted.setdefault("mac_right", 1)
        hello = self.expect_frame(conversation, "hello", wanted, self._context.seconds_left())
        fields = welcome_fields(
            arguments.rest(), conversation.secret, conversation.greeting, nonce_of(hello)
        )
        conversation.connection.send(encode(the_spec(), "server", "welcome", fields))
        self._context.variables[name] = hello
        return dict(hello)

    def _greet(self, conversation: Conversation, values: dict[str, Any]) -> None:
        fields = greeting_fields(values, conversation.connection.number)
        conversation.greeting = greeting_bytes(fields)
        conversation.connection.send(conversation.greeting)

    def _do_send(self, arguments: Arguments) -> None:
        conversation = self._conversation(arguments)
        cuts = arguments.integers("cuts")
        every = arguments.integer("every", 0)
        gap = arguments.integer("gap_ms", 0) / 1000
        data = self._bytes_to_send(conversation, arguments)
        if every:
            cuts = list(range(every, len(data), every))
        conversation.connection.send(data, cuts, gap)

    def _bytes_to_send(self, conversation: Conversation, arguments: Arguments) -> bytes:
        if arguments.has("raw"):
            return arguments.data("raw", b"")
        name = arguments.word(2, "the name of a frame, or raw=")
        loose = arguments.integer("loose", 0)
        length = arguments.optional_integer("length")
        keep = arguments.optional_integer("first_bytes")
        values = arguments.rest()
        if name == "greeting":
            data = greeting_bytes(greeting_fields(values, conversation.connection.number))
            conversation.greeting = data
        elif name == "welcome":
            nonce = nonce_of(conversation.hello) if conversation.hello else bytes(16)
            spoilt = str(values.pop("spoil", ""))
            fields = welcome_fields(values, conversation.secret, conversation.greeting, nonce)
            if spoilt:
                fields[spoilt] = _spoilt(fields[spoilt])
            data = self._encode(name, fields, loose, length)
        else:
            fields = frame_fields(values)
            frame = the_spec().frame("server", name)
            wanted = {field.name for field in frame.fields}
            for known in ("request_id", "echo"):
                if known in wanted and known not in fields and known in conversation.last:
                    fields[known] = conversation.last[known]
            data = self._encode(name, fields, loose, length)
        return data if keep is None else data[:keep]

    def _encode(self, name: str, fields: Fields, loose: int, length: int | None) -> bytes:
        if loose or length is not None:
            return encode_loose("server", name, fields, length)
        try:
            return encode(the_spec(), "server", name, fields)
        except (Malformed, KeyError, TypeError) as error:
            raise StepFailed(f"the script's {name} can't be encoded: {error}") from None

    def _do_expect(self, arguments: Arguments) -> dict[str, Any]:
        conversation = self._conversation(arguments)
        within = arguments.integer("within_ms", 20_000) / 1000
        name = arguments.word(2, "the name of a frame")
        wanted = frame_fields(arguments.rest())
        seconds = self._context.seconds_left(within)
        fields = self.expect_frame(conversation, name, wanted, seconds)
        self._context.variables[arguments.words[1]] = fields
        return dict(fields)

    def expect_frame(
        self, conversation: Conversation, name: str, wanted: Fields, seconds: float
    ) -> Fields:
        """The next frame of the client, which has to be this one with these fields."""
        fields = self._next(conversation, name, seconds)
        for field, value in wanted.items():
            if field != "of" and fields.get(field) != value:
                raise StepFailed(f"{name} has {field}={fields.get(field)!r}, expected {value!r}")
        return fields

    def _next(self, conversation: Conversation, name: str, seconds: float) -> Fields:
        try:
            raw = conversation.connection.up.next_frame(seconds, name)
        except (StreamEnded, StreamSilent) as error:
            raise StepFailed(str(error)) from None
        try:
            got, fields = read_piece("client", 0, raw)
        except Malformed as error:
            raise StepFailed(f"expected {name}, got {raw.hex()}: {error}") from None
        if got != name:
            raise StepFailed(f"expected {name}, got {got} {fields}")
        conversation.last = fields
        if name == "hello":
            conversation.hello = fields
            right = mac(
                the_spec(),
                conversation.secret,
                conversation.greeting,
                {key: value for key, value in fields.items() if key != "mac"},
            )
            fields["mac_right"] = int(right == fields["mac"])
        return fields

    def _do_hold(self, arguments: Arguments) -> None:
        self._conversation(arguments).connection.hold()

    def _do_flush(self, arguments: Arguments) -> None:
        connection = self._conversation(arguments).connection
        cuts = arguments.integers("cuts")
        every = arguments.integer("every", 0)
        if every:
            cuts = list(range(every, 1_000_000, every))
        connection.flush(cuts, arguments.integer("gap_ms", 0) / 1000)

    def _do_eof(self, arguments: Arguments) -> None:
        self._conversation(arguments).connection.eof()

    def _do_reset(self, arguments: Arguments) -> None:
        self._conversation(arguments).connection.reset()

    def _do_close(self, arguments: Arguments) -> None:
        self._conversation(arguments).connection.close()

    def _do_expect_end(self, arguments: Arguments) -> dict[str, Any]:
        """The client ends the connection, and sends nothing more before that."""
        connection = self._conversation(arguments).connection
        seconds = self._context.seconds_left(arguments.integer("within_ms", 20_000) / 1000)
        deadline = time.monotonic() + seconds
        stream = connection.up
        with stream.condition:
            while not stream.ended:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise StepFailed(f"the client did not end the connection in {seconds:g} s")
                stream.condition.wait(left)
        unread, anything = stream.unread(), arguments.integer("any", 0)
        if unread and not anything:
            raise StepFailed(f"the client sent {unread.hex()} before it ended the connection")
        return {"how": stream.ended}

    def _do_expect_nothing(self, arguments: Arguments) -> None:
        """The client sends nothing for a time, and leaves the connection open."""
        connection = self._conversation(arguments).connection
        time.sleep(arguments.integer("for_ms", EXPECT_NOTHING_MS) / 1000)
        unread = connection.up.unread()
        if unread:
            raise StepFailed(f"the client sent {unread.hex()} where nothing was expected")
        if connection.up.ended and not arguments.integer("ended", 0):
            raise StepFailed(f"the client ended the connection with {connection.up.ended}")


def _take(arguments: Arguments, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: arguments.take(name) for name in names if arguments.has(name)}


def greeting_bytes(fields: Fields) -> bytes:
    """A greeting with any values, so that a script can send a wrong one."""
    numbers = [fields[name] for name in GREETING_FIELDS[:-1]]
    nonce = fields["nonce"]
    assert isinstance(nonce, bytes)
    return b"TICKET" + bytes(number for number in numbers if isinstance(number, int)) + nonce


def nonce_of(hello: Fields) -> bytes:
    """The client nonce of a hello."""
    nonce = hello["client_nonce"]
    assert isinstance(nonce, bytes)
    return nonce


def _spoilt(value: int | bytes | list[bytes]) -> int | bytes:
    """Another legal value of a welcome's field, so that only the proof can tell."""
    if isinstance(value, int):
        return value + 1
    assert isinstance(value, bytes)
    return value[:-1] + bytes([value[-1] ^ 1])
