"""What went over one connection in one direction: recorded whole, read frame by frame.

A stream is what TCP is: bytes in order. Segments are not kept, so that nothing can depend on them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from ticketing_spec import Spec, load_spec
from ticketing_spec.codec import Malformed, decode, decode_preamble

HEADER_BYTES = 3
GREETING_BYTES = 26

Fields = dict[str, int | bytes | list[bytes]]


@cache
def the_spec() -> Spec:
    """The spec of version 4, read once."""
    return load_spec()


class StreamEnded(Exception):
    """The stream ended before what was waited for came."""


class StreamSilent(Exception):
    """What was waited for did not come in time."""


@dataclass
class Stream:
    """The bytes of one direction; written by one thread, read by others.

    `direction` is "client" for what the client sends, "server" for the rest. `ended` is "" while
    it is open, then "eof" or "reset".
    """

    direction: str
    condition: threading.Condition
    data: bytearray = field(default_factory=bytearray)
    ended: str = ""
    read: int = 0
    """How much of it `next_frame` has consumed."""

    def append(self, data: bytes) -> None:
        """Add bytes that were seen."""
        with self.condition:
            self.data += data
            self.condition.notify_all()

    def end(self, how: str) -> None:
        """Nothing more will come."""
        with self.condition:
            self.ended = self.ended or how
            self.condition.notify_all()

    def wait(self, ready: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait until `ready()`; raises StreamEnded or StreamSilent."""
        deadline = time.monotonic() + seconds
        with self.condition:
            while not ready():
                if self.ended:
                    raise StreamEnded(f"{what} did not come: the stream ended with {self.ended}")
                left = deadline - time.monotonic()
                if left <= 0:
                    raise StreamSilent(f"{what} did not come within {seconds:g} s")
                self.condition.wait(left)

    def take(self, size: int, seconds: float, what: str) -> bytes:
        """The next `size` bytes that nobody has consumed."""
        self.wait(lambda: len(self.data) - self.read >= size, seconds, what)
        with self.condition:
            data = bytes(self.data[self.read : self.read + size])
            self.read += size
        return data

    def next_frame(self, seconds: float, what: str = "a frame") -> bytes:
        """The next whole frame that nobody has consumed, with its header."""

        def size() -> int:
            head = self.data[self.read : self.read + HEADER_BYTES]
            if len(head) < HEADER_BYTES:
                return HEADER_BYTES
            return HEADER_BYTES + int.from_bytes(head[1:3], "big")

        self.wait(lambda: len(self.data) - self.read >= max(size(), HEADER_BYTES), seconds, what)
        return self.take(size(), seconds, what)

    def unread(self) -> bytes:
        """What came and was not consumed."""
        with self.condition:
            return bytes(self.data[self.read :])

    def whole(self) -> bytes:
        """Everything that came so far."""
        with self.condition:
            return bytes(self.data)


def cut(direction: str, data: bytes) -> tuple[list[bytes], bytes]:
    """A stream from its first byte, cut at frame borders: the pieces and an unfinished rest.

    The greeting is a piece of its own. Only headers are read, so a stream of garbage is cut too.
    """
    pieces: list[bytes] = []
    position = 0
    if direction == "server":
        if len(data) < GREETING_BYTES:
            return [], data
        pieces.append(data[:GREETING_BYTES])
        position = GREETING_BYTES
    while len(data) - position >= HEADER_BYTES:
        end = position + HEADER_BYTES + int.from_bytes(data[position + 1 : position + 3], "big")
        if end > len(data):
            break
        pieces.append(data[position:end])
        position = end
    return pieces, data[position:]


def read_piece(direction: str, number: int, piece: bytes) -> tuple[str, Fields]:
    """Name and fields of the n-th piece of a stream (from 0). Raises Malformed."""
    if direction == "server" and number == 0:
        return "greeting", dict(decode_preamble(the_spec(), "greeting", piece))
    name, fields = decode(the_spec(), direction, piece)
    return name, dict(fields)


def read_stream(direction: str, data: bytes) -> list[tuple[str, Fields]]:
    """All pieces of a stream, read. Raises Malformed, also for an unfinished rest."""
    pieces, rest = cut(direction, data)
    frames = [read_piece(direction, number, piece) for number, piece in enumerate(pieces)]
    if rest:
        raise Malformed("stream", f"{len(rest)} bytes of an unfinished frame at the end")
    return frames


@dataclass
class Connection:
    """The two streams of one connection, which share one condition."""

    number: int
    condition: threading.Condition = field(default_factory=threading.Condition)
    up: Stream = field(init=False)
    down: Stream = field(init=False)

    def __post_init__(self) -> None:
        self.up = Stream("client", self.condition)
        self.down = Stream("server", self.condition)

    def stream(self, direction: str) -> Stream:
        """`up`: from client to server; `down`: the other one."""
        return self.up if direction == "up" else self.down
