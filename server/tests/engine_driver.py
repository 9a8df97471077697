"""Drives the engine of memory mode with a manual clock and the spec's own codec."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ticketing_server.engine import Output, Peer
from ticketing_server.limits import Limits
from ticketing_server.session import Session
from ticketing_server.standalone import StandaloneEngine
from ticketing_spec import load_spec
from ticketing_spec.codec import client_nonce, decode, encode, mac, split

SPEC = load_spec()
SECRET = b"a secret for tests"
MS = 1_000_000
SECOND = 1_000_000_000
FOREVER = 0xFFFFFFFF
FIRST_TOKEN = 1 << 40

Frame = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Named:
    """A secret with its name."""

    name: str
    value: bytes


@dataclass
class Peered:
    """What one connection was sent, and whether it was closed."""

    number: int
    greeting: bytes = b""
    frames: list[Frame] = field(default_factory=list)
    sent: int = 0
    close: str = "no"
    _rest: bytes = b""

    def take(self) -> list[Frame]:
        """Return the frames since the last call."""
        frames, self.frames = self.frames, []
        return frames

    def got(self, output: Output) -> None:
        """Take one output of the engine."""
        data = output.data
        self.sent += len(data)
        if not self.greeting:
            self.greeting, data = data[:26], data[26:]
        whole, rest = split(SPEC, "server", self._rest + data)
        assert not rest, "an output holds whole frames"
        self.frames += [decode(SPEC, "server", frame) for frame in whole]
        assert self.close == "no", "nothing is sent after the last word"
        self.close = output.close


class Driver:
    """An engine and the connections to it; time moves only by `turn`."""

    def __init__(self, limits: Limits | None = None, *secrets: Named) -> None:
        self.now = 1000 * SECOND
        self.engine = StandaloneEngine(FIRST_TOKEN, {4: Session})
        self.configure(limits or Limits(), *secrets)
        self.peers: dict[int, Peered] = {}
        self.deadline: int | None = None
        self._next_request = 0

    def configure(self, limits: Limits, *secrets: Named) -> None:
        """Give the engine limits and secrets."""
        self.engine.configure(limits, secrets or (Named("test", SECRET),), self.now)

    def open(self, peer: Peer | None = None, entropy: bytes | None = None) -> Peered:
        """Open a connection and read its greeting."""
        peered = Peered(len(self.peers) + 1)
        self.peers[peered.number] = peered
        drawn = entropy or peered.number.to_bytes(16, "big") * 2
        self.engine.open(
            peered.number, peer or Peer("tcp", f"127.0.0.1:{peered.number}"), drawn, self.now
        )
        self.turn()
        return peered

    def hello(
        self,
        peered: Peered,
        client: int = 1,
        connection: int = 1,
        secret: bytes = SECRET,
        **changes: Any,
    ) -> bytes:
        """Make a hello for this connection."""
        fields: dict[str, Any] = {
            "version": 4,
            "client_id": client,
            "connection": connection,
            "client_nonce": client_nonce(SPEC, bytes(16), connection),
            "label": b"test:1;python/0.1.0",
        }
        fields |= changes
        fields["mac"] = mac(SPEC, secret, peered.greeting, fields)
        return encode(SPEC, "client", "hello", fields)

    def connect(self, client: int = 1, connection: int = 1, **changes: Any) -> Peered:
        """Open a connection and be welcomed."""
        peered = self.open()
        self.feed(peered, self.hello(peered, client, connection, **changes))
        frames = peered.take()
        assert [name for name, _ in frames] == ["welcome"], frames
        return peered

    def put(self, peered: Peered, data: bytes) -> None:
        """Feed bytes without ending the turn."""
        self.engine.feed(peered.number, data, self.now)

    def feed(self, peered: Peered, data: bytes) -> None:
        """Feed bytes as one turn."""
        self.put(peered, data)
        self.turn()

    def request(self, peered: Peered, name: str, **fields: Any) -> int:
        """Put a request into this turn; return its id."""
        self._next_request += 1
        number = int(fields.pop("request_id", self._next_request))
        self.put(peered, encode(SPEC, "client", name, {"request_id": number, **fields}))
        return number

    def acquire(
        self,
        peered: Peered,
        key: bytes | list[bytes] = b"k",
        wait_ms: int = FOREVER,
        lease_ms: int = 30_000,
        **fields: Any,
    ) -> int:
        """Acquire a key or set as one turn; return the request id."""
        what = {"keys": key} if isinstance(key, list) else {"key": key}
        name = "acquire_set" if isinstance(key, list) else "acquire"
        number = self.request(peered, name, wait_ms=wait_ms, lease_ms=lease_ms, **what, **fields)
        self.turn()
        return number

    def hold(self, peered: Peered, key: bytes | list[bytes] = b"k", lease_ms: int = 30_000) -> int:
        """Acquire what is free; return the token."""
        number = self.acquire(peered, key, lease_ms=lease_ms)
        ((name, fields),) = peered.take()
        assert (name, fields["request_id"], fields["waited_ms"]) == ("granted", number, 0)
        return int(fields["token"])

    def turn(self, ns: int = 0) -> None:
        """Let time pass and end the turn."""
        self.now += ns
        outputs, self.deadline = self.engine.end_turn(self.now)
        for output in outputs:
            self.peers[output.connection].got(output)

    def run_until(self, end_ns: int) -> list[int]:
        """End a turn at each deadline that the engine names until then; return when."""
        turns = []
        while self.deadline is not None and self.deadline <= end_ns:
            self.now = max(self.now, self.deadline)
            turns.append(self.now)
            self.turn()
            assert len(turns) < 10_000
        self.now = end_ns
        return turns


def names(peered: Peered) -> list[str]:
    return [name for name, _ in peered.take()]


def only(peered: Peered) -> tuple[str, dict[str, Any]]:
    frames = peered.take()
    assert len(frames) == 1, frames
    return frames[0]


def error(peered: Peered) -> tuple[int, str]:
    """The last word of a connection that was closed."""
    name, fields = only(peered)
    assert name == "error"
    assert peered.close == "linger"
    return fields["code"], bytes(fields["text"]).decode("ascii")
