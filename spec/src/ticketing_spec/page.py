"""PROTOCOL.md: a template with prose, whose markers are replaced by what the spec says.

A marker is a line `{{ name arguments }}`; a leading `v3` takes version 3's spec.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from ticketing_spec import examples
from ticketing_spec.model import Field, Frame, Machine, Spec, SpecError

MARKER = re.compile(r"^\{\{ (.+) \}\}$", re.MULTILINE)


def render(spec: Spec, version3: Spec, template: str, header: str) -> str:
    """The page; raises SpecError for a marker that leads nowhere and for rules that none shows."""
    shown: dict[int, set[str]] = {3: set(), 4: set()}

    def replace(match: re.Match[str]) -> str:
        words = match.group(1).split()
        source = spec
        if words[0] == "v3":
            source, words = version3, words[1:]
        if words[0] == "rules":
            shown[source.version].update(words[1:])
        try:
            make = MARKERS[words[0]]
            return "\n".join(make(source, *words[1:]))
        except (KeyError, StopIteration, TypeError) as error:
            raise SpecError(f"protocol.md.tmpl: {match.group(0)} leads nowhere: {error}") from error

    body = MARKER.sub(replace, template)
    for source in (spec, version3):
        missing = {r.area for r in source.requirements} - shown[source.version]
        if missing:
            names = ", ".join(sorted(missing))
            raise SpecError(f"protocol.md.tmpl: no marker shows the rules of {names}")
    return f"<!-- {header} -->\n\n{body}"


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> list[str]:
    columns = list(head)
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    for row in rows:
        cells = [str(cell).replace("|", "\\|") for cell in row]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def frame_overview(spec: Spec, direction: str) -> list[str]:
    rows = []
    for frame in spec.frames_of(direction):
        low, high = frame.body_bytes
        length = str(low) if low == high else f"{low} to {high}"
        ops = " ".join(f"`{spec.frame('server', r).op_char}`" for r in frame.replies)
        row = [f"`{frame.op_char}` 0x{frame.op:02X}", f"[{frame.name}](#{anchor(spec, frame)})"]
        rows.append([*row, length, *([ops] if direction == "client" else []), frame.about])
    head = ["op", "frame", "body bytes", *(["replies"] if direction == "client" else []), "about"]
    return table(head, rows)


def anchor(spec: Spec, frame: Frame) -> str:
    """The anchor of a frame's heading, as it is made from `title`."""
    version = "-version-3" if spec.version == 3 else ""
    return f"{frame.op_char.lower()}-{frame.name.replace('_', '-')}-{frame.direction}{version}"


def title(spec: Spec, frame: Frame) -> str:
    version = " version 3" if spec.version == 3 else ""
    return f"{frame.op_char} {frame.name.replace('_', ' ')} ({frame.direction}){version}"


def frames(spec: Spec, direction: str, level: str = "4") -> list[str]:
    """Every frame of a direction with heading, diagram and table."""
    lines: list[str] = []
    for frame in spec.frames_of(direction):
        lines += ["#" * int(level) + " " + title(spec, frame), "", frame.about, ""]
        if frame.replies:
            names = ", ".join(f"`{name}`" for name in frame.replies)
            lines += [f"Answered with one of: {names}.", ""]
        lines += [*diagram(frame), "", *field_table(spec, frame), ""]
    return lines[:-1]


def preamble(spec: Spec, name: str) -> list[str]:
    frame = spec.preamble(name)
    return [*diagram(frame), "", *field_table(spec, frame)]


def diagram(frame: Frame) -> list[str]:
    """Boxes with the offset above each, its name inside and its bytes below."""
    cells: list[tuple[str, str, str]] = []
    start = 0
    if frame.op is not None:
        cells = [("0", f"'{frame.op_char}'", "1"), ("1", "length", "2")]
        start = 3
    for offset, field in frame.offsets():
        cells.append((str(start + offset), field.name, _bytes(frame, field)))
    widths = [max(len(name), len(size), len(offset) - 1) + 2 for offset, name, size in cells]
    rule = "+" + "+".join("-" * w for w in widths) + "+"
    tops = "".join(o.ljust(w + 1) for (o, _, _), w in zip(cells, widths, strict=True))
    names = "|" + "|".join(n.center(w) for (_, n, _), w in zip(cells, widths, strict=True)) + "|"
    sizes = " " + " ".join(s.center(w) for (_, _, s), w in zip(cells, widths, strict=True))
    lines = [tops.rstrip(), rule, names, rule, sizes.rstrip()]
    return ["```", *lines, "```"]


def _bytes(frame: Frame, field: Field) -> str:
    if not field.is_tail:
        return str(field.size)
    low, high = (n - frame.fixed_bytes for n in frame.body_bytes)
    return f"{low} to {high}"


def field_table(spec: Spec, frame: Frame) -> list[str]:
    start = 0 if frame.op is None else 3
    rows = [
        [start + offset, f"`{f.name}`", _type(f), _takes(spec, f), f.origin, f.about]
        for offset, f in frame.offsets()
    ]
    return table(["offset", "field", "type", "takes", "origin", "about"], rows)


def _type(field: Field) -> str:
    return f"{field.size} bytes" if field.type == "bytes" else field.type


