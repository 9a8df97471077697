"""Frames to bytes and back, written by hand on the generated constants.

Pure and thread-safe. Integers are ints, everything else is bytes, `keys` is a list of bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any

from ticketing import _constants_gen as c

HEADER = Struct(">BH")
HEADER_BYTES = HEADER.size

Reply = tuple[Any, ...]
"""A server's frame as the machine reads it: op, then the fixed fields and the tail."""


class Malformed(ValueError):
    """Bytes that no correct peer sends. `layer` is `stream`, `frame` or `body`."""

    def __init__(self, layer: str, why: str) -> None:
        super().__init__(why)
        self.layer = layer


@dataclass(frozen=True, slots=True)
class Layout:
    """One frame: its fixed fields, then its tail."""

    name: str
    op: int
    fixed: Struct
    fields: tuple[str, ...]
    tail: str = ""


def _layout(name: str, op: int, fixed: str, fields: str, tail: str = "") -> Layout:
    return Layout(name, op, Struct(">" + fixed), tuple(fields.split()), tail)


CLIENT_FRAMES = (
    _layout(
        "hello", c.OP_HELLO, "BQI16s32s", "version client_id connection client_nonce mac", "label"
    ),
    _layout("acquire", c.OP_ACQUIRE, "QII", "request_id wait_ms lease_ms", "key"),
    _layout("acquire_set", c.OP_ACQUIRE_SET, "QII", "request_id wait_ms lease_ms", "keys"),
    _layout("release", c.OP_RELEASE, "QQ", "request_id token", "key"),
    _layout("extend", c.OP_EXTEND, "QQI", "request_id token lease_ms", "key"),
    _layout("cancel", c.OP_CANCEL, "QQ", "request_id acquire_id", "key"),
    _layout("ping", c.OP_PING, "Q", "echo"),
)
SERVER_FRAMES = (
    _layout("welcome", c.REPLY_WELCOME, "BH32s32s", "role keepalive_s fingerprint proof", "leader"),
    _layout("granted", c.REPLY_GRANTED, "QQI", "request_id token waited_ms"),
    _layout("timed_out", c.REPLY_TIMED_OUT, "Q", "request_id"),
    _layout("overloaded", c.REPLY_OVERLOADED, "Q", "request_id"),
    _layout("released", c.REPLY_RELEASED, "Q", "request_id"),
    _layout("not_held", c.REPLY_NOT_HELD, "Q", "request_id"),
    _layout("extended", c.REPLY_EXTENDED, "QI", "request_id lease_ms"),
    _layout("cancelled", c.REPLY_CANCELLED, "Q", "request_id"),
    _layout("dropped", c.REPLY_DROPPED, "QB", "token reason"),
    _layout("leader", c.REPLY_LEADER, "", "", "leader"),
    _layout("error", c.REPLY_ERROR, "QB", "request_id code", "text"),
    _layout("ping", c.REPLY_PING, "Q", "echo"),
)

_BY_NAME = {
    "client": {layout.name: layout for layout in CLIENT_FRAMES},
    "server": {layout.name: layout for layout in SERVER_FRAMES},
}
_BY_OP = {
    "client": {layout.op: layout for layout in CLIENT_FRAMES},
    "server": {layout.op: layout for layout in SERVER_FRAMES},
}
_BODY_BYTES = {"client": c.CLIENT_BODY_BYTES, "server": c.SERVER_BODY_BYTES}

# Values that a field of this name may have; the width of the field bounds the others.
_VALUE_BOUNDS: dict[tuple[str, str], tuple[int, int]] = {
    ("acquire", "lease_ms"): (c.LEASE_MS_MIN, c.LEASE_MS_MAX),
    ("acquire_set", "lease_ms"): (c.LEASE_MS_MIN, c.LEASE_MS_MAX),
    ("extend", "lease_ms"): (c.LEASE_MS_MIN, c.LEASE_MS_MAX),
}


