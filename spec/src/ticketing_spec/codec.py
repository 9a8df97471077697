"""Frames to bytes and back, driven by the spec model alone.

It shares no code with the server or a client: golden vectors, transcripts and the conformance
harness use it as the second opinion. It is pure and thread-safe. Integers are ints, everything
else is bytes, and `keys` is a list of bytes.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence

from ticketing_spec.model import HEADER_BYTES, Field, Frame, Spec

Value = int | bytes | list[bytes]
Fields = Mapping[str, Value | Sequence[bytes]]

LAYERS = ("stream", "frame", "body", "request", "state")


class Malformed(ValueError):
    """Bytes that no correct peer sends.

    `layer` says who finds out: `stream` (the bytes end early or go on too long), `frame` (op and
    length, before a body is read), `body` (a field), `request` (a field too, but the answer is
    the error named by `refusal` and the connection stays), `state` (a frame at the wrong moment).
    `field` is the name of the field at fault, or "".
    """

    def __init__(self, layer: str, why: str, field: str = "", refusal: str | None = None) -> None:
        super().__init__(f"{layer}: {why}")
        self.layer = layer
        self.why = why
        self.field = field
        self.refusal = refusal


def encode(spec: Spec, direction: str, name: str, fields: Fields) -> bytes:
    """The whole frame with its header.

    Raises Malformed (layer `body`) for a value out of bounds, KeyError for a name that the frame
    does not have, or lacks.
    """
    frame = spec.frame(direction, name)
    body = _encode_fields(spec, frame, fields)
    assert frame.op is not None
    return bytes([frame.op]) + len(body).to_bytes(2, "big") + body


def encode_preamble(spec: Spec, name: str, fields: Fields) -> bytes:
    """A preamble (the greeting): fields without a header."""
    return _encode_fields(spec, spec.preamble(name), fields)


def decode(spec: Spec, direction: str, frame_bytes: bytes) -> tuple[str, dict[str, Value]]:
    """Name and fields of one whole frame sent by `direction`; raises Malformed."""
    frame, length = decode_header(spec, direction, frame_bytes)
    body = frame_bytes[HEADER_BYTES:]
    if len(body) < length:
        raise Malformed("stream", f"the body has {len(body)} of {length} bytes")
    if len(body) > length:
        raise Malformed("stream", f"{len(body) - length} bytes after the frame's end")
    return frame.name, _decode_fields(spec, frame, body)


def decode_header(spec: Spec, direction: str, data: bytes) -> tuple[Frame, int]:
    """The frame that a header announces, and its body's length; raises Malformed."""
    if not data:
        raise Malformed("stream", "no bytes")
    frame = next((f for f in spec.frames_of(direction) if f.op == data[0]), None)
    if frame is None:
        raise Malformed("frame", f"op 0x{data[0]:02x} is not one that a {direction} sends", "op")
    if len(data) < HEADER_BYTES:
        raise Malformed("stream", f"the header has {len(data)} of {HEADER_BYTES} bytes")
    length = int.from_bytes(data[1:HEADER_BYTES], "big")
    low, high = frame.body_bytes
    if not low <= length <= high:
        raise Malformed(
            "frame", f"length {length} of {frame.name} is not {low} to {high}", "length"
        )
    return frame, length


def decode_preamble(spec: Spec, name: str, data: bytes) -> dict[str, Value]:
    """Fields of a preamble; raises Malformed."""
    preamble = spec.preamble(name)
    size = preamble.fixed_bytes
    if len(data) != size:
        raise Malformed("stream", f"{name} has {len(data)} bytes, not {size}")
    return _decode_fields(spec, preamble, data)


def split(spec: Spec, direction: str, data: bytes) -> tuple[list[bytes], bytes]:
    """Cut a stream after its preamble into whole frames and the rest; raises Malformed."""
    frames = []
    while len(data) >= HEADER_BYTES:
        _, length = decode_header(spec, direction, data)
        if len(data) < HEADER_BYTES + length:
            break
        frames.append(data[: HEADER_BYTES + length])
        data = data[HEADER_BYTES + length :]
    return frames, data


def _encode_fields(spec: Spec, frame: Frame, fields: Fields) -> bytes:
    unknown = set(fields) - {f.name for f in frame.fields}
    if unknown:
        raise KeyError(f"{frame.name} has no field {', '.join(sorted(unknown))}")
    out = b""
    for field in frame.fields:
        if field.const is not None and field.name not in fields:
            out += field.const
            continue
        if field.name not in fields:
            raise KeyError(f"{frame.name} lacks its field {field.name}")
        out += _encode_value(spec, frame, field, fields[field.name])
    return out


def _encode_value(spec: Spec, frame: Frame, field: Field, value: Value | Sequence[bytes]) -> bytes:
    if field.is_integer:
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{frame.name}.{field.name} takes an int, not {value!r}")
        check_value(spec, field, value)
        assert field.size is not None
        return value.to_bytes(field.size, "big")
    if field.type == "keys":
        if isinstance(value, int | bytes):
            raise TypeError(f"{frame.name}.{field.name} takes a list of bytes, not {value!r}")
        keys = list(value)
        _check_keys(field, frame, keys)
        return bytes([len(keys)]) + b"".join(bytes([len(k)]) + k for k in keys)
    if not isinstance(value, bytes):
        raise TypeError(f"{frame.name}.{field.name} takes bytes, not {value!r}")
    check_value(spec, field, value)
    if field.type == "text" and not _is_printable(value, lowest=0x20):
        raise Malformed("body", f"{field.name} has bytes other than printable ASCII", field.name)
    return value


