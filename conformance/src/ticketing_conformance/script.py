"""The case language (CASES.md): text in, cases out. Nothing here touches a socket or a process."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

CASE_SECONDS = 60.0
REPEAT_COUNT_MAX = 100_000

_ID = re.compile(r"[a-z0-9][a-z0-9-]*")
_VARIABLE = re.compile(r"[a-z_][a-z0-9_]*")
_FIELD = re.compile(r"([a-z_][a-z0-9_]*)(<=|>=|!=|=|<|>|~)(.*)", re.DOTALL)
_TOKEN = re.compile(r'(?:"(?:[^"\\]|\\.)*"|\{[^{}]*\}|[^\s"])+')
# A case that uses these verbs and fields needs the features, whether or not its header says so.
_CLUSTER_START = ("cluster", "start")
_SMALL_DISK = re.compile(r"disk\d_mib")
_VERB_FEATURES = {"cancel", "contend", "events", "fork", "scope"}
_FIELD_FEATURES = {
    "detach": "detach",
    "cancel_after_ms": "cancel_after",
    "lease_ns": "fractional",
    "wait_ns": "fractional",
    "tls_ca": "tls",
    "tls_cert": "tls",
    "unix": "unix",
}
_HEADERS = ("about", "req", "needs", "api", "each", "timeout", "counts", "flags")


class ScriptError(ValueError):
    """A case file that can't be read; the text begins with file and line."""


@dataclass(frozen=True)
class Field:
    """name=value of a step, or name<op>value of an expectation, before substitution."""

    name: str
    operator: str
    value: str


@dataclass(frozen=True)
class Expectation:
    """One allowed outcome: a status and what its fields must be."""

    status: str
    fields: tuple[Field, ...]


@dataclass(frozen=True)
class Step:
    """One line of a script; for a block (`repeat`) with the lines inside it."""

    line: int
    text: str
    adapter: str
    words: tuple[str, ...]
    fields: tuple[Field, ...]
    expected: tuple[Expectation, ...]
    block: tuple[Step, ...] = ()

    @property
    def verb(self) -> str:
        """The first word."""
        return self.words[0]


@dataclass(frozen=True)
class Case:
    """A script with what the runner and the report need to know about it."""

    suite: str
    name: str
    path: Path
    line: int
    about: str
    requirements: tuple[str, ...]
    needs: frozenset[str]
    apis: frozenset[str] | None
    seconds: float
    flags: frozenset[str]
    parameters: tuple[tuple[str, str], ...]
    steps: tuple[Step, ...]
    soak_seconds: float
    machine: frozenset[str] = frozenset()
    """What the machine has to offer: `network`, `disk`."""
    counts: tuple[tuple[str, str, str], ...] = ()
    """Variables, each with its value and the one that a soak gives it."""

    def at_length(self) -> Case:
        """The same case as a soak runs it: with its own counts, in its own time."""
        counts = tuple((name, soak, soak) for name, _, soak in self.counts)
        return replace(self, counts=counts, seconds=self.soak_seconds)

    @property
    def id(self) -> str:
        """suite/name, with the values of the parameters in brackets."""
        if not self.parameters:
            return f"{self.suite}/{self.name}"
        values = ",".join(f"{name}={value}" for name, value in self.parameters)
        return f"{self.suite}/{self.name}[{values}]"


@dataclass
class _Draft:
    name: str
    line: int
    about: list[str] = field(default_factory=list)
    requirements: list[str] = field(default_factory=list)
    needs: set[str] = field(default_factory=set)
    apis: set[str] | None = None
    seconds: float = CASE_SECONDS
    soak_seconds: float = 0
    flags: set[str] = field(default_factory=set)
    counts: list[tuple[str, str, str]] = field(default_factory=list)
    each: list[tuple[str, list[str]]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)


