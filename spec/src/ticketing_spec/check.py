"""`check`: a spec file fits its schema and does not contradict itself.

Each problem is one line: file, place, what was given, what is taken.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema

from ticketing_spec.codec import LAYERS
from ticketing_spec.model import (
    INTEGER_BYTES,
    SPEC_DIR,
    Frame,
    Spec,
    SpecError,
    build_spec,
    read_toml,
)
from ticketing_spec.spoil import SPOILERS

SCHEMA = SPEC_DIR / "schema" / "spec.schema.json"
UNIT_SUFFIX = {"bytes": "bytes", "keys": "keys", "ms": "ms", "s": "s", "slot": "slot"}
ONE_KEY_FRAME_BYTES_MAX = 255


def check_file(path: Path) -> list[str]:
    """All problems of one spec file; empty if it is sound."""
    try:
        data, raw = read_toml(path)
    except SpecError as error:
        return [str(error)]
    problems = [f"{path.name}: {p}" for p in schema_problems(raw)]
    if problems:
        return problems
    problems = [f"{path.name}: {p}" for p in reference_problems(raw)]
    if problems:
        return problems
    spec = build_spec(path.name, data, raw)
    return [f"{path.name}: {p}" for p in semantic_problems(spec)]


def schema_problems(raw: dict[str, Any]) -> Iterator[str]:
    schema = json.loads(SCHEMA.read_text())
    validator = jsonschema.Draft202012Validator(schema)
    for error in sorted(
        validator.iter_errors(raw), key=lambda e: [str(p) for p in e.absolute_path]
    ):
        yield f"{_place(raw, list(error.absolute_path))}: {_say(error)}"


def _place(raw: Any, path: Sequence[str | int]) -> str:
    """A path as a reader would name it: `frame acquire, fields lease_ms, min`."""
    words: list[str] = []
    here = raw
    for step in path:
        here = here[step]
        if isinstance(step, int):
            label = None
            if isinstance(here, dict):
                label = here.get("name") or here.get("id")
            if isinstance(label, str) and "direction" in here:
                label = f"{here['direction']} {label}"
            text = str(label) if label else f"number {step + 1}"
            words[-1:] = [f"{words[-1]} {text}"] if words else [text]
        else:
            words.append(str(step))
    return ", ".join(words) or "the file"


def _say(error: jsonschema.ValidationError) -> str:
    instance: Any = error.instance
    takes: Any = error.validator_value
    schema: Any = error.schema
    given = json.dumps(instance, ensure_ascii=False, default=str)[:120]
    if error.validator == "enum":
        return f"is {given}; takes one of {', '.join(map(str, takes))}"
    if error.validator == "const":
        return f"is {given}; takes {json.dumps(takes)}"
    if error.validator == "pattern":
        return f"is {given}; takes a text that matches {takes}"
    if error.validator == "type":
        return f"is {given}; takes {takes}"
    if error.validator == "minimum":
        return f"is {given}; takes {takes} or more"
    if error.validator == "maximum":
        return f"is {given}; takes {takes} or less"
    if error.validator == "required":
        missing = [name for name in takes if name not in instance]
        return f"lacks {', '.join(missing)}; takes {', '.join(takes)}"
    if error.validator == "additionalProperties":
        known = sorted(schema.get("properties", {}))
        unknown = sorted(set(instance) - set(known))
        return f"has {', '.join(unknown)}; takes only {', '.join(known)}"
    return error.message[:200]


def reference_problems(raw: dict[str, Any]) -> Iterator[str]:
    """Names that lead nowhere: without them the model can't be built."""
    numbers = {c["name"] for group in ("limit", "default", "timer") for c in raw.get(group, [])}
    contexts = {c["name"] for c in raw["context"]}
    for table in [*raw["preamble"], *raw["frame"]]:
        for field in table["fields"]:
            place = f"{table['direction']} {table['name']}, field {field['name']}"
            for bound in ("min", "max"):
                value = field.get(bound)
                if isinstance(value, str) and value not in numbers:
                    yield f"{place}: {bound} is {value!r}; takes a number or the name of a limit"
            if field.get("const", "greeting_magic") not in contexts | {"greeting_magic"}:
                yield f"{place}: const is {field['const']!r}; takes the name of a context"
            if field["type"] == "bytes" and "size" not in field:
                yield f"{place}: type bytes has no size; takes the number of bytes"


