"""A client of version 3 as they are in the field: one request at a time, no keep-alive."""

from __future__ import annotations

from random import Random
from struct import Struct
from typing import TYPE_CHECKING

from ticketing_server import constants_v3_gen as v3
from ticketing_server.cluster.serving import fingerprint
from ticketing_server.session_v3 import FINGERPRINT_STANDALONE, client_mac

from ticketing_sim.beliefs import Belief
from ticketing_sim.host import PORT_V3
from ticketing_sim.process import Process
from ticketing_sim.schedule import MS, SECOND, Broken, Clock
from ticketing_sim.streams import Stream

if TYPE_CHECKING:
    from ticketing_sim.world import World

_HEADER = Struct(">BH")
_ACQUIRE = Struct(">QBB")
_RELEASE = Struct(">QQ")
_ID_AND_NUMBER = Struct(">QQ")
_MARGIN_PER_MILLE = 998
_RETRY_NS = 200 * MS
_THINK_NS = 600 * MS
_PATIENCE_NS = 8 * SECOND
_NO_SLOT = 255


class ClientV3(Process):
    """Acquires, holds and releases keys over one connection after another."""

    def __init__(self, world: World, name: str, clock: Clock, random: Random) -> None:
        super().__init__(name, world.schedule, clock, random)
        self.world = world
        self.random = random
        self.wire: WireV3 | None = None
        self.token = 0
        self._slot = 0
        self._next_id = 1
        self._keys: tuple[bytes, ...] = ()
        self._sent_ns = 0
        self._ends_ns = 0
        self.later(random.randrange(SECOND), "dial", self._dial)

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for an answer."""
        return self.wire is not None and self.wire.asked is not None

    # Connections

    def _dial(self) -> None:
        if self.wire is None:
            self.wire = WireV3(self)
            host = self.world.hosts[self._slot % len(self.world.hosts)].name
            self.world.switchboard.connect(self.wire, host, PORT_V3, self.wire)
            self.later(_PATIENCE_NS, "give up", self._give_up, self.wire, self.wire.number)

    def _give_up(self, wire: WireV3, number: int) -> None:
        """Nothing came for long: TCP would have noticed by now."""
        if self.wire is wire:
            if wire.number == number:
                wire.drop()
                self.leave(wire)
            else:
                self.later(_PATIENCE_NS, "give up", self._give_up, wire, wire.number)

    def leave(self, wire: WireV3, slot: int = _NO_SLOT) -> None:
        """Go to another node: the one that was named, or the next."""
        if self.wire is wire:
            wire.drop()
            self.wire = None
            self._slot = self._slot + 1 if slot == _NO_SLOT else slot
            self.later(self.random.randrange(1, _RETRY_NS), "dial", self._dial)

    def fingerprint(self) -> bytes:
        """Return what its operator has configured."""
        cluster = self.world.cluster
        if cluster is None or cluster.size == 1:
            return FINGERPRINT_STANDALONE
        return fingerprint(cluster.configuration().cluster_id)

    # Requests

    def go_on(self, wire: WireV3) -> None:
        """Ask for the next thing."""
        if wire is not self.wire or wire.asked is not None:
            return
        if self.token:
            self._release(wire)
        elif not self.world.is_winding_down:
            self._acquire(wire)

    def _acquire(self, wire: WireV3) -> None:
        random = self.random
        count = 1 if random.random() < 0.7 else 2
        self._keys = tuple(sorted(random.sample(self.world.keys, count)))
        lease_s = random.choice((1, 2, 3))
        self._sent_ns = self.clock.now_ns()
        self._ends_ns = self._sent_ns + lease_s * SECOND * _MARGIN_PER_MILLE // 1000
        head = _ACQUIRE.pack(self._take_id(), random.choice((0, 1, 2, 4)), lease_s)
        op = v3.OP_ACQUIRE if count == 1 else v3.OP_ACQUIRE_SET
        wire.ask(op, head + self._tail())

    def _release(self, wire: WireV3) -> None:
        token, self.token = self.token, 0
        op = v3.OP_RELEASE if len(self._keys) == 1 else v3.OP_RELEASE_SET
        wire.ask(op, _RELEASE.pack(self._take_id(), token) + self._tail())

    def _take_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    def _tail(self) -> bytes:
        if len(self._keys) == 1:
            return self._keys[0]
        parts = b"".join(bytes((len(key),)) + key for key in self._keys)
        return bytes((len(self._keys),)) + parts

    def answered(self, wire: WireV3, op: int, body: bytes) -> None:
        """Take a reply to what it asked."""
        if op == v3.REPLY_MOVED:
            self.leave(wire, body[8])
            return
        hold_ns = 0
        if op in (v3.REPLY_GRANTED, v3.REPLY_GRANTED_SET):
            self.token = _ID_AND_NUMBER.unpack(body)[1]
            self.world.count("version 3 granted")
            self._believe()
            hold_ns = self.random.randrange(800 * MS)
        elif op == v3.REPLY_INDETERMINATE:
            self.world.count("version 3 undecided")
        if self.world.is_winding_down:
            hold_ns = 0
        delay_ns = hold_ns + self.random.randrange(1, _THINK_NS)
        self.later(delay_ns, "next", self.go_on, wire)

    def _believe(self) -> None:
        token, ends_ns, life = self.token, self._ends_ns, self.life

        def holds() -> bool:
            is_so = self.is_alive and self.life == life and self.token == token
            return is_so and self.clock.now_ns() < ends_ns

        if holds():
            self.world.beliefs.begin(Belief(self.name, token, self._keys, holds), is_adopted=False)


class WireV3:
    """One connection of such a client."""

    def __init__(self, client: ClientV3) -> None:
        self.process = client
        self.asked: int | None = None
        """Id of the request that is unanswered."""
        self.number = 0
        """Counts replies."""
        self._stream: Stream | None = None
        self._rest = b""
        self._state = "greeting"
        self._is_over = False

    # The network's side

    def connected(self, stream: Stream) -> None:
        """See `streams.Dialled`."""
        if self._is_over or not self.process.is_alive:
            stream.reset(self, "given up while it was dialled")
            return
        self._stream = stream
        self.process.do(self._read, b"")

    def refused(self) -> None:
        """See `streams.Dialled`."""
        self.process.do(self.process.leave, self)

    def arrived(self, data: bytes) -> None:
        """See `network.Reader`."""
        self.process.do(self._read, data)

    def ended(self) -> None:
        """See `network.Reader`."""
        self.process.do(self.process.leave, self)

    def broken(self, reason: str) -> None:
        """See `streams.End`."""
        self.process.do(self.process.leave, self)

    # The program's side

    def drop(self) -> None:
        """Let go of it."""
        self._is_over = True
        self.asked = None
        if self._stream is not None:
            self._stream.reset(self, "reset by the client")

    def ask(self, op: int, body: bytes) -> None:
        """Send a request."""
        assert self._stream is not None
        self.asked = int.from_bytes(body[:8], "big")
        self._stream.up.send(_HEADER.pack(op, len(body)) + body)

    def _read(self, data: bytes) -> None:
        self._rest += data
        if self._is_over or self._stream is None:
            return
        self._stream.down.taken(len(data))
        if self._state == "greeting" and len(self._rest) >= v3.GREETING_BYTES:
            greeting = self._rest[: v3.GREETING_BYTES]
            self._rest = self._rest[v3.GREETING_BYTES :]
            client = self.process
            answer = client_mac(client.world.secret, greeting, client.fingerprint())
            self._stream.up.send(answer)
            self._state = "verdict"
        if self._state == "verdict" and self._rest:
            if self._rest[0] != v3.VERDICT_ACCEPTED:
                # Its operator learns the fingerprint once the cluster is founded.
                self.process.leave(self)
                return
            self._rest = self._rest[1:]
            self._state = "open"
            self.process.go_on(self)
        if self._state == "open":
            self._read_frames()

    def _read_frames(self) -> None:
        while len(self._rest) >= _HEADER.size and not self._is_over:
            op, length = _HEADER.unpack_from(self._rest)
            end = _HEADER.size + length
            if len(self._rest) < end:
                return
            body, self._rest = self._rest[_HEADER.size : end], self._rest[end:]
            self.number += 1
            if op == v3.REPLY_LEADER:
                # What was asked meanwhile gets its answer, which says the same.
                if body[0] != _NO_SLOT and self.asked is None:
                    self.process.leave(self, body[0])
            elif self.asked is None or int.from_bytes(body[:8], "big") != self.asked:
                raise Broken(f"{self.process.name} gets {op:c} {body!r}, and asked {self.asked}")
            else:
                self.asked = None
                self.process.answered(self, op, body)
