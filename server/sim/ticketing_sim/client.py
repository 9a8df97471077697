"""A program with the Python client's core in it, and a shell around that which is simulated."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from ticketing import _constants_gen as c
from ticketing._core.client import ClientCore
from ticketing._core.codec import Reply
from ticketing._core.effects import Connect, Disconnect, Log, Settled
from ticketing._core.settings import CoreSettings
from ticketing._core.tickets import HeldTicket, TicketState
from ticketing._core.urls import Endpoint
from ticketing.errors import (
    AuthError,
    InvalidArgumentError,
    ProtocolError,
    TicketingError,
)

from ticketing_sim.beliefs import Belief
from ticketing_sim.process import Process
from ticketing_sim.schedule import US, Broken, Clock
from ticketing_sim.streams import Stream

if TYPE_CHECKING:
    from ticketing_sim.world import World

_TURN_NS = 50 * US
_CONNECT_FOR_MS = 10 * 60 * 1000


class Call:
    """Somebody who waits for a result, and gets one, once."""

    def __init__(
        self, client: SimClient, name: str, then: Callable[[Any, TicketingError | None], None]
    ) -> None:
        self.name = name
        self._client = client
        self._then = then
        self.is_settled = False
        client.open_calls[id(self)] = self

    def settle(self, value: Any, error: TicketingError | None) -> None:
        """Take the result."""
        if self.is_settled:
            raise Broken(f"{self._client.name}: {self.name} is settled twice")
        if isinstance(error, ProtocolError | AuthError):
            raise Broken(f"{self._client.name}: {self.name} ends with {error!r}")
        if isinstance(error, InvalidArgumentError) and "lease_too_long" not in str(error):
            raise Broken(f"{self._client.name}: {self.name} ends with {error!r}")
        self.forget()
        self._then(value, error)

    def forget(self) -> None:
        """The caller waits no more."""
        self.is_settled = True
        del self._client.open_calls[id(self)]


class SimClient(Process):
    """One life of one client: its process, its core, its connection."""

    def __init__(
        self, world: World, name: str, clock: Clock, random: Random, endpoints: list[Endpoint]
    ) -> None:
        super().__init__(name, world.schedule, clock, random)
        self.world = world
        self.random = random
        self.client_id = random.getrandbits(64)
        settings = CoreSettings(
            tuple(endpoints), self.client_id, random.randbytes(16), f"{name};python/0".encode(),
            secret=world.secret, fingerprint=world.fingerprint, connect_for_ms=_CONNECT_FOR_MS,
            reply_timeout_ms=random.choice((1_500, 4_000, 10_000)),
        )  # fmt: skip
        self.core = ClientCore(settings)
        self.open_calls: dict[int, Call] = {}
        self.wire: Wire | None = None
        self.believed: dict[HeldTicket, int] = {}
        """What its programs hold, with the last known end."""
        self.known: set[int] = set()
        """Tokens that this client was ever told of, and wanted still."""
        self._listen_for_grants()
        self._flushes = False
        self._timer_ns: int | None = None
        self.core.open(None, clock.now_ns())
        self.settle()

    def _listen_for_grants(self) -> None:
        """Note each token that comes for a request that wasn't given up."""
        readers, requests = self.core._replies._readers, self.core._requests
        granted = readers[c.REPLY_GRANTED]

        def read(reply: Reply, now_ns: int) -> None:
            request = requests.unanswered.get(reply[1])
            if request is not None and not request.settled:
                self.known.add(reply[2])
            granted(reply, now_ns)

        readers[c.REPLY_GRANTED] = read

    # Calls

    def settle(self) -> None:
        """Carry out what the core wants; after every call into it."""
        effects = self.core.effects
        while effects:
            batch = effects[:]
            effects.clear()
            for effect in batch:
                self._carry_out(effect)
        self._check_beliefs()
        if not self._flushes and self.core.has_output():
            self._flushes = True
            self.later(self.random.randrange(_TURN_NS), "flush", self._flush)
        due_ns = self.core.next_deadline_ns()
        if due_ns is not None and (self._timer_ns is None or due_ns < self._timer_ns):
            self._timer_ns = due_ns
            self.at_local(due_ns, "timer", self._on_timer, due_ns)

    def _carry_out(self, effect: Any) -> None:
        if isinstance(effect, Settled):
            effect.waiter.settle(effect.value, effect.error)
        elif isinstance(effect, Connect):
            self.wire = Wire(self, effect.serial)
            self.world.switchboard.connect(
                self.wire, effect.endpoint.host, effect.endpoint.port, self.wire
            )
        elif isinstance(effect, Disconnect):
            if self.wire is not None and self.wire.serial == effect.serial:
                self.wire.drop()
        elif isinstance(effect, Log) and "broke the protocol" in effect.text:
            raise Broken(f"{self.name}: {effect.text}")

    def _on_timer(self, due_ns: int) -> None:
        if self._timer_ns != due_ns:
            return
        self._timer_ns = None
        self.core.on_time(self.clock.now_ns())
        self.settle()

    def _flush(self) -> None:
        self._flushes = False
        wire = self.wire
        if wire is None or wire.is_stuffed or wire.serial != self.core.serial:
            return
        data = self.core.take_output(self.clock.now_ns())
        if data and wire.stream is not None:
            wire.stream.up.send(data)
        self.settle()

    def writable(self) -> None:
        """The socket takes bytes again."""
        if not self._flushes:
            self._flushes = True
            self.later(0, "flush", self._flush)

    @property
    def is_quiet(self) -> bool:
        """Whether it is connected, has asked for nothing, and nothing is on its way."""
        wire = self.wire
        return (
            self.is_alive
            and not self.is_suspended
            and wire is not None
            and wire.stream is not None
            and not wire.is_stuffed
            and self.core.connection_address is not None
            and not self.core._requests.unanswered
            and not self.core.has_output()
            and wire.stream.up.unread == wire.stream.down.unread == 0
        )

    # Beliefs

    def begin_belief(self, ticket: HeldTicket, *, is_adopted: bool) -> None:
        """A program got this ticket in this moment."""
        life = self.life

        def holds() -> bool:
            return (
                self.is_alive
                and self.life == life
                and ticket.state is TicketState.HELD
                and self.clock.now_ns() < ticket.expires_ns
            )

        if not holds():
            # Its end came in the same read as the grant.
            return
        self.world.beliefs.begin(
            Belief(self.name, ticket.token, ticket.keys, holds), is_adopted=is_adopted
        )
        self.believed[ticket] = ticket.expires_ns

    def _check_beliefs(self) -> None:
        """A belief that ended never comes back."""
        now_ns = self.clock.now_ns()
        for ticket, known_ns in list(self.believed.items()):
            if ticket.state is not TicketState.HELD:
                del self.believed[ticket]
            elif ticket.expires_ns != known_ns:
                if known_ns <= now_ns:
                    raise Broken(f"{self.name}: token {ticket.token} is held again after its end")
                self.believed[ticket] = ticket.expires_ns

    # Faults

    def crash(self) -> None:
        """End at once; the machine's kernel resets the connection."""
        wire = self.wire
        self.die()
        self.open_calls.clear()
        if wire is not None:
            wire.drop()


