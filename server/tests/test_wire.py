"""The codec of version 4 against the golden vectors, and under any bytes."""

from __future__ import annotations

from pathlib import Path
from struct import pack
from typing import Any

import pytest
from engine_driver import SPEC
from hypothesis import given
from hypothesis import strategies as st
from ticketing_server import constants_gen as c
from ticketing_server import wire
from ticketing_spec.codec import decode, encode

VECTORS = Path(__file__).parents[2] / "spec" / "vectors" / "v4-client.vec"
OPS = {
    "acquire": wire.ACQUIRE,
    "acquire_set": wire.ACQUIRE_SET,
    "release": wire.RELEASE,
    "extend": wire.EXTEND,
    "cancel": wire.CANCEL,
}
U64 = st.integers(0, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)
KEY = st.binary(min_size=1, max_size=128)


def as_command(name: str, fields: dict[str, Any]) -> wire.Command:
    """What a command should be, from what the spec's decoder read."""
    request_id = int(fields["request_id"]).to_bytes(8, "big")
    if name in ("acquire", "acquire_set"):
        word = pack(">II", fields["wait_ms"], fields["lease_ms"])
    else:
        word = pack(">Q", fields["acquire_id"] if name == "cancel" else fields["token"])
    tail: Any = tuple(fields["keys"]) if name == "acquire_set" else fields["key"]
    if name == "extend":
        tail = pack(">I", fields["lease_ms"]) + tail
    return (OPS[name], request_id, word, tail)


def vectors() -> list[bytes]:
    lines = VECTORS.read_text().splitlines()
    frames = [bytes.fromhex(line[6:]) for line in lines if line.startswith("wire: ")]
    assert len(frames) > 100
    return frames


def test_vectors_alone_and_together() -> None:
    """REQ-FRAME-BYTES."""
    frames = [frame for frame in vectors() if frame[0] not in b"HP"]
    expected = [as_command(*decode(SPEC, "client", frame)) for frame in frames]
    for frame, command in zip(frames, expected, strict=True):
        assert wire.split(frame, []) == ([command], len(frame), None)
        both = wire.split(frame * 3, [])
        assert both == ([command] * 3, 3 * len(frame), None)
    assert wire.split(b"".join(frames), []).commands == expected


def test_hello_vectors() -> None:
    for frame in vectors():
        if frame[0] != c.OP_HELLO:
            continue
        _, fields = decode(SPEC, "client", frame)
        if fields["version"] != c.PROTOCOL_VERSION:
            assert wire.read_hello(frame) == fields["version"]
            continue
        read = wire.read_hello(frame + b"rest")
        assert isinstance(read, tuple)
        hello, used = read
        assert used == len(frame)
        assert int.from_bytes(hello.client_id, "big") == fields["client_id"]
        assert hello.number == fields["connection"]
        assert (hello.client_nonce, hello.mac) == (fields["client_nonce"], fields["mac"])
        assert hello.label == fields["label"]
        assert all(wire.read_hello(frame[:at]) is None for at in range(len(frame)))


def test_pings_are_answered_at_once() -> None:
    pongs: list[bytes] = []
    ping = encode(SPEC, "client", "ping", {"echo": 2**64 - 1})
    assert wire.split(ping * 2, pongs) == ([], 2 * len(ping), None)
    assert [decode(SPEC, "server", pong) for pong in pongs] == [("ping", {"echo": 2**64 - 1})] * 2


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"\1\3aaa", "keys: got 1 keys, takes 2 to 16"),
        (
            b"\x11" + b"".join(b"\1%c" % (n + 97) for n in range(17)),
            "keys: got 17 keys, takes 2 to 16",
        ),
        (b"\2\1b\1a", "keys: got key 2 not above key 1, takes rising order"),
        (b"\2\1a\1a", "keys: got key 2 not above key 1, takes rising order"),
        (b"\2\1a\0\0", "keys: got 0 bytes in key 2, takes 1 to 128"),
        (b"\2\1a\x81" + b"b" * 129, "keys: got 129 bytes in key 2, takes 1 to 128"),
        (b"\3\1a\1b", "keys: got a body that ends before key 3 of 3"),
        (b"\2\1a\5b", "keys: got a body that ends inside key 2 of 2"),
        (b"\2\1a\1bc", "keys: got 1 bytes after the last key, takes none"),
    ],
)
def test_bad_sets_name_the_field(body: bytes, text: str) -> None:
    """REQ-FRAME-KEYS, REQ-CLOSING-TEXT."""
    frame = b"S" + pack(">H", 16 + len(body)) + pack(">QII", 77, 0, 1) + body
    _, used, bad = wire.split(frame, [])
    assert bad is not None
    assert (used, bad.text, bad.request_id) == (0, text, pack(">Q", 77))


@pytest.mark.parametrize("op", sorted(set(range(256)) - set(b"ASRXCP")))
def test_unknown_op_is_told_from_its_first_byte(op: int) -> None:
    """REQ-FRAME-OP."""
    for data in (bytes((op,)), bytes((op,)) + b"\0\x11", bytes((op,)) + b"\0\x11" + bytes(17)):
        if op == c.OP_HELLO and len(data) == 1:
            continue
        _, used, bad = wire.split(data, [])
        assert bad is not None
        assert (used, bad.text.startswith("op: got ")) == (0, True)


