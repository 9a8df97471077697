"""The Kaitai file compiles, and its parser reads every valid vector and every stream."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ticketing_spec import kaitai, load_spec
from ticketing_spec.codec import Value
from ticketing_spec.vectors import Vector, malformed_vectors, preamble_vectors, valid_vectors

SPEC = load_spec()
CLASSES = {"client": "ClientFrame", "server": "ServerFrame"}
# What a declarative decoder does not say: the order of keys and the characters of a label.
BEYOND = {"unsorted-keys", "signed-order", "doubled-key", "bad-label"}


@pytest.fixture(scope="module")
def parser(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    reason = kaitai.missing_tool()
    if reason is not None:
        pytest.skip(reason)
    return kaitai.compile_parser(tmp_path_factory.mktemp("kaitai"))


def parse(parser: ModuleType, vector: Vector) -> Any:
    frame = getattr(parser.Ticketing, CLASSES[vector.direction]).from_bytes(vector.wire)
    if not frame._io.is_eof():
        raise ValueError("bytes are left")
    return frame


def read_field(holder: Any, name: str) -> Value:
    got = getattr(holder, name)
    if name == "keys":
        return [entry.key for entry in got.keys]
    return got.value if hasattr(got, "value") else got


@pytest.mark.parametrize("direction", ["client", "server"])
def test_every_valid_vector(parser: ModuleType, direction: str) -> None:
    count = 0
    for vector in valid_vectors(SPEC, direction):
        frame = parse(parser, vector)
        assert frame.op.name == vector.what
        for name, value in vector.fields.items():
            assert read_field(frame.body, name) == value, (vector.id, name)
        count += 1
    assert count > 200


@pytest.mark.parametrize("direction", ["client", "server"])
def test_malformed_vectors_are_rejected(parser: ModuleType, direction: str) -> None:
    import kaitaistruct

    refusals = (kaitaistruct.KaitaiStructError, EOFError, ValueError)
    for vector in malformed_vectors(SPEC, direction):
        if vector.error in BEYOND:
            parse(parser, vector)
            continue
        with pytest.raises(refusals):
            parse(parser, vector)


@pytest.mark.parametrize("direction", ["client", "server"])
def test_a_whole_stream(parser: ModuleType, direction: str) -> None:
    vectors = list(valid_vectors(SPEC, direction))
    greeting = next(v for v in preamble_vectors(SPEC) if v.what == "greeting")
    stream = b"".join(v.wire or b"" for v in vectors)
    if direction == "server":
        stream = (greeting.wire or b"") + stream
    parsed = parser.Ticketing.from_bytes(stream)
    side, other = ("server", "client") if direction == "server" else ("client", "server")
    assert not hasattr(parsed, other)
    frames = getattr(parsed, side).frames
    assert [f.op.name for f in frames] == [v.what for v in vectors]
    if direction == "server":
        for name, value in greeting.fields.items():
            assert read_field(parsed.server.greeting, name) == value


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kaitai.shutil, "which", lambda _: None)
    with pytest.raises(kaitai.ToolMissing, match="node is not installed"):
        kaitai.compile_parser(tmp_path)