class Wire:
    """The client's side of one connection, or of an attempt."""

    def __init__(self, client: SimClient, serial: int) -> None:
        self.process = client
        self.serial = serial
        self.stream: Stream | None = None
        self.is_over = False
        self.is_stuffed = False
        """Whether the socket takes no more bytes at present."""
        self._early: list[bytes] = []
        """What overtook the word that the connection stands."""

    # The network's side

    def connected(self, stream: Stream) -> None:
        """See `streams.Dialled`."""
        if self.is_over or not self.process.is_alive:
            stream.reset(self, "given up while it was dialled")
            return
        self.stream = stream
        self.process.do(self._connected)

    def refused(self) -> None:
        """See `streams.Dialled`."""
        self.process.do(self._lost, "connection refused")

    def arrived(self, data: bytes) -> None:
        """See `network.Reader`."""
        self.process.do(self._read, data)

    def ended(self) -> None:
        """See `network.Reader`."""
        self.process.do(self._lost, "the server closed the connection")

    def broken(self, reason: str) -> None:
        """See `streams.End`."""
        self.process.do(self._lost, reason)

    # The program's side

    def drop(self) -> None:
        """Let go of it."""
        self.is_over = True
        if self.stream is not None:
            self.stream.reset(self, "reset by the client")

    def _connected(self) -> None:
        client = self.process
        if not self.is_over:
            client.core.connected(self.serial, client.clock.now_ns())
            client.settle()
            early, self._early = self._early, []
            for data in early:
                self._read(data)

    def _read(self, data: bytes) -> None:
        if self.is_over:
            return
        if self.stream is None:
            self._early.append(data)
            return
        self.stream.down.taken(len(data))
        client = self.process
        client.core.receive(self.serial, data, client.clock.now_ns())
        client.settle()

    def _lost(self, reason: str) -> None:
        if self.is_over:
            return
        self.drop()
        client = self.process
        client.core.disconnected(self.serial, reason, client.clock.now_ns())
        client.settle()
