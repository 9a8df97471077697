"""Constants as a Python module."""

from __future__ import annotations

from ticketing_spec.constants import constants
from ticketing_spec.model import Spec


def emit(spec: Spec, header: str) -> str:
    lines = [
        f"# {header}",
        f'"""Numbers, names and texts of the Ticketing protocol, version {spec.version}."""',
        "",
    ]
    lines += ["from typing import Final", ""]
    lines.append(f'SPEC_DIGEST: Final = "{spec.digest}"')
    section = ""
    for item in constants(spec):
        if item.section != section:
            section = item.section
            lines += ["", f"# {section}."]
        kind = "bytes" if isinstance(item.value, bytes) else "int"
        lines.append(f"{item.name}: Final[{kind}] = {literal(item.value)}")
        lines.append(f'"""{item.about}"""')
    lines += _tables(spec)
    return "\n".join(lines) + "\n"


def literal(value: int | bytes) -> str:
    if isinstance(value, bytes):
        return (
            'b"'
            + "".join(
                chr(b) if 32 <= b < 127 and b not in (34, 92) else f"\\x{b:02x}" for b in value
            )
            + '"'
        )
    return f"{value:_}" if value >= 10_000 else str(value)


def _tables(spec: Spec) -> list[str]:
    lines = ["", "# Tables."]
    for direction in ("client", "server"):
        lines.append(f"{direction.upper()}_BODY_BYTES: Final[dict[int, tuple[int, int]]] = {{")
        for frame in spec.frames_of(direction):
            low, high = frame.body_bytes
            lines.append(f"    0x{frame.op:02X}: ({low}, {high}),  # {frame.op_char} {frame.name}")
        lines.append("}")
        lines.append(f'"""Lowest and highest body length of each op that a {direction} sends."""')
    lines.append("ERRORS: Final[dict[int, tuple[str, str, bool, str]]] = {")
    for error in spec.errors:
        lines.append(
            f'    {error.code}: ("{error.name}", "{error.kind}", {error.closes}, "{error.retry}"),'
        )
    lines.append("}")
    lines.append(
        '"""Code: name, error kind, whether it closes, and where a client tries again by itself."""'
    )
    return lines
