"""The Wireshark dissector finds every frame, however the stream is cut, and marks broken ones."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from ticketing_spec import load_spec
from ticketing_spec.capture import write_capture
from ticketing_spec.model import SPEC_DIR, Spec
from ticketing_spec.vectors import Vector, malformed_vectors, preamble_vectors, valid_vectors

LUA = SPEC_DIR / "dist" / "ticketing.lua"
Dissect = Callable[..., list[dict[str, list[str]]]]


@pytest.fixture
def dissect(tmp_path: Path) -> Dissect:
    tshark = shutil.which("tshark")
    if tshark is None:
        pytest.skip("tshark is not installed (Debian: apt install tshark)")

    def run(
        segments: list[tuple[str, bytes]], fields: list[str], port: int, *options: str
    ) -> list[dict[str, list[str]]]:
        path = tmp_path / "stream.pcap"
        write_capture(path, [segments], port)
        command = [tshark, "-X", f"lua_script:{LUA}", "-r", str(path), "-T", "fields"]
        command += [*options, "-E", "separator=\t", "-E", "occurrence=a", "-E", "aggregator=|"]
        for field in fields:
            command += ["-e", field]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert "Lua:" not in done.stderr, done.stderr
        rows = []
        for line in done.stdout.split("\n")[3:-1]:
            cells = line.split("\t")
            rows.append({f: c.split("|") if c else [] for f, c in zip(fields, cells, strict=True)})
        return rows

    return run


def _valid(spec: Spec, direction: str) -> list[Vector]:
    return list(valid_vectors(spec, direction))


def _greeting(spec: Spec) -> bytes:
    return next(v.wire for v in preamble_vectors(spec) if v.what == "greeting" and v.wire)


def _pieces(stream: bytes, size: int) -> list[bytes]:
    return [stream[i : i + size] for i in range(0, len(stream), size)]


@pytest.mark.parametrize("size", [1400, 97])
def test_every_valid_vector_of_version_4(dissect: Dissect, size: int) -> None:
    spec = load_spec()
    clients, servers = _valid(spec, "client"), _valid(spec, "server")
    greeting = _greeting(spec)
    segments = [("server", greeting)]
    segments += [("client", p) for p in _pieces(b"".join(v.wire or b"" for v in clients), size)]
    segments += [("server", p) for p in _pieces(b"".join(v.wire or b"" for v in servers), size)]
    fields = ["tcp.srcport", "ticketing.op", "ticketing.request_id"]
    rows = dissect(segments, [*fields, "_ws.expert.message"], 5225)
    found = {port: [op for r in rows if r["tcp.srcport"] == [port] for op in r["ticketing.op"]]
             for port in ("40000", "5225")}  # fmt: skip
    assert found["40000"] == [_op(spec, v) for v in clients]
    assert found["5225"] == [_op(spec, v) for v in servers]
    ids = [i for r in rows for i in r["ticketing.request_id"]]
    assert ids == [
        str(v.fields["request_id"]) for v in (*clients, *servers) if "request_id" in v.fields
    ]
    assert not [m for r in rows for m in r["_ws.expert.message"] if "Connection est" not in m]


def _op(spec: Spec, vector: Vector) -> str:
    frame = spec.frame(vector.direction, vector.what)
    return f"{frame.op_char} {frame.name}"


def test_version_3_with_its_answer_and_verdict(dissect: Dissect) -> None:
    spec = load_spec("version3")
    clients, servers = _valid(spec, "client"), _valid(spec, "server")
    segments = [("server", _greeting(spec)), ("client", b"\x41" * 10), ("client", b"\x53" * 22)]
    segments += [("server", b"\x01")]
    segments += [("client", b"".join(v.wire or b"" for v in clients[:8]))]
    segments += [("server", b"".join(v.wire or b"" for v in servers))]
    fields = ["tcp.srcport", "ticketing3.op", "ticketing3.mac", "ticketing3.verdict"]
    rows = dissect(segments, fields, 5226, "-o", "ticketing3.port:5226")
    ops = [(r["tcp.srcport"][0], op) for r in rows for op in r["ticketing3.op"]]
    assert ops == [("40000", _op(spec, v)) for v in clients[:8]] + [
        ("5226", _op(spec, v)) for v in servers
    ]
    assert [m for r in rows for m in r["ticketing3.mac"]] == ["41" * 10 + "53" * 22]
    assert [m for r in rows for m in r["ticketing3.verdict"]] == ["1"]


@pytest.mark.parametrize("direction", ["client", "server"])
def test_broken_headers_and_sets_are_marked(dissect: Dissect, direction: str) -> None:
    spec = load_spec()
    marked = ("length-less", "length-more", "unknown-op", "short-set", "over-set", "empty-key")
    broken = [v for v in malformed_vectors(spec, direction) if v.error in marked]
    # Each on a line of its own: one broken frame spoils what follows in its segment.
    segments = [(direction, v.wire or b"") for v in broken]
    rows = dissect(segments, ["_ws.expert.message"], 5225)
    assert len(rows) == len(broken)
    assert [v.id for v, r in zip(broken, rows, strict=True) if not r["_ws.expert.message"]] == []
