"""Frames of version 4 <-> bytes. Pure; numbers come from the spec.

A request is a **command**: a flat tuple ``(op, request_id, word, tail)`` exactly as one precompiled
Struct gives it. Ids and tokens stay 8-byte strings (big-endian, so they compare like the numbers),
because most of them are only ever copied into a reply. ``word`` is the 8 bytes after the request
id: wait and lease of an acquire, token of a release or extend, acquire id of a cancel.

All requests of one key begin alike and are shorter than 256 bytes, so their length is its low byte,
and whoever unpacks by it looks that the high byte is 0. A command's op is one byte, because Python
keeps the numbers of one byte and would make any larger one anew for each command.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Any, NamedTuple

from ticketing_server import constants_gen as c

Command = tuple[int, bytes, bytes, Any]
"""Tail: key (bytes); for a set its keys (tuple of bytes); for an extend lease and key (bytes)."""

ACQUIRE = c.OP_ACQUIRE
ACQUIRE_SET = c.OP_ACQUIRE_SET
RELEASE = c.OP_RELEASE
EXTEND = c.OP_EXTEND
CANCEL = c.OP_CANCEL

HEADER_BYTES = 3
_ID_AND_WORD_BYTES = 16
_EXTEND_LEASE_BYTES = 4
ONE_KEY_MIN = _ID_AND_WORD_BYTES + c.KEY_BYTES_MIN
ONE_KEY_MAX = _ID_AND_WORD_BYTES + c.KEY_BYTES_MAX
EXTEND_MIN = ONE_KEY_MIN + _EXTEND_LEASE_BYTES
EXTEND_MAX = ONE_KEY_MAX + _EXTEND_LEASE_BYTES
SET_MIN = _ID_AND_WORD_BYTES + 1 + c.SET_KEYS_MIN * (1 + c.KEY_BYTES_MIN)
SET_MAX = _ID_AND_WORD_BYTES + 1 + c.SET_KEYS_MAX * (1 + c.KEY_BYTES_MAX)
HELLO_FIXED = 61
HELLO_MIN = HELLO_FIXED + c.LABEL_BYTES_MIN
HELLO_MAX = HELLO_FIXED + c.LABEL_BYTES_MAX

BOUNDS = {
    c.OP_HELLO: ("hello", HELLO_MIN, HELLO_MAX),
    c.OP_ACQUIRE: ("acquire", ONE_KEY_MIN, ONE_KEY_MAX),
    c.OP_ACQUIRE_SET: ("acquire_set", SET_MIN, SET_MAX),
    c.OP_RELEASE: ("release", ONE_KEY_MIN, ONE_KEY_MAX),
    c.OP_EXTEND: ("extend", EXTEND_MIN, EXTEND_MAX),
    c.OP_CANCEL: ("cancel", ONE_KEY_MIN, ONE_KEY_MAX),
    c.OP_PING: ("ping", 8, 8),
}
"""Name and bounds of the body's length, by op."""

NO_REQUEST = bytes(8)


def _head(op: int, length: int) -> bytes:
    return bytes((op, length >> 8, length & 255))


GRANTED = _head(c.REPLY_GRANTED, 20)
NOT_WAITED = bytes(4)
TIMED_OUT = _head(c.REPLY_TIMED_OUT, 8)
OVERLOADED = _head(c.REPLY_OVERLOADED, 8)
RELEASED = _head(c.REPLY_RELEASED, 8)
NOT_HELD = _head(c.REPLY_NOT_HELD, 8)
EXTENDED = _head(c.REPLY_EXTENDED, 12)
CANCELLED = _head(c.REPLY_CANCELLED, 8)
DROPPED = _head(c.REPLY_DROPPED, 9)
PONG = _head(c.REPLY_PING, 8)
OTHER_KEYS = _head(1, 8)
"""Not of the wire: answers a version 3 release whose live ticket has other keys than named."""


class BadFrame(Exception):
    """What no correct client sends; the text names the field, what was given, what is taken."""

    def __init__(self, text: str, request_id: bytes = NO_REQUEST) -> None:
        super().__init__(text)
        self.text = text
        self.request_id = request_id