def tokens(text: str) -> list[str]:
    """The blank-separated tokens of a line; quotes keep blanks together, `#` starts a comment."""
    found: list[str] = []
    position = 0
    while position < len(text):
        if text[position].isspace():
            position += 1
            continue
        if text[position] == "#":
            break
        token = _TOKEN.match(text, position)
        if token is None:
            raise ScriptError(f"a quote is not closed: {text[position:]}")
        found.append(token[0])
        position = token.end()
    return found


def _field(token: str) -> Field | None:
    match = _FIELD.fullmatch(token)
    return Field(match[1], match[2], match[3]) if match else None


def _expectations(parts: list[str]) -> tuple[Expectation, ...]:
    expected: list[Expectation] = []
    group: list[str] = []
    for part in [*parts, "|"]:
        if part != "|":
            group.append(part)
            continue
        if not group:
            raise ScriptError("an expectation is empty")
        fields = [_field(token) for token in group[1:]]
        if None in fields:
            raise ScriptError(f"an expectation is a status and fields, not {' '.join(group)}")
        expected.append(Expectation(group[0], tuple(f for f in fields if f is not None)))
        group = []
    return tuple(expected)


def parse_step(text: str, line: int) -> Step:
    """One step: [@adapter] words fields [-> outcome | outcome]."""
    parts = tokens(text)
    expected: tuple[Expectation, ...] = (Expectation("ok", ()),)
    if "->" in parts:
        arrow = parts.index("->")
        expected = _expectations(parts[arrow + 1 :])
        parts = parts[:arrow]
    adapter = ""
    if parts and parts[0].startswith("@"):
        adapter = parts.pop(0)[1:]
    words: list[str] = []
    fields: list[Field] = []
    free = bool(parts) and parts[0] in ("check", "set")
    for part in parts:
        found = None if free else _field(part)
        if found is None or found.operator != "=":
            if fields:
                raise ScriptError(f"a word after fields: {part}")
            words.append(part)
        else:
            fields.append(found)
    if not words:
        raise ScriptError("a step needs a verb")
    names = [item.name for item in fields]
    if len(names) != len(set(names)):
        raise ScriptError("a field is given twice")
    return Step(line, text.strip(), adapter, tuple(words), tuple(fields), expected)


def expand_values(words: list[str]) -> list[str]:
    """The values of an `each`: words, with a..b standing for all integers from a to b."""
    values: list[str] = []
    for word in words:
        span = re.fullmatch(r"(\d+)\.\.(\d+)", word)
        if span is None:
            values.append(word)
        else:
            values.extend(str(number) for number in range(int(span[1]), int(span[2]) + 1))
    return values


def _header(draft: _Draft, word: str, rest: str) -> None:
    words = rest.split()
    if word == "about":
        draft.about.append(rest)
    elif word == "req":
        draft.requirements.extend(words)
    elif word == "needs":
        draft.needs.update(words)
    elif word == "api":
        if not set(words) <= {"async", "sync"} or not words:
            raise ScriptError(f"api takes async and sync, not {rest}")
        draft.apis = set(words)
    elif word == "timeout":
        draft.seconds, draft.soak_seconds = float(words[0]), float(words[-1])
    elif word == "flags":
        draft.flags.update(words)
    elif word == "counts":
        if len(words) != 4 or words[1] != "=" or not _VARIABLE.fullmatch(words[0]):
            raise ScriptError("counts takes: NAME = VALUE VALUE-IN-A-SOAK")
        draft.counts.append((words[0], words[2], words[3]))
    elif word == "each":
        name, equals, *values = words
        if equals != "=" or not _VARIABLE.fullmatch(name) or not values:
            raise ScriptError("each takes: NAME = VALUE VALUE…, or a..b among the values")
        draft.each.append((name, expand_values(values)))


def _nest(lines: Iterator[tuple[int, str]], in_block: bool) -> Iterator[Step]:
    for number, text in lines:
        try:
            step = parse_step(text, number)
        except ScriptError as error:
            raise ScriptError(f"{number}: {error}") from None
        if step.verb == "end":
            if not in_block:
                raise ScriptError(f"{number}: end without a repeat")
            return
        if step.verb == "repeat":
            inner = tuple(_nest(lines, True))
            step = Step(step.line, step.text, "", step.words, step.fields, step.expected, inner)
        yield step
    if in_block:
        raise ScriptError("a repeat has no end")


