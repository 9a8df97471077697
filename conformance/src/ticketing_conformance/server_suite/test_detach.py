"""Detached waiters: passed over, in their place, for a grace; and never granted as ghosts."""

from __future__ import annotations

import socket
import struct
import time

import pytest

from ticketing_conformance.server_suite.conftest import Connect
from ticketing_conformance.server_suite.marks import requirement
from ticketing_conformance.server_suite.raw import WAIT_FOREVER, RawClient
from ticketing_conformance.server_suite.servers import StartedServer


def again(connect: Connect, client: RawClient, **options: object) -> RawClient:
    """The next connection of the same client."""
    return connect(
        client_id=client.client_id,
        connection=client.connection + 1,
        first_id=client.next_id,
        **options,
    )


def cut(client: RawClient, how: str) -> None:
    """Ends the connection: in order, half, or with a reset. Returns when the server knows."""
    if how == "reset":
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    elif how == "shutdown":
        client.socket.shutdown(socket.SHUT_WR)
        client.drain_until_end()
    client.close()


CUTS = ["close", "shutdown", "reset"]


@requirement("REQ-DETACH-PLACE", "REQ-DETACH-ATTACH")
@pytest.mark.parametrize("how", CUTS)
def test_a_waiter_cut_and_made_again_keeps_its_place(
    connect: Connect, key: bytes, how: str
) -> None:
    holder, first, later = connect(), connect(), connect()
    token = holder.hold(key)
    waiting = first.acquire(key, wait_ms=WAIT_FOREVER)
    first.settle()
    behind = later.acquire(key, wait_ms=WAIT_FOREVER)
    later.settle()
    cut(first, how)
    second = again(connect, first)
    second.acquire(key, wait_ms=WAIT_FOREVER, request_id=waiting)
    second.expect_quiet()
    holder.expect("released", holder.release(key, token))
    token = second.expect("granted", waiting)["token"]
    later.expect_quiet()
    second.expect("released", second.release(key, token))
    later.expect("granted", behind)


@requirement("REQ-GRANT-LIVE", "REQ-DETACH-PASSED")
@pytest.mark.parametrize("how", CUTS)
def test_no_grant_goes_to_a_ghost(connect: Connect, key: bytes, how: str) -> None:
    holder, ghost, later = connect(), connect(), connect()
    token = holder.hold(key)
    ghost.acquire(key, wait_ms=WAIT_FOREVER)
    ghost.settle()
    behind = later.acquire(key, wait_ms=WAIT_FOREVER)
    later.settle()
    cut(ghost, how)
    await_that_it_is_gone(connect, ghost)
    holder.expect("released", holder.release(key, token))
    later.expect("granted", behind)


@requirement("REQ-DETACH-PASSED")
def test_a_detached_waiter_keeps_no_key_from_others(connect: Connect, key: bytes) -> None:
    """Alone in its queue, it still does not make the key held: a later try takes it."""
    holder, ghost = connect(), connect()
    token = holder.hold(key)
    ghost.acquire(key, wait_ms=WAIT_FOREVER)
    ghost.settle()
    cut(ghost, "shutdown")
    holder.expect("released", holder.release(key, token))
    assert holder.is_free(key)


@requirement("REQ-DETACH-ALONE")
def test_a_waiter_alone_that_was_passed_over_and_comes_back_is_granted(
    connect: Connect, key: bytes
) -> None:
    holder, first = connect(), connect()
    token = holder.hold(key)
    waiting = first.acquire(key, wait_ms=WAIT_FOREVER)
    first.settle()
    cut(first, "shutdown")
    holder.expect("released", holder.release(key, token))
    second = again(connect, first)
    second.acquire(key, wait_ms=WAIT_FOREVER, request_id=waiting)
    assert second.expect("granted", waiting)["token"] > token


@requirement("REQ-DETACH-PLACE", "REQ-DETACH-PASSED")
def test_passed_over_it_comes_back_before_those_that_still_wait(
    connect: Connect, key: bytes
) -> None:
    holder, first, second, third = connect(), connect(), connect(), connect()
    token = holder.hold(key)
    first_id = first.acquire(key, wait_ms=WAIT_FOREVER)
    first.settle()
    second_id = second.acquire(key, wait_ms=WAIT_FOREVER)
    second.settle()
    third_id = third.acquire(key, wait_ms=WAIT_FOREVER)
    third.settle()
    cut(first, "shutdown")
    holder.expect("released", holder.release(key, token))
    token = second.expect("granted", second_id)["token"]
    back = again(connect, first)
    back.acquire(key, wait_ms=WAIT_FOREVER, request_id=first_id)
    back.settle()
    second.expect("released", second.release(key, token))
    token = back.expect("granted", first_id)["token"]
    third.expect_quiet()
    back.expect("released", back.release(key, token))
    third.expect("granted", third_id)


@requirement("REQ-DETACH-PASSED", "REQ-DETACH-ATTACH")
def test_a_detached_set_lets_those_behind_it_go_on(connect: Connect, keys: list[bytes]) -> None:
    holder, first, later = connect(), connect(), connect()
    token = holder.hold(keys[0])
    waiting = first.acquire(keys[0], keys[1], wait_ms=WAIT_FOREVER)
    first.settle()
    behind = later.acquire(keys[1], wait_ms=WAIT_FOREVER)
    later.expect_quiet()
    cut(first, "shutdown")
    later_token = later.expect("granted", behind)["token"]
    holder.expect("released", holder.release(keys[0], token))
    second = again(connect, first)
    second.acquire(keys[0], keys[1], wait_ms=WAIT_FOREVER, request_id=waiting)
    second.expect_quiet()
    later.expect("released", later.release(keys[1], later_token))
    second.expect("granted", waiting)