def test_length_is_checked_before_the_body_is_there() -> None:
    """REQ-FRAME-LENGTH."""
    for op, (_, low, high) in wire.BOUNDS.items():
        if op == c.OP_HELLO:
            continue
        for length in (0, low - 1, high + 1, 0xFFFF):
            bad = wire.split(bytes((op,)) + pack(">H", length), []).bad
            assert bad is not None
            assert f"got {length}, takes {low} to {high}" in bad.text
        for length in (low, high):
            assert wire.split(bytes((op,)) + pack(">H", length), []) == ([], 0, None)


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    name = draw(st.sampled_from(sorted(OPS)))
    fields: dict[str, Any] = {"request_id": draw(U64)}
    if name in ("acquire", "acquire_set"):
        fields |= {"wait_ms": draw(U32), "lease_ms": draw(st.integers(1, 2**32 - 2))}
    elif name == "cancel":
        fields["acquire_id"] = draw(U64)
    else:
        fields["token"] = draw(U64)
    if name == "extend":
        fields["lease_ms"] = draw(st.integers(1, 2**32 - 2))
    if name == "acquire_set":
        fields["keys"] = sorted(draw(st.lists(KEY, min_size=2, max_size=16, unique=True)))
    else:
        fields["key"] = draw(KEY)
    return name, fields


@given(st.lists(requests(), max_size=12), st.data())
def test_any_requests_at_any_split(batch: list[tuple[str, dict[str, Any]]], data: Any) -> None:
    """REQ-FRAME-SPLIT."""
    frames = b"".join(encode(SPEC, "client", name, fields) for name, fields in batch)
    expected = [as_command(name, fields) for name, fields in batch]
    at = data.draw(st.integers(0, len(frames)))
    first, used, bad = wire.split(frames[:at], [])
    rest, used_of_rest, bad_of_rest = wire.split(frames[used:], [])
    assert first + rest == expected
    assert (used + used_of_rest, bad, bad_of_rest) == (len(frames), None, None)


@given(st.binary(max_size=300))
def test_any_bytes_never_raise(data: bytes) -> None:
    commands, used, bad = wire.split(data, [])
    assert 0 <= used <= len(data)
    if bad is None:
        assert len(data) - used < wire.HEADER_BYTES + wire.SET_MAX
    again = wire.split(data[:used], [])
    assert (again.commands, again.used, again.bad) == (commands, used, None)


@given(st.integers(20, 60), st.integers(2, 6), st.data())
def test_one_length_but_not_one_kind(span: int, count: int, data: Any) -> None:
    """The fast path for runs of one length sees through a frame that only looks like the others."""
    frame = bytearray(b"A" + pack(">H", span - 3) + bytes(span - 3)) * count
    at = data.draw(st.integers(0, len(frame) - 1))
    frame[at] = data.draw(st.integers(0, 255))
    whole = wire.split(bytes(frame), [])
    commands: list[wire.Command] = []
    rest, bad = bytes(frame), None
    while rest and bad is None:
        whole_header = len(rest) >= wire.HEADER_BYTES
        length = wire.HEADER_BYTES + (rest[1] << 8 | rest[2]) if whole_header else len(rest)
        part = wire.split(rest[:length], [])
        commands += part.commands
        bad = part.bad
        if bad is None and part.used < length:
            break
        rest = rest[length:]
    assert whole.commands == commands
    assert (whole.bad is None) == (bad is None)


@pytest.mark.parametrize("op", [c.OP_ACQUIRE, c.OP_RELEASE, c.OP_CANCEL])
def test_the_high_byte_of_a_length_counts(op: int) -> None:
    """Of a frame that would be right if only the low byte of its length were read."""
    right = bytes((op, 0, 18)) + bytes(16) + b"k1"
    wrong = bytes((op, 1, 18)) + bytes(16) + b"k1"
    longer = bytes((op, 0, 19)) + bytes(16) + b"k10"
    assert wire.split_uniform(right) is not None
    for buffer in (wrong, wrong + wrong, right + wrong, longer + wrong):
        assert wire.split_uniform(buffer) is None
        commands, used, bad = wire.split(buffer, [])
        assert (len(commands), used) == (buffer != wrong and buffer[1] == 0, buffer.index(wrong))
        assert bad is not None
        assert "got 274" in bad.text


@given(st.text(max_size=300), U64, st.integers(1, 255))
def test_errors_are_short_printable_ascii(text: str, request_id: int, code: int) -> None:
    frame = wire.error(code, text, request_id.to_bytes(8, "big"))
    body = frame[12:]
    assert len(body) <= c.ERROR_TEXT_BYTES_MAX
    if text.isprintable():
        _, fields = decode(SPEC, "server", wire.error(1, text, bytes(8)))
        assert fields["code"] == 1
