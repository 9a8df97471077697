"""The Unix stream socket: the same bytes."""

from __future__ import annotations

import pytest

from ticketing_conformance.server_suite.codes import AUTH_FAILED
from ticketing_conformance.server_suite.conftest import Connect
from ticketing_conformance.server_suite.marks import requirement
from ticketing_conformance.server_suite.raw import WAIT_FOREVER, Target
from ticketing_conformance.server_suite.servers import Server


@pytest.fixture
def unix(server: Server) -> Target:
    if server.unix is None:
        pytest.skip("--server-unix names no Unix socket of the server that runs")
    return server.unix


@requirement("REQ-GRANT-FIFO")
def test_a_unix_socket_shares_the_locks(connect: Connect, unix: Target, key: bytes) -> None:
    over_tcp, over_unix = connect(), connect(target=unix)
    token = over_tcp.hold(key)
    over_unix.expect("timed_out", over_unix.acquire(key))
    waiting = over_unix.acquire(key, wait_ms=WAIT_FOREVER)
    over_unix.settle()
    over_tcp.expect("released", over_tcp.release(key, token))
    assert over_unix.expect("granted", waiting)["token"] > token


@requirement("REQ-HELLO-MAC")
def test_a_unix_socket_asks_for_the_secret_too(connect: Connect, unix: Target) -> None:
    stranger = connect(target=unix, hello=False)
    stranger.secret += b"!"
    stranger.send_hello()
    stranger.expect_refusal(AUTH_FAILED)


@requirement("REQ-TAKEOVER-HIGHER")
def test_a_client_may_move_between_transports(connect: Connect, unix: Target, key: bytes) -> None:
    first = connect()
    request_id = first.acquire(key)
    token = first.expect("granted", request_id)["token"]
    second = connect(target=unix, client_id=first.client_id, connection=2)
    second.acquire(key, request_id=request_id)
    assert second.expect("granted", request_id)["token"] == token
    first.expect_refusal(7)
