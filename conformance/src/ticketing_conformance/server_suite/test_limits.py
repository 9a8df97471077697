"""Limits: each has a setting, and over it the answer is an error, never more memory."""

from __future__ import annotations

import pytest

from ticketing_conformance.server_suite.codes import TOO_MANY_CONNECTIONS
from ticketing_conformance.server_suite.conftest import Connect, StartServer
from ticketing_conformance.server_suite.marks import requirement
from ticketing_conformance.server_suite.raw import WAIT_FOREVER
from ticketing_conformance.server_suite.servers import StartedServer


@pytest.fixture
def small(own_server: StartServer) -> StartedServer:
    return own_server("--max-waiters-per-key", "3", "--max-waiters", "5", "--max-held-keys", "20")


@requirement("REQ-ACQUIRE-QUEUELIMIT")
def test_a_full_queue_is_overloaded(connect: Connect, small: StartedServer, key: bytes) -> None:
    holder, client = connect(small), connect(small)
    token = holder.hold(key)
    ids = [client.acquire(key, wait_ms=WAIT_FOREVER) for _ in range(3)]
    client.expect("overloaded", client.acquire(key, wait_ms=WAIT_FOREVER))
    client.expect("overloaded", client.acquire(key, key + b"2", wait_ms=WAIT_FOREVER))
    # A try never queues, and an owner that waits already takes no place.
    client.expect("timed_out", client.acquire(key))
    client.acquire(key, wait_ms=WAIT_FOREVER, request_id=ids[2])
    client.expect_quiet()
    holder.expect("released", holder.release(key, token))
    token = client.expect("granted", ids[0])["token"]
    ids.append(client.acquire(key, wait_ms=WAIT_FOREVER))
    client.expect_quiet()
    client.expect("released", client.release(key, token))
    client.expect("granted", ids[1])


@requirement("REQ-ACQUIRE-QUEUELIMIT")
def test_waiters_in_all_are_limited(
    connect: Connect, small: StartedServer, keys: list[bytes]
) -> None:
    holder, client = connect(small), connect(small)
    for name in keys[:6]:
        holder.hold(name)
    ids = [client.acquire(name, wait_ms=WAIT_FOREVER) for name in keys[:5]]
    client.expect("overloaded", client.acquire(keys[5], wait_ms=WAIT_FOREVER))
    client.expect("cancelled", client.cancel(keys[0], ids[0]))
    client.acquire(keys[5], wait_ms=WAIT_FOREVER)
    client.expect_quiet()


@requirement("REQ-ACQUIRE-HELDLIMIT")
def test_held_keys_are_limited(connect: Connect, small: StartedServer, keys: list[bytes]) -> None:
    client = connect(small)
    token = client.hold(*keys)
    for number in range(4):
        client.hold(b"%s-%d" % (keys[0], number))
    client.expect("overloaded", client.acquire(b"one more", wait_ms=WAIT_FOREVER))
    client.expect("overloaded", client.acquire(b"two", b"more"))
    client.expect("timed_out", client.acquire(keys[3]))
    client.expect("released", client.release(keys[0], token))
    client.hold(b"one more")
    client.expect_quiet()


@requirement("REQ-HELLO-MANY")
def test_too_many_connections_get_a_reason(
    connect: Connect, own_server: StartServer, key: bytes
) -> None:
    server = own_server("--max-connections", "4")
    clients = [connect(server) for _ in range(4)]
    one_more = connect(server, hello=False)
    one_more.send_hello()
    one_more.expect_refusal(TOO_MANY_CONNECTIONS)
    for client in clients:
        client.settle()
    clients[0].socket.shutdown(1)
    clients[0].expect_end()
    connect(server).settle()


@requirement("REQ-HELLO-LIMIT")
def test_over_the_limit_of_handshakes_the_oldest_is_closed(
    connect: Connect, own_server: StartServer
) -> None:
    server = own_server("--max-handshakes", "8")
    welcomed = connect(server)
    strangers = [connect(server, hello=False) for _ in range(30)]
    for stranger in strangers[:-8]:
        stranger.drain_until_end_or_reset()
    welcomed.settle()
    client = connect(server)
    client.settle()
    strangers[-1].hello()


@requirement("REQ-HELLO-LIMIT")
def test_strangers_keep_no_client_out(connect: Connect, own_server: StartServer) -> None:
    """Connections without a hello have a limit of their own, so clients still come in."""
    server = own_server("--max-handshakes", "8", "--max-connections", "100")
    for _ in range(40):
        connect(server, hello=False)
    for _ in range(20):
        connect(server).settle()
