"""Ways to spoil a frame: what the malformed vectors are made by.

Each takes spec and direction and yields (frame, slug, bytes). They write bytes by hand, so that
what the codec refuses to encode can be made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ticketing_spec import codec
from ticketing_spec.codec import Value
from ticketing_spec.model import Field, Frame, Spec
from ticketing_spec.samples import typical_fields

Spoilt = Iterator[tuple[str, str, bytes]]
STRAY_BYTE = b"\xff"


def raw_frame(frame: Frame, body: bytes) -> bytes:
    assert frame.op is not None
    return bytes([frame.op]) + len(body).to_bytes(2, "big") + body


def sample_body(spec: Spec, frame: Frame, replaced: dict[str, bytes] | None = None) -> bytes:
    """A typical body with some fields given as raw bytes."""
    replaced = replaced or {}
    fields = typical_fields(spec, frame)
    return b"".join(
        replaced[f.name] if f.name in replaced else field_bytes(spec, f, fields[f.name])
        for f in frame.fields
    )


def field_bytes(spec: Spec, field: Field, value: Value) -> bytes:
    if isinstance(value, int):
        return value.to_bytes(field.size or 0, "big")
    return keys_bytes(value) if isinstance(value, list) else value


def keys_bytes(keys: list[bytes], count: int | None = None) -> bytes:
    count = len(keys) if count is None else count
    return bytes([count]) + b"".join(bytes([len(k)]) + k for k in keys)


def small_body(spec: Spec, frame: Frame) -> bytes:
    """A body whose tail is short, so that cutting it at each byte stays readable."""
    short = {"key": b"k", "keys": keys_bytes([b"a", b"b"]), "label": b"l", "text": b"t"}
    short["address"] = b"h:1"
    tail = frame.tail
    return sample_body(spec, frame, {tail.name: short[tail.type]} if tail else {})


def _each(
    spec: Spec, direction: str, make: Callable[[Frame], Iterator[tuple[str, bytes]]]
) -> Spoilt:
    for frame in spec.frames_of(direction):
        for slug, wire in make(frame):
            yield frame.name, slug, wire


def truncate(spec: Spec, direction: str) -> Spoilt:
    def make(frame: Frame) -> Iterator[tuple[str, bytes]]:
        wire = raw_frame(frame, small_body(spec, frame))
        for size in range(1, len(wire)):
            yield f"{size}-of-{len(wire)}", wire[:size]

    yield from _each(spec, direction, make)


def append(spec: Spec, direction: str) -> Spoilt:
    def make(frame: Frame) -> Iterator[tuple[str, bytes]]:
        yield "ff", raw_frame(frame, small_body(spec, frame)) + STRAY_BYTE

    yield from _each(spec, direction, make)


def length_minus_one(spec: Spec, direction: str) -> Spoilt:
    def make(frame: Frame) -> Iterator[tuple[str, bytes]]:
        size = frame.body_bytes[0] - 1
        if size >= 0:
            yield str(size), raw_frame(frame, small_body(spec, frame)[:size].ljust(size, b"\0"))

    yield from _each(spec, direction, make)


def length_plus_one(spec: Spec, direction: str) -> Spoilt:
    def make(frame: Frame) -> Iterator[tuple[str, bytes]]:
        size = frame.body_bytes[1] + 1
        yield str(size), raw_frame(frame, sample_body(spec, frame).ljust(size, b"a")[:size])

    yield from _each(spec, direction, make)


def length_huge(spec: Spec, direction: str) -> Spoilt:
    def make(frame: Frame) -> Iterator[tuple[str, bytes]]:
        assert frame.op is not None
        yield "65535", bytes([frame.op]) + b"\xff\xff"

    yield from _each(spec, direction, make)


def op(spec: Spec, direction: str) -> Spoilt:
    known = {f.op for f in spec.frames_of(direction)}
    for value in range(256):
        if value not in known:
            yield "unknown", f"{value:02x}", bytes([value]) + b"\0\x08" + bytes(8)


def _with_tail(kind: str, slug: str, tail: bytes) -> Callable[[Spec, str], Spoilt]:
    def spoil(spec: Spec, direction: str) -> Spoilt:
        def make(frame: Frame) -> Iterator[tuple[str, bytes]]:
            if frame.tail is not None and frame.tail.type == kind:
                yield slug, raw_frame(frame, sample_body(spec, frame, {frame.tail.name: tail}))

        yield from _each(spec, direction, make)

    return spoil


def _with_field(
    name: str, *values: int, directions: str = "client"
) -> Callable[[Spec, str], Spoilt]:
    def spoil(spec: Spec, direction: str) -> Spoilt:
        def make(frame: Frame) -> Iterator[tuple[str, bytes]]:
            for field in frame.fields:
                if field.name == name and direction == directions:
                    for value in values:
                        data = value.to_bytes(field.size or 0, "big")
                        yield str(value), raw_frame(frame, sample_body(spec, frame, {name: data}))

        yield from _each(spec, direction, make)

    return spoil


def label_bytes(spec: Spec, direction: str) -> Spoilt:
    for byte in (0x00, 0x0A, 0x1F, 0x20, 0x7F, 0x80, 0xFF):
        spoil = _with_tail("label", f"{byte:02x}", b"host:1" + bytes([byte]) + b"x")
        yield from spoil(spec, direction)


def forbidden_key(spec: Spec, direction: str) -> Spoilt:
    for byte in b" \n\r":
        yield from _with_tail("key", f"{byte:02x}", b"a" + bytes([byte]) + b"b")(spec, direction)


def forbidden_in_set(spec: Spec, direction: str) -> Spoilt:
    for byte in b" \n\r":
        tail = keys_bytes([b"a", b"b" + bytes([byte])])
        yield from _with_tail("keys", f"{byte:02x}", tail)(spec, direction)


def enum(spec: Spec, direction: str, name: str = "") -> Spoilt:
    def make(frame: Frame) -> Iterator[tuple[str, bytes]]:
        for field in frame.fields:
            if field.name == name and field.enum is not None:
                known = {v.value for v in spec.enum(field.enum).values}
                for value in sorted({0, max(known) + 1, 255} - known):
                    body = sample_body(spec, frame, {name: bytes([value])})
                    yield str(value), raw_frame(frame, body)

    yield from _each(spec, direction, make)


def _preamble(name: str, field: str, *values: bytes) -> Callable[[Spec, str], Spoilt]:
    def spoil(spec: Spec, direction: str) -> Spoilt:
        preamble = spec.preamble(name)
        if preamble.direction == direction:
            for value in values:
                yield name, value.hex(), sample_body(spec, preamble, {field: value})

    return spoil


def preamble_truncate(spec: Spec, direction: str) -> Spoilt:
    for preamble in spec.preambles:
        if preamble.direction == direction:
            wire = sample_body(spec, preamble)
            for size in range(1, len(wire)):
                yield preamble.name, f"{size}-of-{len(wire)}", wire[:size]


MANY = [bytes([0x61 + i]) for i in range(17)]
LONG = b"k" * 129

SPOILERS: dict[str, Callable[..., Spoilt]] = {
    "truncate": truncate,
    "append": append,
    "length_minus_one": length_minus_one,
    "length_plus_one": length_plus_one,
    "length_huge": length_huge,
    "op": op,
    "key_empty": _with_tail("key", "0", b""),
    "key_too_long": _with_tail("key", "129", LONG),
    "lease_zero": _with_field("lease_ms", 0),
    "lease_endless": _with_field("lease_ms", 0xFFFFFFFF),
    "lease_s_bounds": _with_field("lease_s", 0, 251, 255),
    "request_id_zero": _with_field("request_id", 0),
    "token_zero": _with_field("token", 0),
    "reply_id_zero": _with_field("request_id", 0, directions="server"),
    "set_of_0": _with_tail("keys", "0", keys_bytes([]) + b"aaaa"),
    "set_of_1": _with_tail("keys", "1", keys_bytes([b"orders/42"])),
    "set_of_17": _with_tail("keys", "17", keys_bytes(MANY)),
    "set_unsorted": _with_tail("keys", "b-a", keys_bytes([b"b", b"a"])),
    "set_signed": _with_tail("keys", "80-7f", keys_bytes([b"\x80", b"\x7f"])),
    "set_doubled": _with_tail("keys", "a-a", keys_bytes([b"a", b"a"])),
    "set_empty_key": _with_tail("keys", "first", keys_bytes([b"", b"ab"])),
    "set_long_key": _with_tail("keys", "last", keys_bytes([b"a", LONG])),
    "set_short": _with_tail("keys", "last", keys_bytes([b"aaaa", b"bb"])[:-1]),
    "set_over": _with_tail("keys", "one", keys_bytes([b"a", b"b"]) + b"\0"),
    "set_count_less": _with_tail("keys", "2-of-3", keys_bytes([b"a", b"b", b"c"], 2)),
    "set_count_more": _with_tail("keys", "4-of-3", keys_bytes([b"a", b"b", b"c"], 4)),
    "label_empty": _with_tail("label", "0", b""),
    "label_too_long": _with_tail("label", "65", b"l" * 65),
    "label_bytes": label_bytes,
    "forbidden_key": forbidden_key,
    "forbidden_in_set": forbidden_in_set,
    "enum": enum,
    "keepalive_zero": _with_field("keepalive_s", 0, directions="server"),
    "keepalive_long": _with_field("keepalive_s", 3601, 65535, directions="server"),
    "greeting_magic": _preamble(
        "greeting", "magic", b"TICKEs", b"ticket", b"HTTP/1", b"\x15\x03\x03\0\x02\x02"
    ),
    "greeting_magic_v3": _preamble("greeting", "magic", b"TCKCLI4\0", b"TCKCLI3\x01"),
    "greeting_version_v3": _preamble("greeting", "version", b"\0\2", b"\0\4", b"\3\0"),
    "greeting_mode": _preamble("greeting", "mode", b"\2", b"\xff"),
    "verdict_unknown": _preamble("verdict", "verdict", b"\2", b"\xff"),
    "preamble_truncate": preamble_truncate,
}


def is_preamble(spec: Spec, name: str) -> bool:
    return any(p.name == name for p in spec.preambles)


def decode_any(spec: Spec, direction: str, frame: str, wire: bytes) -> None:
    """Decode a frame or a preamble, for what it raises."""
    if is_preamble(spec, frame):
        codec.decode_preamble(spec, frame, wire)
    else:
        codec.decode(spec, direction, wire)
