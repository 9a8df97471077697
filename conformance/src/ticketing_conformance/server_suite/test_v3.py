"""Version 3: each request and reply, on the lock table that version 4 uses."""

from __future__ import annotations

import signal
import socket
import struct
import time

import pytest

from ticketing_conformance.server_suite.codes import LATE_MS, RELEASED_BY_OTHER_CLIENT
from ticketing_conformance.server_suite.conftest import Connect, ConnectV3, StartServer
from ticketing_conformance.server_suite.marks import requirement
from ticketing_conformance.server_suite.raw import WAIT_FOREVER, RawClient
from ticketing_conformance.server_suite.raw_v3 import (
    BAD_KEY,
    BAD_KEY_SET,
    BAD_LEASE,
    BAD_TOKEN,
    GROUP_MISMATCH,
    LIVE_NOWHERE,
    NOT_ACTIVE,
    RawV3Client,
    acquire_v3_bytes,
)

FORBIDDEN = [b" ", b"\n", b"\r"]


def frame(op: bytes, body: bytes) -> bytes:
    """A frame by hand, where the spec's encoder would refuse its values."""
    return op + struct.pack(">H", len(body)) + body


@requirement("REQ-V3-ACQUIRE", "REQ-V3-RELEASE")
def test_acquire_and_release(connect_v3: ConnectV3, key: bytes) -> None:
    client, other = connect_v3(), connect_v3()
    token = client.hold(key)
    other.expect("timed_out", other.acquire(key))
    client.expect("released", client.release(key, token))
    assert other.hold(key) > token
    client.expect_quiet()
    other.expect_quiet()


@requirement("REQ-V3-ACQUIRE", "REQ-V3-RELEASESET")
def test_acquire_and_release_of_a_set(connect_v3: ConnectV3, keys: list[bytes]) -> None:
    client, other = connect_v3(), connect_v3()
    token = client.hold(*keys)
    for name in keys:
        other.expect("timed_out", other.acquire(name))
    other.expect("timed_out", other.acquire(*keys[3:5]))
    client.expect("released_set", client.release_set(*keys, token=token))
    assert other.hold(*keys[3:5]) > token
    client.expect_quiet()


@requirement("REQ-V3-TRY")
def test_a_try_of_a_set_takes_all_or_nothing(connect_v3: ConnectV3, keys: list[bytes]) -> None:
    client, other = connect_v3(), connect_v3()
    client.hold(keys[1])
    other.expect("timed_out", other.acquire(*keys[:3]))
    other.hold(keys[0])
    other.hold(keys[2])


@requirement("REQ-V3-WAITEND")
def test_a_wait_ends_after_its_seconds(connect_v3: ConnectV3, key: bytes) -> None:
    holder, waiter = connect_v3(), connect_v3()
    token = holder.hold(key)
    started = time.monotonic()
    waiter.expect("timed_out", waiter.acquire(key, wait_s=1))
    assert 1_000 <= (time.monotonic() - started) * 1000 <= 1_000 + LATE_MS
    holder.expect("released", holder.release(key, token))
    waiter.expect_quiet()


def test_a_waiter_is_granted(connect_v3: ConnectV3, keys: list[bytes]) -> None:
    holder, waiter = connect_v3(), connect_v3()
    token = holder.hold(keys[0])
    single = waiter.acquire(keys[0], wait_s=255)
    many = waiter.acquire(*keys[:2], wait_s=255)
    waiter.expect_quiet()
    holder.expect("released", holder.release(keys[0], token))
    token = waiter.expect("granted", single)["token"]
    waiter.expect_quiet()
    waiter.expect("released", waiter.release(keys[0], token))
    assert waiter.expect("granted_set", many)["token"] > token


def test_a_lease_ends_after_its_seconds_and_nobody_is_told(
    connect_v3: ConnectV3, key: bytes
) -> None:
    """Such a client takes a frame that answers no request for a broken server."""
    holder, waiter = connect_v3(), connect_v3()
    started = time.monotonic()
    token = holder.hold(key, lease_s=1)
    request_id = waiter.acquire(key, wait_s=60)
    waiter.expect("granted", request_id)
    assert 1_000 <= (time.monotonic() - started) * 1000 <= 1_000 + LATE_MS
    holder.expect_quiet()
    holder.expect("not_held", holder.release(key, token))


