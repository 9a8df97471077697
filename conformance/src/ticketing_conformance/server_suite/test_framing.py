"""Frames whole, split, joined and wrong."""

from __future__ import annotations

import random
import socket
import struct
from typing import Any

import pytest
from ticketing_spec import vectors
from ticketing_spec.codec import decode, encode

from ticketing_conformance.server_suite.codes import BAD_FRAME, LEASE_MS_MAX, LEASE_TOO_LONG
from ticketing_conformance.server_suite.conftest import Connect, StartServer
from ticketing_conformance.server_suite.marks import requirement
from ticketing_conformance.server_suite.raw import SPEC, RawClient, acquire_bytes
from ticketing_conformance.server_suite.vector_groups import groups

FILES = vectors.files(SPEC)
BY_FRAME = groups(FILES["v4-client"])
BY_CASE = groups(FILES["v4-client-malformed"])

REPLIES = {
    "acquire": {"granted", "timed_out", "overloaded", "error"},
    "acquire_set": {"granted", "timed_out", "overloaded", "error"},
    "release": {"released", "not_held", "error"},
    "extend": {"extended", "not_held", "error"},
    "cancel": {"cancelled", "error"},
}


@requirement("REQ-FRAME-HEADER", "REQ-FRAME-TAIL", "REQ-FRAME-ECHO")
@pytest.mark.parametrize("frame", [frame for frame in BY_FRAME if frame != "hello"])
def test_every_good_request_is_answered(connect: Connect, frame: str) -> None:
    """Every vector of a frame, one after another on one connection."""
    client = connect(first_id=1 << 40)
    for vector in BY_FRAME[frame]:
        assert vector.wire is not None
        client.send_bytes(vector.wire)
        if frame == "ping":
            client.take("ping", echo=vector.fields["echo"])
            continue
        reply = client.take(request_id=vector.fields["request_id"])
        assert reply.name in REPLIES[frame], f"{vector.id}: {reply}"
        if reply.name == "error":
            assert reply.fields["code"] == LEASE_TOO_LONG, f"{vector.id}: {reply}"
        if reply.name == "granted":
            give_back(client, vector.fields)
    client.settle()


def give_back(client: RawClient, fields: dict[str, Any]) -> None:
    """Cancels the acquire that has these fields."""
    name, acquire_id = fields.get("key") or fields["keys"][0], fields["request_id"]
    client.expect("cancelled", client.cancel(name, acquire_id))
    while any(frame.name == "dropped" for frame in client.unclaimed()):
        client.take("dropped")


@requirement(
    "REQ-FRAME-OP",
    "REQ-FRAME-LENGTH",
    "REQ-FRAME-TAIL",
    "REQ-FRAME-KEYS",
    "REQ-CLOSING-REASON",
    "REQ-CLOSING-TEXT",
)
@pytest.mark.parametrize("case", sorted(BY_CASE))
def test_every_malformed_frame_is_refused(connect: Connect, case: str) -> None:
    """Each vector of a case on a connection of its own, while another goes on being served."""
    bystander = connect()
    for vector in BY_CASE[case]:
        assert vector.wire is not None
        client = connect(hello=vector.what != "hello")
        # The version of a hello is read before its bounds, so that a newer client learns why.
        more = b"\x04" if vector.what == "hello" and len(vector.wire) == 3 else b""
        client.send_bytes(vector.wire + more)
        if vector.layer == "stream":
            if check_cut_stream(client, vector):
                heir = connect(client_id=client.client_id, connection=2, first_id=1 << 40)
                give_back(heir, decode(SPEC, "client", vector.wire[:-1])[1])
        else:
            client.expect_refusal(BAD_FRAME, about=vector.id)
        client.close()
    bystander.ping()


