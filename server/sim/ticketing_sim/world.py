"""One seed: machines, programs, faults and checks, from the start to the end of the run."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TextIO

from ticketing._core.urls import Endpoint
from ticketing_server.limits import Limits

from ticketing_sim.beliefs import Beliefs
from ticketing_sim.client import SimClient
from ticketing_sim.client_v3 import ClientV3
from ticketing_sim.cluster import Cluster
from ticketing_sim.cluster_faults import ClusterFaults
from ticketing_sim.faults import Faults
from ticketing_sim.host import PORT, Host
from ticketing_sim.jobs import Worker
from ticketing_sim.network import Network
from ticketing_sim.schedule import MS, SECOND, Broken, Clock, Schedule
from ticketing_sim.standalone_host import StandaloneHost
from ticketing_sim.streams import Switchboard
from ticketing_sim.table_checks import TableChecks
from ticketing_sim.table_view import DETACHED

SIZES = (0, 1, 3, 5, 3, 3, 3, 3)
"""Nodes by seed; 0 is a server of memory mode."""
_EVENTS_PER_S_MAX = 6_000
"""Some three times what the busiest world has."""
_LOOK_NS = 200 * MS
SETTLES_NS = 10 * SECOND
"""How long everything may take to settle once the faults have ended."""


class World:
    """All that there is."""

    def __init__(self, seed: int, seconds: float, trace: TextIO | None = None) -> None:
        self.seed = seed
        self.seconds = seconds
        self.schedule = Schedule(trace)
        self.schedule.events_max = int((seconds + SETTLES_NS // SECOND) * _EVENTS_PER_S_MAX)
        self.random = self.stream("world")
        self.counters: Counter[str] = Counter()
        self.applied = 0
        """Commands applied by all servers."""
        self.network = Network(self.schedule, self.stream("network"), self.count)
        self.switchboard = Switchboard(self.network)
        self.beliefs = Beliefs()
        self.secret = b"the secret of this world"
        self.fingerprint: bytes | None = None
        self.keys = [b"key %d" % number for number in range(self.random.choice((1, 2, 4)))]
        if len(self.keys) < 2:
            self.keys.append(b"other")
        self.is_winding_down = False
        self.clients: dict[str, SimClient] = {}
        self.hosts: list[Host] = []
        self._drawn: Counter[str] = Counter()
        self.cluster: Cluster | None = None
        self.faults = self._set_up()
        for number in range(self.random.randrange(3, 7)):
            self.new_client(f"c{number}")
        self.old_clients = [self._old_client(number) for number in range(self.random.randrange(3))]

    def stream(self, name: str) -> Random:
        """Return a source of chance of its own, so that one part's doesn't change another's."""
        return Random(f"{self.seed} {name}")

    def count(self, name: str) -> None:
        """Count something that happened."""
        self.counters[name] += 1

    # Setting up

    def _set_up(self) -> Faults:
        """Make the servers; which kind is the seed's."""
        size = SIZES[self.seed % len(SIZES)]
        if size:
            self.cluster = Cluster(self, size, self.stream("cluster"))
            self.hosts += self.cluster.hosts
            return ClusterFaults(self, self.cluster)
        random = self.random
        limits = Limits(
            reattach_grace_ms=random.choice((500, 2_000, 5_000)), restart_grace_ms=6_100,
            keepalive_s=random.choice((1, 1, 2)), waiters_per_key=random.choice((3, 100)),
            unsent_bytes=random.choice((64, 1 << 20)),
        )  # fmt: skip
        clock = Clock(self.schedule, self.stream("clock n0"))
        self.hosts.append(StandaloneHost(self, "n0", clock, self.stream("n0"), limits))
        return Faults(self)

    def new_client(self, name: str) -> None:
        """Start a client program on a machine, in the place of one that ended."""
        self._drawn[name] += 1
        life = f"{name} {self._drawn[name]}"
        endpoints = [Endpoint(host.name, PORT) for host in self.hosts]
        self.random.shuffle(endpoints)
        clock = Clock(self.schedule, self.stream(f"clock {life}"))
        client = SimClient(self, name, clock, self.stream(life), endpoints)
        self.clients[name] = client
        for _ in range(client.random.randrange(1, 4)):
            Worker(self, client)

    def _old_client(self, number: int) -> ClientV3:
        name = f"v{number}"
        clock = Clock(self.schedule, self.stream(f"clock {name}"))
        return ClientV3(self, name, clock, self.stream(name))

    def living_clients(self) -> list[SimClient]:
        """Return the clients that didn't crash."""
        return [client for client in self.clients.values() if client.is_alive]

    def may_stop_before_writing(self, host: Host) -> None:
        """Suspend a server between its decision and its write, where a fault says so."""
        self.faults.may_stop_before_writing(host)

    # Running

    def run(self) -> None:
        """Let everything happen, then let the faults end and see that all settles."""
        self.faults.begin()
        self._look()
        self.schedule.run(int(self.seconds * SECOND))
        self.is_winding_down = True
        self.faults.end()
        end_ns = self.schedule.now_ns + SETTLES_NS
        while self.schedule.now_ns < end_ns and self.unsettled():
            self.schedule.run(self.schedule.now_ns + 100 * MS)
        if self.unsettled():
            nodes = "" if self.cluster is None else f"\n{self.cluster.describe()}"
            seconds = SETTLES_NS // SECOND
            raise Broken(f"not settled {seconds} s after the end: {self.unsettled()}{nodes}")
        if self.cluster is not None:
            self.cluster.compare_at_the_end()

    def _look(self) -> None:
        """Now and then: no ticket is there that its connected client doesn't know of."""
        self.schedule.after(_LOOK_NS, "look", self._look)
        seen = self.table_checks().before
        tickets = seen.tickets.values() if seen is not None else ()
        for client in self.clients.values():
            if not client.is_quiet:
                continue
            self.count("quiet client looked at")
            client_id = client.client_id.to_bytes(8, "big")
            for ticket in tickets:
                is_its = ticket.client == client_id == ticket.owner[0]
                if is_its and ticket.token not in client.known:
                    raise Broken(f"{client.name} doesn't know of {ticket}")

    def table_checks(self) -> TableChecks:
        """Return what is known of the table, as far as anything was applied to it."""
        if self.cluster is not None:
            return self.cluster.ledger.checks
        (host,) = self.hosts
        assert isinstance(host, StandaloneHost)
        return host.checks

    def unsettled(self) -> list[str]:
        """Return what hasn't come to its end."""
        found = [
            f"{client.name}: {call.name}"
            for client in self.living_clients()
            for call in client.open_calls.values()
        ]
        found += [f"{client.name} waits" for client in self.old_clients if client.is_waiting]
        found += [f"{held.who} holds {held.token}" for held in self.beliefs.holders()]
        if self.cluster is not None:
            return found + self.cluster.unsettled()
        seen = self.table_checks().before
        if seen is not None:
            found += [str(ticket) for ticket in seen.tickets.values()]
            found += [str(waiter) for waiter in seen.waiters.values() if waiter.state != DETACHED]
        return found