def test_the_longest_lease_and_wait(connect_v3: ConnectV3, key: bytes) -> None:
    client = connect_v3()
    token = client.hold(key, lease_s=250, wait_s=255)
    client.expect("released", client.release(key, token))


@requirement("REQ-V3-BADLEASE")
@pytest.mark.parametrize("lease_s", [0, 251, 255])
def test_leases_out_of_bounds(connect_v3: ConnectV3, keys: list[bytes], lease_s: int) -> None:
    client = connect_v3()
    head = struct.pack(">QBB", 1, 0, lease_s)
    client.send_bytes(frame(b"A", head + keys[0]))
    client.expect_error(1, BAD_LEASE)
    client.send_bytes(frame(b"S", head + b"\x02\x01a\x01b"))
    client.expect_error(1, BAD_LEASE)
    client.hold(keys[0])


@requirement("REQ-V3-MAXLEASE")
def test_a_lease_over_the_servers_limit(
    connect_v3: ConnectV3, shared_server: StartServer, key: bytes
) -> None:
    client = connect_v3(shared_server("--max-lease", "60s"))
    client.expect_error(client.acquire(key, lease_s=61), BAD_LEASE)
    client.hold(key, lease_s=60)


@requirement("REQ-V3-BADKEY")
@pytest.mark.parametrize("byte", FORBIDDEN)
def test_keys_with_spaces_and_line_ends(
    connect_v3: ConnectV3, keys: list[bytes], byte: bytes
) -> None:
    client = connect_v3()
    token = client.hold(keys[0])
    client.send_bytes(frame(b"A", struct.pack(">QBB", 10, 0, 9) + keys[0] + byte))
    client.expect_error(10, BAD_KEY)
    client.send_bytes(frame(b"R", struct.pack(">QQ", 11, token) + byte + keys[0]))
    client.expect_error(11, BAD_KEY)
    tail = b"\x02\x02a" + byte + b"\x01b"
    client.send_bytes(frame(b"S", struct.pack(">QBB", 12, 0, 9) + tail))
    client.expect_error(12, BAD_KEY_SET)
    client.send_bytes(frame(b"G", struct.pack(">QQ", 13, token) + tail))
    client.expect_error(13, BAD_KEY_SET)
    client.expect("released", client.release(keys[0], token))


def test_other_bytes_in_keys(connect_v3: ConnectV3, key: bytes) -> None:
    client = connect_v3()
    for name in (key + b"\0", key + b"\t\x0b\xff", key.ljust(128, b"\x80")):
        client.expect("released", client.release(name, client.hold(name)))


BAD_SETS = {
    "one key": b"\x01\x04abcd",
    "seventeen keys": b"\x11" + b"".join(b"\x01" + bytes([65 + i]) for i in range(17)),
    "out of order": b"\x02\x01b\x01a",
    "the same twice": b"\x02\x01a\x01a",
    "an empty key": b"\x02\x00\x02ab",
    "a key of 129 bytes": b"\x02\x01a\x81" + b"b" * 129,
}


@requirement("REQ-V3-BADSET")
@pytest.mark.parametrize("tail", BAD_SETS.values(), ids=BAD_SETS.keys())
def test_bad_sets(connect_v3: ConnectV3, tail: bytes) -> None:
    client = connect_v3()
    client.send_bytes(frame(b"S", struct.pack(">QBB", 1, 0, 9) + tail))
    client.expect_error(1, BAD_KEY_SET)
    client.send_bytes(frame(b"G", struct.pack(">QQ", 2, 5) + tail))
    client.expect_error(2, BAD_KEY_SET)


@requirement("REQ-V3-BADTOKEN")
def test_a_token_of_0(connect_v3: ConnectV3, keys: list[bytes]) -> None:
    client = connect_v3()
    client.send_bytes(frame(b"R", struct.pack(">QQ", 1, 0) + keys[0]))
    client.expect_error(1, BAD_TOKEN)
    client.send_bytes(frame(b"G", struct.pack(">QQ", 2, 0) + b"\x02\x01a\x01b"))
    client.expect_error(2, BAD_TOKEN)


@requirement("REQ-V3-NOTHELD")
def test_releases_that_find_nothing(connect_v3: ConnectV3, keys: list[bytes]) -> None:
    client = connect_v3()
    token = client.hold(keys[0])
    client.expect("released", client.release(keys[0], token))
    client.expect("not_held", client.release(keys[0], token))
    client.expect("not_held", client.release_set(*keys[:2], token=LIVE_NOWHERE))


