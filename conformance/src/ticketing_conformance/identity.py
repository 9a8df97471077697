"""The suite `identity`: one script gives one byte stream, whatever the language.

First pass: a scripted server plays the scenario's own bytes; the recorded streams have to be the
golden ones. Second pass (`flags real`): the same script against the real server.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ticketing_conformance.adapters import Language
from ticketing_conformance.golden import Transcript, digest_of, read_transcript
from ticketing_conformance.kaitai import second_opinion
from ticketing_conformance.real_peer import RealPeer
from ticketing_conformance.results import Result, stream_texts
from ticketing_conformance.runner import Outcome, Run
from ticketing_conformance.script import Case

if TYPE_CHECKING:
    from ticketing_conformance.tests_of import Tools

SUITE = "identity"
REAL_FLAG = "real"


def run_scripted(case: Case, language: Language, api: str, tools: Tools) -> Result:
    """The first pass."""
    golden = read_transcript(case)
    with tempfile.TemporaryDirectory(prefix="ticketing-identity-") as directory:
        outcome = Run(case, language, api, tools.adapters, tools.servers, Path(directory)).run()
    streams = second_opinion(tools.kaitai, outcome)
    captures = outcome.captures
    up = tuple(capture.connection.up.whole() for capture in captures)
    down = tuple(capture.connection.down.whole() for capture in captures)
    failure = outcome.failure or difference(golden, up, down)
    result = _result(outcome, failure)
    result.digest, result.kaitai_streams = digest_of(up), streams
    for stream in result.streams:
        expected = golden.up if stream.direction == "up" else golden.down
        if stream.connection <= len(expected):
            stream.expected_hex = expected[stream.connection - 1].hex()
    return result


def run_real(case: Case, language: Language, api: str, tools: Tools) -> Result:
    """The second pass."""
    with tempfile.TemporaryDirectory(prefix="ticketing-identity-") as directory:
        run = Run(case, language, api, tools.adapters, tools.servers, Path(directory))
        run.replace_family("peer", RealPeer(run.context, tools.servers))
        outcome = run.run()
    streams = second_opinion(tools.kaitai, outcome)
    result = _result(outcome, outcome.failure)
    result.kaitai_streams = streams
    return result


def _result(outcome: Outcome, failure: str) -> Result:
    result = Result("", "", "", "failed" if failure else "passed", reason=failure)
    if failure:
        result.transcript = outcome.transcript
        result.streams = stream_texts(outcome.captures)
        result.log = outcome.adapter_log
    else:
        result.captured = stream_texts(outcome.captures)
    return result


def difference(golden: Transcript, up: tuple[bytes, ...], down: tuple[bytes, ...]) -> str:
    """ "" if the recorded streams are the golden ones, else where they part."""
    if len(up) != len(golden.up):
        return f"{len(up)} connections were made, expected {len(golden.up)}"
    for way, streams, expected in (("sent", up, golden.up), ("received", down, golden.down)):
        for number, (got, wanted) in enumerate(zip(streams, expected, strict=True), 1):
            if got == wanted:
                continue
            at = next(
                (i for i, (a, b) in enumerate(zip(got, wanted, strict=False)) if a != b),
                min(len(got), len(wanted)),
            )
            return (
                f"what the client {way} on connection {number} differs from byte {at} on:"
                f" {got[at : at + 24].hex() or 'its end'} instead of"
                f" {wanted[at : at + 24].hex() or 'its end'}"
            )
    return ""
