"""One adapter process: orders out, answers in (ADAPTER.md)."""

from __future__ import annotations

import os
import queue
import subprocess
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ticketing_conformance.values import (
    LINE_BYTES_MAX,
    BadLine,
    Value,
    as_list,
    format_line,
    parse_line,
)

STATUSES = ("ok", "err", "unsupported", "fail")
ANSWER_SECONDS = 60.0
EXIT_SECONDS = 10.0
LOG_LINES_MAX = 400
# An adapter that answers a verb nobody has would also hide misspelt ones.
PROBE_VERB = "florble"


class AdapterBroken(Exception):
    """The adapter broke the protocol, hung or died. The process is of no further use."""


@dataclass(frozen=True)
class Answer:
    """What an adapter answered: status and fields."""

    status: str
    fields: dict[str, Value]

    def text(self) -> str:
        """For people: the status, the fields, and a text field decoded."""
        parts = [self.status]
        for name, value in self.fields.items():
            if name == "text" and isinstance(value, bytes):
                parts.append(f"text={value.decode('utf-8', 'replace')!r}")
            else:
                parts.append(f"{name}={value!r}")
        return " ".join(parts)


@dataclass(frozen=True)
class Hello:
    """The self-description of an adapter."""

    language: str
    client: str
    runtime: str
    features: frozenset[str]
    digest: str


class Adapter:
    """A running adapter. Used by one thread; its output is read by threads of its own."""

    def __init__(
        self, command: Sequence[str], directory: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.command = list(command)
        self._next_number = 1
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.log: deque[str] = deque(maxlen=LOG_LINES_MAX)
        self._process = subprocess.Popen(
            self.command,
            cwd=directory,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._readers = [
            threading.Thread(target=self._read_answers, daemon=True),
            threading.Thread(target=self._read_log, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read_answers(self) -> None:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline(LINE_BYTES_MAX + 1):
            self._lines.put(line)
        self._lines.put(b"")

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.log.append(line.decode("utf-8", "replace").rstrip("\n"))

    def ask(
        self, verb: str, fields: Mapping[str, Value] | None = None, seconds: float = ANSWER_SECONDS
    ) -> Answer:
        """Send one order and return its answer.

        Raises AdapterBroken when none comes within `seconds`, or one that the protocol does not
        allow; the process is killed then.
        """
        number = self._next_number
        self._next_number += 1
        request = format_line(number, verb, fields or {})
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(request)
            self._process.stdin.flush()
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            self.kill()
            raise AdapterBroken(f"no answer to {verb} within {seconds:g} s") from None
        except OSError as error:
            self.kill()
            raise AdapterBroken(f"the adapter is gone: {error}{self._last_words()}") from None
        if not line:
            self.kill()
            raise AdapterBroken(f"the adapter ended during {verb}{self._last_words()}")
        try:
            answered, status, values = parse_line(line)
        except BadLine as error:
            self.kill()
            raise AdapterBroken(f"bad answer to {verb}: {error}") from None
        if answered != number or status not in STATUSES:
            self.kill()
            raise AdapterBroken(f"bad answer to request {number} {verb}: {line!r}")
        return Answer(status, values)

    def _last_words(self) -> str:
        for reader in self._readers:
            reader.join(EXIT_SECONDS)
        return "; its log ends: " + " | ".join(list(self.log)[-5:]) if self.log else ""

    def hello(self) -> Hello:
        """Probe with a verb nobody has, then ask who is there."""
        probe = self.ask(PROBE_VERB)
        if probe.status != "unsupported":
            self.kill()
            raise AdapterBroken(f"an unknown verb must be unsupported, got: {probe.text()}")
        answer = self.ask("hello")
        values = answer.fields
        try:
            if answer.status != "ok" or values["protocol"] != 1:
                raise KeyError("protocol")
            return Hello(
                language=str(values["language"]),
                client=str(values["client"]),
                runtime=str(values["runtime"]),
                features=frozenset(str(word) for word in as_list(values["features"])),
                digest=str(values["digest"]),
            )
        except KeyError as error:
            self.kill()
            raise AdapterBroken(f"hello lacks {error.args[0]}: {answer.text()}") from None

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End the process at once."""
        if self.alive:
            self._process.kill()
        self._process.wait(EXIT_SECONDS)

    def stop(self) -> int:
        """Close stdin and wait for the end. Returns the exit code, which should be 0."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except OSError:
            pass  # The pipe is already broken; the exit code says the rest.
        try:
            code = self._process.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AdapterBroken(
                f"the adapter did not end within {EXIT_SECONDS:g} s of EOF"
            ) from None
        for reader in self._readers:
            reader.join(EXIT_SECONDS)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
        return code
