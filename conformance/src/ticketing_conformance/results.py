"""What the report is made from: one result per test, written by workers, read by the report."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from ticketing_conformance.adapters import APIS
from ticketing_conformance.context import Capture
from ticketing_conformance.mixed import SUITES as TOGETHER

SERVER_SUITE = "server"

# A page of the report shows this much of a stream; report.json keeps it whole up to here.
CAPTURE_BYTES_MAX = 20_000


@dataclass
class StreamText:
    """A recorded stream of a failed test, as hex."""

    name: str
    connection: int
    direction: str
    hex: str
    expected_hex: str | None = None


@dataclass
class Result:
    """One test with one client."""

    id: str
    suite: str
    column: str
    outcome: str
    about: str = ""
    reason: str = ""
    requirements: list[str] = field(default_factory=list)
    seconds: float = 0.0
    transcript: list[str] = field(default_factory=list)
    streams: list[StreamText] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What the case tells of itself: figures, above all."""
    digest: str = ""
    """Identity: SHA-256 over what the client sent."""
    kaitai_streams: int = 0
    """How many captured streams the Kaitai parser decoded."""
    captured: list[StreamText] = field(default_factory=list)
    """Identity: what went over the wire, for Wireshark; not for the report."""

    @property
    def again(self) -> str:
        """The command that runs this one test again."""
        if self.suite == SERVER_SUITE:
            test = self.id.rpartition(".")[2]
            return f"python -m ticketing_conformance --suite server -k {test}"
        only = "" if self.suite in TOGETHER else f" --only {client_of(self.column)}"
        return f'python -m ticketing_conformance{only} --case "{self.id}"'

    def to_json(self) -> str:
        """For the way from a worker to the report."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Result:
        """The reverse of to_json."""
        values: dict[str, Any] = json.loads(text)
        for name in ("streams", "captured"):
            values[name] = [StreamText(**stream) for stream in values[name]]
        return cls(**values)


def client_of(column: str) -> str:
    """The client of a column, which is the client's name, with `-` and an API where it has one."""
    name, _, api = column.rpartition("-")
    return name if name and api in APIS else column


def stream_texts(captures: list[Capture]) -> list[StreamText]:
    """Captured streams for the report, cut to what a page can show."""
    texts = []
    for capture in captures:
        for direction in ("up", "down"):
            data = capture.connection.stream(direction).whole()[:CAPTURE_BYTES_MAX]
            texts.append(StreamText(capture.name, capture.connection.number, direction, data.hex()))
    return texts
