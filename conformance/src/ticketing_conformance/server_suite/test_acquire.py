"""Acquire of one key: free, held, queued, sent again."""

from __future__ import annotations

import time

import pytest

from ticketing_conformance.server_suite.codes import LATE_MS, LEASE_MS_MAX, LEASE_TOO_LONG
from ticketing_conformance.server_suite.conftest import Connect, StartServer
from ticketing_conformance.server_suite.marks import requirement
from ticketing_conformance.server_suite.raw import WAIT_FOREVER, acquire_bytes


@requirement("REQ-ACQUIRE-FREE")
def test_a_free_key_is_granted_at_once(connect: Connect, key: bytes) -> None:
    client = connect()
    granted = client.expect("granted", client.acquire(key, wait_ms=WAIT_FOREVER))
    assert granted["token"] >= 1
    assert granted["waited_ms"] == 0
    client.expect_quiet()


@requirement("REQ-ACQUIRE-TRY")
def test_a_try_of_a_held_key_times_out_at_once(connect: Connect, key: bytes) -> None:
    client, other = connect(), connect()
    client.hold(key)
    other.expect("timed_out", other.acquire(key))
    other.expect_quiet()


@requirement("REQ-ACQUIRE-OWNER")
def test_a_client_has_no_claim_to_its_own_key(connect: Connect, key: bytes) -> None:
    """Another request id is another owner: locks are not re-entrant."""
    client = connect()
    client.hold(key)
    client.expect("timed_out", client.acquire(key))


@requirement("REQ-ACQUIRE-TRY")
def test_a_try_leaves_nothing_behind(connect: Connect, key: bytes) -> None:
    client, other = connect(), connect()
    token = client.hold(key)
    other.expect("timed_out", other.acquire(key))
    client.expect("released", client.release(key, token))
    assert client.is_free(key)
    other.expect_quiet()


@requirement("REQ-ACQUIRE-TOKEN")
def test_tokens_rise_over_all_keys_and_clients(connect: Connect, keys: list[bytes]) -> None:
    clients = [connect() for _ in range(4)]
    tokens = []
    for turn in range(5):
        for number, client in enumerate(clients):
            name = keys[(turn + number) % len(keys)]
            tokens.append(client.hold(name))
            client.expect("released", client.release(name, tokens[-1]))
    assert tokens == sorted(set(tokens))


@requirement("REQ-RELEASE-ENDS", "REQ-ACQUIRE-QUEUE", "REQ-ACQUIRE-WAITED", "REQ-TIME-ROUND")
def test_a_waiter_is_granted_when_the_key_is_released(connect: Connect, key: bytes) -> None:
    holder, waiter = connect(), connect()
    token = holder.hold(key)
    started = time.monotonic()
    request_id = waiter.acquire(key, wait_ms=WAIT_FOREVER)
    waiter.expect_quiet()
    queued = time.monotonic()
    time.sleep(0.05)
    released_at = time.monotonic()
    holder.expect("released", holder.release(key, token))
    granted = waiter.expect("granted", request_id)
    ended = time.monotonic()
    assert granted["token"] > token
    # Rounded down, so one millisecond less than what the test saw is right too.
    assert (released_at - queued) * 1000 - 1 <= granted["waited_ms"]
    assert granted["waited_ms"] <= (ended - started) * 1000


@requirement("REQ-GRANT-FIFO", "REQ-GRANT-HANDOFF", "REQ-ACQUIRE-QUEUE")
def test_waiters_are_granted_in_the_order_in_which_they_came(connect: Connect, key: bytes) -> None:
    holder = connect()
    token = holder.hold(key)
    clients = [connect() for _ in range(10)]
    waiting = []
    for client in clients * 3:
        waiting.append((client, client.acquire(key, wait_ms=WAIT_FOREVER)))
        client.settle()
    holder.expect("released", holder.release(key, token))
    last = token
    for client, request_id in waiting:
        token = client.expect("granted", request_id)["token"]
        assert token > last
        last = token
        assert not any(other.unclaimed() for other in clients)
        client.expect("released", client.release(key, token))
    assert holder.is_free(key)


@requirement("REQ-TIME-READ", "REQ-GRANT-FIFO")
def test_the_order_within_one_segment_is_the_order_of_the_queue(
    connect: Connect, key: bytes
) -> None:
    client = connect()
    ids = range(1, 101)
    client.send_bytes(b"".join(acquire_bytes(i, key, wait_ms=WAIT_FOREVER) for i in ids))
    client.next_id = 101
    for request_id in ids:
        frame = client.take("granted")
        assert frame.fields["request_id"] == request_id
        client.expect("released", client.release(key, frame.fields["token"]))


