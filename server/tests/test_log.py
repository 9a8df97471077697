"""The log: what a line looks like, what it never shows, what a flood costs."""

from __future__ import annotations

import io
import json
import threading
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ticketing_server.engine import Event
from ticketing_server.engine_events import log_engine_event
from ticketing_server.log import BURST_LINES, LINES_PER_S, EventLog, LineWriter, escape

WHEN = datetime(2030, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)


def make_log(style: str = "text", level: str = "info") -> tuple[EventLog, list[str]]:
    lines: list[str] = []
    return EventLog(lines.append, style=style, level=level, wall_clock=lambda: WHEN), lines


class TestEscape:
    def test_four_keys_that_look_alike_stay_four(self) -> None:
        shown = [escape(key) for key in (b"a", b"a\0", b"a b", b"a\n")]
        assert shown == ["a", "a\\x00", "a\\x20b", "a\\x0a"]

    def test_a_literal_backslash_is_not_taken_for_an_escape(self) -> None:
        assert escape(b"\\x00") == "\\x5cx00"

    @given(st.binary(max_size=64), st.binary(max_size=64))
    def test_different_keys_look_different(self, first: bytes, second: bytes) -> None:
        assert (escape(first) == escape(second)) == (first == second)

    @given(st.one_of(st.binary(), st.text()))
    def test_nothing_but_visible_ascii_comes_out(self, value: bytes | str) -> None:
        assert all("!" <= c <= "~" and c != '"' for c in escape(value))

    def test_text_that_is_not_valid_unicode(self) -> None:
        assert escape("\udcff") == "\\xff"


class TestLines:
    def test_text(self) -> None:
        log, lines = make_log()
        log.always("warning", "lease_over", {"key": b"a b", "token": 7, "held_s": 1.5, "label": ""})
        assert lines == [
            "2030-01-02T03:04:05.678Z warning lease_over key=a\\x20b token=7 held_s=1.500 label=-\n"
        ]

    def test_json(self) -> None:
        log, lines = make_log("json")
        log.always("info", "reloaded", {"names": ("a", "b\n"), "n": 2**64 - 1}, text="all  well")
        assert len(lines) == 1
        assert json.loads(lines[0]) == {
            "time": "2030-01-02T03:04:05.678Z",
            "level": "info",
            "event": "reloaded",
            "names": ["a", "b\\x0a"],
            "n": 2**64 - 1,
            "text": "all well",
        }

    @pytest.mark.parametrize("style", ["text", "json"])
    @given(value=st.text(), text=st.text())
    def test_nothing_makes_a_second_line(self, style: str, value: str, text: str) -> None:
        log, lines = make_log(style)
        log.always("info", "event", {"field": value}, text=text)
        (line,) = lines
        assert line.endswith("\n")
        assert len(line.splitlines()) == 1
        assert line.isascii()

    def test_a_comma_in_a_key_does_not_look_like_two_keys(self) -> None:
        log, lines = make_log()
        log.always("info", "event", {"keys": (b"a,b", b"c")})
        assert lines[0].endswith(" keys=a\\x2cb,c\n")

    def test_what_is_below_the_level_is_not_written(self) -> None:
        log, lines = make_log(level="warning")
        log.always("info", "event")
        log.event(0.0, "info", "event", {})
        log.always("error", "event")
        assert len(lines) == 1

    def test_a_long_value_is_cut(self) -> None:
        log, lines = make_log()
        log.always("info", "event", {"label": "x" * 100_000})
        assert len(lines[0]) < 2_000


class TestRate:
    def test_a_flood_is_counted_and_not_written(self) -> None:
        log, lines = make_log()
        for _ in range(10_000):
            log.event(100.0, "warning", "auth_failed", {"peer": "10.0.0.1:1"})
        assert len(lines) == BURST_LINES
        log.event(100.0 + 1 / LINES_PER_S, "warning", "auth_failed", {"peer": "10.0.0.1:1"})
        assert lines[-1].endswith(f" suppressed={10_000 - BURST_LINES}\n")

    def test_one_event_does_not_silence_another(self) -> None:
        log, lines = make_log()
        for _ in range(BURST_LINES + 1):
            log.event(0.0, "warning", "auth_failed", {})
        log.event(0.0, "warning", "lease_over", {})
        assert " lease_over" in lines[-1]

    def test_an_allowance_comes_back_and_not_beyond_its_size(self) -> None:
        log, lines = make_log()
        for now_s in (0.0, 1_000_000.0):
            for _ in range(BURST_LINES * 2):
                log.event(now_s, "warning", "auth_failed", {})
        assert len(lines) == 2 * BURST_LINES


class TestEngineEvents:
    def test_times_are_seconds_and_bytes_are_escaped(self) -> None:
        log, lines = make_log()
        fields: dict[str, object] = {"keys": (b"a\n",), "held_ns": 1_500_000_000, "text": "no\nway"}
        log_engine_event(log, Event("lease_over", fields), 0.0)
        assert lines[0].endswith(" warning lease_over keys=a\\x0a held_s=1.500: no way\n")

    def test_what_comes_and_goes_is_for_debugging_only(self) -> None:
        log, lines = make_log()
        log_engine_event(log, Event("connected", {"peer": "p"}), 0.0)
        assert lines == []


class TestWriter:
    def test_lines_arrive_in_order(self) -> None:
        stream = io.StringIO()
        writer = LineWriter(stream)
        for number in range(100):
            writer.write(f"{number}\n")
        writer.close()
        assert stream.getvalue() == "".join(f"{number}\n" for number in range(100))

    def test_a_stalled_stream_delays_nobody_and_losses_are_told(self) -> None:
        class Stalled(io.StringIO):
            def __init__(self) -> None:
                super().__init__()
                self.entered, self.released = threading.Event(), threading.Event()

            def write(self, text: str) -> int:
                self.entered.set()
                self.released.wait(30)
                return super().write(text)

        stream = Stalled()
        writer = LineWriter(stream)
        writer.write("first\n")
        assert stream.entered.wait(30)
        for _ in range(20_000):
            writer.write("more\n")
        assert writer.dropped == 10_000
        writer.close(timeout_s=0.01)  # a stream that never comes back does not hold up the end
        stream.released.set()
        writer.close(timeout_s=30)
        assert "log lines dropped so far: 10000\n" in stream.getvalue()

    def test_a_stream_that_fails_is_survived(self) -> None:
        stream = io.StringIO()
        writer = LineWriter(stream)
        stream.close()
        writer.write("lost\n")
        writer.close()
        assert writer.dropped == 1
