"""The same scripts against memory mode and a durable server alone: the same replies."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from engine_driver import SECRET, SPEC, Named, Peered
from node_network import FOREVER, MS, SECOND, WALL_MS, Network
from ticketing_server.cluster import snapshot_file
from ticketing_server.engine import Output, Peer
from ticketing_server.limits import Limits
from ticketing_server.session import Session
from ticketing_server.session_v3 import FINGERPRINT_STANDALONE, SessionV3
from ticketing_server.standalone import StandaloneEngine
from ticketing_spec import load_spec
from ticketing_spec.codec import client_nonce, encode, mac, split

KEYS = [b"a", b"b", b"c"]
LIMITS = Limits(waiters_per_key=3, waiters=6, held_keys=5, max_lease_ms=60_000)
SPEC_V3 = load_spec("version3")


class Both:
    """Two engines that are told the same at the same times."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.network = Network(1, LIMITS)
        (self.host,) = self.network.hosts
        self.network.connect()
        self.network.run(6 * SECOND)
        faces = {3: SessionV3, 4: Session}
        self.plain = StandaloneEngine(WALL_MS << 20, faces)
        self.plain.configure(LIMITS, (Named("test", SECRET),), self.network.now)
        self.deadline: int | None = None
        self.heard: dict[int, list[Output]] = {}
        self.numbers: dict[int, int] = {}
        self.protocols: dict[int, int] = {}
        self.greetings: dict[int, bytes] = {}
        self.closed: set[int] = set()
        self.tokens: list[tuple[int, Any]] = []
        self.next_connection = 0
        self.next_request = 0

    # Both engines

    def turn(self) -> None:
        """End a turn in both, and compare what each connection heard."""
        outputs, self.deadline = self.plain.end_turn(self.network.now)
        before = {number: peered.sent for number, peered in self.host.clients.items()}
        self.host.turn()
        self.network.settle()
        said: dict[int, bytes] = {}
        closes: dict[int, str] = {}
        for output in outputs:
            said[output.connection] = said.get(output.connection, b"") + output.data
            closes[output.connection] = output.close
        for number, peered in self.host.clients.items():
            assert isinstance(peered, Raw)
            data = peered.data[before[number] :]
            mine = said.get(number, b"")
            if not self.greetings[number]:
                assert data == mine
                self.greetings[number] = data
                continue
            assert self.frames(number, data) == self.frames(number, mine), number
            assert peered.close == closes.get(number, peered.close), number
            if peered.close != "no":
                self.closed.add(number)
        assert self.plain.table.attached == self.host.node.table.attached
        assert self.plain.table.detached == self.host.node.table.detached
        assert self.plain.table.held_keys == self.host.node.table.held_keys

    def frames(self, number: int, data: bytes) -> list[bytes]:
        """Cut what was written; pings and refusals may overtake what waits for the log."""
        spec = SPEC if self.protocols[number] == 4 else SPEC_V3
        if self.protocols[number] == 3 and data[:1] in (b"\0", b"\1"):
            return [data[:1], *self.frames(number, data[1:])]
        whole, rest = split(spec, "server", data)
        assert not rest
        for frame in whole:
            if frame[:1] == b"A" and self.protocols[number] == 4:
                self.tokens.append((int.from_bytes(frame[11:19], "big"), None))
        return sorted(whole)

    def advance(self, duration_ns: int) -> None:
        """Let time pass in both, deadline by deadline."""
        until = self.network.now + duration_ns
        for _ in range(10_000):
            wakes = [at for at in (self.deadline, self.host.deadline) if at is not None]
            due = max(self.network.now, min(wakes, default=until))
            if due >= until:
                break
            self.network.now = due
            self.turn()
        self.network.now = until
        self.turn()

    def feed(self, number: int, data: bytes) -> None:
        self.plain.feed(number, data, self.network.now)
        self.host.node.feed(number, data, self.network.now)

    # What clients do

    def open(self, protocol: Any, client: int) -> None:
        self.next_connection += 1
        number = self.next_connection
        self.protocols[number] = protocol
        self.greetings[number] = b""
        self.host.clients[number] = Raw(number)
        peer = Peer("tcp", f"127.0.0.1:{number}", protocol)
        drawn_client = client if self.random.random() < 0.1 else 100 + number
        entropy = number.to_bytes(16, "big") + drawn_client.to_bytes(8, "big") + bytes(8)
        self.plain.open(number, peer, entropy, self.network.now)
        self.host.node.open(number, peer, entropy, self.network.now)
        self.turn()
        greeting = self.greetings[number]
        if protocol == 3:
            fields: dict[str, Any] = {"fingerprint": FINGERPRINT_STANDALONE}
            self.feed(number, mac(SPEC_V3, SECRET, greeting, fields))
        else:
            self.numbers[client] = connection = self.numbers.get(client, 0) + 1
            fields = {
                "version": 4,
                "client_id": client,
                "connection": connection,
                "client_nonce": client_nonce(SPEC, bytes(16), connection),
                "label": b"test:1;python/0.1.0",
            }
            fields["mac"] = mac(SPEC, SECRET, greeting, fields)
            self.feed(number, encode(SPEC, "client", "hello", fields))

    def request(self, number: int) -> bytes:
        draw = self.random
        self.next_request += 1
        keys = sorted(draw.sample(KEYS, 2))
        token = draw.choice(self.tokens)[0] if self.tokens else 1
        if self.protocols[number] == 3:
            wait, lease = draw.choice((0, 1, 4)), draw.choice((1, 3, 100, 250))
            fields: dict[str, Any] = {"request_id": self.next_request}
            name = draw.choice(("acquire", "acquire_set", "release", "release_set"))
            if name.startswith("acquire"):
                fields |= {"wait_s": wait, "lease_s": lease}
            else:
                fields |= {"token": token}
            fields |= {"keys": keys} if name.endswith("set") else {"key": draw.choice(KEYS)}
            data = encode(SPEC_V3, "client", name, fields)
            if name == "acquire" and draw.random() < 0.1:
                # A lease that is too long.
                data = data[:12] + b"\xff" + data[13:]
            return data
        wait_ms = draw.choice((0, 100, 1500, FOREVER))
        lease_ms = draw.choice((1, 700, 3000, 60_000, 60_001))
        name = draw.choice(
            ("acquire", "acquire", "acquire", "acquire_set", "release", "release", "extend",
             "cancel", "ping", "bad")
        )  # fmt: skip
        request_id = self.next_request if draw.random() < 0.9 else max(1, self.next_request - 3)
        fields = {"request_id": request_id, "key": draw.choice(KEYS)}
        if name == "acquire":
            fields |= {"wait_ms": wait_ms, "lease_ms": lease_ms}
        elif name == "acquire_set":
            del fields["key"]
            fields |= {"wait_ms": wait_ms, "lease_ms": lease_ms, "keys": keys}
        elif name == "release":
            fields |= {"token": token}
        elif name == "extend":
            fields |= {"token": token, "lease_ms": lease_ms}
        elif name == "cancel":
            fields |= {"acquire_id": max(1, self.next_request - draw.randrange(6))}
        elif name == "ping":
            fields = {"echo": self.next_request}
        else:
            if draw.random() < 0.7:
                return b""
            fields |= {"wait_ms": 0, "lease_ms": 1}
            data = encode(SPEC, "client", "acquire", fields)
            # A lease of 0.
            return data[:15] + bytes(4) + data[19:]
        return encode(SPEC, "client", name, fields)

    def step(self) -> None:
        """Let one random turn happen."""
        draw = self.random
        live = [number for number in self.host.clients if number not in self.closed]
        what = draw.random()
        if what < 0.12 or not live:
            self.open(draw.choice((3, 4, 4)), draw.randrange(1, 5))
        elif what < 0.16:
            number = draw.choice(live)
            self.plain.close(number)
            self.host.node.close(number)
            self.closed.add(number)
        elif what < 0.20:
            number = draw.choice(live)
            self.feed(number, self.request(number))
            self.plain.eof(number)
            self.host.node.eof(number)
        elif what < 0.23 and self.tokens:
            key, (token, _) = draw.choice(KEYS), draw.choice(self.tokens[-5:])
            forced = self.plain.force_release(key, token)
            assert self.host.node.force_release(key, token) == forced
        elif what < 0.45:
            self.advance(draw.choice((1, 50, 400, 3000)) * MS)
        else:
            for _ in range(draw.randrange(1, 6)):
                number = draw.choice(live)
                data = b"".join(self.request(number) for _ in range(draw.randrange(1, 4)))
                cut = draw.randrange(len(data) + 1)
                self.feed(number, data[:cut])
                self.feed(number, data[cut:])
        self.turn()


class Raw(Peered):
    """What a connection was sent, as bytes."""

    data: bytes = b""

    def got(self, output: Output) -> None:
        self.data += output.data
        self.sent = len(self.data)
        assert self.close == "no"
        self.close = output.close


@pytest.mark.parametrize("seed", range(30))
def test_the_same_script_has_the_same_replies(seed: int) -> None:
    both = Both(seed)
    for _ in range(120):
        both.step()
    assert both.tokens


@pytest.mark.parametrize("seed", range(40, 48))
def test_the_log_alone_makes_the_same_table(seed: int) -> None:
    """What the leader parsed and what everybody else reads come to the same."""
    both = Both(seed)
    for _ in range(60):
        both.step()
    disk, live = both.host.disk, both.host.node.replica
    file, checksum = snapshot_file.make(None, disk.restored().entries, live.index)
    assert checksum == live.checksum
    assert snapshot_file.read(file)[1].dump() == live.dump()
