"""The frames as a Kaitai Struct file: an independent decoder of captured streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ticketing_spec.model import Enum, EnumValue, Field, Frame, Spec

SIZES = {"u8": "u1", "u16": "u2", "u32": "u4", "u64": "u8"}


def emit(spec: Spec, header: str) -> str:
    lines = [f"# {header}", *_meta(spec), *_streams(spec)]
    for direction in ("client", "server"):
        lines += _frame_type(spec, direction)
        for frame in spec.frames_of(direction):
            lines += _body_type(frame)
    for preamble in spec.preambles:
        lines += _preamble_type(preamble)
    lines += _set_type(spec)
    lines += ["", "enums:"]
    for enum in _enums(spec):
        lines.append(f"  {enum.name}:")
        lines += [f"    {v.value}: {v.name}" for v in enum.values]
    return "\n".join(lines) + "\n"


def _meta(spec: Spec) -> list[str]:
    return [
        "meta:",
        "  id: ticketing",
        f"  title: Ticketing protocol, version {spec.version}",
        "  license: Apache-2.0",
        "  endian: be",
        "doc: |",
        "  What one peer of a connection sent, from its first byte on. A server's stream begins",
        "  with the greeting, a client's with a hello, so the first byte tells them apart.",
    ]


def _streams(spec: Spec) -> list[str]:
    magic = spec.context("greeting_magic")[0]
    return [
        "seq:",
        "  - id: server",
        "    type: server_stream",
        f"    if: first_byte == {magic}",
        "  - id: client",
        "    type: client_stream",
        f"    if: first_byte != {magic}",
        "instances:",
        "  first_byte:",
        "    pos: 0",
        "    type: u1",
        "types:",
        "  server_stream:",
        "    seq:",
        "      - id: greeting",
        "        type: greeting",
        "      - id: frames",
        "        type: server_frame",
        "        repeat: eos",
        "  client_stream:",
        "    seq:",
        "      - id: frames",
        "        type: client_frame",
        "        repeat: eos",
    ]


def _frame_type(spec: Spec, direction: str) -> Iterator[str]:
    frames = spec.frames_of(direction)
    yield from [f"  {direction}_frame:", "    seq:", "      - id: op", "        type: u1"]
    yield from [f"        enum: {direction}_op", "        valid:", "          any-of:"]
    yield from [f"            - {direction}_op::{f.name}" for f in frames]
    yield from ["      - id: length", "        type: u2", "        valid:"]
    yield f"          expr: '{_bounds(direction, frames)}'"
    yield from ["      - id: body", "        size: length", "        type:"]
    yield from ["          switch-on: op", "          cases:"]
    yield from [f"            {direction}_op::{f.name}: {direction}_{f.name}" for f in frames]


def _bounds(direction: str, frames: Sequence[Frame]) -> str:
    """Whether a length is legal for the op that was read before it."""
    expression = "false"
    for frame in reversed(frames):
        low, high = frame.body_bytes
        inside = f"_ == {low}" if low == high else f"_ >= {low} and _ <= {high}"
        expression = f"(op == {direction}_op::{frame.name} ? ({inside}) : {expression})"
    return expression


def _body_type(frame: Frame) -> Iterator[str]:
    yield from [
        f"  {frame.direction}_{frame.name}:",
        f"    doc: {_quoted(frame.about)}",
        "    seq:",
    ]
    for field in frame.fields:
        yield from _field(field)


def _preamble_type(preamble: Frame) -> Iterator[str]:
    yield from [f"  {preamble.name}:", f"    doc: {_quoted(preamble.about)}", "    seq:"]
    for field in preamble.fields:
        yield from _field(field)


def _field(field: Field) -> Iterator[str]:
    yield from [f"      - id: {field.name}", f"        doc: {_quoted(field.about)}"]
    if field.const is not None:
        yield f"        contents: [{', '.join(f'0x{b:02x}' for b in field.const)}]"
    elif field.is_integer:
        yield f"        type: {SIZES[field.type]}"
        yield from _valid(field)
    elif field.type == "keys":
        yield "        type: set_of_keys"
    elif field.is_tail:
        yield "        size-eos: true"
    else:
        yield f"        size: {field.size}"


def _valid(field: Field) -> Iterator[str]:
    if field.enum is not None:
        yield f"        enum: {field.enum}"
        yield from ["        valid:", "          in-enum: true"]
        return
    full = 2 ** (8 * (field.size or 0)) - 1
    bounds = []
    if field.min > 0:
        bounds.append(f"          min: {field.min}")
    if field.max < full:
        bounds.append(f"          max: {field.max}")
    if bounds:
        yield from ["        valid:", *bounds]


def _set_type(spec: Spec) -> Iterator[str]:
    yield from ["  set_of_keys:", "    seq:", "      - id: count", "        type: u1"]
    yield from ["        valid:", f"          min: {spec.constant('set_keys_min')}"]
    yield f"          max: {spec.constant('set_keys_max')}"
    yield from ["      - id: keys", "        type: key_of_set", "        repeat: expr"]
    yield "        repeat-expr: count"
    yield from ["      - id: rest", "        size-eos: true", "        valid:"]
    yield from ["          expr: '_.length == 0'", "  key_of_set:", "    seq:"]
    yield from ["      - id: length", "        type: u1", "        valid:"]
    yield f"          min: {spec.constant('key_bytes_min')}"
    yield f"          max: {spec.constant('key_bytes_max')}"
    yield from ["      - id: key", "        size: length"]


def _enums(spec: Spec) -> Iterator[Enum]:
    for direction in ("client", "server"):
        values = tuple(EnumValue(f.op or 0, f.name, f.about) for f in spec.frames_of(direction))
        yield Enum(f"{direction}_op", "", values)
    used = [f.enum for t in (*spec.preambles, *spec.frames) for f in t.fields if f.enum]
    yield from (spec.enum(name) for name in dict.fromkeys(used))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
