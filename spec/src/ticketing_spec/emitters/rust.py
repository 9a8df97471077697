"""Constants as a Rust module."""

from __future__ import annotations

from ticketing_spec.constants import Named, constants, is_op, width
from ticketing_spec.model import Spec


def emit(spec: Spec, header: str) -> str:
    lines = [f"// {header}", "", "//! Numbers, names and texts of the Ticketing protocol.", ""]
    lines.append("#![allow(dead_code)]")
    lines += ["", "/// Names the spec that these constants come from."]
    lines.append(f'pub const SPEC_DIGEST: &str = "{spec.digest}";')
    section = ""
    for item in constants(spec):
        if item.section != section:
            section = item.section
            lines += ["", f"// {section}.", ""]
        lines += [f"/// {item.about}", f"pub const {item.name}: {_typed(item)};"]
    lines += _tables(spec)
    return "\n".join(lines) + "\n"


def _typed(item: Named) -> str:
    if isinstance(item.value, bytes):
        text = "".join(chr(b) if 32 <= b < 127 else f"\\x{b:02x}" for b in item.value)
        return f'&[u8] = b"{text}"'
    if is_op(item):
        return f"u8 = b'{chr(item.value)}'"
    if item.name.startswith(("ERROR_", "MODE_", "ROLE_", "DROP_", "SLOT_", "PROTOCOL_")):
        kind = "usize" if "BYTES" in item.name else "u8"
        return f"{kind} = {item.value}"
    if item.name.endswith(("BYTES", "BYTES_MIN", "BYTES_MAX", "KEYS_MIN", "KEYS_MAX")):
        return f"usize = {item.value}"
    return f"u{width(item.value)} = {_grouped(item.value)}"


def _grouped(value: int) -> str:
    return f"{value:_}" if value >= 10_000 else str(value)


def _tables(spec: Spec) -> list[str]:
    lines: list[str] = []
    for direction in ("client", "server"):
        lines += ["", f"/// Lowest and highest body length of an op that a {direction} sends."]
        lines.append(f"pub const fn {direction}_body_bytes(op: u8) -> Option<(usize, usize)> {{")
        lines.append("    match op {")
        for frame in spec.frames_of(direction):
            low, high = frame.body_bytes
            lines.append(f"        b'{frame.op_char}' => Some(({low}, {high})),")
        lines += ["        _ => None,", "    }", "}"]
    lines += [
        "",
        "/// Name, error kind, whether it closes, and where a client tries again by itself.",
    ]
    lines.append(
        "pub const fn error(code: u8) -> Option<(&'static str, &'static str, bool, &'static str)> {"
    )
    lines.append("    match code {")
    for error in spec.errors:
        closes = str(error.closes).lower()
        row = f'("{error.name}", "{error.kind}", {closes}, "{error.retry}")'
        lines.append(f"        {error.code} => Some({row}),")
    return [*lines, "        _ => None,", "    }", "}"]
