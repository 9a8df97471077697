"""The spec as frozen dataclasses, read from a toml file.

The model holds what the file says and what follows from it (sizes, bounds); it decides nothing.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

SPEC_DIR = Path(__file__).resolve().parents[2]
SPEC_FILES = {"ticketing": "ticketing.toml", "version3": "version3.toml"}
HEADER_BYTES = 3
INTEGER_BYTES = {"u8": 1, "u16": 2, "u32": 4, "u64": 8}
TAIL_TYPES = ("key", "keys", "label", "address", "text")


class SpecError(Exception):
    """The spec file can't be used; the text names file, place, what was given and what is taken."""


@dataclass(frozen=True)
class Constant:
    """A named number (limit, default or timer) with its unit."""

    group: str
    name: str
    value: int
    unit: str
    side: str
    about: str


@dataclass(frozen=True)
class Context:
    """A named ASCII text that is hashed or compared as bytes."""

    name: str
    data: bytes
    about: str


@dataclass(frozen=True)
class EnumValue:
    value: int
    name: str
    about: str


@dataclass(frozen=True)
class Enum:
    """A closed set of values of a one-byte field."""

    name: str
    about: str
    values: tuple[EnumValue, ...]

    def name_of(self, value: int) -> str | None:
        return next((v.name for v in self.values if v.value == value), None)


@dataclass(frozen=True)
class Digest:
    """What is hashed, part after part, and how many bytes of the result are used."""

    name: str
    algorithm: str
    keyed: bool
    size: int
    parts: tuple[str, ...]
    about: str


@dataclass(frozen=True)
class ErrorCode:
    code: int
    name: str
    kind: str
    closes: bool
    retry: str
    when: str


@dataclass(frozen=True)
class Requirement:
    """One testable behaviour."""

    id: str
    side: str
    level: str
    text: str

    @property
    def area(self) -> str:
        return self.id.split("-")[1]


@dataclass(frozen=True)
class MalformedCase:
    """A way to spoil a frame, and the layer that rejects it; `spoil` None cannot be one frame."""

    id: str
    side: str
    layer: str
    spoil: str | None
    error: str | None
    why: str


@dataclass(frozen=True)
class Transition:
    source: str
    on: str
    target: str
    does: str


@dataclass(frozen=True)
class Machine:
    """A state machine as a table; the first state is the one it begins in."""

    name: str
    about: str
    states: tuple[tuple[str, str], ...]
    transitions: tuple[Transition, ...]


@dataclass(frozen=True)
class Metric:
    name: str
    type: str
    labels: tuple[str, ...]
    about: str


@dataclass(frozen=True)
class Field:
    """A field; min and max bound an integer's value, a tail's bytes, a set's keys."""

    name: str
    type: str
    size: int | None
    min: int
    max: int
    unit: str
    enum: str | None
    const: bytes | None
    forbidden: bytes
    """Bytes that a key must not have."""
    refusal: str | None
    """The error that answers a value out of bounds; None where that breaks the connection."""
    origin: str
    about: str

    @property
    def is_tail(self) -> bool:
        return self.type in TAIL_TYPES

    @property
    def is_integer(self) -> bool:
        return self.type in INTEGER_BYTES


@dataclass(frozen=True)
class Frame:
    """A frame, or with `op` None a preamble: the same fields without a header."""

    op: int | None
    name: str
    direction: str
    about: str
    replies: tuple[str, ...]
    fields: tuple[Field, ...]
    key_bytes: tuple[int, int]
    """Bounds of one key, which the bounds of a set's bytes follow from."""

    @property
    def op_char(self) -> str:
        return "" if self.op is None else chr(self.op)

    @property
    def tail(self) -> Field | None:
        return self.fields[-1] if self.fields and self.fields[-1].is_tail else None

    @cached_property
    def fixed_bytes(self) -> int:
        return sum(f.size or 0 for f in self.fields)

    @cached_property
    def body_bytes(self) -> tuple[int, int]:
        """Lowest and highest length of the body."""
        tail = self.tail
        if tail is None:
            return self.fixed_bytes, self.fixed_bytes
        low, high = tail.min, tail.max
        if tail.type == "keys":
            low = 1 + tail.min * (1 + self.key_bytes[0])
            high = 1 + tail.max * (1 + self.key_bytes[1])
        return self.fixed_bytes + low, self.fixed_bytes + high

    def offsets(self) -> list[tuple[int, Field]]:
        """Each field with its offset in the body."""
        result, offset = [], 0
        for field in self.fields:
            result.append((offset, field))
            offset += field.size or 0
        return result