def _decode_fields(spec: Spec, frame: Frame, body: bytes) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for offset, field in frame.offsets():
        data = body[offset:] if field.is_tail else body[offset : offset + (field.size or 0)]
        if field.type == "keys":
            values[field.name] = _decode_keys(field, frame, data)
            continue
        value: int | bytes = int.from_bytes(data, "big") if field.is_integer else data
        check_value(spec, field, value)
        values[field.name] = value
    return values


def check_value(spec: Spec, field: Field, value: int | bytes) -> None:
    """Raise Malformed where a field's value is out of its bounds."""
    if isinstance(value, int):
        if not field.min <= value <= field.max:
            raise _bad(field, f"{field.name} {value} is not {field.min} to {field.max}")
        if field.enum is not None and spec.enum(field.enum).name_of(value) is None:
            raise _bad(field, f"{field.name} {value} is not a known {field.enum}")
        return
    if not field.min <= len(value) <= field.max:
        raise _bad(field, f"{field.name} has {len(value)} bytes, not {field.min} to {field.max}")
    if field.const is not None and value != field.const:
        raise _bad(field, f"{field.name} is not {field.const!r}")
    if field.type == "label" and not _is_printable(value, lowest=0x21):
        raise _bad(field, f"{field.name} has bytes other than printable ASCII without space")
    _check_forbidden(field, value)


def _bad(field: Field, why: str) -> Malformed:
    return Malformed("request" if field.refusal else "body", why, field.name, field.refusal)


def _check_forbidden(field: Field, key: bytes) -> None:
    for byte in field.forbidden:
        if byte in key:
            raise _bad(field, f"{field.name} has a byte 0x{byte:02x}")


def _is_printable(data: bytes, lowest: int) -> bool:
    return all(lowest <= byte <= 0x7E for byte in data)


def _decode_keys(field: Field, frame: Frame, data: bytes) -> list[bytes]:
    count = data[0]
    keys: list[bytes] = []
    offset = 1
    while len(keys) < count:
        number = len(keys) + 1
        if offset >= len(data):
            raise Malformed("body", f"key {number} of {count} is not in the body", field.name)
        end = offset + 1 + data[offset]
        if end > len(data):
            raise Malformed("body", f"key {number} of {count} runs past the body", field.name)
        keys.append(data[offset + 1 : end])
        offset = end
    if offset != len(data):
        why = f"{field.name} leaves {len(data) - offset} bytes of the body"
        raise Malformed("body", why, field.name)
    _check_keys(field, frame, keys)
    return keys


def _check_keys(field: Field, frame: Frame, keys: list[bytes]) -> None:
    if not field.min <= len(keys) <= field.max:
        raise _bad(field, f"{field.name} has {len(keys)} keys, not {field.min} to {field.max}")
    low, high = frame.key_bytes
    for number, key in enumerate(keys, 1):
        if not low <= len(key) <= high:
            raise _bad(field, f"key {number} has {len(key)} bytes, not {low} to {high}")
        if number > 1 and key <= keys[number - 2]:
            raise _bad(field, f"key {number} is not above the one before it")
        _check_forbidden(field, key)


def mac(spec: Spec, secret: bytes, greeting: bytes, hello: Fields) -> bytes:
    """The client's mac over a greeting and the other fields of its hello.

    In version 3, `hello` gives the server's `fingerprint`, and the result is the client's answer.
    """
    inputs = {"greeting": greeting}
    preamble = spec.preamble("greeting")
    for offset, field in preamble.offsets():
        inputs[f"greeting.{field.name}"] = greeting[offset : offset + (field.size or 0)]
    if any(f.name == "hello" for f in spec.frames):
        inputs |= _parts(spec, spec.frame("client", "hello"), hello)
    else:
        inputs |= {name: value for name, value in hello.items() if isinstance(value, bytes)}
    return digest(spec, "client_mac", inputs, secret)


def proof(
    spec: Spec, secret: bytes, greeting: bytes, client_nonce: bytes, welcome: Fields
) -> bytes:
    """The server's proof over greeting, client nonce and the other fields of its welcome."""
    inputs = {"greeting": greeting, "hello.client_nonce": client_nonce}
    inputs |= _parts(spec, spec.frame("server", "welcome"), welcome)
    return digest(spec, "proof", inputs, secret)


def client_nonce(spec: Spec, seed: bytes, connection: int) -> bytes:
    """The nonce of a client's n-th hello, from the 16 random bytes drawn at its construction."""
    inputs = {"seed": seed, "connection": connection.to_bytes(8, "big")}
    return digest(spec, "client_nonce", inputs)


def fingerprint(spec: Spec, cluster_id: bytes | None) -> bytes:
    """The fingerprint of a cluster, or with None of a standalone server."""
    names = {d.name for d in spec.digests}
    if cluster_id is not None:
        name = "fingerprint" if "fingerprint" in names else "fingerprint_cluster"
        return digest(spec, name, {"cluster_id": cluster_id})
    if "fingerprint_standalone" in names:
        return digest(spec, "fingerprint_standalone", {})
    return bytes(32)


def digest(spec: Spec, name: str, inputs: Mapping[str, bytes], secret: bytes = b"") -> bytes:
    """Hash the parts of a digest in their order; `inputs` has one entry for each part by name."""
    what = spec.digest_of(name)
    data = b""
    for part in what.parts:
        label, _, detail = part.partition(":")
        data += spec.context(detail) if label == "context" else inputs[label]
    if what.keyed:
        return hmac.new(secret, data, hashlib.sha256).digest()[: what.size]
    return hashlib.sha256(data).digest()[: what.size]


def _parts(spec: Spec, frame: Frame, fields: Fields) -> dict[str, bytes]:
    return {
        f"{frame.name}.{f.name}": _encode_value(spec, frame, f, fields[f.name])
        for f in frame.fields
        if f.name in fields and f.name not in ("mac", "proof")
    }
