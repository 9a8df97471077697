"""Release: a capability of the token, once."""

from __future__ import annotations

import pytest

from ticketing_conformance.server_suite.codes import RELEASED_BY_OTHER_CLIENT
from ticketing_conformance.server_suite.conftest import Connect
from ticketing_conformance.server_suite.marks import requirement
from ticketing_conformance.server_suite.raw import NEVER_A_TOKEN, WAIT_FOREVER


@requirement("REQ-RELEASE-ENDS")
def test_a_release_frees_the_key(connect: Connect, key: bytes) -> None:
    client, other = connect(), connect()
    client.expect("released", client.release(key, client.hold(key)))
    assert other.is_free(key)
    client.expect_quiet()


@requirement("REQ-RELEASE-NOTHELD")
def test_a_second_release_finds_nothing(connect: Connect, key: bytes) -> None:
    client = connect()
    token = client.hold(key)
    client.expect("released", client.release(key, token))
    client.expect("not_held", client.release(key, token))


@requirement("REQ-RELEASE-NOTHELD")
@pytest.mark.parametrize("wrong", [0, 1, 2**63, NEVER_A_TOKEN])
def test_a_wrong_token_releases_nothing(connect: Connect, key: bytes, wrong: int) -> None:
    client, other = connect(), connect()
    token = client.hold(key)
    client.expect("not_held", client.release(key, wrong))
    assert not other.is_free(key)
    client.expect("extended", client.extend(key, token, 60_000))


@requirement("REQ-RELEASE-NOTHELD")
@pytest.mark.parametrize("off_by", [-1, 1])
def test_a_token_next_to_it_releases_nothing(connect: Connect, key: bytes, off_by: int) -> None:
    client, other = connect(), connect()
    token = client.hold(key)
    client.expect("not_held", client.release(key, token + off_by))
    assert not other.is_free(key)


@requirement("REQ-RELEASE-NOTHELD")
def test_a_right_token_with_another_key_releases_nothing(
    connect: Connect, keys: list[bytes]
) -> None:
    client = connect()
    token, other_token = client.hold(keys[0]), client.hold(keys[1])
    client.expect("not_held", client.release(keys[1], token))
    client.expect("not_held", client.release(keys[2], token))
    client.expect("not_held", client.release(keys[0], other_token))
    client.expect("released", client.release(keys[0], token))
    client.expect("released", client.release(keys[1], other_token))


@requirement("REQ-RELEASE-ANYONE", "REQ-RELEASE-TELLS")
def test_whoever_has_the_token_may_release(connect: Connect, key: bytes) -> None:
    holder, other = connect(), connect()
    token = holder.hold(key)
    other.expect("released", other.release(key, token))
    holder.take("dropped", token=token, reason=RELEASED_BY_OTHER_CLIENT)
    holder.expect("not_held", holder.release(key, token))
    assert holder.is_free(key)
    other.expect_quiet()


@requirement("REQ-RELEASE-TELLS")
def test_its_own_release_drops_nothing(connect: Connect, key: bytes) -> None:
    """The client of a ticket is told by R alone, also where it released on a later connection."""
    first = connect()
    token = first.hold(key)
    second = connect(client_id=first.client_id, connection=2, first_id=first.next_id)
    second.expect("released", second.release(key, token))
    second.expect_quiet()


@requirement("REQ-ORDER-HANDON")
def test_a_release_comes_before_the_grant_that_it_causes(connect: Connect, key: bytes) -> None:
    client = connect()
    token = client.hold(key)
    waiting = client.acquire(key, wait_ms=WAIT_FOREVER)
    client.settle()
    release = client.release(key, token)
    first, second = client.take(), client.take()
    assert (first.name, first.fields["request_id"]) == ("released", release)
    assert (second.name, second.fields["request_id"]) == ("granted", waiting)


@requirement("REQ-RELEASE-ENDS", "REQ-GRANT-NOPASS", "REQ-TIME-READ")
def test_release_and_acquire_in_one_segment_hand_over_at_once(connect: Connect, key: bytes) -> None:
    holder, waiter = connect(), connect()
    token = holder.hold(key)
    request_id = waiter.acquire(key, wait_ms=WAIT_FOREVER)
    waiter.settle()
    released = holder.release(key, token)
    tried = holder.acquire(key)
    holder.expect("released", released)
    holder.expect("timed_out", tried)  # the waiter had it before the try was looked at
    waiter.expect("granted", request_id)
