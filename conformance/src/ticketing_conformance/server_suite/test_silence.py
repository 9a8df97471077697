"""Silence: a connection that sends nothing for three keep-alives is closed."""

from __future__ import annotations

import time

import pytest

from ticketing_conformance.server_suite.codes import IDLE_TIMEOUT, LATE_MS
from ticketing_conformance.server_suite.conftest import Connect
from ticketing_conformance.server_suite.marks import requirement
from ticketing_conformance.server_suite.raw import WAIT_FOREVER, acquire_bytes
from ticketing_conformance.server_suite.servers import StartedServer


@requirement("REQ-SILENCE-CLOSE", "REQ-TIME-NEVEREARLY")
@pytest.mark.slow
def test_a_silent_connection_is_closed(connect: Connect, brisk: StartedServer) -> None:
    client = connect(brisk, hello=False)
    started = time.monotonic()
    assert client.hello()["keepalive_s"] == 1
    client.expect_refusal(IDLE_TIMEOUT)
    took_ms = (time.monotonic() - started) * 1000
    assert 3_000 <= took_ms <= 3_000 + LATE_MS


@requirement("REQ-SILENCE-CLOSE")
@pytest.mark.slow
def test_the_default_keep_alive_closes_after_fifteen_seconds(connect: Connect) -> None:
    client = connect(hello=False)
    started = time.monotonic()
    keepalive_s = client.hello()["keepalive_s"]
    client.expect_refusal(IDLE_TIMEOUT, within_s=3 * keepalive_s + LATE_MS / 1000)
    assert time.monotonic() - started >= 3 * keepalive_s


@requirement("REQ-SILENCE-PING")
@pytest.mark.slow
def test_pings_keep_a_connection(connect: Connect, brisk: StartedServer) -> None:
    client = connect(brisk)
    for _ in range(4):
        time.sleep(1)
        client.ping()
    client.expect_quiet()


@requirement("REQ-SILENCE-CLOSE")
@pytest.mark.slow
def test_half_a_frame_is_not_silence(connect: Connect, brisk: StartedServer, key: bytes) -> None:
    client = connect(brisk)
    for byte in acquire_bytes(1, key)[:5]:
        client.send_bytes(bytes([byte]))
        time.sleep(0.8)
    client.send_bytes(acquire_bytes(1, key)[5:])
    client.expect("granted", 1)


@requirement("REQ-SILENCE-CLOSE", "REQ-ORDER-LAST")
@pytest.mark.slow
def test_a_silent_connection_that_only_receives_is_closed(
    connect: Connect, brisk: StartedServer, key: bytes
) -> None:
    """What counts is what the server receives; a client that listens sends pings."""
    client = connect(brisk)
    started = time.monotonic()
    for number in range(1, 12):
        client.send_bytes(acquire_bytes(number, b"%s%d" % (key, number), lease_ms=400 * number))
    client.next_id = 100
    frames = client.drain_until_end()
    assert time.monotonic() - started >= 3
    assert frames[-1].name == "error"
    assert frames[-1].fields["code"] == IDLE_TIMEOUT
    assert sum(frame.name == "dropped" for frame in frames) >= 3


@requirement("REQ-SILENCE-CLOSE", "REQ-DETACH-PASSED")
@pytest.mark.slow
def test_a_waiter_that_fell_silent_is_detached(
    connect: Connect, brisk: StartedServer, key: bytes
) -> None:
    holder, silent, later = connect(brisk), connect(brisk), connect(brisk)
    token = holder.hold(key)
    silent.acquire(key, wait_ms=WAIT_FOREVER)
    silent.settle()
    behind = later.acquire(key, wait_ms=WAIT_FOREVER)
    until = time.monotonic() + 4
    while time.monotonic() < until:
        holder.ping()
        later.ping()
        time.sleep(0.5)
    silent.expect_refusal(IDLE_TIMEOUT)
    holder.expect("released", holder.release(key, token))
    later.expect("granted", behind)
