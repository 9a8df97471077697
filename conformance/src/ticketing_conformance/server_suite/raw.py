"""A raw client: a blocking socket and the spec's codec, with none of the rules that clients keep.

It sends what a test tells it, whole or in pieces, right or wrong, and hands back every frame that
the server sent. Bytes are made and read by `ticketing_spec.codec` alone, so that nothing of the
server or of a client is trusted here.
"""

from __future__ import annotations

import secrets
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ticketing_spec import load_spec
from ticketing_spec.codec import client_nonce, decode, encode, mac, proof

SPEC = load_spec()

GREETING_BYTES = 26
HEADER_BYTES = 3
PROTOCOL_VERSION = 4
WAIT_FOREVER = 0xFFFFFFFF
NEVER_A_TOKEN = 0xFFFFFFFFFFFFFFFF
"""Tokens rise from 1, so none has this value: a release with it changes nothing."""

RECEIVE_S = 30.0
"""How long to wait for what must come. Generous: a loaded machine is late, never wrong."""
LABEL = b"suite;raw/1"


class Frame(NamedTuple):
    """One frame from the server, by the names of the spec."""

    name: str
    fields: dict[str, Any]


@dataclass(frozen=True)
class Target:
    """Where a server listens: `host` and `port`, or a Unix socket's `path`; with TLS or without."""

    host: str = ""
    port: int = 0
    path: str = ""
    tls: ssl.SSLContext | None = None

    def open(self) -> socket.socket:
        """A connected socket, through the TLS handshake where there is one."""
        if self.path:
            plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            plain.settimeout(RECEIVE_S)
            plain.connect(self.path)
            return plain
        plain = socket.create_connection((self.host, self.port), timeout=RECEIVE_S)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.tls is None:
            return plain
        try:
            return self.tls.wrap_socket(plain, server_hostname=self.host)
        except BaseException:
            plain.close()
            raise


class ConnectionEnded(AssertionError):
    """The server closed the connection while a test still waited for a frame."""


