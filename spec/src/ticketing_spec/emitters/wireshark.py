"""A Wireshark dissector for both versions, as one Lua file."""

from __future__ import annotations

from pathlib import Path

from ticketing_spec.model import Enum, Field, Frame, Spec

ENGINE = Path(__file__).with_name("dissector.lua")
"""The part that is the same for every spec; the tables of frames follow it."""

KINDS = {"u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64"}


def emit(specs: tuple[Spec, ...], header: str) -> str:
    lines = [f"-- {header}", ENGINE.read_text().rstrip("\n")]
    for spec in specs:
        lines += ["", *_version(spec)]
    return "\n".join(lines) + "\n"


def _proto(spec: Spec) -> str:
    return "ticketing" if spec.version == 4 else f"ticketing{spec.version}"


def _version(spec: Spec) -> list[str]:
    proto = _proto(spec)
    lines = [f"-- Version {spec.version}.", "do"]
    lines.append(f'  local proto = Proto("{proto}", "Ticketing {spec.version}")')
    lines.append("  local f = {")
    lines.append(f'    op = ProtoField.string("{proto}.op", "Frame"),')
    lines.append(f'    length = ProtoField.uint16("{proto}.length", "Length"),')
    lines.append(f'    count = ProtoField.uint8("{proto}.count", "Keys"),')
    for field in _fields(spec):
        lines.append(f"    {field.name} = {_proto_field(spec, proto, field)},")
    lines += ["  }", "  local version = {", "    proto = proto,", "    fields = f,"]
    lines.append(f"    port = {spec.constant('default_port') if spec.version == 4 else 0},")
    lines.append("    preambles = {")
    for preamble in spec.preambles:
        lines += _frame_row(preamble, preamble.name)
    lines.append("    },")
    for direction in ("client", "server"):
        lines.append(f"    {direction} = {{")
        for frame in spec.frames_of(direction):
            lines += _frame_row(frame, f"[0x{frame.op:02x}]")
        lines.append("    },")
    return [*lines, "  }", "  install(version)", "end"]


def _frame_row(frame: Frame, label: str) -> list[str]:
    low, high = frame.body_bytes
    lines = [f"      {label} = {{"]
    if frame.op is None and frame.fields[0].const is not None:
        magic = "".join(f"\\{b:03d}" for b in frame.fields[0].const)
        lines.append(f'        magic = "{magic}",')
    lines.append(
        f'        name = "{frame.name}", op = "{frame.op_char}", low = {low}, high = {high},'
    )
    lines.append("        fields = {")
    for field in frame.fields:
        size = field.size if not field.is_tail else ("keys" if field.type == "keys" else "tail")
        shown = f'"{size}"' if isinstance(size, str) else str(size)
        text = ", true" if field.const is not None else ""
        lines.append(f'          {{ "{field.name}", {shown}{text} }},')
    return [*lines, "        },", "      },"]


def _fields(spec: Spec) -> list[Field]:
    """One field per name; where two frames differ in the type of a name the first one stands."""
    found: dict[str, Field] = {}
    for frame in (*spec.preambles, *spec.frames):
        for field in frame.fields:
            found.setdefault("key" if field.type == "keys" else field.name, field)
    key = next(f for frame in spec.frames for f in frame.fields if f.type == "key")
    found["key"] = key
    return list(found.values())


def _proto_field(spec: Spec, proto: str, field: Field) -> str:
    name, title = f"{proto}.{field.name}", field.name.replace("_", " ").capitalize()
    if field.enum is not None:
        return f'ProtoField.uint8("{name}", "{title}", base.DEC, {_values(spec.enum(field.enum))})'
    if field.is_integer:
        return f'ProtoField.{KINDS[field.type]}("{name}", "{title}", base.DEC)'
    kind = "bytes" if field.type == "bytes" and field.const is None else "string"
    return f'ProtoField.{kind}("{name}", "{title}")'


def _values(enum: Enum) -> str:
    return "{ " + ", ".join(f'[{v.value}] = "{v.name}"' for v in enum.values) + " }"
