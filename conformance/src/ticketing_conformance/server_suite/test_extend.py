"""Extend: to the later of two ends, never to an earlier one."""

from __future__ import annotations

import time

from ticketing_conformance.server_suite.codes import LEASE_OVER, RELEASED_BY_OTHER_CLIENT
from ticketing_conformance.server_suite.conftest import Connect
from ticketing_conformance.server_suite.marks import requirement


@requirement("REQ-EXTEND-LATER", "REQ-EXTEND-LEFT")
def test_an_extend_moves_the_end(connect: Connect, key: bytes) -> None:
    client = connect()
    token = client.hold(key, lease_ms=2_000)
    time.sleep(0.2)
    sent = time.monotonic()
    left = client.expect("extended", client.extend(key, token, 3_000))["lease_ms"]
    assert 2_999 <= left <= 3_000
    client.take("dropped", token=token, reason=LEASE_OVER)
    assert (time.monotonic() - sent) * 1000 >= 3_000


@requirement("REQ-EXTEND-NEVERSHORT", "REQ-EXTEND-LEFT")
def test_an_extend_never_shortens(connect: Connect, key: bytes) -> None:
    client = connect()
    started = time.monotonic()
    token = client.hold(key, lease_ms=1_000)
    held = time.monotonic()
    asked = time.monotonic()
    left = client.expect("extended", client.extend(key, token, 1))["lease_ms"]
    answered = time.monotonic()
    assert left >= 1_000 - (answered - started) * 1000 - 1
    assert left <= 1_000 - max(0.0, asked - held) * 1000
    client.take("dropped", token=token, reason=LEASE_OVER)
    assert (time.monotonic() - started) * 1000 >= 1_000


@requirement("REQ-EXTEND-LATER")
def test_extends_may_follow_one_another(connect: Connect, key: bytes) -> None:
    client, other = connect(), connect()
    token = client.hold(key, lease_ms=1_500)
    for _ in range(5):
        time.sleep(0.4)
        client.expect("extended", client.extend(key, token, 1_500))
    assert not other.is_free(key)
    client.expect("released", client.release(key, token))


@requirement("REQ-EXTEND-NOTHELD")
def test_an_extend_of_what_is_not_held(connect: Connect, keys: list[bytes]) -> None:
    client = connect()
    token = client.hold(keys[0])
    client.expect("not_held", client.extend(keys[0], token + 1, 1_000))
    client.expect("not_held", client.extend(keys[1], token, 1_000))
    client.expect("not_held", client.extend(keys[0], 0, 1_000))
    client.expect("released", client.release(keys[0], token))
    client.expect("not_held", client.extend(keys[0], token, 1_000))
    assert client.is_free(keys[0])


@requirement("REQ-EXTEND-MOVES")
def test_who_extends_is_the_client_of_the_ticket_from_then_on(connect: Connect, key: bytes) -> None:
    holder, heir, third = connect(), connect(), connect()
    token = holder.hold(key)
    heir.expect("extended", heir.extend(key, token, 60_000))
    third.expect("released", third.release(key, token))
    heir.take("dropped", token=token, reason=RELEASED_BY_OTHER_CLIENT)
    holder.expect_quiet()


@requirement("REQ-EXTEND-MOVES", "REQ-LEASE-TELLS")
def test_an_heir_hears_that_the_lease_is_over(connect: Connect, key: bytes) -> None:
    holder, heir = connect(), connect()
    token = holder.hold(key, lease_ms=300)
    heir.expect("extended", heir.extend(key, token, 500))
    heir.take("dropped", token=token, reason=LEASE_OVER)
    holder.expect_quiet()


@requirement("REQ-EXTEND-MOVES")
def test_an_heir_that_releases_drops_nothing(connect: Connect, key: bytes) -> None:
    holder, heir = connect(), connect()
    token = holder.hold(key)
    heir.expect("extended", heir.extend(key, token, 60_000))
    heir.expect("released", heir.release(key, token))
    heir.expect_quiet()
    holder.expect_quiet()


@requirement("REQ-EXTEND-MOVES", "REQ-ACQUIRE-HELD")
def test_after_an_extend_by_another_client_the_owner_stays(connect: Connect, key: bytes) -> None:
    """The acquire sent again is answered with the same token, whoever extended meanwhile."""
    holder, heir = connect(), connect()
    request_id = holder.acquire(key)
    token = holder.expect("granted", request_id)["token"]
    heir.expect("extended", heir.extend(key, token, 60_000))
    holder.acquire(key, request_id=request_id)
    assert holder.expect("granted", request_id)["token"] == token