def features_of(steps: Iterable[Step]) -> set[str]:
    """The features that the steps themselves show a need for."""
    needed: set[str] = set()
    for step in steps:
        needed |= features_of(step.block)
        if step.verb in _VERB_FEATURES:
            needed.add(step.verb)
        for item in step.fields:
            if item.name in _FIELD_FEATURES and item.value != "0":
                needed.add(_FIELD_FEATURES[item.name])
    return needed


def machine_needs(steps: Iterable[Step]) -> set[str]:
    """What the steps need of the machine: networks that can be cut, disks that can be full."""
    needed: set[str] = set()
    for step in steps:
        needed |= machine_needs(step.block)
        names = [item.name for item in step.fields] if step.words[:2] == _CLUSTER_START else []
        needed |= {"network"} & set(names)
        needed |= {"disk" for name in names if _SMALL_DISK.fullmatch(name)}
    return needed


def _cases(draft: _Draft, suite: str, path: Path) -> Iterator[Case]:
    if not draft.about:
        raise ScriptError(f"{draft.line}: case {draft.name} has no about")
    if not draft.steps:
        raise ScriptError(f"{draft.line}: case {draft.name} has no steps")
    names = [name for name, _ in draft.each]
    for values in itertools.product(*(values for _, values in draft.each)):
        yield Case(
            suite=suite,
            name=draft.name,
            path=path,
            line=draft.line,
            about=" ".join(draft.about),
            requirements=tuple(draft.requirements),
            needs=frozenset(draft.needs | features_of(draft.steps)),
            apis=frozenset(draft.apis) if draft.apis else None,
            seconds=draft.seconds,
            flags=frozenset(draft.flags),
            parameters=tuple(zip(names, values, strict=True)),
            steps=tuple(draft.steps),
            machine=frozenset(machine_needs(draft.steps)),
            soak_seconds=draft.soak_seconds or draft.seconds,
            counts=tuple(draft.counts),
        )


def parse_cases(text: str, suite: str, path: Path) -> list[Case]:
    """All cases of one file, parameters expanded."""
    drafts: list[tuple[_Draft, list[tuple[int, str]]]] = []
    try:
        for number, line in enumerate(text.splitlines(), 1):
            stripped = line.strip()
            if not stripped or stripped.startswith("#"):
                continue
            word, _, rest = stripped.partition(" ")
            if not line[0].isspace():
                if word != "case" or not _ID.fullmatch(rest.strip()):
                    raise ScriptError(f"{number}: expected: case NAME, got {stripped}")
                drafts.append((_Draft(rest.strip(), number), []))
            elif not drafts:
                raise ScriptError(f"{number}: a line before the first case")
            elif word in _HEADERS and not drafts[-1][1]:
                try:
                    _header(drafts[-1][0], word, rest.strip())
                except ValueError as error:
                    raise ScriptError(f"{number}: {error}") from None
            else:
                drafts[-1][1].append((number, stripped))
        cases: list[Case] = []
        for draft, lines in drafts:
            draft.steps = list(_nest(iter(lines), False))
            cases.extend(_cases(draft, suite, path))
    except ScriptError as error:
        raise ScriptError(f"{path}:{error}") from None
    ids = [case.id for case in cases]
    doubled = {name for name in ids if ids.count(name) > 1} if len(ids) != len(set(ids)) else set()
    if doubled:
        raise ScriptError(f"{path}: the case {min(doubled)} is there twice")
    return cases


def load_cases(path: Path) -> list[Case]:
    """The cases of a file `cases/<suite>/<topic>.case`."""
    return parse_cases(path.read_text(encoding="utf-8"), path.parent.name, path)
