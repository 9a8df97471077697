"""Back-pressure: who does not read is not read, costs bounded memory, and hurts nobody."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pytest
from ticketing_spec.codec import decode, encode

from ticketing_conformance.server_suite.codes import LEASE_MS_MAX, LEASE_TOO_LONG, SLOW_READER
from ticketing_conformance.server_suite.conftest import Connect, StartServer
from ticketing_conformance.server_suite.marks import requirement
from ticketing_conformance.server_suite.raw import (
    HEADER_BYTES,
    RECEIVE_S,
    SPEC,
    RawClient,
    acquire_bytes,
)
from ticketing_conformance.server_suite.servers import StartedServer

GROWTH_BYTES_MAX = 48 << 20
"""What a client that never reads may cost the server's process, whatever it sends."""
SLOWEST_S = 15
"""The slowest round trip of somebody else meanwhile, on a machine that is loaded besides."""
RECEIVE_BUFFER_BYTES = 1 << 16
"""Small, so that replies fill the server's own buffer and not only the kernel's; a window much
smaller than a segment of loopback would crawl."""


class Flood:
    """Sends the same request again and again from a thread of its own, and reads nothing.

    The request is one whose reply is longer than itself: its lease is over the limit, and the
    answer explains that. All replies are the same bytes.
    """

    def __init__(self, client: RawClient, key: bytes, count: int) -> None:
        self.client = client
        self.count = count
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        request = acquire_bytes(1, key, lease_ms=LEASE_MS_MAX)
        client.send_bytes(request)
        fields = client.expect("error", 1)
        assert fields["code"] == LEASE_TOO_LONG
        self.reply = encode(SPEC, "server", "error", fields)
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
        size = len(self.reply)
        left, offset = self.count * size, 0
        self.client.socket.settimeout(RECEIVE_S)
        while left:
            data = self.client.socket.recv(min(left, 1 << 18))
            assert data, f"closed with {left} bytes of replies missing"
            expected = self.reply * (len(data) // size + 2)
            assert data == expected[offset : offset + len(data)]
            offset = (offset + len(data)) % size
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
    slowest = flood.settle(bystander, 1)
    await_that_it_stops_reading(server, bystander, floods=1)
    assert server.rss_bytes() - before <= GROWTH_BYTES_MAX
    assert slowest <= SLOWEST_S
    flood.read_all_replies()
    bystander.settle()


@requirement("REQ-PRESSURE-BOUND", "REQ-PRESSURE-OTHERS")
def test_many_clients_that_never_read_cost_bounded_memory(
    connect: Connect, own_server: StartServer, key: bytes
) -> None:
    server = own_server("--max-unsent-bytes", "65536")
    bystander = connect(server)
    before = server.rss_bytes()
    floods = [Flood(connect(server), b"%s/%d" % (key, n), 80_000) for n in range(5)]
    await_that_it_stops_reading(server, bystander, floods=5)
    assert server.rss_bytes() - before <= 2 * GROWTH_BYTES_MAX
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
    flood = Flood(connect(server), key, 100_000)
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
    flood = Flood(connect(server), key, 100_000)
    assert flood.settle(bystander, 29) <= SLOWEST_S
    assert count_connections(server) == 2, "given up too early"
    deadline = started + 90
    while count_connections(server) == 2:
        assert time.monotonic() < deadline, "a client that never read is still connected"
        bystander.ping()
        time.sleep(0.1)
    assert time.monotonic() - started >= 30
    # It may show as a bare close, or a reset; where a reason came through, it is the right one.
    for _, fields in whole_frames(read_to_the_end(flood.client)):
        assert fields["code"] in (LEASE_TOO_LONG, SLOW_READER)
    bystander.settle()


def await_that_it_stops_reading(
    server: StartedServer, bystander: RawClient, *, floods: int
) -> None:
    """Waits until as many connections have bytes that the server leaves in its kernel.

    Nothing of them is read for a second, in which the bystander's pings are.
    """
    deadline = time.monotonic() + 2 * RECEIVE_S
    unread: list[int] = []
    while True:
        before, unread = unread, [count for count in unread_bytes(server) if count]
        if len(unread) == floods and unread == before:
            return
        assert time.monotonic() < deadline, f"the server still reads: {before}, {unread}"
        until = time.monotonic() + 1
        while time.monotonic() < until:
            bystander.ping()
            time.sleep(0.05)


def unread_bytes(server: StartedServer) -> list[int]:
    """Bytes in the receive queue of each established connection at the server's port."""
    port = f":{server.tcp.port:04X}"
    with open(f"/proc/{server.pid}/net/tcp") as table:
        rows = [line.split() for line in table.readlines()[1:]]
    established = "01"
    return sorted(
        int(row[4].partition(":")[2], 16)
        for row in rows
        if row[1].endswith(port) and row[3] == established
    )


def count_connections(server: StartedServer) -> int:
    """Established TCP connections at the server's port, as its kernel counts them."""
    return len(unread_bytes(server))


def whole_frames(data: bytes) -> list[tuple[str, dict[str, Any]]]:
    """The frames in a stream that may have been cut."""
    frames = []
    while len(data) > HEADER_BYTES:
        end = HEADER_BYTES + int.from_bytes(data[1:HEADER_BYTES], "big")
        if end > len(data):
            break
        frames.append(decode(SPEC, "server", data[:end]))
        data = data[end:]
    return frames


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
