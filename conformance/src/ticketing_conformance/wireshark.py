"""A third opinion on captured streams: the dissector for Wireshark, run by tshark.

The identity suite's streams go into one capture file; every frame that the codec reads has to be
found there under the same name and request id, and nothing may be marked as malformed.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ticketing_spec.capture import FIRST_CLIENT_PORT, write_capture
from ticketing_spec.codec import Malformed
from ticketing_spec.model import SPEC_DIR

from ticketing_conformance.results import Result
from ticketing_conformance.streams import GREETING_BYTES, read_stream, the_spec

DISSECTOR = SPEC_DIR / "dist" / "ticketing.lua"
SERVER_PORT = 5225
SEGMENT_BYTES = 1400
CONNECTIONS_MAX = 200
TSHARK_SECONDS = 240.0
_COLUMNS = ("tcp.srcport", "tcp.dstport", "ticketing.op", "ticketing.request_id")
_MARK = "_ws.expert.message"
# What Wireshark says of TCP itself when it sees a SYN.
_OF_TCP = "Connection est"


class WiresharkMissing(Exception):
    """tshark is not there; the text says how to get it."""


@dataclass(frozen=True)
class Captured:
    """The streams of one connection: what the client sent, and the server."""

    where: str
    up: bytes
    down: bytes


def captured_of(results: Sequence[Result]) -> list[Captured]:
    """Whole, readable streams that results carry, 200 at most, spread over all of them."""
    pairs: dict[tuple[str, str, str, int], dict[str, bytes]] = {}
    for result in results:
        for stream in result.captured:
            name = (result.id, result.column, stream.name, stream.connection)
            pairs.setdefault(name, {})[stream.direction] = bytes.fromhex(stream.hex)
    found = [
        Captured(f"{test} with {column}, connection {number}", pair["up"], pair["down"])
        for (test, column, _, number), pair in pairs.items()
        if _readable("client", pair["up"]) and _readable("server", pair["down"])
    ]
    step = -(-len(found) // CONNECTIONS_MAX) or 1
    return found[::step]


def _readable(direction: str, data: bytes) -> bool:
    try:
        read_stream(direction, data)
    except Malformed:
        return False
    return True


def disagreements(streams: Sequence[Captured], folder: Path) -> list[str]:
    """What the dissector reads otherwise than the codec. Raises WiresharkMissing."""
    tshark = shutil.which("tshark")
    if tshark is None:
        raise WiresharkMissing("tshark is not installed (Debian: apt install tshark)")
    path = folder / "streams.pcap"
    write_capture(path, [_segments(stream) for stream in streams], SERVER_PORT)
    command = [tshark, "-X", f"lua_script:{DISSECTOR}", "-r", str(path), "-T", "fields"]
    command += ["-E", "separator=\t", "-E", "occurrence=a", "-E", "aggregator=|"]
    for name in (*_COLUMNS, _MARK):
        command += ["-e", name]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TSHARK_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return [f"tshark did not end within {TSHARK_SECONDS:g} s"]
    if done.returncode or "Lua:" in done.stderr:
        return [f"tshark ended with {done.returncode}: {done.stderr.strip()[-500:]}"]
    return _compare(streams, [line.split("\t") for line in done.stdout.splitlines()])


def _segments(stream: Captured) -> list[tuple[str, bytes]]:
    """The greeting, all of the client, the rest of the server: the order of the first bytes."""
    down = stream.down[GREETING_BYTES:]
    return [
        (sender, data[start : start + SEGMENT_BYTES])
        for sender, data in (
            ("server", stream.down[:GREETING_BYTES]),
            ("client", stream.up),
            ("server", down),
        )
        for start in range(0, len(data), SEGMENT_BYTES)
    ]


def _compare(streams: Sequence[Captured], rows: Sequence[Sequence[str]]) -> list[str]:
    read: dict[tuple[int, str], list[list[str]]] = {}
    faults = []
    for source, target, ops, ids, marks in rows:
        direction = "server" if int(source) == SERVER_PORT else "client"
        number = int(target if direction == "server" else source) - FIRST_CLIENT_PORT
        found = read.setdefault((number, direction), [[], []])
        found[0] += ops.split("|") if ops else []
        found[1] += ids.split("|") if ids else []
        for mark in marks.split("|") if marks else []:
            if _OF_TCP not in mark:
                faults.append(f"Wireshark: {streams[number].where}, {direction}: {mark}")
    for number, stream in enumerate(streams):
        for direction, data in (("client", stream.up), ("server", stream.down)):
            frames = read_stream(direction, data)
            expected = [
                [_op(direction, name) for name, _ in frames if name != "greeting"],
                [str(fields["request_id"]) for _, fields in frames if "request_id" in fields],
            ]
            if (got := read.get((number, direction), [[], []])) != expected:
                faults.append(
                    f"Wireshark: {stream.where}, {direction}: reads {got}, the codec {expected}"
                )
    return faults


def _op(direction: str, name: str) -> str:
    return f"{the_spec().frame(direction, name).op_char} {name}"
