"""The annotated view: every byte with offset, hex, field and value.

It takes broken bytes too: what is known is shown, then what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ticketing_spec import codec
from ticketing_spec.codec import Malformed
from ticketing_spec.model import HEADER_BYTES, Field, Frame, Spec, SpecError
from ticketing_spec.samples import typical_fields

HEX_BYTES_PER_LINE = 16


@dataclass(frozen=True)
class Row:
    """Some bytes that belong together; `field` is "!" for a complaint."""

    offset: int
    data: bytes
    field: str
    value: str


def rows(spec: Spec, direction: str, stream: bytes) -> Iterator[Row]:
    """The rows of a stream sent by `direction`: preambles where they stand first, then frames."""
    offset = 0
    try:
        greeting = spec.preamble("greeting")
        magic = greeting.fields[0].const or b""
        if direction == "server" and stream.startswith(magic):
            yield from _field_rows(spec, greeting, stream[: greeting.fixed_bytes], 0)
            codec.decode_preamble(spec, "greeting", stream[: greeting.fixed_bytes])
            offset = greeting.fixed_bytes
        while offset < len(stream):
            frame, length = codec.decode_header(spec, direction, stream[offset:])
            end = offset + HEADER_BYTES + length
            yield from frame_rows(spec, frame, stream[offset:end], offset)
            codec.decode(spec, direction, stream[offset:end])
            offset = end
    except Malformed as error:
        yield Row(offset, stream[offset:], "!", f"malformed at layer {error.layer}: {error.why}")


def frame_rows(spec: Spec, frame: Frame, wire: bytes, offset: int = 0) -> Iterator[Row]:
    yield Row(offset, wire[:1], "op", f"{frame.op_char} {frame.name}")
    yield Row(offset + 1, wire[1:3], "length", str(int.from_bytes(wire[1:3], "big")))
    yield from _field_rows(spec, frame, wire[HEADER_BYTES:], offset + HEADER_BYTES)


def _field_rows(spec: Spec, frame: Frame, body: bytes, offset: int) -> Iterator[Row]:
    for start, field in frame.offsets():
        data = body[start:] if field.is_tail else body[start : start + (field.size or 0)]
        if field.type == "keys":
            yield from _keys_rows(data, offset + start)
        else:
            yield Row(offset + start, data, field.name, _value(spec, field, data))


def _keys_rows(data: bytes, offset: int) -> Iterator[Row]:
    yield Row(offset, data[:1], "keys", f"{data[0]} keys" if data else "")
    at, number = 1, 1
    while at < len(data):
        size = data[at]
        yield Row(offset + at, data[at : at + 1], f"key {number}", f"{size} bytes")
        yield Row(
            offset + at + 1, data[at + 1 : at + 1 + size], "", text(data[at + 1 : at + 1 + size])
        )
        at += 1 + size
        number += 1


def _value(spec: Spec, field: Field, data: bytes) -> str:
    if not field.is_integer:
        return text(data) if field.is_tail or field.const is not None else f"{len(data)} bytes"
    number = int.from_bytes(data, "big")
    if field.enum is not None:
        return f"{number} {spec.enum(field.enum).name_of(number) or 'unknown'}"
    unit = f" {field.unit}" if field.unit in ("ms", "s") else ""
    if field.name in ("wait_ms",) and number in (0, 0xFFFFFFFF):
        return f"{number}{unit}, {'a try' if number == 0 else 'for ever'}"
    return f"{number}{unit}"


def text(data: bytes) -> str:
    """Bytes as a quoted text in which everything but printable ASCII is escaped."""
    out = "".join(chr(b) if 0x20 <= b <= 0x7E and b not in b'"\\' else f"\\x{b:02x}" for b in data)
    return f'"{out}"'


def render(listed: Iterator[Row]) -> str:
    """The rows as a table of text; long fields take several lines."""
    lines = ["offset  " + "hex".ljust(3 * HEX_BYTES_PER_LINE) + " field         value"]
    for row in listed:
        label, value = row.field, row.value
        for start in range(0, max(len(row.data), 1), HEX_BYTES_PER_LINE):
            part = row.data[start : start + HEX_BYTES_PER_LINE].hex(" ")
            part = part.ljust(3 * HEX_BYTES_PER_LINE)
            lines.append(f"{row.offset + start:6}  {part} {label:13} {value}".rstrip())
            label = value = ""
    return "\n".join(lines) + "\n"


def example(spec: Spec, frame: Frame) -> str:
    """One typical frame or preamble, annotated."""
    fields = typical_fields(spec, frame)
    if frame.op is None:
        wire = codec.encode_preamble(spec, frame.name, fields)
        listed = _field_rows(spec, frame, wire, 0)
    else:
        wire = codec.encode(spec, frame.direction, frame.name, fields)
        listed = frame_rows(spec, frame, wire)
    title = f"{frame.name}, sent by the {frame.direction}, {len(wire)} bytes"
    return f"{title}\n\n{render(listed)}"


def examples(spec: Spec) -> dict[str, str]:
    """Stem of the file and text of every frame's example."""
    return {
        f"v{spec.version}-{frame.direction}-{frame.name}": example(spec, frame)
        for frame in (*spec.preambles, *spec.frames)
    }


def show(spec: Spec, what: str, direction: str | None) -> str:
    """What `show` prints for the name of a frame, or for a stream in hex."""
    named = [
        f
        for f in (*spec.preambles, *spec.frames)
        if f.name == what and direction in (None, f.direction)
    ]
    if named:
        return "\n".join(example(spec, f) for f in named)
    try:
        stream = bytes.fromhex(what)
    except ValueError:
        names = ", ".join(sorted({f.name for f in (*spec.preambles, *spec.frames)}))
        raise SpecError(f"{what!r} is neither hex nor a frame; frames are {names}") from None
    if not stream:
        raise SpecError("there are no bytes; takes a frame in hex, or the name of a frame")
    if direction is not None:
        return render(rows(spec, direction, stream))
    parts = []
    for each in ("client", "server"):
        listed = list(rows(spec, each, stream))
        if listed[-1].field != "!":
            parts.append(f"as sent by the {each}:\n\n{render(iter(listed))}")
    if parts:
        return "\n".join(parts)
    return "\n".join(
        f"as sent by the {each}:\n\n{render(rows(spec, each, stream))}"
        for each in ("client", "server")
    )