class RawConnection:
    """A connection after the greeting: bytes out, frames in, nothing said by itself."""

    spec = SPEC
    greeting_bytes = GREETING_BYTES

    def __init__(self, target: Target) -> None:
        self.socket = target.open()
        self._unread = bytearray()
        self._inbox: list[Frame] = []
        self.ended = False
        self.greeting = self.receive_exactly(self.greeting_bytes)

    def close(self) -> None:
        """Closes the socket; what the server still sends is refused by the kernel."""
        self.socket.close()

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send(self, name: str, **fields: Any) -> None:
        """Sends one frame, made by the spec's encoder."""
        self.send_bytes(encode(self.spec, "client", name, fields))

    def take(self, name: str | None = None, *, within_s: float = RECEIVE_S, **fields: Any) -> Frame:
        """The first frame of this name with these fields; others stay for later takes.

        Fails where the server closes first, or nothing like it comes within `within_s` seconds.
        """

        def wanted(frame: Frame) -> bool:
            return (name is None or frame.name == name) and all(
                frame.fields.get(field) == value for field, value in fields.items()
            )

        return self._take(wanted, f"{name or 'any frame'} {fields}", within_s)

    def reply(self, request_id: int, *, within_s: float = RECEIVE_S) -> Frame:
        """The next frame that carries this request id, whatever it says."""
        return self.take(None, within_s=within_s, request_id=request_id)

    def expect(self, name: str, request_id: int, *, within_s: float = RECEIVE_S) -> dict[str, Any]:
        """The fields of the next frame with this request id, which must be of this name."""
        frame = self.reply(request_id, within_s=within_s)
        assert frame.name == name, f"request {request_id}: expected {name}, got {frame}"
        return frame.fields

    def expect_refusal(
        self, code: int, *, within_s: float = RECEIVE_S, about: str = ""
    ) -> dict[str, Any]:
        """The fields of the E with this code, after which the server has closed."""
        frame = self.take("error", within_s=within_s)
        assert frame.fields["code"] == code, f"{about}: expected error code {code}, got {frame}"
        check_error_text(frame.fields["text"])
        self.expect_end(within_s=within_s)
        return frame.fields

    def expect_end(self, *, within_s: float = RECEIVE_S) -> None:
        """Waits for the end of the stream, and finds no frame before it."""
        self.drain_until_end(within_s=within_s)
        assert not self._inbox, f"frames after the last one expected: {self._inbox}"

    def drain_until_end(self, *, within_s: float = RECEIVE_S) -> list[Frame]:
        """Reads until the server closes; the frames that came stay in the inbox too."""
        deadline = time.monotonic() + within_s
        while not self.ended:
            self._receive_some(deadline, "the end of the stream")
        assert not self._unread, f"the stream ended inside a frame: {bytes(self._unread).hex()}"
        return list(self._inbox)

    def drain_until_end_or_reset(self, *, within_s: float = RECEIVE_S) -> list[Frame]:
        """The same where the test sent what the server may refuse to read."""
        try:
            return self.drain_until_end(within_s=within_s)
        except (ConnectionResetError, BrokenPipeError):
            self.ended = True
            return list(self._inbox)

    def unclaimed(self) -> list[Frame]:
        """Frames read that no test step took yet."""
        return list(self._inbox)

    def _take(self, wanted: Callable[[Frame], bool], what: str, within_s: float) -> Frame:
        deadline = time.monotonic() + within_s
        looked_at = 0
        while True:
            for index in range(looked_at, len(self._inbox)):
                if wanted(self._inbox[index]):
                    return self._inbox.pop(index)
            looked_at = len(self._inbox)
            if self.ended:
                raise ConnectionEnded(f"closed while waiting for {what}; unclaimed: {self._inbox}")
            self._receive_some(deadline, what)

    def _receive_some(self, deadline: float, what: str) -> None:
        left = deadline - time.monotonic()
        assert left > 0, f"nothing like {what} in time; unclaimed: {self._inbox[:20]}"
        self.socket.settimeout(left)
        try:
            data = self.socket.recv(1 << 16)
        except TimeoutError:
            return
        except ssl.SSLEOFError:
            data = b""
        finally:
            self.socket.settimeout(RECEIVE_S)
        if not data:
            self.ended = True
            return
        self._unread += data
        self._cut_frames()

    def _cut_frames(self) -> None:
        start = 0
        unread = self._unread
        while len(unread) - start >= HEADER_BYTES:
            end = start + HEADER_BYTES + int.from_bytes(unread[start + 1 : start + 3], "big")
            if end > len(unread):
                break
            name, fields = decode(self.spec, "server", bytes(unread[start:end]))
            self._inbox.append(Frame(name, fields))
            start = end
        del unread[:start]

    def receive_exactly(self, count: int) -> bytes:
        """Bytes that are no frame: the greeting, and version 3's verdict."""
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            if not more:
                raise ConnectionEnded(f"closed after {len(data)} of {count} bytes")
            data += more
        return data