def check_cut_stream(client: RawClient, vector: vectors.Vector) -> bool:
    """What ends early does nothing; what follows a whole frame may be refused, after its reply.

    Returns whether the whole frame acquired something.
    """
    client.socket.shutdown(socket.SHUT_WR)
    frames = client.drain_until_end()
    if vector.error == "one-more" and vector.what != "hello":
        assert frames, f"{vector.id}: the whole frame was not answered"
        assert frames[0].name in {*REPLIES.get(vector.what, ()), "ping"}, f"{vector.id}: {frames}"
        assert all(frame.fields["code"] == BAD_FRAME for frame in frames[1:])
    else:
        assert not frames, f"{vector.id}: {frames}"
    return any(frame.name == "granted" for frame in frames)


@requirement("REQ-FRAME-SPLIT")
def test_a_truncated_frame_waits_for_its_rest(connect: Connect, key: bytes) -> None:
    """Split at every offset: nothing is answered before the last byte, and all is after it."""
    client = connect()
    for split in range(1, len(acquire_bytes(1, key))):
        request_id = client.new_id()
        frame = acquire_bytes(request_id, key)
        client.send_bytes(frame[:split])
        client.send_bytes(frame[split:])
        token = client.expect("granted", request_id)["token"]
        client.expect("released", client.release(key, token))


@requirement("REQ-FRAME-SPLIT")
def test_frames_may_come_byte_by_byte(connect: Connect, keys: list[bytes]) -> None:
    client = connect()
    frames = acquire_bytes(1, keys[0]) + acquire_bytes(2, *keys) + acquire_bytes(3, *keys[1:])
    for byte in frames:
        client.send_bytes(bytes([byte]))
    client.expect("granted", 1)
    client.expect("timed_out", 2)
    client.expect("granted", 3)


@requirement("REQ-FRAME-SPLIT")
def test_half_a_frame_at_the_end_does_nothing(connect: Connect, key: bytes) -> None:
    client = connect()
    client.send_bytes(acquire_bytes(1, key)[:-1])
    client.close()
    assert connect().is_free(key)


@requirement("REQ-FRAME-BATCH", "REQ-FRAME-ECHO")
def test_frames_of_every_op_in_one_segment(connect: Connect, keys: list[bytes]) -> None:
    client = connect()
    parts: list[tuple[str, dict[str, Any]]] = [
        ("ping", {"echo": 7}),
        ("acquire", {"request_id": 1, "wait_ms": 0, "lease_ms": 9_000, "key": keys[0]}),
        ("acquire_set", {"request_id": 2, "wait_ms": 0, "lease_ms": 9_000, "keys": keys[1:4]}),
        ("release", {"request_id": 3, "token": 0, "key": keys[0]}),
        ("extend", {"request_id": 4, "token": 0, "lease_ms": 1, "key": keys[0]}),
        ("cancel", {"request_id": 5, "acquire_id": 1, "key": keys[0]}),
        ("cancel", {"request_id": 6, "acquire_id": 2, "key": keys[1]}),
    ]
    client.send_bytes(b"".join(encode(SPEC, "client", name, fields) for name, fields in parts))
    client.take("ping", echo=7)
    for request_id, name in enumerate(
        ["granted", "granted", "not_held", "not_held", "cancelled", "cancelled"], start=1
    ):
        client.expect(name, request_id)


@requirement("REQ-FRAME-PIPELINE", "REQ-FRAME-BATCH")
def test_a_thousand_acquires_in_flight_on_one_connection(connect: Connect, key: bytes) -> None:
    client = connect()
    names = [b"%s/%d" % (key, number) for number in range(1000)]
    client.send_bytes(b"".join(acquire_bytes(i, name) for i, name in enumerate(names, 1)))
    tokens = [client.expect("granted", i)["token"] for i in range(1, 1001)]
    assert tokens == sorted(set(tokens))
    client.next_id = 1001
    for name, token in zip(names, tokens, strict=True):
        client.release(name, token)
    for request_id in range(1001, 2001):
        client.expect("released", request_id)


@requirement("REQ-FRAME-BYTES")
def test_keys_are_bytes_and_nothing_is_trimmed(connect: Connect, key: bytes) -> None:
    """`a`, `a` with a NUL, with a space and with a line end are four locks."""
    client = connect()
    names = [key, key + b"\0", key + b" b", key + b"\n", key + b"\r\n", b" " + key, key.upper()]
    tokens = [client.hold(name) for name in names]
    assert len(set(tokens)) == len(names)
    other = connect()
    for name, token in zip(names, tokens, strict=True):
        assert not other.is_free(name)
        client.expect("released", client.release(name, token))
        assert other.is_free(name)