def semantic_problems(spec: Spec) -> Iterator[str]:
    for rule in RULES:
        yield from rule(spec)


def _doubles(what: str, names: Sequence[object]) -> Iterator[str]:
    for name in sorted({str(n) for n in names if names.count(n) > 1}):
        yield f"{what} {name} stands {[str(n) for n in names].count(name)} times; takes one"


def names_are_unique(spec: Spec) -> Iterator[str]:
    yield from _doubles("constant", [c.name for c in spec.constants])
    yield from _doubles("context", [c.name for c in spec.contexts])
    yield from _doubles("enum", [e.name for e in spec.enums])
    yield from _doubles("error code", [e.code for e in spec.errors])
    yield from _doubles("error name", [e.name for e in spec.errors])
    yield from _doubles("digest", [d.name for d in spec.digests])
    yield from _doubles("requirement", [r.id for r in spec.requirements])
    yield from _doubles("malformed case", [m.id for m in spec.malformed])
    yield from _doubles("metric", [m.name for m in spec.metrics])
    yield from _doubles("machine", [m.name for m in spec.machines])
    yield from _doubles("preamble", [p.name for p in spec.preambles])
    for direction in ("client", "server"):
        frames = spec.frames_of(direction)
        yield from _doubles(f"{direction} op", [f.op_char for f in frames])
        yield from _doubles(f"{direction} frame", [f.name for f in frames])
    for enum in spec.enums:
        yield from _doubles(f"enum {enum.name}, value", [v.value for v in enum.values])
        yield from _doubles(f"enum {enum.name}, name", [v.name for v in enum.values])
    for frame in (*spec.preambles, *spec.frames):
        yield from _doubles(f"{frame.name}, field", [f.name for f in frame.fields])


def constants_have_units(spec: Spec) -> Iterator[str]:
    for constant in spec.constants:
        suffix = UNIT_SUFFIX.get(constant.unit)
        if suffix and suffix not in constant.name.split("_"):
            place = f"{constant.group} {constant.name}"
            yield f"{place}: the name lacks its unit {constant.unit!r}; takes one with _{suffix}"
    values = {c.name: c.value for c in spec.constants}
    for name, low in values.items():
        high = values.get(re.sub(r"_min$", "_max", name), low)
        if name.endswith("_min") and high < low:
            yield f"{name} is {low}, above its maximum {high}"


def fields_are_consistent(spec: Spec) -> Iterator[str]:
    errors = {e.name for e in spec.errors}
    enums = {e.name for e in spec.enums} | {"error"}
    for frame in (*spec.preambles, *spec.frames):
        for position, field in enumerate(frame.fields, 1):
            place = f"{frame.direction} {frame.name}, field {field.name}"
            if field.is_tail and position < len(frame.fields):
                yield f"{place}: the tail is not the last field; takes the last place"
            if field.min > field.max:
                yield f"{place}: min {field.min} is above max {field.max}"
            if field.is_integer and field.max >= 2 ** (8 * INTEGER_BYTES[field.type]):
                yield f"{place}: max {field.max} does not fit into {field.type}"
            if field.enum is not None and field.enum not in enums:
                yield f"{place}: enum is {field.enum!r}; takes one of {', '.join(sorted(enums))}"
            if field.enum is not None and field.type != "u8":
                yield f"{place}: an enum has type {field.type}; takes u8"
            if field.const is not None and len(field.const) != field.size:
                yield f"{place}: size is {field.size}; takes {len(field.const)} as its const"
            if field.refusal is not None and field.refusal not in errors:
                yield f"{place}: refusal is {field.refusal!r}; takes the name of an error"
            if field.forbidden and field.type not in ("key", "keys"):
                yield f"{place}: forbidden bytes stand at a {field.type}; takes a key or keys"