@requirement("REQ-V3-MISMATCH")
def test_a_live_token_of_other_keys(connect_v3: ConnectV3, keys: list[bytes]) -> None:
    client = connect_v3()
    single, many = client.hold(keys[0]), client.hold(*keys[1:4])
    client.expect_error(client.release_set(*keys[:2], token=single), GROUP_MISMATCH)
    client.expect_error(client.release_set(*keys[1:3], token=many), GROUP_MISMATCH)
    client.expect_error(client.release_set(*keys[1:5], token=many), GROUP_MISMATCH)
    client.expect_error(client.release(keys[1], many), GROUP_MISMATCH)
    client.expect("released", client.release(keys[0], single))
    client.expect("released_set", client.release_set(*keys[1:4], token=many))


@requirement("REQ-V3-OWNER")
def test_each_request_is_an_owner_of_its_own(connect_v3: ConnectV3, key: bytes) -> None:
    """An id that comes twice is not the same acquire again, as it is in version 4."""
    client = connect_v3()
    client.send_bytes(acquire_v3_bytes(1, key))
    client.expect("granted", 1)
    client.send_bytes(acquire_v3_bytes(1, key))
    client.expect("timed_out", 1)
    other = connect_v3()
    other.send_bytes(acquire_v3_bytes(1, key))
    other.expect("timed_out", 1)


@requirement("REQ-V3-BROKEN", "REQ-V3-BARE")
@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"X\x00\x0b" + bytes(11), id="unknown op"),
        pytest.param(b"P\x00\x08" + bytes(8), id="a ping of version 4"),
        pytest.param(frame(b"A", struct.pack(">QBB", 1, 0, 9)), id="no key"),
        pytest.param(b"A\x00\x8b", id="a key of 129 bytes"),
        pytest.param(b"A\xff\xff", id="a length of 65,535"),
        pytest.param(b"R\x00\x10" + bytes(16), id="release of no key"),
        pytest.param(b"S\x00\x0e" + bytes(14), id="a set too short"),
        pytest.param(b"G\x08\x22", id="a set too long"),
        pytest.param(frame(b"A", struct.pack(">QBB", 0, 0, 9) + b"k"), id="request id 0"),
        pytest.param(frame(b"R", struct.pack(">QQ", 0, 1) + b"k"), id="release with id 0"),
        pytest.param(
            frame(b"S", struct.pack(">QBB", 1, 0, 9) + b"\x02\x01a\x01b!"), id="bytes left over"
        ),
        pytest.param(
            frame(b"S", struct.pack(">QBB", 1, 0, 9) + b"\x02\x01a\x05b"), id="key past the end"
        ),
    ],
)
def test_broken_frames_just_close(connect_v3: ConnectV3, data: bytes) -> None:
    client, bystander = connect_v3(), connect_v3()
    client.send_bytes(data)
    client.expect_bare_close()
    bystander.settle()


def test_frames_split_and_joined(connect_v3: ConnectV3, keys: list[bytes]) -> None:
    client = connect_v3()
    data = b"".join(acquire_v3_bytes(i, name) for i, name in enumerate(keys[:8], 1))
    data += acquire_v3_bytes(9, *keys[8:])
    for byte in data:
        client.send_bytes(bytes([byte]))
    for request_id in range(1, 9):
        client.expect("granted", request_id)
    client.expect("granted_set", 9)


@requirement("REQ-V3-OVERLOADED", "REQ-V3-LIMITS")
def test_limits_hold_here_too(
    connect_v3: ConnectV3, own_server: StartServer, keys: list[bytes]
) -> None:
    server = own_server("--max-waiters-per-key", "1", "--max-held-keys", "3")
    client = connect_v3(server)
    client.hold(keys[0])
    client.acquire(keys[0], wait_s=60)
    client.expect("overloaded", client.acquire(keys[0], wait_s=60))
    client.hold(*keys[1:3])
    client.expect("overloaded", client.acquire(keys[3]))
    client.expect_quiet()