class Hello(NamedTuple):
    """A hello as read; what its mac covers beside the context and greeting is `covered`."""

    version: int
    client_id: bytes
    number: int
    client_nonce: bytes
    mac: bytes
    label: bytes

    def covered(self) -> bytes:
        """The fields under the mac, as they stood on the wire."""
        return (
            bytes((self.version,))
            + self.client_id
            + self.number.to_bytes(4, "big")
            + self.client_nonce
            + self.label
        )


class Split(NamedTuple):
    """What one buffer held: commands, how many bytes were used, and what stopped it, if any."""

    commands: list[Command]
    used: int
    bad: BadFrame | None


def _no_key(_data: bytes, _at: int = 0) -> Command:
    return (0, b"", b"", b"")


_LAYOUTS = [
    Struct(f">B2x8s8s{length - _ID_AND_WORD_BYTES}s")
    if ONE_KEY_MIN <= length <= ONE_KEY_MAX
    else None
    for length in range(256)
]
_UNPACK: list[Callable[[bytes, int], Any]] = [
    _no_key if layout is None else layout.unpack_from for layout in _LAYOUTS
]
_ITER_UNPACK: list[Callable[[bytes], Iterator[Any]] | None] = [
    None if layout is None else layout.iter_unpack for layout in _LAYOUTS
]
_ONE_KEY_OPS = frozenset((ACQUIRE, RELEASE, CANCEL))
_PLAIN_OPS = bytes((c.OP_ACQUIRE, c.OP_RELEASE, c.OP_CANCEL))


def split_uniform(data: bytes) -> list[Command] | None:
    """Read a buffer that is nothing but whole acquires, releases and cancels of one length.

    None where it is anything else; `split` reads that.
    """
    size = len(data)
    if size > HEADER_BYTES:
        low = data[2]
        if size == low + HEADER_BYTES:
            command = _UNPACK[low](data, 0)
            if command[0] in _ONE_KEY_OPS and not data[1]:
                return [command]
        else:
            iterate = _ITER_UNPACK[low]
            span = low + HEADER_BYTES
            if iterate is not None and not size % span and _is_uniform(data, span, size):
                return list(iterate(data))
    return None


def _is_uniform(data: bytes, span: int, size: int) -> bool:
    """Whether the whole buffer is acquires, releases and cancels of this one length."""
    count = size // span
    return (
        data[2::span] == data[2:3] * count
        and data[1::span] == bytes(count)
        and not data[::span].translate(None, _PLAIN_OPS)
    )


def split(data: bytes, pongs: list[bytes]) -> Split:
    """Read every whole frame of a welcomed connection's buffer; pings are answered into `pongs`."""
    size = len(data)
    commands: list[Command] = []
    append = commands.append
    unpack = _UNPACK
    one_key_ops = _ONE_KEY_OPS
    at = 0
    try:
        while True:
            try:
                while True:
                    low = data[at + 2]
                    command = unpack[low](data, at)
                    if command[0] not in one_key_ops or data[at + 1]:
                        break
                    append(command)
                    at += low + 3
            except (IndexError, struct.error):
                # The buffer ends before a header or before this frame does.
                pass
            if at + HEADER_BYTES > size:
                if at < size and data[at] not in BOUNDS:
                    raise _unknown_op(data[at])
                break
            op, end = _check_header(data, at)
            if end > size:
                break
            if op == c.OP_PING:
                pongs.append(PONG + data[at + HEADER_BYTES : end])
            else:
                append(_read_long(op, data[at + HEADER_BYTES : end]))
            at = end
    except BadFrame as bad:
        return Split(commands, at, bad)
    return Split(commands, at, None)


def _unknown_op(op: int) -> BadFrame:
    return BadFrame(f"op: got 0x{op:02X}, takes H A S R X C P")


def _check_header(data: bytes, at: int) -> tuple[int, int]:
    """Return op and end of the frame; BadFrame where its header alone is wrong."""
    op = data[at]
    length = data[at + 1] << 8 | data[at + 2]
    bounds = BOUNDS.get(op)
    if bounds is None:
        raise _unknown_op(op)
    name, low, high = bounds
    if op == c.OP_HELLO:
        raise BadFrame("op: got a second H (hello), takes A S R X C P after the welcome")
    if not low <= length <= high:
        raise BadFrame(f"length of {name}: got {length}, takes {low} to {high}")
    return op, at + HEADER_BYTES + length


