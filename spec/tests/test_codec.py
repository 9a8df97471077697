"""The codec against bytes that were written down by hand, and against itself."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ticketing_spec import load_spec
from ticketing_spec.codec import (
    Malformed,
    client_nonce,
    decode,
    decode_preamble,
    encode,
    encode_preamble,
    fingerprint,
    mac,
    proof,
    split,
)
from ticketing_spec.model import Field, Frame, Spec

SPEC = load_spec()
V3 = load_spec("version3")
SIXTEEN = bytes(range(16))
THIRTY_TWO = bytes(range(32))
ONE = "0000000000000001"
SET = f"{ONE} 00000000 00000001"

BY_HAND = [
    ("client", "hello",
     {"version": 4, "client_id": 1, "connection": 2, "client_nonce": SIXTEEN, "mac": THIRTY_TWO,
      "label": b"a;py/1"},
     "48 0043 04 0000000000000001 00000002 " + SIXTEEN.hex() + THIRTY_TWO.hex() + "613b70792f31"),
    ("client", "acquire",
     {"request_id": 258, "wait_ms": 2**32 - 1, "lease_ms": 30_000, "key": b"ab"},
     "41 0012 0000000000000102 ffffffff 00007530 6162"),
    ("client", "acquire_set", {"request_id": 1, "wait_ms": 0, "lease_ms": 1, "keys": [b"a", b"bc"]},
     "53 0016 0000000000000001 00000000 00000001 02 01 61 02 6263"),
    ("client", "release", {"request_id": 3, "token": 2**63, "key": b"k"},
     "52 0011 0000000000000003 8000000000000000 6b"),
    ("client", "extend", {"request_id": 4, "token": 5, "lease_ms": 0xFFFFFFFE, "key": b"k"},
     "58 0015 0000000000000004 0000000000000005 fffffffe 6b"),
    ("client", "cancel", {"request_id": 6, "acquire_id": 4, "key": b"\0"},
     "43 0011 0000000000000006 0000000000000004 00"),
    ("client", "ping", {"echo": 0}, "50 0008 0000000000000000"),
    ("server", "welcome",
     {"role": 1, "keepalive_s": 5, "fingerprint": THIRTY_TWO, "proof": bytes(32), "leader": b"h:1"},
     "57 0046 01 0005 " + THIRTY_TWO.hex() + "00" * 32 + "683a31"),
    ("server", "granted", {"request_id": 1, "token": 2, "waited_ms": 3},
     "41 0014 0000000000000001 0000000000000002 00000003"),
    ("server", "timed_out", {"request_id": 1}, "54 0008 0000000000000001"),
    ("server", "overloaded", {"request_id": 1}, "42 0008 0000000000000001"),
    ("server", "released", {"request_id": 1}, "52 0008 0000000000000001"),
    ("server", "not_held", {"request_id": 1}, "4e 0008 0000000000000001"),
    ("server", "extended", {"request_id": 1, "lease_ms": 258}, "58 000c 0000000000000001 00000102"),
    ("server", "cancelled", {"request_id": 1}, "43 0008 0000000000000001"),
    ("server", "dropped", {"token": 7, "reason": 3}, "44 0009 0000000000000007 03"),
    ("server", "leader", {"leader": b""}, "4c 0000"),
    ("server", "error", {"request_id": 0, "code": 11, "text": b"no"},
     "45 000b 0000000000000000 0b 6e6f"),
    ("server", "ping", {"echo": 2**64 - 1}, "50 0008 ffffffffffffffff"),
]  # fmt: skip

BY_HAND_V3 = [
    ("client", "acquire", {"request_id": 1, "wait_s": 2, "lease_s": 250, "key": b"k"},
     "41 000b 0000000000000001 02 fa 6b"),
    ("client", "acquire_set", {"request_id": 1, "wait_s": 0, "lease_s": 1, "keys": [b"a", b"b"]},
     "53 000f 0000000000000001 00 01 02 01 61 01 62"),
    ("client", "release", {"request_id": 1, "token": 2, "key": b"k"},
     "52 0011 0000000000000001 0000000000000002 6b"),
    ("client", "release_set", {"request_id": 1, "token": 2, "keys": [b"a", b"b"]},
     "47 0015 0000000000000001 0000000000000002 02 01 61 01 62"),
    ("server", "granted", {"request_id": 1, "token": 2},
     "41 0010 0000000000000001 0000000000000002"),
    ("server", "granted_set", {"request_id": 1, "token": 2},
     "53 0010 0000000000000001 0000000000000002"),
    ("server", "released", {"request_id": 1}, "52 0008 0000000000000001"),
    ("server", "released_set", {"request_id": 1}, "47 0008 0000000000000001"),
    ("server", "not_held", {"request_id": 1}, "4e 0008 0000000000000001"),
    ("server", "timed_out", {"request_id": 1}, "54 0008 0000000000000001"),
    ("server", "overloaded", {"request_id": 1}, "42 0008 0000000000000001"),
    ("server", "indeterminate", {"request_id": 1}, "49 0008 0000000000000001"),
    ("server", "moved", {"request_id": 1, "slot": 255}, "4d 0009 0000000000000001 ff"),
    ("server", "leader", {"slot": 2}, "4c 0001 02"),
    ("server", "error", {"request_id": 1, "code": 7}, "45 0009 0000000000000001 07"),
]  # fmt: skip

ALL_BY_HAND = [(SPEC, *row) for row in BY_HAND] + [(V3, *row) for row in BY_HAND_V3]


@pytest.mark.parametrize(
    ("spec", "direction", "name", "fields", "wire"),
    ALL_BY_HAND,
    ids=[f"v{row[0].version}-{row[1]}-{row[2]}" for row in ALL_BY_HAND],
)
def test_bytes_written_by_hand(
    spec: Spec, direction: str, name: str, fields: dict[str, object], wire: str
) -> None:
    expected = bytes.fromhex(wire.replace(" ", ""))
    assert encode(spec, direction, name, fields) == expected
    assert decode(spec, direction, expected) == (name, fields)


def test_every_frame_was_written_by_hand() -> None:
    for spec, rows in ((SPEC, BY_HAND), (V3, BY_HAND_V3)):
        assert {(f.direction, f.name) for f in spec.frames} == {(r[0], r[1]) for r in rows}


def test_greetings_written_by_hand() -> None:
    fields = {"min_version": 4, "max_version": 4, "mode": 0, "slot": 255, "nonce": SIXTEEN}
    wire = b"TICKET\x04\x04\x00\xff" + SIXTEEN
    assert encode_preamble(SPEC, "greeting", fields) == wire
    assert decode_preamble(SPEC, "greeting", wire) == {"magic": b"TICKET", **fields}
    wire = b"TCKCLI3\x00\x00\x03\x01\x02" + SIXTEEN
    fields = {"version": 3, "mode": 1, "slot": 2, "nonce": SIXTEEN}
    assert encode_preamble(V3, "greeting", fields) == wire
    assert len(wire) == 28
    with pytest.raises(Malformed, match="stream: greeting has 27 bytes, not 28"):
        decode_preamble(V3, "greeting", wire[:-1])


def _strategy(spec: Spec, field: Field) -> st.SearchStrategy[object]:
    allowed = [b for b in range(256) if b not in field.forbidden]
    if field.enum is not None:
        return st.sampled_from([v.value for v in spec.enum(field.enum).values])
    if field.is_integer:
        return st.integers(field.min, field.max)
    if field.type == "keys":
        key = st.lists(st.sampled_from(allowed), min_size=1, max_size=128).map(bytes)
        return st.sets(key, min_size=field.min, max_size=field.max).map(sorted)
    if field.type in ("label", "text"):
        allowed = list(range(0x21, 0x7F))
    size = field.max if field.is_tail else field.size
    low = field.min if field.is_tail else field.size
    return st.lists(st.sampled_from(allowed), min_size=low or 0, max_size=size).map(bytes)


def _frames() -> st.SearchStrategy[tuple[Spec, Frame, dict[str, object]]]:
    def with_fields(pair: tuple[Spec, Frame]) -> st.SearchStrategy[object]:
        spec, frame = pair
        fields = st.fixed_dictionaries({f.name: _strategy(spec, f) for f in frame.fields})
        return st.tuples(st.just(spec), st.just(frame), fields)

    pairs = [(spec, frame) for spec in (SPEC, V3) for frame in spec.frames]
    return st.sampled_from(pairs).flatmap(with_fields)


@given(_frames())
def test_what_is_encoded_decodes_to_the_same(case: tuple[Spec, Frame, dict[str, object]]) -> None:
    spec, frame, fields = case
    wire = encode(spec, frame.direction, frame.name, fields)
    assert decode(spec, frame.direction, wire) == (frame.name, fields)
    low, high = frame.body_bytes
    assert low + 3 <= len(wire) <= high + 3


@given(st.sampled_from(["client", "server"]), st.binary(max_size=300))
def test_any_bytes_decode_to_what_encodes_to_them_or_are_malformed(
    direction: str, data: bytes
) -> None:
    try:
        name, fields = decode(SPEC, direction, data)
    except Malformed:
        return
    if name == "error":
        # A text with unprintable bytes is taken, but never sent.
        fields["text"] = b""
        data = data[:1] + b"\0\x09" + data[3:12]
    assert encode(SPEC, direction, name, fields) == data


@given(st.lists(st.sampled_from(BY_HAND[1:7]), max_size=6), st.integers(0, 300))
def test_a_stream_is_cut_into_whole_frames(
    rows: list[tuple[str, str, dict, str]], cut: int
) -> None:
    wires = [bytes.fromhex(r[3].replace(" ", "")) for r in rows]
    stream = b"".join(wires)
    frames, rest = split(SPEC, "client", stream[:cut])
    assert frames == wires[: len(frames)]
    assert b"".join(frames) + rest == stream[:cut]
    assert split(SPEC, "client", stream) == (wires, b"")


@pytest.mark.parametrize(
    ("direction", "wire", "layer", "field", "why"),
    [
        ("client", "", "stream", "", "no bytes"),
        ("client", "41", "stream", "", "1 of 3 bytes"),
        ("client", "41 0011 00", "stream", "", "1 of 17 bytes"),
        ("client", "50 0008 0000000000000000 ff", "stream", "", "1 bytes after"),
        ("client", "57 0008", "frame", "op", "0x57 is not one that a client sends"),
        ("client", "41 0010", "frame", "length", "length 16 of acquire is not 17 to 144"),
        ("client", "41 0091", "frame", "length", "length 145"),
        ("client", f"41 0011 {ONE} 00000000 00000000 61", "body", "lease_ms", "0 is not 1"),
        ("client", f"41 0011 {ONE} 00000000 ffffffff 61", "body", "lease_ms", "4294967295"),
        ("client", f"53 0015 {SET} 01 03 616263", "body", "keys", "1 keys"),
        ("client", f"53 0015 {SET} 02 01 62 01 61", "body", "keys", "above"),
        ("client", f"53 0015 {SET} 02 01 61 02 61", "body", "keys", "past"),
        ("client", f"53 0015 {SET} 03 01 61 01 62", "body", "keys", "not in"),
        ("client", f"53 0016 {SET} 02 01 61 01 62 00", "body", "keys", "leaves 1"),
        ("server", "44 0009 0000000000000007 04", "body", "reason", "not a known drop"),
        ("server", "45 0009 0000000000000007 0c", "body", "code", "not a known error"),
    ],
)  # fmt: skip
def test_each_refusal_says_where_and_why(
    direction: str, wire: str, layer: str, field: str, why: str
) -> None:
    data = bytes.fromhex(wire.replace(" ", ""))
    with pytest.raises(Malformed) as caught:
        decode(SPEC, direction, data)
    assert (caught.value.layer, caught.value.field) == (layer, field)
    assert why in caught.value.why


def test_version_3_refuses_a_request_and_keeps_the_connection() -> None:
    for wire, refusal in (
        ("41 000b 0000000000000001 02 00 6b", "bad_lease"),
        ("41 000d 0000000000000001 02 01 6b206b", "bad_key"),
        ("52 0011 0000000000000001 0000000000000000 6b", "bad_token"),
        ("53 000f 0000000000000001 00 01 02 01 62 01 61", "bad_key_set"),
    ):
        with pytest.raises(Malformed) as caught:
            decode(V3, "client", bytes.fromhex(wire.replace(" ", "")))
        assert (caught.value.layer, caught.value.refusal) == ("request", refusal)
    with pytest.raises(Malformed, match="body: request_id 0"):
        decode(V3, "client", bytes.fromhex("52001100000000000000000000000000000001" + "6b"))


def test_encode_names_what_is_wrong() -> None:
    good = {"request_id": 1, "wait_ms": 0, "lease_ms": 1, "key": b"k"}
    for change, error, text in (
        ({"key": "k"}, TypeError, r"acquire\.key takes bytes, not 'k'"),
        ({"request_id": b"k"}, TypeError, "takes an int"),
        ({"request_id": True}, TypeError, "takes an int"),
        ({"extra": 1}, KeyError, "acquire has no field extra"),
        ({"key": b""}, Malformed, "key has 0 bytes, not 1 to 128"),
        ({"request_id": 2**64}, Malformed, "request_id 18446744073709551616 is not"),
    ):
        with pytest.raises(error, match=text):
            encode(SPEC, "client", "acquire", {**good, **change})
    with pytest.raises(KeyError, match="acquire lacks its field key"):
        encode(SPEC, "client", "acquire", {k: v for k, v in good.items() if k != "key"})
    fields = {"request_id": 1, "wait_ms": 0, "lease_ms": 1, "keys": b"ab"}
    with pytest.raises(TypeError, match="takes a list of bytes"):
        encode(SPEC, "client", "acquire_set", fields)
    with pytest.raises(Malformed, match="text has bytes other than printable"):
        encode(SPEC, "server", "error", {"request_id": 0, "code": 1, "text": b"\n"})
    with pytest.raises(KeyError, match="no client frame is named 'granted'"):
        encode(SPEC, "client", "granted", {})


def test_hashes_are_what_hmac_and_sha256_say() -> None:
    greeting = b"TICKET\x04\x04\x00\xff" + SIXTEEN
    hello = {"version": 4, "client_id": 1, "connection": 2, "client_nonce": SIXTEEN, "label": b"l"}
    covered = b"\x04" + (1).to_bytes(8, "big") + (2).to_bytes(4, "big") + SIXTEEN + b"l"
    for secret in (b"", b"s", b"k" * 100):
        want = hmac.new(secret, b"TICKETING/CLIENT" + greeting + covered, hashlib.sha256).digest()
        assert mac(SPEC, secret, greeting, hello) == want
        welcome = {"role": 1, "keepalive_s": 258, "fingerprint": THIRTY_TWO, "leader": b"h:1"}
        data = b"TICKETING/SERVER" + greeting + SIXTEEN + b"\x01\x01\x02" + THIRTY_TWO + b"h:1"
        want = hmac.new(secret, data, hashlib.sha256).digest()
        assert proof(SPEC, secret, greeting, SIXTEEN, welcome) == want
    nonce = hashlib.sha256(b"TICKETING/NONCE" + SIXTEEN + bytes(7) + b"\x03").digest()[:16]
    assert client_nonce(SPEC, SIXTEEN, 3) == nonce
    assert mac(SPEC, b"", greeting, hello) == mac(SPEC, b"\0", greeting, hello)
    assert fingerprint(SPEC, None) == bytes(32)
    assert fingerprint(SPEC, b"c") == hashlib.sha256(b"ticketing/clusterc").digest()


def test_version_3_answer_is_what_hmac_says() -> None:
    greeting = b"TCKCLI3\x00\x00\x03\x01\x02" + SIXTEEN
    print_ = fingerprint(V3, b"c")
    assert print_ == hashlib.sha256(b"ticketing/clusterc").digest()
    assert fingerprint(V3, None) == hashlib.sha256(b"ticketing/single/v3").digest()
    data = b"TCK/CLIENT/AUTH3" + b"\x00\x03\x01" + print_ + b"\x02" + SIXTEEN
    want = hmac.new(b"s", data, hashlib.sha256).digest()
    assert mac(V3, b"s", greeting, {"fingerprint": print_}) == want
