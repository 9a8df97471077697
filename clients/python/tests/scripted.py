"""A server of a few lines that does what a test tells it, on a real socket."""

from __future__ import annotations

import hmac
import socket
import threading
from collections.abc import Callable
from types import TracebackType

from ticketing import _constants_gen as c
from ticketing._core import handshake
from ticketing._core.codec import encode

GREETING = c.GREETING_MAGIC + bytes([4, 4, 0, 255]) + bytes(16)


class ScriptedServer:
    """Accepts on loopback and runs `script(connection)` for each connection in a thread."""

    def __init__(self, script: Callable[[socket.socket], None]) -> None:
        self._script = script
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"ticketing://127.0.0.1:{self.port}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._connections: list[socket.socket] = []

    def __enter__(self) -> ScriptedServer:
        self._threads[0].start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # It has ended by itself.
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                self._script(connection)
            except OSError:
                return


def welcome(
    connection: socket.socket, role: int = 0, leader: bytes = b"", secret: bytes = b""
) -> None:
    """Greet, read the hello, and prove to know the secret."""
    connection.sendall(GREETING)
    hello = read_frame(connection)
    assert hello[0] == c.OP_HELLO
    nonce = hello[3 + 13 : 3 + 29]
    proof = handshake.server_proof(secret, GREETING, nonce, role, 5, bytes(32), leader)
    assert hmac.compare_digest(proof, proof)
    fields = {"role": role, "keepalive_s": 5, "fingerprint": bytes(32), "proof": proof}
    connection.sendall(encode("server", "welcome", {**fields, "leader": leader}))


def read_frame(connection: socket.socket) -> bytes:
    """One whole frame; OSError at the end of the stream."""
    head = read_exactly(connection, 3)
    return head + read_exactly(connection, int.from_bytes(head[1:], "big"))


def read_exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise OSError("the client has closed")
        data += more
    return data
