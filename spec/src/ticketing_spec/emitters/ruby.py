"""Constants as a Ruby module."""

from __future__ import annotations

from ticketing_spec.constants import Named, constants, is_op
from ticketing_spec.model import Spec


def emit(spec: Spec, header: str) -> str:
    lines = [f"# {header}", "# frozen_string_literal: true", "", "module Ticketing"]
    lines += ["  # Numbers, names and texts of the Ticketing protocol.", "  module Constants"]
    lines.append("    # Names the spec that these constants come from.")
    lines.append(f"    SPEC_DIGEST = '{spec.digest}'")
    section = ""
    for item in constants(spec):
        if item.section != section:
            section = item.section
            lines += ["", f"    # {section}.", ""]
        lines += [f"    # {item.about}", f"    {item.name} = {_literal(item)}"]
    lines += _tables(spec)
    return "\n".join([*lines, "  end", "end"]) + "\n"


def _literal(item: Named) -> str:
    if isinstance(item.value, bytes):
        text = "".join(chr(b) if 32 <= b < 127 else f"\\x{b:02x}" for b in item.value)
        return f'"{text}".b.freeze' if "\\x" in text else f"'{text}'.b.freeze"
    if is_op(item):
        return f"0x{item.value:02x}"
    return f"{item.value:_}" if item.value >= 10_000 else str(item.value)


def _tables(spec: Spec) -> list[str]:
    lines: list[str] = []
    for direction in ("client", "server"):
        lines += ["", f"    # Lowest and highest body length of each op that a {direction} sends."]
        lines.append(f"    {direction.upper()}_BODY_BYTES = {{")
        for frame in spec.frames_of(direction):
            low, high = frame.body_bytes
            lines.append(f"      0x{frame.op:02x} => [{low}, {high}],")
        lines[-1] = lines[-1].rstrip(",")
        lines.append("    }.freeze")
    lines += ["", "    # Code: name, error kind, whether it closes, where a client tries again."]
    lines.append("    ERRORS = {")
    for error in spec.errors:
        closes = str(error.closes).lower()
        row = f"[:{error.name}, :{error.kind}, {closes}, :{error.retry}]"
        lines.append(f"      {error.code} => {row}.freeze,")
    lines[-1] = lines[-1].rstrip(",")
    return [*lines, "    }.freeze"]
