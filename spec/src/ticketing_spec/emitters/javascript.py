"""Constants as a TypeScript module."""

from __future__ import annotations

from ticketing_spec.constants import constants, is_op
from ticketing_spec.model import Spec


def emit(spec: Spec, header: str) -> str:
    lines = [f"// {header}", "", "/** Names the spec that these constants come from. */"]
    lines.append(f'export const SPEC_DIGEST = "{spec.digest}";')
    section = ""
    for item in constants(spec):
        if item.section != section:
            section = item.section
            lines += ["", f"// {section}.", ""]
        lines.append(f"/** {item.about} */")
        if isinstance(item.value, bytes):
            numbers = ", ".join(f"0x{b:02x}" for b in item.value)
            lines.append(f"export const {item.name}: Uint8Array = Uint8Array.of({numbers});")
        else:
            value = f"0x{item.value:02x}" if is_op(item) else str(item.value)
            lines.append(f"export const {item.name} = {value};")
    lines += _tables(spec)
    return "\n".join(lines) + "\n"


def _tables(spec: Spec) -> list[str]:
    lines: list[str] = []
    for direction in ("client", "server"):
        lines += ["", f"/** Lowest and highest body length of each op that a {direction} sends. */"]
        name = f"{direction.upper()}_BODY_BYTES"
        lines.append(
            f"export const {name}: ReadonlyMap<number, readonly [number, number]> = new Map(["
        )
        for frame in spec.frames_of(direction):
            low, high = frame.body_bytes
            lines.append(f"  [0x{frame.op:02x}, [{low}, {high}]],")
        lines.append("]);")
    lines += ["", "/** A row of the table of error codes. */", "export interface ErrorRow {"]
    lines += ["  readonly name: string;", "  readonly kind: string;", "  readonly closes: boolean;"]
    lines += ["  readonly retry: string;", "}", "", "/** Each error code. */"]
    lines.append("export const ERRORS: ReadonlyMap<number, ErrorRow> = new Map([")
    for error in spec.errors:
        closes = str(error.closes).lower()
        names = f'name: "{error.name}", kind: "{error.kind}"'
        row = f'{{ {names}, closes: {closes}, retry: "{error.retry}" }}'
        lines.append(f"  [{error.code}, {row}],")
    return [*lines, "]);"]
