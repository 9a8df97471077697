"""Connections between clients and servers: two pipes, and an end that may not be heard of."""

from __future__ import annotations

from typing import Protocol

from ticketing_sim.network import Network, Pipe, Reader
from ticketing_sim.process import Process
from ticketing_sim.schedule import MS

_RESET_RETRY_NS = 300 * MS
_RESET_RETRIES = 60


class End(Reader, Protocol):
    """One side of a stream."""

    @property
    def process(self) -> Process:
        """Whose side it is."""

    def broken(self, reason: str) -> None:
        """The stream is gone."""


class Listener(Protocol):
    """What accepts streams at an address."""

    @property
    def process(self) -> Process:
        """Who listens."""

    def accept(self, stream: Stream, protocol: int) -> End:
        """Take a stream; returns its side of it."""


class Stream:
    """One connection. Its server side is made when it is accepted."""

    def __init__(self, network: Network, client: End, listener: Listener, protocol: int) -> None:
        self.network = network
        self.client = client
        self.server = listener.accept(self, protocol)
        here, there = client.process.name, listener.process.name
        self.up = Pipe(network, here, there, self.server)
        self.down = Pipe(network, there, here, client)
        self._lives = {id(client): client.process.life, id(self.server): listener.process.life}
        self._is_over = False

    def reset(self, by: End, reason: str) -> None:
        """End it at once; the other side hears of it as soon as a packet gets through."""
        if self._is_over:
            return
        self._is_over = True
        self.up.cut()
        self.down.cut()
        other = self.server if by is self.client else self.client
        self._tell(by, other, reason, _RESET_RETRIES)

    def _tell(self, by: End, other: End, reason: str, retries: int) -> None:
        source, target = by.process.name, other.process.name
        network = self.network
        if network.is_up(source) and network.is_open(source, target):
            delay_ns = network.delay(source, target)
            network.schedule.after(delay_ns, f"reset {source}>{target}", self._told, other, reason)
        elif retries:
            network.schedule.after(
                _RESET_RETRY_NS, f"reset again {source}>{target}", self._tell, by, other, reason,
                retries - 1,
            )  # fmt: skip

    def _told(self, other: End, reason: str) -> None:
        if other.process.life == self._lives[id(other)]:
            other.broken(reason)


class Switchboard:
    """Who listens where, and how streams come about."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._listeners: dict[tuple[str, int], tuple[Listener, int]] = {}

    def listen(self, host: str, port: int, listener: Listener, protocol: int) -> None:
        """Accept streams at an address for as long as the listener's process lives."""
        self._listeners[host, port] = (listener, protocol)

    def connect(self, client: End, host: str, port: int, made: Dialled) -> None:
        """Dial; the dialler hears of success or refusal, or nothing at all."""
        network, life = self.network, client.process.life
        network.schedule.after(
            network.delay(client.process.name, host), f"dial {client.process.name}>{host}",
            self._arrive, client, life, host, port, made,
        )  # fmt: skip

    def _arrive(self, client: End, life: int, host: str, port: int, made: Dialled) -> None:
        here, network = client.process.name, self.network
        is_reached = network.is_open(here, host) and network.is_open(host, here)
        if not is_reached or not network.is_up(host) or client.process.life != life:
            return
        listener, protocol = self._listeners.get((host, port), (None, 0))
        back_ns = network.delay(host, here)
        if listener is None or not listener.process.is_alive:
            network.schedule.after(back_ns, f"refused {host}>{here}", made.refused)
            return
        stream = Stream(network, client, listener, protocol)
        network.schedule.after(back_ns, f"connected {host}>{here}", made.connected, stream)


class Dialled(Protocol):
    """What waits for a stream."""

    def connected(self, stream: Stream) -> None:
        """It stands."""

    def refused(self) -> None:
        """Nobody listens there."""