class RawClient(RawConnection):
    """A connection that can say hello, and sends requests with ids from its own counter."""

    def __init__(
        self,
        target: Target,
        secret: bytes,
        *,
        client_id: int | None = None,
        connection: int = 1,
        label: bytes = LABEL,
        first_id: int = 1,
    ) -> None:
        super().__init__(target)
        self.secret = secret
        self.client_id = secrets.randbits(64) if client_id is None else client_id
        self.connection = connection
        self.label = label
        self.nonce = client_nonce(SPEC, secrets.token_bytes(16), connection)
        self.next_id = first_id

    def hello_fields(self) -> dict[str, Any]:
        """The fields of a right hello on this connection."""
        fields: dict[str, Any] = {
            "version": PROTOCOL_VERSION,
            "client_id": self.client_id,
            "connection": self.connection,
            "client_nonce": self.nonce,
            "label": self.label,
        }
        fields["mac"] = mac(SPEC, self.secret, self.greeting, fields)
        return fields

    def send_hello(self) -> None:
        self.send("hello", **self.hello_fields())

    def hello(self) -> dict[str, Any]:
        """Says hello and verifies the welcome; returns its fields."""
        self.send_hello()
        welcome = self.take()
        assert welcome.name == "welcome", f"expected a welcome, got {welcome}"
        expected = proof(SPEC, self.secret, self.greeting, self.nonce, welcome.fields)
        assert welcome.fields["proof"] == expected, "the proof does not match the secret"
        return welcome.fields

    def new_id(self) -> int:
        self.next_id += 1
        return self.next_id - 1

    def acquire(
        self,
        *keys: bytes,
        wait_ms: int = 0,
        lease_ms: int = 60_000,
        request_id: int | None = None,
    ) -> int:
        """Sends an acquire of the key, or of the set where several are given; returns its id."""
        request_id = self.new_id() if request_id is None else request_id
        self.send_bytes(acquire_bytes(request_id, *keys, wait_ms=wait_ms, lease_ms=lease_ms))
        return request_id

    def hold(self, *keys: bytes, lease_ms: int = 60_000, wait_ms: int = WAIT_FOREVER) -> int:
        """Acquires the key or set and returns the token."""
        request_id = self.acquire(*keys, wait_ms=wait_ms, lease_ms=lease_ms)
        token: int = self.expect("granted", request_id)["token"]
        return token

    def is_free(self, *keys: bytes) -> bool:
        """Tries the key or set, and gives it back at once if it was free."""
        request_id = self.acquire(*keys)
        frame = self.reply(request_id)
        if frame.name == "timed_out":
            return False
        assert frame.name == "granted", f"a try got {frame}"
        self.expect("released", self.release(keys[0], frame.fields["token"]))
        return True

    def release(self, key: bytes, token: int, *, request_id: int | None = None) -> int:
        request_id = self.new_id() if request_id is None else request_id
        self.send("release", request_id=request_id, token=token, key=key)
        return request_id

    def extend(self, key: bytes, token: int, lease_ms: int) -> int:
        request_id = self.new_id()
        self.send("extend", request_id=request_id, token=token, lease_ms=lease_ms, key=key)
        return request_id

    def cancel(self, key: bytes, acquire_id: int) -> int:
        request_id = self.new_id()
        self.send("cancel", request_id=request_id, acquire_id=acquire_id, key=key)
        return request_id

    def ping(self) -> None:
        """Pings and waits for the echo."""
        echo = secrets.randbits(64)
        self.send("ping", echo=echo)
        self.take("ping", echo=echo)

    def settle(self) -> None:
        """Returns once the server has done all that was sent here before.

        A release of a token that never was goes the way of every request, and changes nothing.
        """
        self.expect("not_held", self.release(b"no such ticket", NEVER_A_TOKEN))

    def expect_quiet(self) -> None:
        """Settles, and finds that the server has said nothing that a test did not take."""
        self.settle()
        assert not self._inbox, f"frames that nothing asked for: {self._inbox}"


def acquire_bytes(request_id: int, *keys: bytes, wait_ms: int = 0, lease_ms: int = 60_000) -> bytes:
    """The frame of an acquire: of a key where one is given, else of the set, sorted."""
    fields: dict[str, Any] = {"request_id": request_id, "wait_ms": wait_ms, "lease_ms": lease_ms}
    if len(keys) == 1:
        return encode(SPEC, "client", "acquire", fields | {"key": keys[0]})
    return encode(SPEC, "client", "acquire_set", fields | {"keys": sorted(keys)})


def check_error_text(text: bytes | str) -> None:
    """The text of an E is for people: at most 128 bytes of printable ASCII."""
    raw = text.encode() if isinstance(text, str) else text
    assert len(raw) <= 128, f"a text of {len(raw)} bytes: {raw!r}"
    assert all(0x20 <= byte < 0x7F for byte in raw), f"not printable ASCII: {raw!r}"
