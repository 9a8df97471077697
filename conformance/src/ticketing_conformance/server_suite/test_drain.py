"""Draining: clients are sent away with L, and the server ends with exit code 0."""

from __future__ import annotations

import signal
import time

import pytest

from ticketing_conformance.server_suite.conftest import Connect, StartServer
from ticketing_conformance.server_suite.marks import requirement
from ticketing_conformance.server_suite.raw import WAIT_FOREVER, acquire_bytes

SIGNALS = [signal.SIGTERM, signal.SIGINT]


@requirement("REQ-LEAD-DRAIN", "REQ-ORDER-LAST")
@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_drain_sends_every_client_away(
    connect: Connect, own_server: StartServer, key: bytes, number: signal.Signals
) -> None:
    server = own_server()
    clients = [connect(server) for _ in range(5)]
    clients[0].hold(key)
    for client in clients[1:]:
        client.acquire(key, wait_ms=WAIT_FOREVER)
        client.settle()
    server.signal(number)
    for client in clients:
        assert client.take("leader").fields["leader"] == b""
        client.expect_end()
        client.close()
    assert server.wait() == 0


@requirement("REQ-LEAD-DRAIN")
def test_a_draining_server_takes_no_new_connections(
    connect: Connect, own_server: StartServer
) -> None:
    server = own_server()
    client = connect(server)
    server.signal(signal.SIGTERM)
    client.take("leader")
    client.close()
    assert server.wait() == 0
    with pytest.raises(ConnectionRefusedError):
        connect(server)


@requirement("REQ-LEAD-UNREAD")
def test_what_follows_the_leader_frame_is_not_read(
    connect: Connect, own_server: StartServer, key: bytes
) -> None:
    """A request sent after L was seen can't be done: nothing answers it."""
    server = own_server()
    client = connect(server)
    server.signal(signal.SIGTERM)
    client.take("leader")
    try:
        client.send_bytes(acquire_bytes(1, key))
    except OSError:
        pass
    assert not client.drain_until_end_or_reset()
    client.close()
    assert server.wait() == 0


@requirement("REQ-ORDER-LAST")
def test_replies_come_before_the_leader_frame(
    connect: Connect, own_server: StartServer, key: bytes
) -> None:
    server = own_server()
    client = connect(server)
    client.send_bytes(b"".join(acquire_bytes(n, b"%s%d" % (key, n)) for n in range(1, 501)))
    client.expect("granted", 1)
    server.signal(signal.SIGTERM)
    frames = client.drain_until_end()
    client.close()
    assert frames[-1].name == "leader"
    assert all(frame.name == "granted" for frame in frames[:-1])
    assert server.wait() == 0


@requirement("REQ-LEAD-DRAIN")
@pytest.mark.slow
def test_a_drain_is_bounded_though_a_client_stays(
    connect: Connect, own_server: StartServer, key: bytes
) -> None:
    server = own_server()
    connect(server)
    connect(server, hello=False)
    started = time.monotonic()
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    assert time.monotonic() - started <= 10 + 10


@requirement("REQ-ACQUIRE-RESTART")
def test_clients_come_back_after_a_restart(
    connect: Connect, own_server: StartServer, key: bytes
) -> None:
    server = own_server()
    token = connect(server).hold(key)
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    again = own_server()
    assert connect(again).hold(key) > token