def encode(direction: str, name: str, fields: Mapping[str, int | bytes | Sequence[bytes]]) -> bytes:
    """The whole frame, header included. Raises Malformed for a value out of bounds."""
    layout = _BY_NAME[direction].get(name)
    if layout is None:
        raise Malformed("frame", f"a {direction} sends no frame {name!r}")
    wanted = {*layout.fields, layout.tail} - {""}
    if set(fields) != wanted:
        raise Malformed("body", f"{name} takes {sorted(wanted)}, not {sorted(fields)}")
    try:
        fixed = layout.fixed.pack(*(fields[field] for field in layout.fields))
    except Exception as error:
        raise Malformed("body", f"{name}: {error}") from None
    body = fixed + _encode_tail(layout.tail, fields.get(layout.tail, b""))
    _check_length("body", direction, layout.op, len(body))
    frame = HEADER.pack(layout.op, len(body)) + body
    if layout.fixed.unpack(fixed) != tuple(fields[field] for field in layout.fields):
        raise Malformed("body", f"{name} has bytes of a wrong length")  # pack pads and cuts them
    decode(direction, frame)
    return frame


def decode(direction: str, frame: bytes) -> tuple[str, dict[str, Any]]:
    """Name and fields of one whole frame. Raises Malformed."""
    if not frame:
        raise Malformed("stream", "no bytes")
    layout = _BY_OP[direction].get(frame[0])
    if layout is None:
        raise Malformed("frame", f"a {direction} sends no op 0x{frame[0]:02x}")
    if len(frame) < HEADER_BYTES:
        raise Malformed("stream", "the header is cut off")
    length = HEADER.unpack_from(frame)[1]
    _check_length("frame", direction, layout.op, length)
    if len(frame) != HEADER_BYTES + length:
        raise Malformed("stream", f"the body has {len(frame) - HEADER_BYTES} bytes, not {length}")
    values: dict[str, Any] = dict(
        zip(layout.fields, layout.fixed.unpack_from(frame, HEADER_BYTES), strict=True)
    )
    for field, value in values.items():
        low, high = _VALUE_BOUNDS.get((layout.name, field), (0, 2**64 - 1))
        if isinstance(value, int) and not low <= value <= high:
            raise Malformed("body", f"{field} {value} is not {low} to {high}")
    if direction == "server":
        _check_server_values(layout.name, values)
    tail = frame[HEADER_BYTES + layout.fixed.size :]
    if layout.tail == "keys":
        values["keys"] = _decode_keys(tail)
    elif layout.tail:
        _check_text(layout.tail, tail)
        values[layout.tail] = tail
    return layout.name, values


def _check_length(layer: str, direction: str, op: int, length: int) -> None:
    low, high = _BODY_BYTES[direction][op]
    if not low <= length <= high:
        raise Malformed(layer, f"a body of {length} bytes, where {chr(op)} takes {low} to {high}")


def _check_server_values(name: str, values: Mapping[str, Any]) -> None:
    if name == "welcome":
        if values["role"] > c.ROLE_UNKNOWN:
            raise Malformed("body", f"role {values['role']} is unknown")
        if not c.KEEPALIVE_S_MIN <= values["keepalive_s"] <= c.KEEPALIVE_S_MAX:
            raise Malformed("body", f"keepalive_s {values['keepalive_s']} is out of bounds")
    elif name == "dropped":
        if not c.DROP_LEASE_OVER <= values["reason"] <= c.DROP_OTHER_CLIENT:
            raise Malformed("body", f"reason {values['reason']} is unknown")
    elif name == "error" and values["code"] not in c.ERRORS:
        raise Malformed("body", f"code {values['code']} is unknown")


def _check_text(field: str, tail: bytes) -> None:
    if field == "label" and not all(0x21 <= byte <= 0x7E for byte in tail):
        raise Malformed("body", "label has bytes other than printable ASCII without space")


def _encode_tail(kind: str, value: int | bytes | Sequence[bytes]) -> bytes:
    if kind == "keys":
        if isinstance(value, int | bytes):
            raise Malformed("body", "keys takes a list of bytes")
        return encode_keys(list(value))
    if not isinstance(value, bytes):
        raise Malformed("body", f"{kind} takes bytes")
    return value


def encode_keys(keys: Sequence[bytes]) -> bytes:
    """The tail of a set: a count, then each key behind its length."""
    if any(len(key) > 255 for key in keys) or len(keys) > 255:
        raise Malformed("body", "a key is too long, or there are too many")
    return bytes([len(keys)]) + b"".join(bytes([len(key)]) + key for key in keys)


