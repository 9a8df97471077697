"""Dropped: told once, to the connection that the ticket's client has now."""

from __future__ import annotations

import time

from ticketing_conformance.server_suite.codes import LEASE_OVER, RELEASED_BY_OTHER_CLIENT
from ticketing_conformance.server_suite.conftest import Connect
from ticketing_conformance.server_suite.marks import requirement
from ticketing_conformance.server_suite.raw import WAIT_FOREVER


@requirement("REQ-DROP-CONNECTION")
def test_a_drop_goes_to_the_connection_that_the_client_has_now(
    connect: Connect, key: bytes
) -> None:
    first = connect()
    token = first.hold(key, lease_ms=700)
    second = connect(client_id=first.client_id, connection=2, first_id=first.next_id)
    second.take("dropped", token=token, reason=LEASE_OVER)
    second.expect_quiet()


@requirement("REQ-DROP-CONNECTION")
def test_a_drop_while_the_client_is_away_is_told_to_nobody(connect: Connect, key: bytes) -> None:
    first = connect()
    token = first.hold(key, lease_ms=100)
    first.close()
    other = connect()
    other.hold(key)
    second = connect(client_id=first.client_id, connection=2, first_id=first.next_id)
    # An extend of it is how the client learns, and N the answer.
    second.expect("not_held", second.extend(key, token, 1))
    second.expect_quiet()
    other.expect_quiet()


@requirement("REQ-ORDER-DROP")
def test_a_drop_comes_after_the_grant_and_the_extend_of_its_token(
    connect: Connect, key: bytes
) -> None:
    client = connect()
    request_id = client.acquire(key, lease_ms=1)
    names = [client.take().name for _ in range(2)]
    assert names == ["granted", "dropped"]
    token = client.hold(key, lease_ms=300)
    extend = client.extend(key, token, 300)
    frames = [client.take() for _ in range(2)]
    assert [frame.name for frame in frames] == ["extended", "dropped"]
    assert frames[0].fields["request_id"] == extend
    assert request_id != extend


@requirement("REQ-RELEASE-TELLS", "REQ-LEASE-TELLS")
def test_a_drop_is_told_once(connect: Connect, key: bytes) -> None:
    holder, other = connect(), connect()
    token = holder.hold(key, lease_ms=400)
    other.expect("released", other.release(key, token))
    holder.take("dropped", token=token, reason=RELEASED_BY_OTHER_CLIENT)
    time.sleep(0.6)  # past the end that its lease would have had
    holder.expect_quiet()
    other.expect_quiet()


@requirement("REQ-LEASE-TELLS")
def test_waiters_hear_of_no_drop(connect: Connect, key: bytes) -> None:
    holder, waiter = connect(), connect()
    token = holder.hold(key, lease_ms=200)
    request_id = waiter.acquire(key, wait_ms=WAIT_FOREVER)
    waiter.expect("granted", request_id)
    waiter.expect_quiet()
    holder.take("dropped", token=token)
    holder.expect_quiet()
