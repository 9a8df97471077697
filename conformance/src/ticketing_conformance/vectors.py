"""The suite `vectors`: every golden vector through every adapter's codec.

Each vector is encoded from its fields, decoded from its bytes, and what was decoded is encoded
again: by the adapter where its client has that direction, else by the spec's own codec.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ticketing_spec.codec import Malformed, decode, encode

from ticketing_conformance.adapter import Adapter, AdapterBroken
from ticketing_conformance.adapters import Language
from ticketing_conformance.context import frame_fields
from ticketing_conformance.results import Result
from ticketing_conformance.streams import the_spec
from ticketing_conformance.values import Value, as_list, parse_value

if TYPE_CHECKING:
    from ticketing_conformance.tests_of import Tools

SUITE = "vectors"
PREFIX = "v4-"
FAILURES_SHOWN_MAX = 8
HEAD_FIELDS = ("id", "frame", "hash", "dir", "flags", "why", "wire", "error", "layer", "answer")
HASH_VERBS = {"client_mac": "mac", "proof": "proof", "client_nonce": "nonce"}


class VectorError(ValueError):
    """A file of vectors that can't be read; the text begins with file and line."""


@dataclass(frozen=True)
class Vector:
    """One stanza: its head, and the lines of its fields."""

    head: dict[str, str]
    fields: dict[str, Value]

    @property
    def id(self) -> str:
        """The id of the vector."""
        return self.head["id"]

    @property
    def what(self) -> str:
        """The frame, or the hash."""
        return self.head.get("frame") or self.head["hash"]


@dataclass
class Check:
    """One test: all vectors of one file about one frame, done one way."""

    id: str
    about: str
    run: Callable[[Adapter, Vector], str]
    """"" if the vector came out right, else what was wrong."""
    needs: frozenset[str] = frozenset()
    vectors: list[Vector] = field(default_factory=list)


def parse_vectors(text: str, name: str) -> list[Vector]:
    """The stanzas of a file. Raises VectorError."""
    vectors: list[Vector] = []
    head: dict[str, str] = {}
    fields: dict[str, Value] = {}
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.startswith("#"):
            continue
        if not line:
            if head:
                vectors.append(Vector(head, fields))
            head, fields = {}, {}
            continue
        key, colon, value = line.partition(":")
        if not colon or key in head or key in fields:
            raise VectorError(f"{name}:{number}: no new `name: value`: {line[:60]!r}")
        if key in HEAD_FIELDS and (key == "id" or "result" not in fields):
            head[key] = value.strip()
        else:
            fields[key] = parse_value(value.strip())
    if not vectors:
        raise VectorError(f"{name}: no vectors")
    return vectors


def load_checks(path: Path) -> list[Check]:
    """The tests that a file of vectors makes; none for other versions of the protocol."""
    if not path.name.startswith(PREFIX):
        return []
    checks: dict[str, Check] = {}
    for vector in parse_vectors(path.read_text(encoding="utf-8"), path.name):
        for way in _ways(vector):
            test_id = f"{SUITE}/{path.stem}.{vector.what}.{way.name}"
            check = checks.setdefault(test_id, Check(test_id, way.about, way.run, way.needs))
            check.vectors.append(vector)
    return list(checks.values())


def run_check(check: Check, language: Language, tools: Tools) -> Result:
    """Send every vector through the adapter."""
    wrong: list[str] = []
    try:
        adapter = tools.adapters.get(language)
        for vector in check.vectors:
            reason = check.run(adapter, vector)
            if reason:
                wrong.append(f"{vector.id} ({vector.head['why']}): {reason}")
    except AdapterBroken as error:
        wrong.append(str(error))
    more = len(wrong) - FAILURES_SHOWN_MAX
    shown = wrong[:FAILURES_SHOWN_MAX] + ([f"and {more} more"] if more > 0 else [])
    return Result("", "", "", "failed" if wrong else "passed", reason="\n".join(shown))


@dataclass(frozen=True)
class _Way:
    name: str
    about: str
    run: Callable[[Adapter, Vector], str]
    needs: frozenset[str] = frozenset()


_BOTH = frozenset({"codec_both"})