def _read_long(op: int, body: bytes) -> Command:
    """Read a set or extend, which the table of Structs does not cover."""
    request_id, word, tail = body[:8], body[8:16], body[16:]
    if op == c.OP_ACQUIRE_SET:
        try:
            return (ACQUIRE_SET, request_id, word, read_keys(tail))
        except BadFrame as bad:
            raise BadFrame(bad.text, request_id) from None
    return (op, request_id, word, tail)


def read_keys(tail: bytes) -> tuple[bytes, ...]:
    """Read the tail of a set; BadFrame unless it is 2 to 16 keys in strictly rising order."""
    count = tail[0]
    if not c.SET_KEYS_MIN <= count <= c.SET_KEYS_MAX:
        raise BadFrame(f"keys: got {count} keys, takes {c.SET_KEYS_MIN} to {c.SET_KEYS_MAX}")
    keys = []
    at = 1
    before = b""
    for place in range(1, count + 1):
        if at >= len(tail):
            raise BadFrame(f"keys: got a body that ends before key {place} of {count}")
        length = tail[at]
        if not c.KEY_BYTES_MIN <= length <= c.KEY_BYTES_MAX:
            raise BadFrame(
                f"keys: got {length} bytes in key {place},"
                f" takes {c.KEY_BYTES_MIN} to {c.KEY_BYTES_MAX}"
            )
        key = tail[at + 1 : at + 1 + length]
        if len(key) < length:
            raise BadFrame(f"keys: got a body that ends inside key {place} of {count}")
        if key <= before:
            raise BadFrame(f"keys: got key {place} not above key {place - 1}, takes rising order")
        keys.append(key)
        before = key
        at += 1 + length
    if at != len(tail):
        raise BadFrame(f"keys: got {len(tail) - at} bytes after the last key, takes none")
    return tuple(keys)


def read_hello(data: bytes) -> tuple[Hello, int] | int | None:
    """Read the hello that begins a buffer.

    Returns it and how many bytes it took, or its version alone where that is not ours, or None
    while bytes are missing.
    """
    if data and data[0] != c.OP_HELLO:
        raise BadFrame("op: takes H (hello) before the welcome")
    if len(data) < HEADER_BYTES:
        return None
    length = data[1] << 8 | data[2]
    if not HELLO_MIN <= length <= HELLO_MAX:
        raise BadFrame(f"length of hello: takes {HELLO_MIN} to {HELLO_MAX}")
    if len(data) == HEADER_BYTES:
        return None
    if data[3] != c.PROTOCOL_VERSION:
        return data[3]
    end = HEADER_BYTES + length
    if len(data) < end:
        return None
    body = data[HEADER_BYTES:end]
    label = body[HELLO_FIXED:]
    if not all(0x21 <= byte <= 0x7E for byte in label):
        raise BadFrame("label: takes printable ASCII without space")
    hello = Hello(
        body[0], body[1:9], int.from_bytes(body[9:13], "big"), body[13:29], body[29:61], label
    )
    return hello, end


def welcome(fields: bytes, proof: bytes, leader: bytes) -> bytes:
    """Make the frame W; `fields` as `welcome_fields` gives them."""
    return _head(c.REPLY_WELCOME, 67 + len(leader)) + fields + proof + leader


def welcome_fields(role: int, keepalive_s: int, fingerprint: bytes) -> bytes:
    """Return the fields of W that its proof covers, without the leader."""
    return bytes((role,)) + keepalive_s.to_bytes(2, "big") + fingerprint


def error(code: int, text: str, request_id: bytes = NO_REQUEST) -> bytes:
    """Make the frame E; the text is cut to what a frame takes."""
    tail = text.encode("ascii", "replace")[: c.ERROR_TEXT_BYTES_MAX]
    return _head(c.REPLY_ERROR, 9 + len(tail)) + request_id + bytes((code,)) + tail


def leader(address: bytes) -> bytes:
    """Make the frame L."""
    return _head(c.REPLY_LEADER, len(address)) + address