@requirement("REQ-ACQUIRE-HELD")
def test_the_same_acquire_again_is_the_same_ticket(connect: Connect, key: bytes) -> None:
    client = connect()
    request_id = client.acquire(key)
    token = client.expect("granted", request_id)["token"]
    client.acquire(key, request_id=request_id)
    again = client.expect("granted", request_id)
    assert again == {"request_id": request_id, "token": token, "waited_ms": 0}
    client.expect("released", client.release(key, token))
    assert client.is_free(key)


@requirement("REQ-ACQUIRE-HELD")
def test_the_same_acquire_again_starts_the_lease_again(connect: Connect, key: bytes) -> None:
    client = connect()
    request_id = client.acquire(key, lease_ms=1_500)
    token = client.expect("granted", request_id)["token"]
    time.sleep(0.3)
    again_at = time.monotonic()
    client.acquire(key, lease_ms=1_500, request_id=request_id)
    client.expect("granted", request_id)
    client.take("dropped", token=token)
    assert (time.monotonic() - again_at) * 1000 >= 1_500


@requirement("REQ-ACQUIRE-KEEPLEASE")
def test_the_same_acquire_again_never_shortens_the_lease(connect: Connect, key: bytes) -> None:
    client = connect()
    started = time.monotonic()
    request_id = client.acquire(key, lease_ms=1_000)
    token = client.expect("granted", request_id)["token"]
    client.acquire(key, lease_ms=1, request_id=request_id)
    assert client.expect("granted", request_id)["token"] == token
    client.take("dropped", token=token)
    assert (time.monotonic() - started) * 1000 >= 1_000


@requirement("REQ-ACQUIRE-WAITS")
def test_a_waiter_sent_again_keeps_its_place(connect: Connect, key: bytes) -> None:
    holder, first, second = connect(), connect(), connect()
    token = holder.hold(key)
    first_id = first.acquire(key, wait_ms=WAIT_FOREVER)
    first.settle()
    second_id = second.acquire(key, wait_ms=WAIT_FOREVER)
    second.settle()
    first.acquire(key, wait_ms=WAIT_FOREVER, request_id=first_id)
    first.expect_quiet()
    holder.expect("released", holder.release(key, token))
    token = first.expect("granted", first_id)["token"]
    second.expect_quiet()
    first.expect("released", first.release(key, token))
    second.expect("granted", second_id)
    first.expect_quiet()


@requirement("REQ-ACQUIRE-WAITS", "REQ-ACQUIRE-WAITEND")
def test_a_waiter_sent_again_has_its_new_wait(connect: Connect, key: bytes) -> None:
    holder, waiter = connect(), connect()
    holder.hold(key)
    request_id = waiter.acquire(key, wait_ms=WAIT_FOREVER)
    waiter.settle()
    started = time.monotonic()
    waiter.acquire(key, wait_ms=200, request_id=request_id)
    waiter.expect("timed_out", request_id)
    assert 200 <= (time.monotonic() - started) * 1000 <= 200 + LATE_MS
    waiter.expect_quiet()


@requirement("REQ-ACQUIRE-WAITS", "REQ-ACQUIRE-FOREVER")
def test_a_waiter_sent_again_may_get_a_longer_wait(connect: Connect, key: bytes) -> None:
    holder, waiter = connect(), connect()
    token = holder.hold(key)
    request_id = waiter.acquire(key, wait_ms=1_500)
    waiter.acquire(key, wait_ms=WAIT_FOREVER, request_id=request_id)
    waiter.settle()
    time.sleep(1.8)
    waiter.expect_quiet()
    holder.release(key, token)
    waiter.expect("granted", request_id)


@requirement("REQ-ACQUIRE-WAITS")
def test_a_waiter_sent_again_has_its_new_lease(connect: Connect, key: bytes) -> None:
    holder, waiter = connect(), connect()
    token = holder.hold(key)
    request_id = waiter.acquire(key, wait_ms=WAIT_FOREVER, lease_ms=60_000)
    waiter.acquire(key, wait_ms=WAIT_FOREVER, lease_ms=200, request_id=request_id)
    waiter.settle()
    holder.release(key, token)
    granted = waiter.expect("granted", request_id)
    waiter.take("dropped", token=granted["token"], reason=1)