def _ways(vector: Vector) -> list[_Way]:
    if "hash" in vector.head:
        if vector.what not in HASH_VERBS:
            return []
        return [_Way("hash", f"the {vector.what} of given inputs", _check_hash)]
    own = vector.head["dir"] == "client"
    if "error" in vector.head:
        needs = _BOTH if own else frozenset()
        return [_Way("refuse", "bytes that no correct peer sends are refused", _refuse, needs)]
    if vector.what == "greeting":
        return [_Way("decode", "a greeting is read", _decode)]
    encoding = _Way("encode", "fields become these bytes", _encode, frozenset() if own else _BOTH)
    decoding = _Way("decode", "bytes become these fields", _decode, _BOTH if own else frozenset())
    again = _Way("again", "what was decoded becomes the same bytes again", _again)
    tolerated = "tolerated" in vector.head["flags"].split()
    # What is only tolerated is read and never written.
    return [decoding] if tolerated else [encoding, decoding, again]


def _check_hash(adapter: Adapter, vector: Vector) -> str:
    verb = HASH_VERBS[vector.what]
    inputs = {name: value for name, value in vector.fields.items() if name != "result"}
    answer = adapter.ask(verb, inputs)
    got = answer.fields.get(verb)
    if answer.status == "ok" and got == vector.fields["result"]:
        return ""
    return f"expected {vector.fields['result']!r}, got {answer.text()}"


def _frame(vector: Vector) -> dict[str, Value]:
    return {"dir": vector.head["dir"], "frame": vector.what}


def _encode(adapter: Adapter, vector: Vector) -> str:
    answer = adapter.ask("encode", {**_frame(vector), **vector.fields})
    if answer.status == "ok" and answer.fields.get("wire") == bytes.fromhex(vector.head["wire"]):
        return ""
    return f"expected wire {vector.head['wire']}, got {answer.text()}"


def _ask_decode(adapter: Adapter, vector: Vector) -> tuple[dict[str, Value], str]:
    order: dict[str, Value] = {
        "dir": vector.head["dir"],
        "wire": bytes.fromhex(vector.head["wire"]),
    }
    if vector.what == "greeting":
        order["frame"] = "greeting"
    answer = adapter.ask("decode", order)
    fields = dict(answer.fields)
    if answer.status != "ok" or fields.pop("frame", None) != vector.what:
        return {}, f"{vector.head['wire']} was not decoded: {answer.text()}"
    if "keys" in fields:
        fields["keys"] = list(as_list(fields["keys"]))
    return fields, ""


def _decode(adapter: Adapter, vector: Vector) -> str:
    fields, wrong = _ask_decode(adapter, vector)
    expected = {name: value for name, value in vector.fields.items() if name != "magic"}
    if wrong or fields == expected:
        return wrong
    return f"expected {expected!r}, got {fields!r}"


def _again(adapter: Adapter, vector: Vector) -> str:
    """The adapter does the half that its client has; the spec's codec does the other."""
    try:
        return _there_and_back(adapter, vector)
    except Malformed as error:
        return f"the spec's codec refuses what the adapter made: {error}"


def _there_and_back(adapter: Adapter, vector: Vector) -> str:
    direction, wire = vector.head["dir"], bytes.fromhex(vector.head["wire"])
    if direction == "server":
        fields, wrong = _ask_decode(adapter, vector)
        if wrong:
            return wrong
        back = encode(the_spec(), direction, vector.what, frame_fields(fields))
    else:
        answer = adapter.ask("encode", {**_frame(vector), **vector.fields})
        got = answer.fields.get("wire")
        if not isinstance(got, bytes):
            return f"not encoded: {answer.text()}"
        name, read = decode(the_spec(), direction, got)
        back = encode(the_spec(), direction, name, read)
    return "" if back == wire else f"expected {wire.hex()}, got {back.hex()}"


def _refuse(adapter: Adapter, vector: Vector) -> str:
    order: dict[str, Value] = {
        "dir": vector.head["dir"],
        "wire": bytes.fromhex(vector.head["wire"]),
    }
    if vector.what == "greeting":
        order["frame"] = "greeting"
    answer = adapter.ask("decode", order)
    if answer.status == "err" and answer.fields.get("kind") == "malformed":
        return ""
    return f"{vector.head['wire']} must be refused ({vector.head['error']}): {answer.text()}"
