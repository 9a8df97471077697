"""Leases: from the grant, never early, and handed on when they are over."""

from __future__ import annotations

import time

import pytest

from ticketing_conformance.server_suite.codes import LATE_MS, LEASE_OVER
from ticketing_conformance.server_suite.conftest import Connect
from ticketing_conformance.server_suite.marks import requirement
from ticketing_conformance.server_suite.raw import WAIT_FOREVER


@requirement("REQ-LEASE-OVER", "REQ-LEASE-TELLS", "REQ-TIME-NEVEREARLY", "REQ-TIME-EXACT")
@pytest.mark.parametrize("lease_ms", [1, 30, 400, 1_500])
def test_a_lease_ends_at_its_deadline(connect: Connect, key: bytes, lease_ms: int) -> None:
    client = connect()
    started = time.monotonic()
    token = client.hold(key, lease_ms=lease_ms)
    client.take("dropped", token=token, reason=LEASE_OVER)
    assert lease_ms <= (time.monotonic() - started) * 1000 <= lease_ms + LATE_MS
    assert client.is_free(key)
    client.expect_quiet()


@requirement("REQ-LEASE-OVER", "REQ-LEASE-TELLS")
def test_a_lease_that_is_over_hands_the_key_on(connect: Connect, key: bytes) -> None:
    holder, waiter = connect(), connect()
    started = time.monotonic()
    token = holder.hold(key, lease_ms=500)
    request_id = waiter.acquire(key, wait_ms=WAIT_FOREVER)
    granted = waiter.expect("granted", request_id)
    took_ms = (time.monotonic() - started) * 1000
    assert 500 <= took_ms <= 500 + LATE_MS
    assert granted["token"] > token
    assert granted["waited_ms"] <= took_ms
    holder.take("dropped", token=token, reason=LEASE_OVER)


@requirement("REQ-RELEASE-NOTHELD", "REQ-EXTEND-NOTHELD", "REQ-RELEASE-OLD")
def test_a_ticket_whose_lease_is_over_is_not_held(connect: Connect, key: bytes) -> None:
    client, waiter = connect(), connect()
    token = client.hold(key, lease_ms=100)
    client.take("dropped", token=token)
    client.expect("not_held", client.extend(key, token, 60_000))
    client.expect("not_held", client.release(key, token))
    kept = waiter.hold(key)
    client.expect("not_held", client.extend(key, token, 60_000))
    client.expect("not_held", client.release(key, token))
    waiter.expect("extended", waiter.extend(key, kept, 60_000))


@requirement("REQ-GRANT-LEASESTART")
def test_the_lease_of_a_waiter_begins_with_its_grant(connect: Connect, key: bytes) -> None:
    holder, waiter = connect(), connect()
    token = holder.hold(key)
    request_id = waiter.acquire(key, wait_ms=WAIT_FOREVER, lease_ms=600)
    waiter.settle()
    time.sleep(0.7)
    released_at = time.monotonic()
    holder.expect("released", holder.release(key, token))
    token = waiter.expect("granted", request_id)["token"]
    waiter.take("dropped", token=token, reason=LEASE_OVER)
    assert (time.monotonic() - released_at) * 1000 >= 600


@requirement("REQ-GRANT-LEASESTART")
def test_a_chain_of_leases_gives_each_its_whole_length(connect: Connect, key: bytes) -> None:
    """Each lease begins when its grant is made, however early the one before it was due."""
    client = connect()
    started = time.monotonic()
    ids = [client.acquire(key, wait_ms=WAIT_FOREVER, lease_ms=100) for _ in range(10)]
    tokens = [client.expect("granted", request_id)["token"] for request_id in ids]
    client.take("dropped", token=tokens[-1])
    assert (time.monotonic() - started) * 1000 >= 10 * 100
    for token in tokens[:-1]:
        client.take("dropped", token=token, reason=LEASE_OVER)
    client.expect_quiet()


@requirement("REQ-TIME-ORDER")
def test_leases_end_by_deadline(connect: Connect, keys: list[bytes]) -> None:
    client = connect()
    leases = [900, 300, 600, 100, 750, 450, 200, 1_000]
    tokens = {client.hold(k, lease_ms=ms): ms for k, ms in zip(keys, leases, strict=False)}
    order = [tokens[client.take("dropped").fields["token"]] for _ in leases]
    assert order == sorted(leases)


@requirement("REQ-TIME-EXACT", "REQ-TIME-NEVEREARLY")
def test_many_different_leases_each_end_in_time(connect: Connect, key: bytes) -> None:
    client = connect()
    started = time.monotonic()
    leases = {}
    for number in range(200):
        lease_ms = 100 + 3 * number
        leases[client.hold(b"%s/%d" % (key, number), lease_ms=lease_ms)] = lease_ms
    for _ in range(200):
        lease_ms = leases[client.take("dropped").fields["token"]]
        assert lease_ms <= (time.monotonic() - started) * 1000 <= lease_ms + 2 * LATE_MS


@requirement("REQ-DETACH-TICKETS")
def test_tickets_stay_when_their_connection_ends(connect: Connect, key: bytes) -> None:
    started = time.monotonic()
    holder = connect()
    holder.hold(key, lease_ms=800)
    holder.close()
    waiter = connect()
    assert not waiter.is_free(key)
    waiter.expect("granted", waiter.acquire(key, wait_ms=WAIT_FOREVER))
    assert 800 <= (time.monotonic() - started) * 1000 <= 800 + LATE_MS


@requirement("REQ-RELEASE-OLD")
def test_an_old_token_of_a_key_granted_anew_changes_nothing(connect: Connect, key: bytes) -> None:
    """A stopped client wakes after its lease and releases: the new holder does not notice."""
    late, holder, waiter = connect(), connect(), connect()
    old = late.hold(key, lease_ms=50)
    late.take("dropped", token=old)
    token = holder.hold(key)
    request_id = waiter.acquire(key, wait_ms=WAIT_FOREVER)
    waiter.settle()
    late.expect("not_held", late.release(key, old))
    waiter.expect_quiet()
    holder.expect("released", holder.release(key, token))
    waiter.expect("granted", request_id)
