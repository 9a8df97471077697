"""A blocking client of a few lines for tests of the shell: sends what it is told, reads frames."""

from __future__ import annotations

import hashlib
import hmac
import socket
import ssl
import struct
from types import TracebackType
from typing import Self

from ticketing_server import constants_gen as c

TIMEOUT_S = 30.0


class PlainClient:
    """One connection of version 4, welcomed unless `hello` is False."""

    def __init__(
        self,
        where: tuple[str, int] | str,
        secret: str = "",
        *,
        tls: ssl.SSLContext | None = None,
        label: str = "test;python/0",
        client_id: int = 1,
        hello: bool = True,
    ) -> None:
        if isinstance(where, str):
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(TIMEOUT_S)
            self.socket.connect(where)
        else:
            self.socket = socket.create_connection(where, TIMEOUT_S)
            if tls is not None:
                self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self.greeting = self.read(c.GREETING_BYTES)
        self._next_id = 1
        self.welcome = b""
        if hello:
            op, self.welcome = self.say_hello(secret, label, client_id)
            assert op == c.REPLY_WELCOME, (chr(op), self.welcome)

    def say_hello(self, secret: str, label: str, client_id: int) -> tuple[int, bytes]:
        """Send a hello and return the first frame that comes back."""
        head = struct.pack("!BQI16s", c.PROTOCOL_VERSION, client_id, 1, bytes(16))
        covered = head + label.encode()
        message = c.MAC_CONTEXT_CLIENT + self.greeting + covered
        mac = hmac.new(secret.encode(), message, hashlib.sha256).digest()
        self.send(c.OP_HELLO, head + mac + label.encode())
        return self.read_frame()

    def acquire(self, key: bytes, wait_ms: int = 0, lease_ms: int = 60_000) -> int:
        """Send an acquire and return its request id."""
        number = self._next_id
        self._next_id += 1
        self.send(c.OP_ACQUIRE, struct.pack("!QII", number, wait_ms, lease_ms) + key)
        return number

    def hold(self, key: bytes, lease_ms: int = 60_000) -> int:
        """Acquire a key that is free and return the token."""
        self.acquire(key, lease_ms=lease_ms)
        op, body = self.read_frame()
        assert op == c.REPLY_GRANTED, (chr(op), body)
        return int.from_bytes(body[8:16], "big")

    def ping(self) -> None:
        """Send a ping and take its answer."""
        self.send(c.OP_PING, bytes(8))
        assert self.read_frame() == (c.REPLY_PING, bytes(8))

    def send(self, op: int, body: bytes) -> None:
        """Send a frame."""
        self.socket.sendall(struct.pack("!BH", op, len(body)) + body)

    def read_frame(self) -> tuple[int, bytes]:
        """Op and body of the next frame; (0, b"") at the end of the stream."""
        head = self.read(3)
        if not head:
            return 0, b""
        return head[0], self.read(int.from_bytes(head[1:], "big"))

    def read(self, count: int) -> bytes:
        """Read so many bytes, or fewer at the end of the stream."""
        data = b""
        while len(data) < count and (more := self.socket.recv(count - len(data))):
            data += more
        return data

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