@requirement("REQ-ACQUIRE-RETRY", "REQ-DETACH-ALONE")
def test_a_detached_waiter_sent_again_as_a_try(connect: Connect, key: bytes) -> None:
    holder, first = connect(), connect()
    token = holder.hold(key)
    waiting = first.acquire(key, wait_ms=WAIT_FOREVER)
    first.settle()
    cut(first, "shutdown")
    second = again(connect, first)
    second.acquire(key, wait_ms=0, request_id=waiting)
    second.expect("timed_out", waiting)
    holder.expect("released", holder.release(key, token))
    third = again(connect, second)
    third.acquire(key, wait_ms=0, request_id=waiting)
    third.expect("granted", waiting)


@requirement("REQ-ACQUIRE-WAITED")
def test_waited_ms_counts_from_this_sending(connect: Connect, key: bytes) -> None:
    holder, first = connect(), connect()
    token = holder.hold(key)
    waiting = first.acquire(key, wait_ms=WAIT_FOREVER)
    first.settle()
    time.sleep(0.5)
    cut(first, "shutdown")
    second = again(connect, first)
    sent = time.monotonic()
    second.acquire(key, wait_ms=WAIT_FOREVER, request_id=waiting)
    second.settle()
    holder.expect("released", holder.release(key, token))
    granted = second.expect("granted", waiting)
    assert granted["waited_ms"] <= (time.monotonic() - sent) * 1000


@requirement("REQ-DETACH-UNREAD")
def test_a_grant_that_was_never_read_is_answered_again(connect: Connect, key: bytes) -> None:
    """The connection ends with the grant on its way: the same acquire finds the same ticket."""
    first = connect()
    request_id = first.acquire(key)
    first.send_bytes(b"")
    cut(first, "close")
    second = again(connect, first)
    second.acquire(key, request_id=request_id)
    token = second.expect("granted", request_id)["token"]
    second.expect("released", second.release(key, token))
    assert second.is_free(key)


@requirement("REQ-DETACH-GONE")
def test_a_detached_waiter_leaves_after_the_grace(
    connect: Connect, brisk: StartedServer, key: bytes
) -> None:
    holder, first, later = (connect(brisk) for _ in range(3))
    holder.hold(key, lease_ms=60_000)
    waiting = first.acquire(key, wait_ms=WAIT_FOREVER)
    first.settle()
    behind = later.acquire(key, wait_ms=WAIT_FOREVER)
    later.settle()
    cut(first, "shutdown")
    pinging_for(2.6, holder, later)
    # Its place is gone: sent again, it queues behind the one that came after it.
    second = again(connect, first, at=brisk)
    second.acquire(key, wait_ms=WAIT_FOREVER, request_id=waiting)
    second.expect_quiet()
    holder.expect("cancelled", holder.cancel(key, 1))
    token = later.expect("granted", behind)["token"]
    second.expect_quiet()
    later.expect("released", later.release(key, token))
    second.expect("granted", waiting)


@requirement("REQ-DETACH-ATTACH", "REQ-DETACH-GONE")
def test_a_waiter_that_comes_back_within_the_grace_has_no_grace_running(
    connect: Connect, brisk: StartedServer, key: bytes
) -> None:
    holder, first, later = (connect(brisk) for _ in range(3))
    holder.hold(key)
    waiting = first.acquire(key, wait_ms=WAIT_FOREVER)
    first.settle()
    later_id = later.acquire(key, wait_ms=WAIT_FOREVER)
    later.settle()
    cut(first, "shutdown")
    second = again(connect, first, at=brisk)
    second.acquire(key, wait_ms=WAIT_FOREVER, request_id=waiting)
    pinging_for(2.6, holder, second, later)
    holder.expect("cancelled", holder.cancel(key, 1))
    token = second.expect("granted", waiting)["token"]
    later.expect_quiet()
    second.expect("released", second.release(key, token))
    later.expect("granted", later_id)


@requirement("REQ-DETACH-WAITEND")
def test_a_wait_that_ends_while_detached_leaves_without_a_reply(
    connect: Connect, key: bytes
) -> None:
    holder, first, later = connect(), connect(), connect()
    token = holder.hold(key)
    waiting = first.acquire(key, wait_ms=1_000)
    first.settle()
    later_id = later.acquire(key, wait_ms=WAIT_FOREVER)
    later.settle()
    cut(first, "shutdown")
    second = again(connect, first)
    time.sleep(1.2)
    second.expect_quiet()
    # The owner is new again: it joins the tail, and does not find its old place.
    second.acquire(key, wait_ms=WAIT_FOREVER, request_id=waiting)
    second.settle()
    holder.expect("released", holder.release(key, token))
    token = later.expect("granted", later_id)["token"]
    second.expect_quiet()
    later.expect("released", later.release(key, token))
    second.expect("granted", waiting)


def await_that_it_is_gone(connect: Connect, client: RawClient) -> None:
    """Returns once the server knows that the connection ended, whatever became of its socket.

    A newer connection of the same client detaches the waiters of the older one before its welcome.
    """
    again(connect, client).settle()


def pinging_for(seconds: float, *clients: RawClient) -> None:
    """Lets real time pass while these connections stay alive."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for client in clients:
            client.ping()
        time.sleep(0.2)
