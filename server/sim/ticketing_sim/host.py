"""A server's process: sockets and timers around an engine, as `listener` has them."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

from ticketing_server import constants_gen as c
from ticketing_server.engine import ENTROPY_BYTES, Engine, Output, Peer
from ticketing_server.limits import Limits

from ticketing_sim.process import Process
from ticketing_sim.schedule import MS, US, Clock
from ticketing_sim.streams import Stream

if TYPE_CHECKING:
    from ticketing_sim.world import World

PORT = 5225
PORT_V3 = 5226
_TURN_NS = 100 * US
_TIMER_NS = 1000 * MS


class NamedSecret(NamedTuple):
    """A secret with the name that it has in logs."""

    name: str
    value: bytes


class Host(Process):
    """Accepts streams, feeds an engine turn by turn, and writes what it puts out."""

    engine: Engine
    limits: Limits

    def __init__(self, world: World, name: str, clock: Clock, random: Random) -> None:
        super().__init__(name, world.schedule, clock, random)
        self.world = world
        self.random = random
        self.sockets: dict[int, ServerEnd] = {}
        self.reads_clients = True
        self.has_work_on_its_way = True
        """Whether the turn at hand leaves something unfinished: a good moment for a stop."""
        self._next_number = 1
        self._turn_ns = 0
        self._timer_ns: int | None = None
        world.switchboard.listen(name, PORT, self, 4)
        world.switchboard.listen(name, PORT_V3, self, 3)

    # Sockets

    @property
    def process(self) -> Process:
        """See `streams.Listener`."""
        return self

    def accept(self, stream: Stream, protocol: int) -> ServerEnd:
        """See `streams.Listener`."""
        end = ServerEnd(self, stream, self._next_number, protocol)
        self._next_number += 1
        self.do(self._accepted, end)
        return end

    def _accepted(self, end: ServerEnd) -> None:
        self.sockets[end.number] = end
        peer = Peer("tcp", end.stream.client.process.name, cast(Literal[3, 4], end.protocol))
        now_ns = self.begin_turn()
        self.engine.open(end.number, peer, self.random.randbytes(ENTROPY_BYTES), now_ns)

    # Turns

    def begin_turn(self) -> int:
        """Return when this turn began, and see to it that it ends."""
        if not self._turn_ns:
            self._turn_ns = self.clock.now_ns()
            self.later(self.random.randrange(_TURN_NS), "turn", self._end_turn)
        return self._turn_ns

    def _end_turn(self) -> None:
        self._turn_ns = 0
        now_ns = self.clock.now_ns()
        outputs, deadline_ns = self.engine.end_turn(now_ns)
        for event in self.engine.take_events():
            self.world.count(f"event {event.name}")
        self.after_turn(now_ns)
        if deadline_ns is not None:
            # At once, sometimes a little late.
            due_ns = min(max(deadline_ns, now_ns), now_ns + _TIMER_NS)
            if self._timer_ns is None or due_ns < self._timer_ns:
                self._timer_ns = due_ns
                self.at_local(due_ns + self.random.randrange(MS), "timer", self._on_timer, due_ns)
        if self.is_alive:
            self.world.may_stop_before_writing(self)
            if self.is_suspended:
                self.do_next(self._write, outputs)
            else:
                self._write(outputs)

    def after_turn(self, now_ns: int) -> None:
        """Do what else a turn brought."""

    def _on_timer(self, due_ns: int) -> None:
        if self._timer_ns == due_ns:
            self._timer_ns = None
            self.begin_turn()

    def _write(self, outputs: list[Output]) -> None:
        for number, data, close in outputs:
            end = self.sockets.get(number)
            if end is not None:
                end.write(data, close)
        if self.reads_clients:
            for end in list(self.sockets.values()):
                end.read_on()

    def dies(self, reason: str) -> None:
        """End the process; its kernel, or its machine when it is up again, resets its streams."""
        self.die()
        self._turn_ns = 0
        self._timer_ns = None
        sockets, self.sockets = self.sockets, {}
        for end in sockets.values():
            end.stream.reset(end, reason)


class ServerEnd:
    """One accepted socket."""

    def __init__(self, host: Host, stream: Stream, number: int, protocol: int) -> None:
        self.process = host
        self.stream = stream
        self.number = number
        self.protocol = protocol
        self._life = host.life
        self._unread: list[bytes] = []
        self._is_paused = False
        self._is_lingering = False
        self._has_ended = False

    # The network's side

    def arrived(self, data: bytes) -> None:
        """See `network.Reader`."""
        self._do(self._read, data)

    def ended(self) -> None:
        """See `network.Reader`."""
        self._do(self._eof)

    def broken(self, reason: str) -> None:
        """See `streams.End`."""
        self._do(self._lost)

    def _do(self, call: object, *arguments: object) -> None:
        if self.process.life == self._life:
            self.process.do(call, *arguments)  # type: ignore[arg-type]

    # The server's side

    def _read(self, data: bytes) -> None:
        host = self.process
        if self._is_lingering:
            self.stream.up.taken(len(data))
        elif self._is_paused or not host.reads_clients:
            self._unread.append(data)
        else:
            self.stream.up.taken(len(data))
            host.engine.feed(self.number, data, host.begin_turn())

    def read_on(self) -> None:
        """Read what was left unread."""
        if self._unread and not self._is_paused and self.process.reads_clients:
            data, self._unread = b"".join(self._unread), []
            self._read(data)
        if self._has_ended and not self._unread and not self._is_lingering:
            self._has_ended = False
            self.process.begin_turn()
            self.process.engine.eof(self.number)

    def _eof(self) -> None:
        self._has_ended = True
        self.read_on()

    def _lost(self) -> None:
        host = self.process
        if host.sockets.pop(self.number, None) is not None and not self._is_lingering:
            host.begin_turn()
            host.engine.close(self.number)

    def write(self, data: bytes, close: str) -> None:
        """Take one output of the engine."""
        down = self.stream.down
        if data:
            down.on_taken = self._taken
            down.send(data)
        host = self.process
        if close == "now":
            self._is_lingering = True
            host.sockets.pop(self.number, None)
            self.stream.reset(self, "closed by the server")
        elif close == "linger":
            self._is_lingering = True
            down.end()
            host.later(c.CLOSING_LINGER_MS * MS, "linger", self._end_linger)
        elif down.unread > host.limits.unsent_bytes and not self._is_paused:
            self._is_paused = True
            host.world.count("back-pressure")
            host.engine.pause(self.number, host.begin_turn())

    def _taken(self) -> None:
        if self._is_paused and self.stream.down.unread <= self.process.limits.unsent_bytes // 4:
            self._do(self._resume)

    def _resume(self) -> None:
        if self._is_paused and self.number in self.process.sockets and not self._is_lingering:
            self._is_paused = False
            self.process.engine.resume(self.number, self.process.begin_turn())
            self.read_on()

    def _end_linger(self) -> None:
        if self.process.sockets.pop(self.number, None) is not None:
            self.stream.reset(self, "closed by the server")
