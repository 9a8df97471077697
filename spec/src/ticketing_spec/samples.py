"""Values of a field that vectors are made of: a typical one, the edges, what is worth a look."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ticketing_spec.codec import Value
from ticketing_spec.model import Field, Frame, Spec

PATTERN = 0x0102030405060708
PRINTABLE = bytes(range(0x21, 0x7F))

FLAGS = {
    "typical": "A frame as it is met every day.",
    "lowest": "Each field has its lowest or shortest value.",
    "highest": "Each field has its highest or longest value.",
    "pattern": "Each byte of a number differs, so that a wrong byte order shows.",
    "edge": "A number at the edge of what a signed, a 32-bit or a floating-point type holds.",
    "enum": "Each value that the field may have.",
    "key-length": "A key of the shortest or the longest length.",
    "key-bytes": "A key with a byte that a text protocol trips over: NUL, space, line end, quote.",
    "key-text": "A key whose text takes several bytes per character; it is never normalised.",
    "every-byte": "The keys of these vectors together have every byte value.",
    "set-size": "A set of the fewest or the most keys.",
    "set-prefix": "Keys of the set are prefixes of one another: the shorter one comes first.",
    "set-order": "Keys whose order as unsigned bytes differs from another order.",
    "text": "The shortest and longest text or address, and every printable character.",
    "tolerated": "A sender must not send it, a receiver must take it.",
    "malformed": "No correct peer sends it: a receiver rejects it at the layer named.",
    "hash": "A hash over given inputs.",
    "empty-secret": "An empty HMAC key; one zero byte gives the same result.",
    "long-secret": "A secret longer than the block of SHA-256 (64 bytes), which HMAC hashes first.",
}


@dataclass(frozen=True)
class Sample:
    """A value worth a vector, with a short slug, its flag and the reason."""

    slug: str
    value: Value
    flag: str
    why: str


def typical(spec: Spec, field: Field) -> Value:
    """A plain value that is legal and not at an edge."""
    if field.enum is not None:
        return spec.enum(field.enum).values[0].value
    by_name: dict[str, Value] = {
        "request_id": 7,
        "acquire_id": 5,
        "token": 1_000_001,
        "wait_ms": 5000,
        "lease_ms": 30_000,
        "waited_ms": 12,
        "wait_s": 5,
        "lease_s": 30,
        "keepalive_s": 5,
        "version": spec.version,
        "connection": 1,
        "min_version": spec.version,
        "max_version": spec.version,
        "slot": 255,
    }
    if field.name in by_name:
        return by_name[field.name]
    if field.is_integer:
        return max(field.min, min(field.max, 42))
    by_type: dict[str, Value] = {
        "key": b"orders/42",
        "keys": [b"orders/41", b"orders/42"],
        "label": b"host:1234;test/0.1.0",
        "address": b"127.0.0.1:5225" if field.name == "leader" else b"",
        "text": b"lease_ms is 0; takes 1 to 4294967294",
    }
    if field.type in by_type:
        return by_type[field.type]
    return field.const if field.const is not None else pattern_bytes(field.size or 0)


def pattern_bytes(size: int) -> bytes:
    return bytes((i * 37 + 11) % 256 for i in range(size))


def typical_fields(spec: Spec, frame: Frame) -> dict[str, Value]:
    return {field.name: typical(spec, field) for field in frame.fields}


def lowest(spec: Spec, field: Field) -> Value:
    if field.enum is not None:
        return min(v.value for v in spec.enum(field.enum).values)
    if field.is_integer:
        return field.min
    if field.type == "keys":
        return [b"!", b'"']
    if field.const is not None:
        return field.const
    return b"!" * field.min if field.is_tail else bytes(field.size or 0)


def highest(spec: Spec, field: Field) -> Value:
    if field.enum is not None:
        return max(v.value for v in spec.enum(field.enum).values)
    if field.is_integer:
        return field.max
    if field.type == "keys":
        return longest_set(spec, field)
    if field.const is not None:
        return field.const
    if field.type == "key":
        return b"\xff" * field.max
    return b"~" * field.max if field.is_tail else b"\xff" * (field.size or 0)


def longest_set(spec: Spec, field: Field) -> list[bytes]:
    """The most keys of the greatest length, rising in their last byte."""
    length = spec.constant("key_bytes_max")
    return [b"\xff" * (length - 1) + bytes([0xF0 + i]) for i in range(field.max)]


def samples(spec: Spec, field: Field) -> Iterator[Sample]:
    """Everything that is tried in one field while the others are typical."""
    name = field.name
    if field.enum is not None:
        for value in spec.enum(field.enum).values:
            yield Sample(f"{name}-{value.name}", value.value, "enum", f"{name} is {value.name}")
    elif field.is_integer:
        yield from _integers(field)
    elif field.type == "key":
        yield from _keys(spec, field)
    elif field.type == "keys":
        yield from _sets(spec, field)
    elif field.is_tail:
        yield from _texts(field)
    elif field.const is None:
        size = field.size or 0
        for slug, data in (("zeros", bytes(size)), ("ones", b"\xff" * size)):
            yield Sample(f"{name}-{slug}", data, "edge", f"{name} has only {slug[:-1]} bits")
        yield Sample(
            f"{name}-pattern", pattern_bytes(size), "pattern", f"{name} has differing bytes"
        )


def _integers(field: Field) -> Iterator[Sample]:
    name, bits = field.name, 8 * (field.size or 0)
    mask = (1 << bits) - 1
    pattern = PATTERN >> (64 - bits) if bits < 64 else PATTERN
    edges = {
        "lowest": field.min,
        "0": 0,
        "1": 1,
        "2p7": 1 << 7,
        "2p15": 1 << 15,
        "2p31-less-1": (1 << 31) - 1,
        "2p31": 1 << 31,
        "2p32": 1 << 32,
        "2p53-less-1": (1 << 53) - 1,
        "2p53": 1 << 53,
        "2p53-and-1": (1 << 53) + 1,
        "2p63-less-1": (1 << 63) - 1,
        "2p63": 1 << 63,
        "highest": field.max,
        "all-ones": mask,
    }
    seen: set[int] = set()
    for slug, value in edges.items():
        if field.min <= value <= field.max and value not in seen:
            seen.add(value)
            flag = slug if slug in ("lowest", "highest") else "edge"
            yield Sample(f"{name}-{slug}", value, flag, f"{name} is {value}")
    if field.min <= pattern <= field.max and pattern not in seen:
        yield Sample(f"{name}-pattern", pattern, "pattern", f"{name} has the bytes 01 02 03")


def _keys(spec: Spec, field: Field) -> Iterator[Sample]:
    longest = spec.constant("key_bytes_max")
    candidates = [
        Sample("key-shortest", b"a", "key-length", "a key of 1 byte"),
        Sample("key-longest", b"k" * longest, "key-length", f"a key of {longest} bytes"),
        Sample("key-nul", b"\0", "key-bytes", "a key that is one NUL"),
        Sample("key-nul-at-end", b"a\0", "key-bytes", "a key that ends with a NUL"),
        Sample("key-nul-inside", b"a\0b", "key-bytes", "a key with a NUL inside"),
        Sample("key-space", b"a b", "key-bytes", "a key with a space"),
        Sample("key-newline", b"a\n", "key-bytes", "a key that ends with a line end"),
        Sample("key-return", b"a\r\n", "key-bytes", "a key that ends with CR LF"),
        Sample("key-quotes", b"\"'\\%", "key-bytes", "a key of quotes, a backslash and a percent"),
        Sample("key-utf8-2", "é".encode(), "key-text", "an accented e as one character"),
        Sample("key-utf8-combining", "e\u0301".encode(), "key-text", "the same as two characters"),
        Sample("key-utf8-3", "東京".encode(), "key-text", "characters of three bytes"),
        Sample("key-utf8-4", "🎫".encode(), "key-text", "a character of four bytes"),
        Sample("key-not-utf8", b"\xc3\x28\xff", "key-text", "bytes that are no UTF-8"),
        Sample("key-low-bytes", bytes(range(128)), "every-byte", "the bytes 0x00 to 0x7f"),
        Sample("key-high-bytes", bytes(range(128, 256)), "every-byte", "the bytes 0x80 to 0xff"),
    ]
    for sample in candidates:
        assert isinstance(sample.value, bytes)
        if not set(sample.value) & set(field.forbidden):
            yield sample
    if field.forbidden:
        allowed = bytes(b for b in range(128) if b not in field.forbidden)
        yield Sample("key-allowed-low-bytes", allowed, "every-byte", "what is allowed below 0x80")


def _sets(spec: Spec, field: Field) -> Iterator[Sample]:
    most, longest = field.max, spec.constant("key_bytes_max")
    numbers = [bytes([0x61 + i]) for i in range(most)]
    candidates = [
        Sample("keys-fewest", [b"a", b"b"], "set-size", "a set of 2 keys of 1 byte"),
        Sample("keys-most", numbers, "set-size", f"a set of {most} keys"),
        Sample(
            "keys-longest", longest_set(spec, field), "set-size", f"{most} keys of {longest} bytes"
        ),
        Sample("keys-prefixes", [b"a", b"aa", b"aaa"], "set-prefix", "a, aa, aaa"),
        Sample("keys-prefix-nul", [b"a", b"a\0", b"a\0\0"], "set-prefix", "a, then a and NULs"),
        Sample(
            "keys-unsigned", [b"\x7f", b"\x80"], "set-order", "0x7f before 0x80: bytes are unsigned"
        ),
        Sample("keys-by-bytes", [b"aa", b"b"], "set-order", "aa before b: not by length"),
        Sample("keys-case", [b"B", b"a"], "set-order", "B before a: by bytes, not as words"),
        Sample(
            "keys-utf8",
            [b"z", "é".encode(), "東".encode()],
            "set-order",
            "texts by their UTF-8",
        ),
        Sample(
            "keys-utf16",
            ["\uffee".encode(), "🎫".encode()],
            "set-order",
            "U+FFEE before U+1F3AB: by UTF-8, where UTF-16 units have the other order",
        ),
    ]
    for sample in candidates:
        assert isinstance(sample.value, list)
        if not set(b"".join(sample.value)) & set(field.forbidden):
            yield sample


def _texts(field: Field) -> Iterator[Sample]:
    name = field.name
    values: dict[str, bytes] = {"shortest": b"x" * field.min, "longest": b"x" * field.max}
    if field.type == "address":
        values |= {
            "v4": b"10.0.0.1:5225",
            "v6": b"[2001:db8::1]:5225",
            "name": b"node-1.example.com:5225",
        }
    elif len(PRINTABLE) <= field.max:
        values["printable"] = PRINTABLE
    else:
        values |= {"printable-1": PRINTABLE[: field.max], "printable-2": PRINTABLE[field.max :]}
    for slug, value in values.items():
        yield Sample(f"{name}-{slug}", value, "text", f"{name}: {slug}, {len(value)} bytes")
    if field.type == "text":
        why = f"{name} has bytes that are not printable; they are shown as ?"
        yield Sample(f"{name}-unprintable", b"\x1b[31m\xff\n", "tolerated", why)
