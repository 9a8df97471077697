"""A server that does what a script says and nothing else.

It accepts connections, records every byte, and sends, cuts and waits as it is told. It knows the
protocol only as far as the spec's codec does; it never answers by itself.
"""

from __future__ import annotations

import itertools
import os
import queue
import socket
import struct
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from ticketing_conformance.streams import Connection

ACCEPT_SECONDS = 20.0
READ_BYTES = 65_536


def close_with_reset(sock: socket.socket) -> None:
    """Close so that the peer gets RST (TCP; a Unix socket just closes)."""
    try:
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # A thread blocked in recv keeps the socket open; shutting reading down wakes it. A reset
        # must not be preceded by FIN, so writing stays as it is.
        sock.shutdown(socket.SHUT_RD)
    except OSError:
        pass  # The peer was first.
    sock.close()


def close_both(sock: socket.socket) -> None:
    """Close both ways, with FIN, and wake a thread that reads."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # The peer was first.
    sock.close()


class ScriptedConnection(Connection):
    """An accepted connection, driven by the script's thread."""

    def __init__(self, number: int, sock: socket.socket) -> None:
        super().__init__(number)
        self._socket = sock
        self._held: bytearray | None = None
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = self._socket.recv(READ_BYTES)
            except OSError:
                self.up.end("reset")
                return
            if not data:
                self.up.end("eof")
                return
            self.up.append(data)

    def send(self, data: bytes, cuts: Sequence[int] = (), gap_seconds: float = 0.0) -> None:
        """Send bytes, in pieces that end at the offsets of `cuts`, `gap_seconds` apart.

        A peer that has closed is no error: the script notices where it expects something.
        """
        if self._held is not None:
            self._held += data
            return
        edges = [0, *(cut for cut in sorted(set(cuts)) if 0 < cut < len(data)), len(data)]
        for start, end in itertools.pairwise(edges):
            if start and gap_seconds:
                time.sleep(gap_seconds)
            self.down.append(data[start:end])
            try:
                self._socket.sendall(data[start:end])
            except OSError:
                self.down.end("reset")
                return

    def hold(self) -> None:
        """Keep what is sent from now on, until `flush`."""
        if self._held is None:
            self._held = bytearray()

    def flush(self, cuts: Sequence[int] = (), gap_seconds: float = 0.0) -> None:
        """Send what was kept, in one piece or cut at offsets."""
        data, self._held = bytes(self._held or b""), None
        self.send(data, cuts, gap_seconds)

    def eof(self) -> None:
        """End the sending side; reading goes on."""
        self.down.end("eof")
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # The peer was first.

    def reset(self) -> None:
        """Close with RST."""
        self.down.end("reset")
        close_with_reset(self._socket)
        self._reader.join(ACCEPT_SECONDS)

    def close(self) -> None:
        """Close both ways."""
        self.down.end("eof")
        close_both(self._socket)
        self._reader.join(ACCEPT_SECONDS)


class ScriptedServer:
    """Listens on loopback (or a Unix socket) and hands out connections in the order they came."""

    def __init__(self, host: str = "127.0.0.1", unix_path: Path | None = None) -> None:
        self._family = (
            socket.AF_UNIX if unix_path else socket.AF_INET6 if ":" in host else socket.AF_INET
        )
        self._address: tuple[str, int] | str = str(unix_path) if unix_path else (host, 0)
        self.connections: list[ScriptedConnection] = []
        self._accepted: queue.SimpleQueue[ScriptedConnection] = queue.SimpleQueue()
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self.listen()

    def listen(self) -> None:
        """Take connections; after `refuse` on the same address as before."""
        if self._listener is not None:
            return
        listener = socket.socket(self._family, socket.SOCK_STREAM)
        if self._family == socket.AF_UNIX:
            assert isinstance(self._address, str)
            if os.path.exists(self._address):
                os.unlink(self._address)
        else:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(self._address)
        listener.listen(128)
        self._address = self._address if self._family == socket.AF_UNIX else listener.getsockname()
        self._listener = listener
        self._thread = threading.Thread(target=self._accept, args=(listener,), daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """host:port, or the path of the Unix socket."""
        if isinstance(self._address, str):
            return self._address
        host, port = self._address[0], self._address[1]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            connection = ScriptedConnection(len(self.connections) + 1, sock)
            self.connections.append(connection)
            self._accepted.put(connection)

    def accept(self, seconds: float = ACCEPT_SECONDS) -> ScriptedConnection:
        """The next connection that nobody has taken; raises TimeoutError."""
        try:
            return self._accepted.get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError(f"no connection came within {seconds:g} s") from None

    def refuse(self) -> None:
        """Stop listening: who connects is refused. Open connections stay."""
        if self._listener is None:
            return
        listener, self._listener = self._listener, None
        # On Linux, shutdown wakes a thread that is blocked in accept; close alone does not.
        close_both(listener)
        if self._thread is not None:
            self._thread.join(ACCEPT_SECONDS)

    def stop(self) -> None:
        """Stop listening and close every connection."""
        self.refuse()
        for connection in self.connections:
            connection.close()
        if isinstance(self._address, str) and os.path.exists(self._address):
            os.unlink(self._address)
