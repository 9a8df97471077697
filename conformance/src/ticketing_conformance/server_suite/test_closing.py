"""Closing: the reason is the last frame, and unread bytes never destroy it."""

from __future__ import annotations

import time

import pytest

from ticketing_conformance.server_suite.codes import BAD_FRAME, LATE_MS
from ticketing_conformance.server_suite.conftest import Connect
from ticketing_conformance.server_suite.marks import requirement
from ticketing_conformance.server_suite.raw import RawClient, acquire_bytes

BAD_OP = b"\xff\x00\x00"


@requirement("REQ-CLOSING-REASON", "REQ-ORDER-LAST")
def test_unread_bytes_never_destroy_the_reason(connect: Connect, key: bytes) -> None:
    """A close with bytes unread would make TCP send a reset, which discards what is on its way."""
    for _ in range(10):
        client = connect()
        client.send_bytes(BAD_OP + acquire_bytes(1, key) * 3000)
        client.expect_refusal(BAD_FRAME)


@requirement("REQ-CLOSING-STOP")
def test_what_comes_after_the_reason_is_discarded(connect: Connect, key: bytes) -> None:
    client = connect()
    client.send_bytes(BAD_OP)
    client.expect_refusal(BAD_FRAME)
    try:
        client.send_bytes(acquire_bytes(1, key))
    except OSError:
        pass
    assert connect().is_free(key)


@requirement("REQ-CLOSING-REASON")
def test_the_connection_is_closed_after_a_second_at_the_latest(connect: Connect) -> None:
    """A peer that goes on writing and never closes is cut off."""
    client = connect()
    client.send_bytes(BAD_OP)
    client.expect_refusal(BAD_FRAME)
    with pytest.raises(OSError, match=r"(?i)reset|broken pipe"):
        write_for(client, seconds=1 + LATE_MS / 1000)


def write_for(client: RawClient, seconds: float) -> None:
    """Writes a little again and again; raises what the socket raises."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        client.send_bytes(b"?" * 100)
        time.sleep(0.02)


@requirement("REQ-CLOSING-REASON")
def test_an_end_from_the_client_ends_the_connection(connect: Connect) -> None:
    client = connect()
    client.ping()
    client.socket.shutdown(1)
    client.expect_end()


@requirement("REQ-FRAME-BATCH", "REQ-DETACH-TICKETS")
def test_requests_before_the_end_are_answered(connect: Connect, key: bytes) -> None:
    """A client may shut down its sending side behind its last requests, and still reads."""
    client = connect()
    client.send_bytes(acquire_bytes(1, key))
    client.socket.shutdown(1)
    frames = client.drain_until_end()
    assert [frame.name for frame in frames] in (["granted"], [])
    assert not connect().is_free(key)