def frames_are_consistent(spec: Spec) -> Iterator[str]:
    replies = {f.name for f in spec.frames_of("server")}
    for preamble in spec.preambles:
        if preamble.tail is not None:
            yield f"preamble {preamble.name} has a tail {preamble.tail.type}; takes fixed fields"
    for frame in spec.frames:
        place = f"{frame.direction} {frame.name}"
        if frame.direction == "client" and not frame.replies:
            yield f"{place}: has no replies; takes the names of server frames"
        if frame.direction == "server" and frame.replies:
            yield f"{place}: has replies; only a client's frame takes them"
        for reply in frame.replies:
            if reply not in replies:
                takes = ", ".join(sorted(replies))
                yield f"{place}: reply {reply!r} is no server frame; takes {takes}"
        yield from _sizes(frame, place)


def _sizes(frame: Frame, place: str) -> Iterator[str]:
    high = frame.body_bytes[1]
    if high > 0xFFFF:
        yield f"{place}: its body may have {high} bytes; takes 65535 at most"
    if frame.tail is not None and frame.tail.type == "key" and high + 3 > ONE_KEY_FRAME_BYTES_MAX:
        yield f"{place}: may have {high + 3} bytes; a frame with one key takes 255 at most"


def requirements_are_well_formed(spec: Spec) -> Iterator[str]:
    for requirement in spec.requirements:
        words = set(re.findall(r"[a-z]+", requirement.text.lower()))
        if re.search(r"\. [A-Z]", requirement.text):
            yield f"requirement {requirement.id}: has several sentences; takes one behaviour"
        if len(words) < 5:
            yield f"requirement {requirement.id}: is {requirement.text!r}; takes a whole sentence"
        if requirement.level == "MUST" and "should" in words:
            yield f"requirement {requirement.id}: a MUST says 'should'; takes what is"


def malformed_cases_are_known(spec: Spec) -> Iterator[str]:
    errors = {e.name for e in spec.errors}
    for case in spec.malformed:
        place = f"malformed {case.id}"
        if case.layer not in LAYERS:
            yield f"{place}: layer is {case.layer!r}; takes one of {', '.join(LAYERS)}"
        if case.error is not None and case.error not in errors:
            yield f"{place}: error is {case.error!r}; takes the name of an error"
        if case.layer == "state" and case.spoil is not None:
            yield f"{place}: a case of layer state has a spoil; one frame can't show it"
        if case.layer != "state" and (case.spoil or "").partition(":")[0] not in SPOILERS:
            yield f"{place}: spoil is {case.spoil!r}; takes one of {', '.join(SPOILERS)}"


def digests_lead_somewhere(spec: Spec) -> Iterator[str]:
    contexts = {c.name for c in spec.contexts}
    parts = {f"{t.name}.{f.name}" for t in (*spec.preambles, *spec.frames) for f in t.fields}
    for digest in spec.digests:
        for part in digest.parts:
            kind, _, detail = part.partition(":")
            if kind == "context" and detail not in contexts:
                yield f"digest {digest.name}: {part!r} names no context"
            if "." in part and part not in parts:
                yield f"digest {digest.name}: {part!r} names no field; takes frame.field"
        if digest.keyed != (digest.algorithm == "HMAC-SHA-256"):
            yield f"digest {digest.name}: {digest.algorithm} has keyed={digest.keyed}"


def machines_are_connected(spec: Spec) -> Iterator[str]:
    for machine in spec.machines:
        states = [name for name, _ in machine.states]
        yield from _doubles(f"machine {machine.name}, state", states)
        yield from _doubles(
            f"machine {machine.name}, transition",
            [f"{t.source} on {t.on}" for t in machine.transitions],
        )
        reached = {states[0]}
        for _ in states:
            reached |= {t.target for t in machine.transitions if t.source in reached}
        for transition in machine.transitions:
            for name in (transition.source, transition.target):
                if name not in states:
                    yield f"machine {machine.name}: {name!r} is no state; takes {', '.join(states)}"
        for name in states:
            if name not in reached:
                yield f"machine {machine.name}: state {name} is never reached from {states[0]}"


RULES: Sequence[Callable[[Spec], Iterator[str]]] = (
    names_are_unique,
    constants_have_units,
    fields_are_consistent,
    frames_are_consistent,
    requirements_are_well_formed,
    malformed_cases_are_known,
    digests_lead_somewhere,
    machines_are_connected,
)
