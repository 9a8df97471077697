"""Back-pressure: who does not read is not read, costs bounded memory, and hurts nobody."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from ticketing_conformance.server_suite.codes import SLOW_READER
from ticketing_conformance.server_suite.conftest import Connect, StartServer
from ticketing_conformance.server_suite.marks import requirement
from ticketing_conformance.server_suite.raw import RECEIVE_S, RawClient, acquire_bytes
from ticketing_conformance.server_suite.servers import StartedServer

REPLY_BYTES = 23
"""Of a granted frame: the reply to each sending of an acquire whose owner holds."""
GROWTH_BYTES_MAX = 48 << 20
"""What a client that never reads may cost the server's process, whatever it sends."""


class Flood:
    """Sends the same acquire again and again from a thread of its own, and reads nothing.

    The owner holds, so that each is answered with the same grant: all replies are equal bytes.
    """

    def __init__(self, client: RawClient, key: bytes, count: int) -> None:
        self.client = client
        self.count = count
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        request = acquire_bytes(1, key, lease_ms=600_000)
        client.send_bytes(request)
        granted = client.expect("granted", 1)
        self.reply = bytes.fromhex("410014") + b"".join(
            granted[name].to_bytes(size, "big")
            for name, size in (("request_id", 8), ("token", 8), ("waited_ms", 4))
        )
        client.socket.settimeout(None)
        self._data = request * count
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def _send(self) -> None:
        try:
            self.client.socket.sendall(self._data)
        except OSError:
            pass  # The server gave the connection up, or the test has ended.

    def read_all_replies(self) -> None:
        """Reads at last, and finds every reply, each as it should be."""
        # A small window crawls, which is not what this is about any more.
        self.client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 21)
        left = self.count * REPLY_BYTES
        offset = 0
        while left:
            data = self.client.socket.recv(min(left, 1 << 18))
            assert data, f"closed with {left} bytes of replies missing"
            shift = offset % REPLY_BYTES
            expected = self.reply * (len(data) // REPLY_BYTES + 2)
            assert data == expected[shift : shift + len(data)]
            offset += len(data)
            left -= len(data)
        self._thread.join(RECEIVE_S)
        assert not self._thread.is_alive()

    def settle(self, bystander: RawClient, seconds: float) -> float:
        """Lets time pass while the bystander works; returns its slowest round trip in seconds."""
        slowest = 0.0
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            started = time.monotonic()
            bystander.ping()
            slowest = max(slowest, time.monotonic() - started)
            time.sleep(0.01)
        return slowest


@requirement("REQ-PRESSURE-STOP", "REQ-PRESSURE-BOUND", "REQ-PRESSURE-OTHERS", "REQ-FRAME-PIPELINE")
def test_a_client_that_never_reads_costs_bounded_memory(
    connect: Connect, own_server: StartServer, pytestconfig: pytest.Config, key: bytes
) -> None:
    server = own_server()
    bystander = connect(server)
    before = server.rss_bytes()
    flood = Flood(connect(server), key, pytestconfig.getoption("--flood"))
    slowest = flood.settle(bystander, 3)
    assert server.rss_bytes() - before <= GROWTH_BYTES_MAX
    assert slowest <= 5
    flood.read_all_replies()
    bystander.settle()


@requirement("REQ-PRESSURE-BOUND", "REQ-PRESSURE-OTHERS")
def test_many_clients_that_never_read_cost_bounded_memory(
    connect: Connect, own_server: StartServer, key: bytes
) -> None:
    server = own_server("--max-unsent-bytes", "65536")
    bystander = connect(server)
    before = server.rss_bytes()
    floods = [Flood(connect(server), b"%s/%d" % (key, n), 20_000) for n in range(10)]
    floods[0].settle(bystander, 2)
    assert server.rss_bytes() - before <= GROWTH_BYTES_MAX
    for flood in floods:
        flood.read_all_replies()
    bystander.settle()


@requirement("REQ-SILENCE-UNREAD", "REQ-PRESSURE-STOP")
@pytest.mark.slow
def test_a_connection_that_is_not_read_is_not_silent(
    connect: Connect, own_server: StartServer, key: bytes
) -> None:
    server = own_server("--keepalive", "1s", "--max-unsent-bytes", "65536")
    bystander = connect(server)
    flood = Flood(connect(server), key, 500_000)
    flood.settle(bystander, 6)
    flood.read_all_replies()
    flood.client.settle()


@requirement("REQ-PRESSURE-SLOW", "REQ-PRESSURE-OTHERS")
@pytest.mark.slow
def test_a_slow_reader_is_given_up_after_thirty_seconds(
    connect: Connect, own_server: StartServer, key: bytes
) -> None:
    server = own_server("--max-unsent-bytes", "65536")
    bystander = connect(server)
    started = time.monotonic()
    flood = Flood(connect(server), key, 500_000)
    assert flood.settle(bystander, 29) <= 5
    assert count_connections(server) == 2, "given up too early"
    deadline = started + 90
    while count_connections(server) == 2:
        assert time.monotonic() < deadline, "a client that never read is still connected"
        bystander.ping()
        time.sleep(0.1)
    assert time.monotonic() - started >= 30
    tail = read_to_the_end(flood.client)
    # It may show as a bare close; where an E came through, it is the right one.
    last = tail.rfind(b"E\x00")
    assert len(tail) % REPLY_BYTES == 0 or tail[last + 11] == SLOW_READER
    bystander.settle()


def count_connections(server: StartedServer) -> int:
    """Established TCP connections at the server's port, as its kernel counts them."""
    port = f":{server.tcp.port:04X}"
    with open(f"/proc/{server.pid}/net/tcp") as table:
        rows = [line.split() for line in table.readlines()[1:]]
    established = "01"
    return sum(row[1].endswith(port) and row[3] == established for row in rows)


def read_to_the_end(client: RawClient) -> bytes:
    """All bytes that still come, until the end or a reset."""
    data = bytearray()
    client.socket.settimeout(RECEIVE_S)
    try:
        while more := client.socket.recv(1 << 16):
            data += more
    except ConnectionResetError:
        pass
    return bytes(data)