@dataclass(frozen=True)
class Spec:
    """Everything that one toml file says."""

    file: str
    digest: str
    raw: Mapping[str, Any]
    name: str
    version: int
    constants: tuple[Constant, ...]
    contexts: tuple[Context, ...]
    enums: tuple[Enum, ...]
    errors: tuple[ErrorCode, ...]
    digests: tuple[Digest, ...]
    preambles: tuple[Frame, ...]
    frames: tuple[Frame, ...]
    requirements: tuple[Requirement, ...]
    malformed: tuple[MalformedCase, ...]
    machines: tuple[Machine, ...]
    metrics: tuple[Metric, ...]

    def constant(self, name: str) -> int:
        for constant in self.constants:
            if constant.name == name:
                return constant.value
        raise KeyError(f"{self.file} has no constant named {name!r}")

    def context(self, name: str) -> bytes:
        for context in self.contexts:
            if context.name == name:
                return context.data
        raise KeyError(f"{self.file} has no context named {name!r}")

    def enum(self, name: str) -> Enum:
        """The enum of this name; `error` is made from the error codes."""
        if name == "error":
            values = tuple(EnumValue(e.code, e.name, e.when) for e in self.errors)
            return Enum("error", "What went wrong.", values)
        return next(e for e in self.enums if e.name == name)

    def digest_of(self, name: str) -> Digest:
        return next(d for d in self.digests if d.name == name)

    def frames_of(self, direction: str) -> tuple[Frame, ...]:
        return tuple(f for f in self.frames if f.direction == direction)

    def frame(self, direction: str, name: str) -> Frame:
        for frame in self.frames:
            if frame.direction == direction and frame.name == name:
                return frame
        names = ", ".join(f.name for f in self.frames_of(direction))
        raise KeyError(f"no {direction} frame is named {name!r}; there are: {names}")

    def preamble(self, name: str) -> Frame:
        for preamble in self.preambles:
            if preamble.name == name:
                return preamble
        names = ", ".join(p.name for p in self.preambles)
        raise KeyError(f"no preamble is named {name!r}; there are: {names}")


def load_spec(name: str = "ticketing", directory: Path = SPEC_DIR) -> Spec:
    """Read `ticketing.toml` (version 4) or with "version3" `version3.toml`.

    Raises SpecError where the file is missing or not toml; `ticketing_spec.check` tells the rest.
    """
    if name not in SPEC_FILES:
        raise SpecError(f"no spec is named {name!r}; there are: {', '.join(SPEC_FILES)}")
    return read_spec(directory / SPEC_FILES[name])


def read_spec(path: Path) -> Spec:
    """Read one spec file from anywhere."""
    return build_spec(path.name, *read_toml(path))


def read_toml(path: Path) -> tuple[bytes, dict[str, Any]]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SpecError(f"{path.name}: can't be read: {error.strerror}") from error
    try:
        return data, tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SpecError(f"{path.name}: is not toml: {error}") from error


