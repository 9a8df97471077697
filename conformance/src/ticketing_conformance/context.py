"""What the steps of one run share: variables, resources to close, and small readers of fields."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ticketing_conformance.streams import Connection, Fields

# One secret for all cases that are not about secrets.
SECRET = b"conformance-secret"
WAIT_SECONDS = 20.0


class StepFailed(Exception):
    """A step did not bring what its line says; the text is for the report."""


@dataclass
class Capture:
    """Streams of one connection, kept for the report and for other decoders."""

    name: str
    connection: Connection
    framed: bool = True


@dataclass
class Context:
    """Belongs to one run of one case; used by the runner's thread alone."""

    directory: Path
    deadline: float
    variables: dict[str, Any] = field(default_factory=dict)
    closers: list[Callable[[], None]] = field(default_factory=list)
    sources: list[Callable[[], list[Capture]]] = field(default_factory=list)

    def seconds_left(self, at_most: float = WAIT_SECONDS) -> float:
        """How long a step may still wait."""
        return max(0.1, min(at_most, self.deadline - time.monotonic()))

    def captures(self) -> list[Capture]:
        """Every connection that was recorded so far."""
        return [capture for source in self.sources for capture in source()]

    def close(self) -> None:
        """Close what was started, the last first; goes on after an error and raises the first."""
        first: Exception | None = None
        while self.closers:
            try:
                self.closers.pop()()
            except Exception as error:  # One that fails must not leave the others open.
                first = first or error
        if first is not None:
            raise first


class Arguments:
    """The values of a step's fields, taken one by one; what is left over was a mistake."""

    def __init__(self, verb: str, words: list[str], values: Mapping[str, Any]) -> None:
        self.verb = verb
        self.words = words
        self._values = dict(values)

    def word(self, number: int, what: str) -> str:
        """The n-th word after the verb's own ones."""
        if number >= len(self.words):
            raise StepFailed(f"{self.verb} needs {what}")
        return self.words[number]

    def integer(self, name: str, default: int) -> int:
        """An integer field."""
        value = self._values.pop(name, default)
        if not isinstance(value, int):
            raise StepFailed(f"{self.verb}: {name} takes an integer, not {value!r}")
        return value

    def optional_integer(self, name: str) -> int | None:
        """An integer field that may be missing."""
        return self.integer(name, 0) if name in self._values else None

    def data(self, name: str, default: bytes) -> bytes:
        """A field of bytes; a word counts as its ASCII."""
        value = self._values.pop(name, default)
        if isinstance(value, str):
            return value.encode("utf-8")
        if not isinstance(value, bytes):
            raise StepFailed(f"{self.verb}: {name} takes bytes, not {value!r}")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """A field that is a word or text."""
        if name not in self._values and default is None:
            raise StepFailed(f"{self.verb} needs {name}=")
        value = self._values.pop(name, default)
        return value.decode("utf-8") if isinstance(value, bytes) else str(value)

    def integers(self, name: str) -> list[int]:
        """A list of integers, empty if it is not given."""
        value = self._values.pop(name, [])
        items = value if isinstance(value, list) else [value]
        if not all(isinstance(item, int) for item in items):
            raise StepFailed(f"{self.verb}: {name} takes integers, not {value!r}")
        return items

    def has(self, name: str) -> bool:
        """Whether a field is given and not taken yet."""
        return name in self._values

    def take(self, name: str) -> Any:
        """A field that was given, whatever its value is."""
        return self._values.pop(name)

    def rest(self) -> dict[str, Any]:
        """All fields that are left; afterwards none are."""
        values, self._values = self._values, {}
        return values

    def finish(self) -> None:
        """Raise if a field was given that the verb does not take."""
        if self._values:
            raise StepFailed(f"{self.verb} does not take {', '.join(sorted(self._values))}")


def frame_fields(values: Mapping[str, Any]) -> Fields:
    """Fields as the spec's codec takes them: words become ASCII, one key becomes a list."""
    fields: Fields = {}
    for name, value in values.items():
        if name == "keys" and not isinstance(value, list):
            value = [value]
        fields[name] = value.encode("ascii") if isinstance(value, str) else value
    return fields