def _takes(spec: Spec, field: Field) -> str:
    if field.enum == "error":
        return "a code of the table of errors"
    if field.enum is not None:
        return ", ".join(f"{v.value} {v.name}" for v in spec.enum(field.enum).values)
    if field.const is not None:
        return f"`{field.const.hex(' ')}`"
    full = 2 ** (8 * (field.size or 0)) - 1
    if field.is_tail or (field.is_integer and (field.min, field.max) != (0, full)):
        unit = f" {field.unit}" if field.unit else ""
        fixed = str(field.min) if field.min == field.max else f"{field.min} to {field.max}"
        return f"{fixed}{unit}"
    return "any"


def numbers(spec: Spec, group: str, *sides: str) -> list[str]:
    rows = [
        [f"`{c.name}`", f"{c.value:,}", c.unit, c.about]
        for c in spec.constants
        if c.group == group and (not sides or c.side in sides)
    ]
    return table(["name", "value", "unit", "about"], rows)


def enum(spec: Spec, name: str) -> list[str]:
    rows = [[v.value, f"`{v.name}`", v.about] for v in spec.enum(name).values]
    return table(["value", "name", "about"], rows)


def errors(spec: Spec) -> list[str]:
    if spec.version == 3:
        return table(
            ["code", "name", "when"], [[e.code, f"`{e.name}`", e.when] for e in spec.errors]
        )
    rows = [
        [
            e.code,
            f"`{e.name}`",
            e.when,
            "yes" if e.closes else "no",
            f"`{e.kind}`",
            e.retry.replace("_", " "),
        ]
        for e in spec.errors
    ]
    head = ["code", "name", "when", "closes", "error kind", "client tries again"]
    return table(head, rows)


def digest(spec: Spec, name: str) -> list[str]:
    what = spec.digest_of(name)
    parts = []
    for part in what.parts:
        kind, _, detail = part.partition(":")
        if kind == "context":
            parts.append(f'"{spec.context(detail).decode()}"')
        else:
            parts.append(f"{kind} ({detail})" if detail else kind)
    key = "key secret, " if what.keyed else ""
    cut = "" if what.size == 32 else f", first {what.size} bytes"
    lines = ["```", f"{name} = {what.algorithm}({key}data){cut}", "  data = " + parts[0]]
    lines += [f"       ‖ {part}" for part in parts[1:]]
    return [*lines, "```"]


def machine(spec: Spec, name: str) -> list[str]:
    """A state diagram and the table that it is drawn from."""
    what = next(m for m in spec.machines if m.name == name)
    states = table(["state", "about"], [[f"`{n}`", about] for n, about in what.states])
    rows = [[f"`{t.source}`", t.on, f"`{t.target}`", t.does] for t in what.transitions]
    moves = table(["in", "on", "to", "does"], rows)
    return [what.about, "", *_drawn(what), "", *states, "", *moves]


def _drawn(what: Machine) -> list[str]:
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {what.states[0][0]}"]
    for move in what.transitions:
        on = move.on.replace(":", "").replace(";", ",")
        lines.append(f"    {move.source} --> {move.target}: {on}")
    last = [n for n, _ in what.states if all(t.source != n for t in what.transitions)]
    lines += [f"    {name} --> [*]" for name in last]
    return [*lines, "```"]


def malformed(spec: Spec, *sides: str) -> list[str]:
    rows = [
        [f"`{m.id}`", m.why, m.layer, f"`{m.error}`" if m.error else ""]
        for m in spec.malformed
        if m.side in (*sides, "both")
    ]
    return table(["case", "what is wrong", "layer", "answer"], rows)


def rules(spec: Spec, *areas: str) -> list[str]:
    rows = [
        [f'<a id="{r.id.lower()}"></a>{r.id}', r.side, r.level, r.text]
        for area in areas
        for r in spec.requirements
        if r.area == area
    ]
    if not rows:
        raise KeyError(f"no requirement is in {', '.join(areas)}")
    return table(["id", "who", "level", "rule"], rows)


def index(spec: Spec) -> list[str]:
    """Every requirement as a link, by area."""
    areas = list(dict.fromkeys(r.area for r in spec.requirements))
    rows = []
    for area in areas:
        listed = [r for r in spec.requirements if r.area == area]
        links = " · ".join(f"[{r.id.split('-')[2]}](#{r.id.lower()})" for r in listed)
        rows.append([f"REQ-{area}-…", len(listed), links])
    total = len(spec.requirements)
    musts = sum(r.level == "MUST" for r in spec.requirements)
    count = f"{total} requirements, {musts} of them MUST."
    return [count, "", *table(["area", "rules", "links"], rows)]


def metrics(spec: Spec) -> list[str]:
    rows = [[f"`{m.name}`", m.type, ", ".join(m.labels), m.about] for m in spec.metrics]
    return table(["metric", "type", "labels", "about"], rows)


MARKERS: dict[str, Callable[..., list[str]]] = {
    "overview": frame_overview,
    "frames": frames,
    "preamble": preamble,
    "numbers": numbers,
    "enum": enum,
    "errors": errors,
    "digest": digest,
    "machine": machine,
    "malformed": malformed,
    "rules": rules,
    "index": index,
    "metrics": metrics,
    "example": examples.example,
}
