"""Waits: at the deadline, never early, and never both granted and timed out."""

from __future__ import annotations

import time

import pytest

from ticketing_conformance.server_suite.codes import LATE_MS
from ticketing_conformance.server_suite.conftest import Connect
from ticketing_conformance.server_suite.marks import requirement
from ticketing_conformance.server_suite.raw import WAIT_FOREVER, acquire_bytes


@requirement("REQ-ACQUIRE-WAITEND", "REQ-TIME-NEVEREARLY", "REQ-TIME-EXACT")
@pytest.mark.parametrize("wait_ms", [1, 20, 350, 1_200])
def test_a_wait_ends_at_its_deadline(connect: Connect, key: bytes, wait_ms: int) -> None:
    holder, waiter = connect(), connect()
    token = holder.hold(key)
    started = time.monotonic()
    waiter.expect("timed_out", waiter.acquire(key, wait_ms=wait_ms))
    assert wait_ms <= (time.monotonic() - started) * 1000 <= wait_ms + LATE_MS
    holder.expect("released", holder.release(key, token))
    assert holder.is_free(key)
    waiter.expect_quiet()


@requirement("REQ-TIME-ORDER", "REQ-TIME-EXACT")
def test_waits_of_one_queue_end_by_deadline_not_by_place(connect: Connect, key: bytes) -> None:
    holder, waiter = connect(), connect()
    holder.hold(key)
    waits = [900, 300, 600, 100, 750, 450]
    ids = {waiter.acquire(key, wait_ms=wait_ms): wait_ms for wait_ms in waits}
    order = [ids[waiter.take("timed_out").fields["request_id"]] for _ in waits]
    assert order == sorted(waits)


@requirement("REQ-TIME-ORDER")
def test_waits_with_one_deadline_end_in_the_order_of_the_queue(
    connect: Connect, key: bytes
) -> None:
    holder, waiter = connect(), connect()
    holder.hold(key)
    ids = list(range(1, 65))
    waiter.send_bytes(b"".join(acquire_bytes(i, key, wait_ms=300) for i in ids))
    waiter.next_id = 65
    assert [waiter.take("timed_out").fields["request_id"] for _ in ids] == ids


@requirement("REQ-TIME-EXACT", "REQ-TIME-NEVEREARLY")
def test_many_different_waits_each_end_in_time(connect: Connect, key: bytes) -> None:
    """More lengths than a table of few lengths would hold."""
    holder, waiter = connect(), connect()
    holder.hold(key)
    started = time.monotonic()
    ids = {waiter.acquire(key, wait_ms=100 + 3 * n): 100 + 3 * n for n in range(200)}
    for _ in range(200):
        wait_ms = ids[waiter.take("timed_out").fields["request_id"]]
        assert wait_ms <= (time.monotonic() - started) * 1000 <= wait_ms + LATE_MS


@requirement("REQ-ACQUIRE-WAITEND", "REQ-GRANT-ONCE")
def test_a_waiter_that_timed_out_is_in_no_queue(connect: Connect, key: bytes) -> None:
    holder, waiter, next_one = connect(), connect(), connect()
    token = holder.hold(key)
    gone = waiter.acquire(key, wait_ms=50)
    waiter.settle()
    stays = next_one.acquire(key, wait_ms=WAIT_FOREVER)
    waiter.expect("timed_out", gone)
    holder.expect("released", holder.release(key, token))
    next_one.expect("granted", stays)
    waiter.expect_quiet()


@requirement("REQ-GRANT-ONCE")
def test_a_grant_and_a_time_out_exclude_each_other(connect: Connect, key: bytes) -> None:
    """Releases aimed at the end of a wait, before and after it: one answer, and one truth."""
    holder, waiter = connect(), connect()
    outcomes = set()
    for attempt in range(60):
        token = holder.hold(key)
        wait_ms = 20
        deadline = time.monotonic() + wait_ms / 1000 + (attempt % 12 - 6) * 0.001
        request_id = waiter.acquire(key, wait_ms=wait_ms)
        time.sleep(max(0.0, deadline - time.monotonic()))
        holder.expect("released", holder.release(key, token))
        frame = waiter.reply(request_id)
        outcomes.add(frame.name)
        if frame.name == "granted":
            assert not holder.is_free(key)
            waiter.expect("released", waiter.release(key, frame.fields["token"]))
        else:
            assert frame.name == "timed_out"
            assert holder.is_free(key)
        waiter.expect_quiet()
    assert outcomes <= {"granted", "timed_out"}


@requirement("REQ-GRANT-ONCE")
def test_a_release_read_long_before_the_deadline_grants(connect: Connect, key: bytes) -> None:
    holder, waiter = connect(), connect()
    token = holder.hold(key)
    request_id = waiter.acquire(key, wait_ms=60_000)
    waiter.settle()
    holder.release(key, token)
    waiter.expect("granted", request_id)
    waiter.expect_quiet()


@requirement("REQ-GRANT-ONCE", "REQ-TIME-DUE")
def test_a_key_freed_and_wanted_at_one_moment_goes_to_one(connect: Connect, key: bytes) -> None:
    """A lease and a wait that end at about the same time, over and over."""
    holder, waiter = connect(), connect()
    for attempt in range(30):
        lease_ms = 15 + attempt % 5
        token = holder.hold(key, lease_ms=lease_ms)
        request_id = waiter.acquire(key, wait_ms=15, lease_ms=60_000)
        frame = waiter.reply(request_id)
        holder.take("dropped", token=token, reason=1)
        if frame.name == "granted":
            assert not holder.is_free(key)
            waiter.expect("released", waiter.release(key, frame.fields["token"]))
        assert holder.is_free(key)
        waiter.expect_quiet()