@requirement("REQ-V3-DRAIN")
def test_a_drain_refuses_what_is_unanswered(
    connect_v3: ConnectV3, own_server: StartServer, key: bytes
) -> None:
    server = own_server()
    client = connect_v3(server)
    client.hold(key)
    waiting = client.acquire(key, wait_s=60)
    client.settle()
    server.signal(signal.SIGTERM)
    assert client.expect("error", waiting)["code"] == NOT_ACTIVE
    client.expect_bare_close()
    client.close()
    assert server.wait() == 0


def cut(client: socket.socket) -> None:
    client.shutdown(socket.SHUT_WR)


@requirement("REQ-V3-LEAVE")
def test_waiters_leave_at_once_when_their_connection_ends(
    connect: Connect, connect_v3: ConnectV3, key: bytes
) -> None:
    holder, gone, later = connect(), connect_v3(), connect()
    token = holder.hold(key)
    gone.acquire(key, wait_s=255)
    gone.settle()
    behind = later.acquire(key, wait_ms=WAIT_FOREVER)
    later.settle()
    cut(gone.socket)
    gone.expect_bare_close()
    holder.expect("released", holder.release(key, token))
    later.expect("granted", behind)


@requirement("REQ-V3-TICKETS")
def test_tickets_stay_when_their_connection_ends(
    connect: Connect, connect_v3: ConnectV3, key: bytes
) -> None:
    started = time.monotonic()
    holder, other = connect_v3(), connect()
    token = holder.hold(key, lease_s=1)
    cut(holder.socket)
    holder.expect_bare_close()
    assert not other.is_free(key)
    assert other.hold(key) > token
    assert time.monotonic() - started >= 1


@requirement("REQ-V3-SHARED")
def test_a_token_is_a_capability_in_both_versions(
    connect: Connect, connect_v3: ConnectV3, keys: list[bytes]
) -> None:
    four, three = connect(), connect_v3()
    token = three.hold(keys[0])
    four.expect("released", four.release(keys[0], token))
    three.expect_quiet()
    token = four.hold(keys[0])
    three.expect("released", three.release(keys[0], token))
    four.take("dropped", token=token, reason=RELEASED_BY_OTHER_CLIENT)
    token = four.hold(*keys)
    three.expect_error(three.release(keys[0], token), GROUP_MISMATCH)
    three.expect("released_set", three.release_set(*keys, token=token))
    four.take("dropped", token=token, reason=RELEASED_BY_OTHER_CLIENT)


def test_an_extend_of_version_4_lengthens_a_lease_of_version_3(
    connect: Connect, connect_v3: ConnectV3, key: bytes
) -> None:
    four, three = connect(), connect_v3()
    token = three.hold(key, lease_s=1)
    four.expect("extended", four.extend(key, token, 60_000))
    time.sleep(1.3)
    three.expect("released", three.release(key, token))
    four.take("dropped", token=token, reason=RELEASED_BY_OTHER_CLIENT)


@requirement("REQ-V3-SHARED")
def test_versions_take_turns_in_strict_fifo(
    connect: Connect, connect_v3: ConnectV3, keys: list[bytes]
) -> None:
    """Twenty of each version wait for one key, in turn; sets of both are among them."""
    key, second = keys[:2]
    holder = connect()
    token = holder.hold(key)
    queue: list[tuple[RawClient | RawV3Client, tuple[bytes, ...], int]] = []
    for turn in range(20):
        three, four = connect_v3(), connect()
        wanted: tuple[bytes, ...] = (key, second) if turn % 4 == 3 else (key,)
        queue.append((three, wanted, three.acquire(*wanted, wait_s=255)))
        three.settle()
        queue.append((four, wanted, four.acquire(*wanted, wait_ms=WAIT_FOREVER)))
        four.settle()
    holder.expect("released", holder.release(key, token))
    for client, names, request_id in queue:
        fields = client.reply(request_id).fields
        assert fields["token"] > token
        token = fields["token"]
        assert not any(other.unclaimed() for other, _, _ in queue)
        if len(names) == 2 and isinstance(client, RawV3Client):
            client.expect("released_set", client.release_set(*names, token=token))
        else:
            client.expect("released", client.release(names[0], token))
        client.expect_quiet()


def test_a_take_over_is_nothing_to_version_3(connect: Connect, connect_v3: ConnectV3) -> None:
    three = connect_v3()
    for number in range(3):
        connect(connection=number + 1)
    three.expect_quiet()
