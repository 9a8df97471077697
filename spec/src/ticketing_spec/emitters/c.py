"""Constants as a C header."""

from __future__ import annotations

from ticketing_spec.constants import Named, constants, is_op
from ticketing_spec.model import Spec

PREFIX = "TICKETING_"


def emit(spec: Spec, header: str) -> str:
    guard = "TICKETING_CONSTANTS_GEN_H"
    lines = [f"/* {header} */", "", f"#ifndef {guard}", f"#define {guard}", ""]
    lines.append("/* Names the spec that these constants come from. */")
    lines.append(f'#define {PREFIX}SPEC_DIGEST "{spec.digest}"')
    section = ""
    for item in constants(spec):
        if item.section != section:
            section = item.section
            lines += ["", f"/* -- {section}. -- */", ""]
        lines += [f"/* {item.about} */", f"#define {_name(item)} {_literal(item)}"]
        if isinstance(item.value, bytes):
            lines.append(f"#define {_name(item)}_BYTES {len(item.value)}")
    lines += _tables(spec)
    return "\n".join([*lines, "", f"#endif /* {guard} */"]) + "\n"


def _name(item: Named) -> str:
    # An error of the wire and a status of the library are different things.
    name = item.name
    return PREFIX + (f"WIRE_{name}" if name.startswith("ERROR_") and "BYTES" not in name else name)


def _literal(item: Named) -> str:
    if isinstance(item.value, bytes):
        return '"' + "".join(chr(b) if 32 <= b < 127 else f"\\{b:03o}" for b in item.value) + '"'
    if is_op(item):
        return f"'{chr(item.value)}'"
    return f"{item.value}u" if item.value >= 2**31 else str(item.value)


def _tables(spec: Spec) -> list[str]:
    lines: list[str] = []
    for direction in ("client", "server"):
        name = f"{PREFIX}{direction.upper()}_BODY_BYTES"
        lines += [
            "",
            f"/* X(op, lowest, highest body length) for each frame of the {direction}. */",
        ]
        lines.append(f"#define {name}(X) \\")
        rows = []
        for frame in spec.frames_of(direction):
            low, high = frame.body_bytes
            rows.append(f"    X('{frame.op_char}', {low}, {high})")
        lines.append(" \\\n".join(rows))
    lines += [
        "",
        "/* X(code, name, error kind, closes, where a client tries again) for each error. */",
    ]
    lines.append(f"#define {PREFIX}WIRE_ERRORS(X) \\")
    rows = [
        f'    X({e.code}, "{e.name}", "{e.kind}", {int(e.closes)}, "{e.retry}")'
        for e in spec.errors
    ]
    return [*lines, " \\\n".join(rows)]