def _decode_keys(tail: bytes) -> list[bytes]:
    keys: list[bytes] = []
    count, at = tail[0], 1
    if not c.SET_KEYS_MIN <= count <= c.SET_KEYS_MAX:
        raise Malformed("body", f"keys: {count} keys are not {c.SET_KEYS_MIN} to {c.SET_KEYS_MAX}")
    for _ in range(count):
        if at >= len(tail):
            raise Malformed("body", "keys end early")
        length = tail[at]
        key = tail[at + 1 : at + 1 + length]
        if not c.KEY_BYTES_MIN <= length <= c.KEY_BYTES_MAX or len(key) < length:
            raise Malformed("body", f"keys: a key of {length} bytes")
        if keys and key <= keys[-1]:
            raise Malformed("body", "keys are not strictly rising")
        keys.append(key)
        at += 1 + length
    if at != len(tail):
        raise Malformed("body", "keys do not fill the body")
    return keys


# What the machine sends, one precompiled pack each.

_ACQUIRE = Struct(">BHQII")
_TWO_IDS = Struct(">BHQQ")
_EXTEND = Struct(">BHQQI")
_ECHO = Struct(">BHQ")


def acquire_frame(request_id: int, wait_ms: int, lease_ms: int, key: bytes) -> bytes:
    """`A`: asks for one key."""
    return _ACQUIRE.pack(c.OP_ACQUIRE, 16 + len(key), request_id, wait_ms, lease_ms) + key


def acquire_set_frame(request_id: int, wait_ms: int, lease_ms: int, keys: Sequence[bytes]) -> bytes:
    """`S`: asks for several keys; they must be sorted and different."""
    tail = encode_keys(keys)
    return _ACQUIRE.pack(c.OP_ACQUIRE_SET, 16 + len(tail), request_id, wait_ms, lease_ms) + tail


def release_frame(request_id: int, token: int, key: bytes) -> bytes:
    """`R`: ends a ticket."""
    return _TWO_IDS.pack(c.OP_RELEASE, 16 + len(key), request_id, token) + key


def extend_frame(request_id: int, token: int, lease_ms: int, key: bytes) -> bytes:
    """`X`: makes a lease end later."""
    return _EXTEND.pack(c.OP_EXTEND, 20 + len(key), request_id, token, lease_ms) + key


def cancel_frame(request_id: int, acquire_id: int, key: bytes) -> bytes:
    """`C`: undoes an acquire."""
    return _TWO_IDS.pack(c.OP_CANCEL, 16 + len(key), request_id, acquire_id) + key


def ping_frame(echo: int) -> bytes:
    """`P`: asks for a sign of life."""
    return _ECHO.pack(c.OP_PING, 8, echo)


# What the machine reads.

_FIXED_REPLIES = {
    HEADER.pack(layout.op, layout.fixed.size): Struct(">Bxx" + layout.fixed.format[1:])
    for layout in SERVER_FRAMES
    if not layout.tail
}
_TAILED_REPLIES = {layout.op: layout for layout in SERVER_FRAMES if layout.tail}


class ReplyReader:
    """Cuts a server's stream into replies; keeps at most one unfinished frame."""

    def __init__(self) -> None:
        self._rest = b""

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the frame that is not yet whole."""
        return len(self._rest)

    def feed(self, data: bytes) -> Iterator[Reply]:
        """Yield (op, fixed fields…, tail if there is one) of each whole frame in order.

        Raises Malformed at the first byte that breaks the rules; what came before it was yielded.
        """
        if self._rest:
            data = self._rest + data
            self._rest = b""
        at, end = 0, len(data)
        fixed_replies = _FIXED_REPLIES
        while at < end:
            fixed = fixed_replies.get(data[at : at + 3])
            if fixed is not None:
                size = fixed.size
                if end - at < size:
                    break
                yield fixed.unpack_from(data, at)
                at += size
                continue
            op = data[at]
            if op not in c.SERVER_BODY_BYTES:
                raise Malformed("frame", f"op 0x{op:02x} is unknown")
            if end - at < HEADER_BYTES:
                break
            length = data[at + 1] << 8 | data[at + 2]
            _check_length("frame", "server", op, length)
            body = at + HEADER_BYTES
            if end - body < length:
                break
            layout = _TAILED_REPLIES[op]
            tail = data[body + layout.fixed.size : body + length]
            yield (op, *layout.fixed.unpack_from(data, body), tail)
            at = body + length
        self._rest = data[at:]
