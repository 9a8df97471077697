"""What goes wrong, and when it is put right."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ticketing_sim.client import SimClient
from ticketing_sim.host import Host
from ticketing_sim.process import Process
from ticketing_sim.schedule import MS
from ticketing_sim.standalone_host import StandaloneHost

if TYPE_CHECKING:
    from ticketing_sim.world import World

_PAUSES_MS = (5, 60, 250, 380, 700, 1_500, 4_000)
_STALLS_MS = (60, 250, 380, 550, 650, 700, 750, 1_500, 4_000)
"""Of servers: many about as long as it takes others to elect a leader."""


class Faults:
    """Does one thing after another to a world, until it is told to end."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.random = world.stream("faults")
        self.mean_ns = self.random.choice((300, 600, 1_200)) * MS
        self._is_over = False
        self._undone: dict[int, Callable[[], None]] = {}
        self._last = 0
        self._stops: dict[str, int] = {}
        self._kinds: list[tuple[Callable[[], None], int]] = []
        self._set_kinds()

    def _set_kinds(self) -> None:
        self._kinds = [
            (self.cut_stream, 4), (self.crash_client, 2), (self.suspend_client, 4),
            (self.stuff_client, 2), (self.part_clients, 4), (self.suspend_host, 4),
            (self.crash_host, 1), (self.change_network, 3), (self.disturb_old_client, 2),
        ]  # fmt: skip

    def begin(self) -> None:
        """Start."""
        self._next()

    def _next(self) -> None:
        delay_ns = int(self.random.expovariate(1.0) * self.mean_ns)
        self.world.schedule.after(delay_ns, "fault", self._one)

    def _one(self) -> None:
        if self._is_over:
            return
        kinds = [kind for kind, _ in self._kinds]
        (kind,) = self.random.choices(kinds, [weight for _, weight in self._kinds])
        self.world.schedule.note(f"fault {kind.__name__}")
        kind()
        self._next()

    def end(self) -> None:
        """Put everything right that is to be."""
        self._is_over = True
        self._stops.clear()
        for number in list(self._undone):
            self._undo(number)
        network = self.world.network
        network.loss = network.double = 0.0
        network.slow.clear()

    def _for(self, duration_ns: int, undo: Callable[[], None]) -> None:
        """Put something right in a while, or at the end."""
        self._last += 1
        self._undone[self._last] = undo
        self.world.schedule.after(duration_ns, "undo", self._undo, self._last)

    def _undo(self, number: int) -> None:
        undo = self._undone.pop(number, None)
        if undo is not None:
            undo()

    def _some_time(self) -> int:
        return self.random.choice(_PAUSES_MS) * MS + self.random.randrange(MS)

    # Clients

    def _client(self) -> SimClient | None:
        living = self.world.living_clients()
        return self.random.choice(living) if living else None

    def cut_stream(self) -> None:
        """Reset a connection, from one side or the other."""
        client = self._client()
        if client is None or client.wire is None or client.wire.stream is None:
            return
        self.world.count("stream cut")
        stream = client.wire.stream
        stream.reset(stream.client, "cut")
        client.wire.broken("cut")

    def crash_client(self) -> None:
        """Kill a client; another starts in its place."""
        client = self._client()
        if client is None:
            return
        self.world.count("client crash")
        client.crash()
        self._for(self._some_time(), lambda: self.world.new_client(client.name))

    def suspend_client(self) -> None:
        """Stop a client for a while."""
        client = self._client()
        if client is not None and not client.is_suspended:
            self.world.count("client suspended")
            self._suspend(client)

    def stuff_client(self) -> None:
        """Let a client's socket take no bytes for a while."""
        client = self._client()
        if client is None or client.wire is None or client.wire.is_stuffed:
            return
        self.world.count("client's socket full")
        wire = client.wire
        wire.is_stuffed = True

        def undo() -> None:
            wire.is_stuffed = False
            if client.is_alive and client.wire is wire:
                client.do(client.writable)

        self._for(self._some_time(), undo)

    def part_clients(self) -> None:
        """Cut some clients from some servers, in one direction or both, without a word."""
        world, random = self.world, self.random
        names = sorted(world.clients) + [client.name for client in world.old_clients]
        clients = random.sample(names, random.randint(1, len(names)))
        hosts = random.sample(world.hosts, random.randint(1, len(world.hosts)))
        paths = [(client, host.name) for client in clients for host in hosts]
        back = [(host, client) for client, host in paths]
        chance = random.random()
        if chance < 0.25:
            paths = back
        elif chance < 0.75:
            paths += back
        world.count("clients cut off")
        world.network.block(paths)
        self._for(self._some_time(), lambda: world.network.unblock(paths))

    def disturb_old_client(self) -> None:
        """Suspend a client of version 3, or break its connection."""
        if not self.world.old_clients:
            return
        client = self.random.choice(self.world.old_clients)
        if self.random.random() < 0.5 and not client.is_suspended:
            self.world.count("version 3 suspended")
            self._suspend(client)
        elif client.wire is not None:
            self.world.count("version 3 cut")
            client.leave(client.wire)

    # Servers

    def _suspend(self, process: Process, duration_ns: int | None = None) -> None:
        process.suspend()
        life = process.life

        def undo() -> None:
            if process.life == life:
                process.resume()

        self._for(self._some_time() if duration_ns is None else duration_ns, undo)

    def suspend_host(self) -> None:
        """Stop a server, where it waits or between a decision and its write."""
        host = self.choose_host()
        if not host.is_alive or host.is_suspended:
            return
        self.world.count("server suspended")
        if self.random.random() < 0.6:
            self._stops[host.name] = host.life
        else:
            self._suspend(host, self._stall())

    def choose_host(self) -> Host:
        """Choose a server."""
        return self.random.choice(self.world.hosts)

    def _stall(self) -> int:
        return self.random.choice(_STALLS_MS) * MS + self.random.randrange(MS)

    def may_stop_before_writing(self, host: Host) -> None:
        """Stop a server now, if it was to be at such a moment."""
        is_meant = self._stops.get(host.name) == host.life and not host.is_suspended
        if is_meant and host.has_work_on_its_way:
            del self._stops[host.name]
            self.world.count("server suspended before a write")
            self._suspend(host, self._stall())

    def crash_host(self) -> None:
        """Kill a server; it starts again."""
        host = self.random.choice(self.world.hosts)
        if not host.is_alive or not isinstance(host, StandaloneHost):
            return
        self.world.count("server crash")
        host.crash()
        self._for(self._some_time(), host.start)

    # The network

    def change_network(self) -> None:
        """Make it faster or slower."""
        network, random = self.world.network, self.random
        network.delay_ns = random.choice((1, 2, 10, 60)) * MS
        self.world.count("network changed")
