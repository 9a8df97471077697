"""Version 3: greeting, answer and verdict; every refusal but the verdict is a bare close."""

from __future__ import annotations

import time

import pytest

from ticketing_conformance.server_suite.codes import LATE_MS
from ticketing_conformance.server_suite.conftest import Connect, ConnectV3, StartServer
from ticketing_conformance.server_suite.marks import requirement
from ticketing_conformance.server_suite.raw import acquire_bytes
from ticketing_conformance.server_suite.raw_v3 import ACCEPTED, REJECTED, acquire_v3_bytes


@requirement("REQ-V3-GREETING")
def test_the_greeting_of_version_3(connect_v3: ConnectV3) -> None:
    greetings = [connect_v3(answer=False).greeting for _ in range(4)]
    for greeting in greetings:
        assert greeting[:8] == b"TCKCLI3\0"
        assert greeting[8:10] == b"\x00\x03"
        assert (greeting[10], greeting[11] == 255) in {(0, True), (1, False)}
    assert len({greeting[12:] for greeting in greetings}) == 4


@requirement("REQ-V3-ANSWER", "REQ-V3-FINGERPRINT")
def test_a_right_answer_is_accepted(connect_v3: ConnectV3) -> None:
    client = connect_v3(answer=False)
    client.send_answer()
    assert client.receive_exactly(1) == ACCEPTED
    client.expect_quiet()


def test_an_answer_may_come_byte_by_byte(connect_v3: ConnectV3) -> None:
    client = connect_v3(answer=False)
    for byte in client.answer_bytes():
        client.send_bytes(bytes([byte]))
    assert client.receive_exactly(1) == ACCEPTED


def test_requests_may_follow_the_answer_at_once(connect_v3: ConnectV3, key: bytes) -> None:
    client = connect_v3(answer=False)
    client.send_bytes(client.answer_bytes() + acquire_v3_bytes(1, key))
    assert client.receive_exactly(1) == ACCEPTED
    client.expect("granted", 1)


@requirement("REQ-V3-REJECTED")
@pytest.mark.parametrize("offset", [0, 15, 31])
def test_a_wrong_answer_is_rejected_after_a_pause(connect_v3: ConnectV3, offset: int) -> None:
    client = connect_v3(answer=False)
    answer = bytearray(client.answer_bytes())
    answer[offset] ^= 1
    started = time.monotonic()
    client.send_bytes(bytes(answer))
    assert client.receive_exactly(1) == REJECTED
    assert 100 <= (time.monotonic() - started) * 1000 <= 300 + LATE_MS
    client.expect_bare_close()


def test_a_wrong_secret_is_rejected(connect_v3: ConnectV3) -> None:
    client = connect_v3(answer=False)
    client.secret += b"!"
    client.send_answer()
    assert client.receive_exactly(1) == REJECTED
    client.expect_bare_close()


@requirement("REQ-V3-FINGERPRINT")
def test_another_cluster_is_rejected(connect_v3: ConnectV3) -> None:
    """The client knows the fingerprint from its configuration, and it is under the mac."""
    client = connect_v3(answer=False)
    client.fingerprint = bytes(32)
    client.send_answer()
    assert client.receive_exactly(1) == REJECTED
    client.expect_bare_close()


def test_an_answer_of_another_connection_is_worthless(connect_v3: ConnectV3) -> None:
    overheard = connect_v3()
    replayed = connect_v3(answer=False)
    replayed.send_bytes(overheard.answer_bytes())
    assert replayed.receive_exactly(1) == REJECTED


@requirement("REQ-V3-TIMEOUT", "REQ-V3-BARE")
@pytest.mark.slow
def test_five_seconds_without_an_answer_end_the_connection(connect_v3: ConnectV3) -> None:
    started = time.monotonic()
    clients = [connect_v3(answer=False) for _ in range(2)]
    clients[1].send_bytes(clients[1].answer_bytes()[:31])
    for client in clients:
        client.expect_bare_close()
        assert 5_000 <= (time.monotonic() - started) * 1000 <= 5_000 + LATE_MS


@requirement("REQ-V3-SECRETS")
def test_several_secrets_are_accepted(connect_v3: ConnectV3, own_server: StartServer) -> None:
    server = own_server(secret_file="new fresh-secret-of-2026\nold the-secret-before-it\n")
    for secret in (b"fresh-secret-of-2026", b"the-secret-before-it"):
        connect_v3(server, secret=secret).settle()


@requirement("REQ-V3-SECRETS")
def test_an_empty_secret_is_an_empty_key(connect_v3: ConnectV3, own_server: StartServer) -> None:
    connect_v3(own_server(secret=b"")).settle()


@requirement("REQ-V3-LIMITS", "REQ-V3-BARE")
def test_too_many_connections_are_closed(
    connect: Connect, connect_v3: ConnectV3, own_server: StartServer
) -> None:
    """Connections of both versions count together."""
    server = own_server("--max-connections", "2")
    four, three = connect(server), connect_v3(server)
    one_more = connect_v3(server, answer=False)
    one_more.send_answer()
    one_more.expect_bare_close()
    four.settle()
    three.settle()


@requirement("REQ-V3-NOKEEPALIVE")
@pytest.mark.slow
def test_there_is_no_keep_alive(connect_v3: ConnectV3, shared_server: StartServer) -> None:
    client = connect_v3(shared_server("--keepalive", "1s", "--reattach-grace", "2s"))
    time.sleep(4)
    client.expect_quiet()


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n" * 4, bytes(64), acquire_bytes(1, b"k")])
def test_other_protocols_are_rejected(connect_v3: ConnectV3, data: bytes) -> None:
    client = connect_v3(answer=False)
    client.send_bytes(data.ljust(32, b"?"))
    assert client.receive_exactly(1) == REJECTED
    client.expect_bare_close()
