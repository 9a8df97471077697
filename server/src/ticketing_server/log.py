"""One line per event that an operator acts on: text or JSON, rate-limited, never blocking.

Lines are formatted where the event happens and written by a thread of their own, so that a
stalled terminal or log collector never holds up the event loop: what does not fit into the
queue is dropped and counted.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TextIO

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
BURST_LINES = 20
LINES_PER_S = 2.0
_QUEUE_LINES_MAX = 10_000
_VALUE_CHARS_MAX = 1_024

Item = str | bytes | int
Value = Item | float | bool | None | tuple[Item, ...]


def escape(value: bytes | str) -> str:
    r"""Show any bytes or text as printable ASCII without space, quote or backslash.

    Printable characters stay; everything else becomes `\xNN` (of its UTF-8), so two different
    keys never look the same.
    """
    data = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
    return "".join(
        chr(byte) if 0x21 <= byte <= 0x7E and byte not in b'\\"' else f"\\x{byte:02x}"
        for byte in data
    )


@dataclass(slots=True)
class _Allowance:
    """A token bucket for lines of one event."""

    lines: float
    refilled_s: float
    suppressed: int = 0


class EventLog:
    """Formats, limits and hands on lines; safe to call from any thread."""

    def __init__(
        self,
        write: Callable[[str], None],
        *,
        style: str = "text",
        level: str = "info",
        wall_clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Write lines (each with its line end) through `write`; `style` is text or json."""
        self._write = write
        self._json = style == "json"
        self._level = LEVELS[level]
        self._wall_clock = wall_clock
        self._allowances: dict[str, _Allowance] = {}
        self._lock = threading.Lock()

    def event(
        self, now_s: float, level: str, event: str, fields: Mapping[str, Value], *, text: str = ""
    ) -> None:
        """Log an event that may come in floods: over its rate it is counted, not written.

        `now_s` is a monotonic time in seconds. The next line that is written of this event says
        how many were not.
        """
        if LEVELS[level] < self._level:
            return
        with self._lock:
            allowance = self._allowances.setdefault(event, _Allowance(BURST_LINES, now_s))
            passed_s = max(0.0, now_s - allowance.refilled_s)
            allowance.lines = min(BURST_LINES, allowance.lines + passed_s * LINES_PER_S)
            allowance.refilled_s = now_s
            if allowance.lines < 1:
                allowance.suppressed += 1
                return
            allowance.lines -= 1
            suppressed, allowance.suppressed = allowance.suppressed, 0
        if suppressed:
            fields = {**fields, "suppressed": suppressed}
        self.always(level, event, fields, text=text)

    def always(
        self, level: str, event: str, fields: Mapping[str, Value] | None = None, *, text: str = ""
    ) -> None:
        """Log an event that is rare by its nature, such as a start or a reload."""
        if LEVELS[level] < self._level:
            return
        when = self._wall_clock().isoformat(timespec="milliseconds").replace("+00:00", "Z")
        fields = fields or {}
        text = " ".join(map(_shown, text.split()))
        if self._json:
            record: dict[str, object] = {"time": when, "level": level, "event": event}
            record |= {name: _json_value(value) for name, value in fields.items()}
            if text:
                record["text"] = text
            self._write(json.dumps(record) + "\n")
            return
        pairs = "".join(f" {name}={_text_value(value)}" for name, value in fields.items())
        self._write(f"{when} {level} {event}{pairs}{': ' + text if text else ''}\n")

    def raw(self, text: str) -> None:
        """Write text as it is: the banner of a start."""
        self._write(text)


def _shown(value: str | bytes) -> str:
    shown = escape(value)
    return shown if len(shown) <= _VALUE_CHARS_MAX else shown[:_VALUE_CHARS_MAX] + "..."


def _json_value(value: Value) -> object:
    if isinstance(value, tuple):
        return [_json_value(item) for item in value]
    return _shown(value) if isinstance(value, (str, bytes)) else value


def _text_value(value: Value) -> str:
    if isinstance(value, tuple):
        # A comma is escaped in here, so that one key with a comma does not look like two.
        return ",".join(_text_value(item).replace(",", "\\x2c") for item in value) or "-"
    if isinstance(value, (str, bytes)):
        return _shown(value) or "-"
    if isinstance(value, float):
        return f"{value:.3f}"
    return "-" if value is None else str(value)


class LineWriter:
    """A thread that writes lines to a stream; `write` never waits for it."""

    def __init__(self, stream: TextIO | None = None) -> None:
        """Begin to write to `stream` (standard error)."""
        self._stream = stream if stream is not None else sys.stderr
        self._lines: queue.Queue[str | None] = queue.Queue(_QUEUE_LINES_MAX)
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="ticketing-log", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Queue a line, or drop and count it where the queue is full."""
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self.dropped += 1

    def close(self, timeout_s: float = 2.0) -> None:
        """Write what is queued, for at most `timeout_s`."""
        try:
            self._lines.put(None, timeout=timeout_s)
        except queue.Full:
            return
        self._thread.join(timeout_s)

    def _run(self) -> None:
        told = 0
        while (line := self._lines.get()) is not None:
            if self.dropped != told:
                line += f"log lines dropped so far: {self.dropped}\n"
                told = self.dropped
            try:
                self._stream.write(line)
                self._stream.flush()
            except (OSError, ValueError):
                self.dropped += 1
