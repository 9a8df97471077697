"""A tiny lock server for one test: correct, or wrong in one named way.

It exists so that the load generator's checks can be seen to fail. It shares no code with the
generator or the real server; what it knows of the protocol stands in protocol.md §3.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType

GREETING = b"TICKET" + bytes([4, 4, 0, 255]) + bytes(range(16))
GRANTED = struct.Struct(">BHQQI")
RELEASED = struct.Struct(">BHQ")

#: From op, request id and token to the bytes of the reply.
Answer = Callable[[int, int, int], bytes]

#: Role and leader of a welcome.
Welcome = tuple[int, str]


def honest(op: int, request_id: int, token: int) -> bytes:
    if op == ord("A"):
        return GRANTED.pack(ord("A"), 20, request_id, token, 0)
    if op == ord("R"):
        return RELEASED.pack(ord("R"), 8, request_id)
    return RELEASED.pack(ord("P"), 8, request_id)


class ScriptedServer:
    """Listens on a free port and answers each connection with `answer`, until closed.

    Each hello takes the next of `welcomes`; the last one stays.
    """

    def __init__(
        self,
        answer: Answer,
        *,
        secret: bytes = b"",
        wrong_proof: bool = False,
        welcomes: Sequence[Welcome] = ((0, ""),),
    ) -> None:
        self._answer = answer
        self._welcomes = list(welcomes)
        self._secret = secret
        self._wrong_proof = wrong_proof
        self._token = 0
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self.port: int = self._listener.getsockname()[1]

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
        self._threads[0].join()
        for each in self._sockets:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            each.close()
        for thread in self._threads[1:]:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(accepted)
            thread = threading.Thread(target=self._serve, args=(accepted,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            connection.sendall(GREETING)
            frames = _frames(connection)
            op, hello = next(frames)
            assert op == ord("H")
            connection.sendall(self._welcome(hello))
            for op, body in frames:
                request_id = int.from_bytes(body[:8], "big")
                with self._lock:
                    self._token += op == ord("A")
                    token = self._token
                connection.sendall(self._answer(op, request_id, token))
        except (OSError, StopIteration):
            return

    def _welcome(self, hello: bytes) -> bytes:
        fixed, mac, label = hello[:29], hello[29:61], hello[61:]
        expected = self._mac(b"TICKETING/CLIENT", GREETING, fixed, label)
        if not hmac.compare_digest(mac, expected):
            text = b"wrong mac"
            return struct.pack(">BHQB", ord("E"), 9 + len(text), 0, 3) + text
        with self._lock:
            role, leader = self._welcomes.pop(0) if self._welcomes[1:] else self._welcomes[0]
        body, tail = struct.pack(">BH32s", role, 5, bytes(32)), leader.encode()
        proof = self._mac(b"TICKETING/SERVER", GREETING, fixed[13:], body, tail)
        if self._wrong_proof:
            proof = bytes(32)
        return struct.pack(">BH", ord("W"), 67 + len(tail)) + body + proof + tail

    def _mac(self, *parts: bytes) -> bytes:
        return hmac.digest(self._secret, b"".join(parts), hashlib.sha256)


def _frames(connection: socket.socket) -> Iterator[tuple[int, bytes]]:
    with connection.makefile("rb") as stream:
        while len(header := stream.read(3)) == 3:
            op, length = struct.unpack(">BH", header)
            yield op, stream.read(length)
