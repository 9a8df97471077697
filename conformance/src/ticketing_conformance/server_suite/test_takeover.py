"""Take-over: one client id has one connection, and the higher connection number wins."""

from __future__ import annotations

from ticketing_conformance.server_suite.codes import AUTH_FAILED, TAKEN_OVER
from ticketing_conformance.server_suite.conftest import Connect
from ticketing_conformance.server_suite.marks import requirement
from ticketing_conformance.server_suite.raw import WAIT_FOREVER, acquire_bytes


@requirement("REQ-TAKEOVER-HIGHER", "REQ-TAKEOVER-LOSER")
def test_a_newer_connection_takes_over(connect: Connect) -> None:
    first = connect()
    second = connect(client_id=first.client_id, connection=2)
    first.expect_refusal(TAKEN_OVER)
    second.settle()
    third = connect(client_id=first.client_id, connection=7)
    second.expect_refusal(TAKEN_OVER)
    third.settle()


@requirement("REQ-TAKEOVER-HIGHER", "REQ-TAKEOVER-LOSER")
def test_a_hello_that_comes_late_on_an_older_connection_loses(connect: Connect, key: bytes) -> None:
    newer = connect(connection=9)
    token = newer.hold(key)
    older = connect(client_id=newer.client_id, connection=8, hello=False)
    older.send_hello()
    older.expect_refusal(TAKEN_OVER)
    newer.expect("released", newer.release(key, token))
    newer.expect_quiet()


@requirement("REQ-TAKEOVER-EQUAL")
def test_at_an_equal_number_the_connection_that_is_there_stays(connect: Connect) -> None:
    first = connect(connection=3)
    twin = connect(client_id=first.client_id, connection=3, hello=False)
    twin.send_hello()
    twin.expect_refusal(TAKEN_OVER)
    first.settle()


@requirement("REQ-TAKEOVER-HIGHER")
def test_numbers_are_compared_with_all_their_bits(connect: Connect) -> None:
    first = connect(connection=0x7FFFFFFF)
    second = connect(client_id=first.client_id, connection=0x80000000)
    first.expect_refusal(TAKEN_OVER)
    third = connect(client_id=first.client_id, connection=0xFFFFFFFF)
    second.expect_refusal(TAKEN_OVER)
    third.settle()


@requirement("REQ-TAKEOVER-HIGHER")
def test_a_lower_number_may_come_back_once_the_higher_has_gone(connect: Connect) -> None:
    high = connect(connection=5)
    high.socket.shutdown(1)
    high.expect_end()
    connect(client_id=high.client_id, connection=2).settle()


@requirement("REQ-TAKEOVER-MAC")
def test_a_wrong_mac_takes_nothing_over(connect: Connect) -> None:
    first = connect()
    thief = connect(client_id=first.client_id, connection=2, hello=False)
    thief.secret += b"!"
    thief.send_hello()
    thief.expect_refusal(AUTH_FAILED)
    first.settle()


@requirement("REQ-TAKEOVER-LOSER")
def test_a_take_over_reaches_no_other_client(connect: Connect) -> None:
    bystanders = [connect(connection=n) for n in (1, 1, 2)]
    first = connect()
    connect(client_id=first.client_id, connection=2)
    first.expect_refusal(TAKEN_OVER)
    for client in bystanders:
        client.expect_quiet()


@requirement("REQ-DROP-CONNECTION")
def test_tickets_go_on_and_their_client_hears_of_them(connect: Connect, key: bytes) -> None:
    first, other = connect(), connect()
    token = first.hold(key)
    second = connect(client_id=first.client_id, connection=2, first_id=first.next_id)
    second.expect("extended", second.extend(key, token, 60_000))
    other.expect("released", other.release(key, token))
    second.take("dropped", token=token, reason=3)


@requirement("REQ-TAKEOVER-DETACH", "REQ-DETACH-ATTACH")
def test_waiters_are_detached_and_keep_their_place(connect: Connect, key: bytes) -> None:
    """They are before the newer connection's first request, so a re-sent acquire finds them."""
    holder, first, later = connect(), connect(), connect()
    token = holder.hold(key)
    waiting = first.acquire(key, wait_ms=WAIT_FOREVER)
    first.settle()
    behind = later.acquire(key, wait_ms=WAIT_FOREVER)
    later.settle()
    second = connect(client_id=first.client_id, connection=2, first_id=first.next_id)
    second.acquire(key, wait_ms=WAIT_FOREVER, request_id=waiting)
    second.settle()
    holder.expect("released", holder.release(key, token))
    token = second.expect("granted", waiting)["token"]
    later.expect_quiet()
    second.expect("released", second.release(key, token))
    later.expect("granted", behind)
    first.expect_refusal(TAKEN_OVER)


@requirement("REQ-TAKEOVER-DETACH", "REQ-DETACH-PASSED")
def test_a_waiter_taken_over_and_not_sent_again_is_passed_over(
    connect: Connect, key: bytes
) -> None:
    holder, first, later = connect(), connect(), connect()
    token = holder.hold(key)
    first.acquire(key, wait_ms=WAIT_FOREVER)
    first.settle()
    behind = later.acquire(key, wait_ms=WAIT_FOREVER)
    later.settle()
    second = connect(client_id=first.client_id, connection=2, first_id=first.next_id)
    holder.expect("released", holder.release(key, token))
    later.expect("granted", behind)
    second.expect_quiet()
    first.expect_refusal(TAKEN_OVER)


@requirement("REQ-TAKEOVER-UNREAD")
def test_a_late_duplicate_on_the_old_connection_does_nothing(connect: Connect, key: bytes) -> None:
    """The old connection's bytes arrive after the newer one settled everything."""
    first = connect()
    waiting = first.acquire(key, wait_ms=WAIT_FOREVER, lease_ms=60_000)
    token = first.expect("granted", waiting)["token"]
    second = connect(client_id=first.client_id, connection=2, first_id=first.next_id)
    second.acquire(key, wait_ms=WAIT_FOREVER, request_id=waiting)
    assert second.expect("granted", waiting)["token"] == token
    second.expect("released", second.release(key, token))
    first.send_bytes(acquire_bytes(waiting, key, wait_ms=WAIT_FOREVER))
    first.expect_refusal(TAKEN_OVER)
    assert second.is_free(key)
    second.expect_quiet()


@requirement("REQ-TAKEOVER-UNREAD")
def test_bytes_that_race_the_take_over_are_done_before_it_or_never(
    connect: Connect, key: bytes
) -> None:
    """Whatever of the old connection was read, was read before the newer one's first request."""
    for attempt in range(30):
        name = b"%s/%d" % (key, attempt)
        first = connect()
        second = connect(client_id=first.client_id, connection=2, hello=False, first_id=50)
        second.send_hello()
        first.acquire(name, request_id=1, wait_ms=WAIT_FOREVER)
        second.take("welcome")
        second.expect("cancelled", second.cancel(name, 1))
        first.drain_until_end_or_reset()
        assert second.is_free(name), f"attempt {attempt}: the duplicate acted after the cancel"
        first.close()
        second.close()
