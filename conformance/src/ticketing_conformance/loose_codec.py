"""Frames that the spec's codec refuses to make: values out of bounds, wrong lengths."""

from __future__ import annotations

from ticketing_spec.codec import digest

from ticketing_conformance.context import StepFailed
from ticketing_conformance.streams import Fields, the_spec


def encode_loose(direction: str, name: str, fields: Fields, length: int | None = None) -> bytes:
    """A frame laid out as the spec says, with any values, and any length in its header.

    Integers are cut to their field's size; `keys` may be unsorted or too many.
    """
    frame = the_spec().frame(direction, name)
    body = b""
    for field in frame.fields:
        if field.name not in fields:
            raise StepFailed(f"{name} lacks its field {field.name}")
        value = fields[field.name]
        if isinstance(value, int):
            size = field.size or 1
            body += (value % (1 << 8 * size)).to_bytes(size, "big")
        elif isinstance(value, list):
            body += bytes([len(value) % 256])
            body += b"".join(bytes([len(key) % 256]) + key for key in value)
        else:
            body += value
    assert frame.op is not None
    told = len(body) if length is None else length
    return bytes([frame.op]) + told.to_bytes(2, "big") + body


def proof_of_any(secret: bytes, greeting: bytes, client_nonce: bytes, welcome: Fields) -> bytes:
    """The proof of a welcome with any values, so that nothing but they can be found wrong."""
    inputs = {"greeting": greeting, "hello.client_nonce": client_nonce}
    for field in the_spec().frame("server", "welcome").fields:
        value = welcome.get(field.name)
        if isinstance(value, int):
            inputs[f"welcome.{field.name}"] = value.to_bytes(field.size or 1, "big")
        elif isinstance(value, bytes) and field.name != "proof":
            inputs[f"welcome.{field.name}"] = value
    return digest(the_spec(), "proof", inputs, secret)