@requirement("REQ-ACQUIRE-RETRY")
def test_a_waiter_sent_again_as_a_try_leaves(connect: Connect, key: bytes) -> None:
    holder, waiter = connect(), connect()
    token = holder.hold(key)
    request_id = waiter.acquire(key, wait_ms=WAIT_FOREVER)
    waiter.acquire(key, wait_ms=0, request_id=request_id)
    waiter.expect("timed_out", request_id)
    holder.expect("released", holder.release(key, token))
    assert holder.is_free(key)
    waiter.expect_quiet()


@requirement("REQ-ACQUIRE-OWNER")
def test_an_owner_is_client_id_request_id_and_keys(connect: Connect, keys: list[bytes]) -> None:
    client, other = connect(), connect()
    one, two, three = keys[:3]
    tokens = set()
    for name in (one, two):
        client.acquire(name, request_id=9)
        tokens.add(client.expect("granted", 9)["token"])
    client.acquire(three, keys[3], request_id=9)
    tokens.add(client.expect("granted", 9)["token"])
    assert len(tokens) == 3
    # A set that shares a key with the ticket is another owner, and so is another client.
    client.acquire(one, keys[4], request_id=9)
    client.expect("timed_out", 9)
    other.acquire(one, request_id=9)
    other.expect("timed_out", 9)


@requirement("REQ-FRAME-ECHO")
@pytest.mark.parametrize("request_id", [1, 2**53 - 1, 2**53 + 1, 2**63, 2**64 - 1])
def test_request_ids_have_all_their_bits(connect: Connect, key: bytes, request_id: int) -> None:
    client = connect(first_id=100)
    client.acquire(key, request_id=request_id)
    token = client.expect("granted", request_id)["token"]
    client.release(key, token, request_id=request_id ^ 1)
    client.expect("released", request_id ^ 1)


@requirement("REQ-ACQUIRE-MAXLEASE", "REQ-EXTEND-MAXLEASE")
def test_a_lease_over_the_limit_is_refused_and_nothing_else(
    connect: Connect, shared_server: StartServer, key: bytes
) -> None:
    client = connect(shared_server("--max-lease", "60s"))
    request_id = client.acquire(key, lease_ms=60_001)
    assert client.expect("error", request_id)["code"] == LEASE_TOO_LONG
    request_id = client.acquire(key, key + b"2", lease_ms=60_001)
    assert client.expect("error", request_id)["code"] == LEASE_TOO_LONG
    token = client.hold(key, lease_ms=60_000)
    request_id = client.extend(key, token, 60_001)
    assert client.expect("error", request_id)["code"] == LEASE_TOO_LONG
    client.expect_quiet()


@requirement("REQ-ACQUIRE-FOREVER", "REQ-ACQUIRE-MAXLEASE")
def test_the_longest_lease_and_the_longest_waits(
    connect: Connect, shared_server: StartServer, key: bytes
) -> None:
    server = shared_server("--max-lease", f"{LEASE_MS_MAX}ms")
    holder, waiter = connect(server), connect(server)
    token = holder.hold(key, lease_ms=LEASE_MS_MAX)
    longest = waiter.acquire(key, wait_ms=0xFFFFFFFE, lease_ms=LEASE_MS_MAX)
    forever = waiter.acquire(key, wait_ms=WAIT_FOREVER, lease_ms=LEASE_MS_MAX)
    left = holder.expect("extended", holder.extend(key, token, LEASE_MS_MAX))["lease_ms"]
    assert LEASE_MS_MAX - 1 <= left <= LEASE_MS_MAX
    waiter.expect_quiet()
    holder.release(key, token)
    token = waiter.expect("granted", longest)["token"]
    waiter.expect("released", waiter.release(key, token))
    waiter.expect("granted", forever)
    waiter.expect_quiet()


@requirement("REQ-LEASE-OVER", "REQ-ACQUIRE-WAITEND")
def test_the_shortest_lease_and_the_shortest_wait(connect: Connect, key: bytes) -> None:
    holder, waiter = connect(), connect()
    token = holder.hold(key)
    waiter.expect("timed_out", waiter.acquire(key, wait_ms=1))
    holder.expect("released", holder.release(key, token))
    token = holder.hold(key, lease_ms=1)
    holder.take("dropped", token=token, reason=1)
    assert holder.is_free(key)
