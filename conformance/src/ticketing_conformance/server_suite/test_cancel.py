"""Cancel: a waiter leaves, a holder is released, and the answer is C in any case."""

from __future__ import annotations

from ticketing_conformance.server_suite.conftest import Connect
from ticketing_conformance.server_suite.marks import requirement
from ticketing_conformance.server_suite.raw import WAIT_FOREVER


@requirement("REQ-CANCEL-WAITER")
def test_a_cancelled_waiter_leaves(connect: Connect, key: bytes) -> None:
    holder, waiter, next_one = connect(), connect(), connect()
    token = holder.hold(key)
    gone = waiter.acquire(key, wait_ms=WAIT_FOREVER)
    waiter.settle()
    stays = next_one.acquire(key, wait_ms=WAIT_FOREVER)
    next_one.settle()
    waiter.expect("cancelled", waiter.cancel(key, gone))
    holder.expect("released", holder.release(key, token))
    next_one.expect("granted", stays)
    waiter.expect_quiet()


@requirement("REQ-CANCEL-SILENT", "REQ-ORDER-CANCEL")
def test_nothing_of_an_owner_follows_its_c(connect: Connect, key: bytes) -> None:
    holder, waiter = connect(), connect()
    holder.hold(key)
    gone = waiter.acquire(key, wait_ms=150)
    waiter.expect("cancelled", waiter.cancel(key, gone))
    other = waiter.acquire(key, wait_ms=400)
    waiter.expect("timed_out", other)
    waiter.expect_quiet()


@requirement("REQ-CANCEL-HOLDER")
def test_a_cancelled_holder_is_released(connect: Connect, key: bytes) -> None:
    holder, waiter = connect(), connect()
    held = holder.acquire(key)
    token = holder.expect("granted", held)["token"]
    waiting = waiter.acquire(key, wait_ms=WAIT_FOREVER)
    waiter.settle()
    holder.expect("cancelled", holder.cancel(key, held))
    waiter.expect("granted", waiting)
    holder.expect("not_held", holder.release(key, token))
    holder.expect_quiet()


@requirement("REQ-CANCEL-HOLDER", "REQ-ORDER-CANCEL")
def test_acquire_and_cancel_in_one_segment_leave_nothing(connect: Connect, key: bytes) -> None:
    client = connect()
    request_id = client.acquire(key)
    cancel = client.cancel(key, request_id)
    client.expect("granted", request_id)
    client.expect("cancelled", cancel)
    assert client.is_free(key)
    client.expect_quiet()


@requirement("REQ-CANCEL-NOTHING")
def test_a_cancel_of_nothing_is_answered_alike(connect: Connect, keys: list[bytes]) -> None:
    client = connect()
    held = client.acquire(keys[0])
    token = client.expect("granted", held)["token"]
    client.expect("cancelled", client.cancel(keys[1], held))  # another key
    client.expect("cancelled", client.cancel(keys[0], held + 99))  # another acquire
    client.expect("extended", client.extend(keys[0], token, 60_000))


@requirement("REQ-CANCEL-NOTHING")
def test_a_cancel_twice_is_answered_alike(connect: Connect, key: bytes) -> None:
    client = connect()
    held = client.acquire(key)
    client.expect("granted", held)
    for _ in range(2):
        client.expect("cancelled", client.cancel(key, held))
    assert client.is_free(key)


@requirement("REQ-CANCEL-OWNER")
def test_a_cancel_reaches_no_other_client(connect: Connect, key: bytes) -> None:
    holder, waiter, stranger = connect(), connect(), connect()
    held = holder.acquire(key)
    token = holder.expect("granted", held)["token"]
    waiting = waiter.acquire(key, wait_ms=WAIT_FOREVER)
    waiter.settle()
    for acquire_id in (held, waiting):
        stranger.expect("cancelled", stranger.cancel(key, acquire_id))
    assert not stranger.is_free(key)
    holder.expect("released", holder.release(key, token))
    waiter.expect("granted", waiting)


@requirement("REQ-CANCEL-WAITER", "REQ-CANCEL-HOLDER")
def test_any_key_of_a_set_cancels_it(connect: Connect, keys: list[bytes]) -> None:
    holder, client = connect(), connect()
    token = holder.hold(keys[0])
    waiting = client.acquire(*keys, wait_ms=WAIT_FOREVER)
    client.expect("cancelled", client.cancel(keys[9], waiting))
    holder.expect("released", holder.release(keys[0], token))
    held = client.acquire(*keys)
    client.expect("granted", held)
    client.expect("cancelled", client.cancel(keys[15], held))
    assert all(holder.is_free(name) for name in keys)
    client.expect_quiet()


@requirement("REQ-CANCEL-WAITER", "REQ-GRANT-SAMESTEP")
def test_a_cancel_of_a_waiting_set_grants_those_behind_it(
    connect: Connect, keys: list[bytes]
) -> None:
    holder, client, later = connect(), connect(), connect()
    holder.hold(keys[0])
    waiting = client.acquire(*keys, wait_ms=WAIT_FOREVER)
    client.settle()
    ids = [later.acquire(name, wait_ms=WAIT_FOREVER) for name in keys[1:]]
    later.expect_quiet()
    client.expect("cancelled", client.cancel(keys[3], waiting))
    for request_id in ids:
        later.expect("granted", request_id)


@requirement("REQ-CANCEL-OWNER")
def test_a_cancel_sent_on_the_next_connection_works(connect: Connect, key: bytes) -> None:
    holder, first = connect(), connect()
    token = holder.hold(key)
    waiting = first.acquire(key, wait_ms=WAIT_FOREVER)
    first.settle()
    second = connect(client_id=first.client_id, connection=2, first_id=first.next_id)
    second.expect("cancelled", second.cancel(key, waiting))
    holder.expect("released", holder.release(key, token))
    assert holder.is_free(key)
    second.expect_quiet()


@requirement("REQ-CANCEL-WAITER", "REQ-CANCEL-SILENT", "REQ-GRANT-SAMESTEP")
def test_a_cancel_ends_all_waiters_of_its_id_before_it_hands_on(
    connect: Connect, keys: list[bytes]
) -> None:
    """Two sets of one id share the key: the leaving of the first would make room for the second."""
    holder, client, later = connect(), connect(), connect()
    token = holder.hold(keys[1])
    both = client.acquire(keys[0], keys[1], wait_ms=WAIT_FOREVER)
    client.acquire(keys[0], keys[2], wait_ms=WAIT_FOREVER, request_id=both)
    client.settle()
    behind = later.acquire(keys[0], keys[2], wait_ms=WAIT_FOREVER)
    later.settle()
    client.expect("cancelled", client.cancel(keys[0], both))
    granted = later.expect("granted", behind)
    client.expect_quiet()
    later.expect("released", later.release(keys[0], granted["token"]))
    holder.expect("released", holder.release(keys[1], token))
    assert all(holder.is_free(name) for name in keys[:3])
