"""Tokens over restarts, and the grace that keeps old leases apart from new grants."""

from __future__ import annotations

import signal
import time

import pytest

from ticketing_conformance.server_suite.codes import LATE_MS
from ticketing_conformance.server_suite.conftest import Connect, StartServer
from ticketing_conformance.server_suite.marks import requirement
from ticketing_conformance.server_suite.raw import WAIT_FOREVER


@requirement("REQ-ACQUIRE-RESTART", "REQ-ACQUIRE-TOKEN")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_tokens_rise_over_restarts(
    connect: Connect, own_server: StartServer, key: bytes, number: signal.Signals
) -> None:
    last = 0
    for _ in range(3):
        server = own_server()
        client = connect(server)
        for _ in range(100):
            token = client.hold(key)
            assert token > last
            last = token
            client.expect("released", client.release(key, token))
        server.signal(number)
        server.wait()


@requirement("REQ-EXTEND-NOTHELD")
def test_memory_mode_forgets_tickets_and_says_so(
    connect: Connect, own_server: StartServer, key: bytes
) -> None:
    server = own_server()
    client = connect(server)
    token = client.hold(key)
    server.signal(signal.SIGKILL)
    server.wait()
    again = own_server()
    client = connect(again, client_id=client.client_id, connection=2, first_id=client.next_id)
    client.expect("not_held", client.extend(key, token, 1))
    assert client.is_free(key)


@requirement("REQ-ACQUIRE-GRACE")
@pytest.mark.slow
def test_during_the_restart_grace_no_key_is_free(
    connect: Connect, own_server: StartServer, keys: list[bytes]
) -> None:
    started = time.monotonic()
    server = own_server("--restart-grace", "4s")
    client, other = connect(server), connect(server)
    one = client.acquire(keys[0], wait_ms=WAIT_FOREVER)
    two = client.acquire(keys[1], keys[2], wait_ms=WAIT_FOREVER)
    client.settle()
    tried = other.reply(other.acquire(keys[3]))
    asked_ms = (time.monotonic() - started) * 1000
    first = client.expect("granted", one)
    assert (time.monotonic() - started) * 1000 >= 4_000
    assert first["waited_ms"] <= 4_000 + LATE_MS
    assert client.expect("granted", two)["token"] > first["token"]
    assert other.is_free(keys[3])
    # A server that took longer than the grace to get here has nothing to show about a try.
    assert tried.name == "timed_out" or asked_ms >= 4_000
