"""Constants as a Java class."""

from __future__ import annotations

from ticketing_spec.constants import Named, constants, is_op
from ticketing_spec.model import Spec

PACKAGE = "io.github.ticketingproject"


def emit(spec: Spec, header: str) -> str:
    lines = [f"// {header}", "", f"package {PACKAGE};", ""]
    lines += ["import java.util.Map;", ""]
    lines.append("/** Numbers, names and texts of the Ticketing protocol. */")
    lines += ["final class ConstantsGen {", "    private ConstantsGen() {}", ""]
    lines.append("    /** Names the spec that these constants come from. */")
    lines.append(f'    static final String SPEC_DIGEST = "{spec.digest}";')
    section = ""
    for item in constants(spec):
        if item.section != section:
            section = item.section
            lines += ["", f"    // {section}.", ""]
        lines += [f"    /** {_doc(item.about)} */", f"    static final {_typed(item)};"]
    lines += _tables(spec)
    return "\n".join([*lines, "}"]) + "\n"


def _doc(text: str) -> str:
    parts = text.split("`")
    return "".join(f"{{@code {p}}}" if i % 2 else p for i, p in enumerate(parts))


def _typed(item: Named) -> str:
    if isinstance(item.value, bytes):
        # An array can be written to, so each reader makes its own bytes of the text.
        text = "".join(chr(b) if 32 <= b < 127 else f"\\u{b:04x}" for b in item.value)
        return f'String {item.name} = "{text}"'
    if is_op(item):
        return f"byte {item.name} = '{chr(item.value)}'"
    if item.value > 2**31 - 1:
        return f"long {item.name} = {item.value}L"
    return f"int {item.name} = {item.value}"


def _tables(spec: Spec) -> list[str]:
    lines = ["", "    /** Lowest and highest length of a body. */"]
    lines += ["    record BodyBytes(int low, int high) {}"]
    for direction in ("client", "server"):
        name = f"{direction.upper()}_BODY_BYTES"
        lines += ["", f"    /** The bounds of each op that a {direction} sends. */"]
        lines.append(f"    static final Map<Byte, BodyBytes> {name} = Map.ofEntries(")
        rows = []
        for frame in spec.frames_of(direction):
            low, high = frame.body_bytes
            op = f"(byte) '{frame.op_char}'"
            rows.append(f"        Map.entry({op}, new BodyBytes({low}, {high}))")
        lines.append(",\n".join(rows) + ");")
    lines += ["", "    /** A row of the table of error codes. */"]
    lines.append("    record ErrorRow(String name, String kind, boolean closes, String retry) {}")
    lines += ["", "    /** Each error code. */"]
    lines.append("    static final Map<Integer, ErrorRow> ERRORS = Map.ofEntries(")
    rows = []
    for error in spec.errors:
        closes = str(error.closes).lower()
        row = f'new ErrorRow("{error.name}", "{error.kind}", {closes}, "{error.retry}")'
        rows.append(f"        Map.entry({error.code}, {row})")
    return [*lines, ",\n".join(rows) + ");"]