@requirement("REQ-FRAME-BYTES", "REQ-FRAME-TAIL")
def test_keys_of_128_bytes_and_of_every_byte(connect: Connect, key: bytes) -> None:
    client = connect()
    for name in [key.ljust(128, b"\xff"), key.ljust(127, b"\xff"), key + bytes(range(100))]:
        client.expect("released", client.release(name, client.hold(name)))
    for byte in range(256):
        name = key + bytes([byte])
        client.expect("released", client.release(name, client.hold(name)))


@requirement("REQ-FRAME-BYTES", "REQ-FRAME-TAIL")
def test_keys_of_one_byte(connect: Connect, shared_server: StartServer) -> None:
    """On a server of its own, because there are no others that nobody else would use."""
    client = connect(shared_server())
    for byte in range(256):
        name = bytes([byte])
        client.expect("released", client.release(name, client.hold(name)))


@requirement("REQ-FRAME-BYTES")
def test_text_that_unicode_calls_equal_is_two_keys(connect: Connect, key: bytes) -> None:
    client = connect()
    client.hold(key + "é".encode())
    assert client.is_free(key + "e\N{COMBINING ACUTE ACCENT}".encode())


HEADERS = [
    pytest.param(b"A" + struct.pack(">H", 16), id="acquire of no key"),
    pytest.param(b"A" + struct.pack(">H", 145), id="acquire of a key of 129 bytes"),
    pytest.param(b"A" + struct.pack(">H", 0xFFFF), id="acquire of 65,535 bytes"),
    pytest.param(b"S" + struct.pack(">H", 20), id="set of one byte too few"),
    pytest.param(b"S" + struct.pack(">H", 16 + 2066), id="set of one byte too many"),
    pytest.param(b"P" + struct.pack(">H", 7), id="ping of 7 bytes"),
    pytest.param(b"P" + struct.pack(">H", 9), id="ping of 9 bytes"),
    pytest.param(b"R" + struct.pack(">H", 0), id="empty release"),
    pytest.param(b"X" + struct.pack(">H", 20), id="extend of no key"),
    pytest.param(b"C" + struct.pack(">H", 145), id="cancel of a key of 129 bytes"),
    pytest.param(b"\x00\x00\x00", id="op 0"),
    pytest.param(b"a" + struct.pack(">H", 17), id="op in lower case"),
    pytest.param(b"W" + struct.pack(">H", 67), id="an op of the server"),
]


@requirement("REQ-FRAME-OP", "REQ-FRAME-LENGTH")
@pytest.mark.parametrize("header", HEADERS)
def test_op_and_length_are_checked_before_a_body_comes(connect: Connect, header: bytes) -> None:
    client = connect()
    client.send_bytes(header)
    client.expect_refusal(BAD_FRAME)


@requirement("REQ-FRAME-OP")
def test_every_unknown_op_is_refused(connect: Connect) -> None:
    for op in sorted(set(range(256)) - set(b"HASRXCP")):
        client = connect()
        client.send_bytes(bytes([op, 0, 8]) + bytes(8))
        client.expect_refusal(BAD_FRAME)
        client.close()


@requirement("REQ-ACQUIRE-LEASE", "REQ-EXTEND-LEASE", "REQ-CLOSING-BADFRAME")
@pytest.mark.parametrize("lease_ms", [0, 0xFFFFFFFF])
@pytest.mark.parametrize("name", ["acquire", "acquire_set", "extend"])
def test_a_lease_of_nothing_or_for_ever_is_a_bad_frame(
    connect: Connect, keys: list[bytes], name: str, lease_ms: int
) -> None:
    client = connect()
    client.send_bytes(with_lease(name, keys, lease_ms))
    text = client.expect_refusal(BAD_FRAME)["text"]
    assert b"lease" in text.lower()