def build_spec(file: str, data: bytes, raw: dict[str, Any]) -> Spec:
    constants = tuple(
        Constant(
            group,
            c["name"],
            c["value"],
            c.get("unit", "ms" if group == "timer" else ""),
            c.get("side", "both"),
            c["about"],
        )
        for group in ("limit", "default", "timer")
        for c in raw.get(group, [])
    )
    contexts = tuple(
        Context(
            c["name"], bytes.fromhex(c["hex"]) if "hex" in c else c["text"].encode(), c["about"]
        )
        for c in raw.get("context", [])
    )
    enums = tuple(
        Enum(
            e["name"],
            e["about"],
            tuple(EnumValue(v["value"], v["name"], v["about"]) for v in e["values"]),
        )
        for e in raw.get("enum", [])
    )
    errors = tuple(
        ErrorCode(
            e["code"], e["name"], e.get("kind", ""), e["closes"], e.get("retry", "none"), e["when"]
        )
        for e in raw.get("error", [])
    )
    digests = tuple(
        Digest(d["name"], d["algorithm"], "key" in d, d["bytes"], tuple(d["parts"]), d["about"])
        for d in raw.get("digest", [])
    )
    numbers = {c.name: c.value for c in constants}
    texts = {c.name: c.data for c in contexts}
    return Spec(
        file=file,
        digest=hashlib.sha256(data).hexdigest()[:16],
        raw=raw,
        name=raw["protocol"]["name"],
        version=raw["protocol"]["version"],
        constants=constants,
        contexts=contexts,
        enums=enums,
        errors=errors,
        digests=digests,
        preambles=_frames(raw.get("preamble", []), numbers, texts),
        frames=_frames(raw.get("frame", []), numbers, texts),
        requirements=tuple(Requirement(**r) for r in raw.get("requirement", [])),
        malformed=tuple(
            MalformedCase(m["id"], m["side"], m["layer"], m.get("spoil"), m.get("error"), m["why"])
            for m in raw.get("malformed", [])
        ),
        machines=tuple(_machine(m) for m in raw.get("machine", [])),
        metrics=tuple(
            Metric(m["name"], m["type"], tuple(m["labels"]), m["about"])
            for m in raw.get("metric", [])
        ),
    )


def _machine(table: Mapping[str, Any]) -> Machine:
    return Machine(
        table["name"],
        table["about"],
        tuple((s["name"], s["about"]) for s in table["states"]),
        tuple(Transition(t["from"], t["on"], t["to"], t["does"]) for t in table["transitions"]),
    )


def _frames(
    tables: Iterable[Mapping[str, Any]], numbers: Mapping[str, int], texts: Mapping[str, bytes]
) -> tuple[Frame, ...]:
    key_bytes = numbers.get("key_bytes_min", 1), numbers.get("key_bytes_max", 128)
    return tuple(
        Frame(
            op=ord(t["op"]) if "op" in t else None,
            name=t["name"],
            direction=t["direction"],
            about=t["about"],
            replies=tuple(t.get("replies", [])),
            fields=tuple(_field(f, numbers, texts) for f in t["fields"]),
            key_bytes=key_bytes,
        )
        for t in tables
    )


def _field(
    table: Mapping[str, Any], numbers: Mapping[str, int], texts: Mapping[str, bytes]
) -> Field:
    def bound(name: str, default: int) -> int:
        value = table.get(name, default)
        return numbers[value] if isinstance(value, str) else int(value)

    kind = table["type"]
    size = INTEGER_BYTES.get(kind, table.get("size"))
    high = 2 ** (8 * INTEGER_BYTES[kind]) - 1 if kind in INTEGER_BYTES else size or 0
    low = 0 if kind in INTEGER_BYTES else high
    const = table.get("const")
    return Field(
        name=table["name"],
        type=kind,
        size=size,
        min=bound("min", low),
        max=bound("max", high),
        unit=table.get("unit", ""),
        enum=table.get("enum"),
        const=None if const is None else texts[const],
        forbidden=bytes.fromhex(table.get("forbidden", "")),
        refusal=table.get("refusal"),
        origin=table["origin"],
        about=table["about"],
    )