def with_lease(name: str, keys: list[bytes], lease_ms: int) -> bytes:
    """The frame with this lease at its offset, which the encoder itself might refuse."""
    fields: dict[str, Any] = {"request_id": 1, "lease_ms": LEASE_MS_MAX}
    if name == "extend":
        fields |= {"token": 1, "key": keys[0]}
    elif name == "acquire":
        fields |= {"wait_ms": 0, "key": keys[0]}
    else:
        fields |= {"wait_ms": 0, "keys": keys}
    offset = 3 + (16 if name == "extend" else 12)
    frame = encode(SPEC, "client", name, fields)
    assert frame[offset : offset + 4] == struct.pack(">I", LEASE_MS_MAX)
    return frame[:offset] + struct.pack(">I", lease_ms) + frame[offset + 4 :]


SETS = {
    "one key": b"\x01\x04abcd",
    "no key": b"\x00\x01a\x01b",
    "seventeen keys": b"\x11" + b"".join(b"\x01" + bytes([65 + i]) for i in range(17)),
    "out of order": b"\x02\x01b\x01a",
    "the same twice": b"\x02\x01a\x01a",
    "prefix after the longer one": b"\x02\x02ab\x01a",
    "signed order": b"\x02\x01\x80\x01\x7f",
    "an empty key": b"\x02\x00\x02ab",
    "a key of 129 bytes": b"\x02\x01a\x81" + b"b" * 129,
    "a byte left over": b"\x02\x01a\x01b\x00",
    "a key past the end": b"\x02\x01a\x03bc",
    "a length past the end": b"\x03\x01a\x01b",
}


@requirement("REQ-FRAME-KEYS", "REQ-CLOSING-BADFRAME")
@pytest.mark.parametrize("tail", SETS.values(), ids=SETS.keys())
def test_sets_that_are_none_are_bad_frames(connect: Connect, tail: bytes) -> None:
    client = connect()
    body = struct.pack(">QII", 1, 0, 1000) + tail
    client.send_bytes(b"S" + struct.pack(">H", len(body)) + body)
    text = client.expect_refusal(BAD_FRAME)["text"]
    assert b"key" in text.lower()


@requirement("REQ-CLOSING-STOP", "REQ-FRAME-BATCH")
def test_what_came_before_a_bad_frame_was_done(connect: Connect, key: bytes) -> None:
    client = connect()
    client.send_bytes(acquire_bytes(1, key) + b"\xff\x00\x00" + acquire_bytes(2, key + b"2"))
    client.expect("granted", 1)
    client.expect_refusal(BAD_FRAME)
    other = connect()
    assert not other.is_free(key)
    assert other.is_free(key + b"2")


STRANGERS = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "TLS": bytes.fromhex("16030100f8010000f40303") + bytes(range(200)),
    "SSH": b"SSH-2.0-OpenSSH_9.2p1\r\n",
    "Redis": b"*1\r\n$4\r\nPING\r\n",
    "zeros": bytes(4096),
    "ones": b"\xff" * 4096,
    "every byte": bytes(range(256)) * 16,
}


@requirement("REQ-HELLO-FIRST", "REQ-CLOSING-REASON")
@pytest.mark.parametrize("data", STRANGERS.values(), ids=STRANGERS.keys())
def test_other_protocols_are_refused_with_a_reason(connect: Connect, data: bytes) -> None:
    bystander = connect()
    stranger = connect(hello=False)
    stranger.send_bytes(data)
    stranger.expect_refusal(BAD_FRAME)
    bystander.ping()


@requirement("REQ-PRESSURE-OTHERS", "REQ-FRAME-OP")
def test_random_bytes_after_the_welcome_hurt_nobody(connect: Connect) -> None:
    bystander = connect()
    source = random.Random(5225)
    for _ in range(60):
        client = connect()
        try:
            for _ in range(20):
                client.send_bytes(source.randbytes(source.randint(1, 300)))
        except OSError:
            pass  # The server may have closed already; that is its right here.
        client.drain_until_end_or_reset()
        client.close()
    bystander.settle()
