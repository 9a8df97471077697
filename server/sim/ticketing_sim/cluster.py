"""All nodes of one cluster: who hears whom, who is down, and what they agreed on."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, NamedTuple

from ticketing_server.cluster.messages import Found, PeerHello
from ticketing_server.limits import Limits
from ticketing_server.peers import frames
from ticketing_server.raft.configuration import Configuration
from ticketing_server.raft.messages import InstallSnapshot, Message
from ticketing_server.raft.state import LEADER

from ticketing_sim.cluster_host import ClusterHost
from ticketing_sim.ledger import Ledger
from ticketing_sim.raft_checks import RaftChecks
from ticketing_sim.schedule import MS, Broken, Clock
from ticketing_sim.table_view import DETACHED

if TYPE_CHECKING:
    from ticketing_sim.world import World

_LINK_TICK_NS = 100 * MS
_BROKEN_NS = 50 * MS
_RESTART_NS = 300 * MS
_EVENTS_BETWEEN_COMPARISONS = 1_000
_GIVES_UP = 0.1
"""How often a connection that is cut is given up at a tick."""


class _Link(NamedTuple):
    """A connection between two running nodes, and what each was told of the other."""

    lives: tuple[int, int]
    hellos: tuple[PeerHello, PeerHello]


class Cluster:
    """The nodes, the connections between them, and what is checked over all of them."""

    def __init__(self, world: World, size: int, random: Random) -> None:
        self.world = world
        self.size = size
        self.random = random
        self.ledger = Ledger(world.count)
        self.raft_checks = RaftChecks()
        self.versions = dict.fromkeys(range(size), (1, 1))
        self.stays_down: set[int] = set()
        """Slots that aren't started again."""
        self.broken: list[ClusterHost] = []
        """Who stays dead, slow or cut off at the end."""
        self.hosts = [self._make_host(slot) for slot in range(size)]
        self._links: dict[tuple[int, int], _Link] = {}
        self._compared_at = 0
        for host in self.hosts:
            self.world.schedule.after(random.randrange(100 * MS), "start", self.start, host)
        self._tick()

    def draw_limits(self) -> Limits:
        """Return settings that a node may have; each has its own."""
        random = self.random
        return Limits(
            reattach_grace_ms=random.choice((500, 2_000, 5_000)), keepalive_s=1,
            waiters_per_key=random.choice((5, 100, 100)), waiters=random.choice((8, 1_000, 1_000)),
            max_lease_ms=random.choice((2_500, 60_000, 60_000)),
            held_keys=random.choice((4, 1_000, 1_000)),
            unsent_bytes=random.choice((64, 1 << 20)),
        )  # fmt: skip

    def draw_grace_ms(self) -> int:
        """Return how long waiters are held back where this node leads."""
        return self.random.choice((300, 1_000, 3_000))

    def _make_host(self, slot: int) -> ClusterHost:
        world = self.world
        clock = Clock(world.schedule, world.stream(f"clock n{slot}"))
        random = world.stream(f"n{slot}")
        return ClusterHost(self, slot, clock, random, self.draw_limits(), self.draw_grace_ms())

    # Who is what

    def by_id(self, node_id: int) -> ClusterHost | None:
        """Return who has a node id now."""
        return next((host for host in self.hosts if host.node_id == node_id), None)

    def leader(self) -> ClusterHost | None:
        """Return the leader of the newest term, if one runs."""
        leading = [h for h in self.hosts if h.is_alive and h.node.raft.role == LEADER]
        return max(leading, key=lambda host: host.node.raft.term, default=None)

    def configuration(self) -> Configuration:
        """Return who votes, as far as anybody knows."""
        running = [host for host in self.hosts if host.is_alive]
        newest = max(running, key=lambda host: host.node.raft.applied, default=None)
        return Configuration() if newest is None else newest.node.raft.configuration

    def can_lose_a_disk(self) -> bool:
        """Whether all votes of all nodes are there, so that one may go."""
        voters = {host.node_id for host in self.hosts if host.node_id and not host.is_damaged}
        running = [host for host in self.hosts if host.is_alive]
        return len(running) > self.size // 2 and all(
            host.node.raft.configuration.voters == voters and len(voters) == self.size > 1
            for host in running
        )

    # Lives

    def start(self, host: ClusterHost) -> None:
        """Start a node; again later, if that isn't possible."""
        if host.is_alive or host.slot in self.stays_down:
            return
        self.world.network.power(host.name, is_on=True)
        if host.start():
            return
        if host.refused:
            self.world.count("start refused")
            if not host.is_damaged:
                raise Broken(f"{host.name} refuses to start: {host.refused}")
            host.wipe()
        self.restart_later(host)

    def restart_later(self, host: ClusterHost) -> None:
        """Start a node in a while."""
        self.world.schedule.after(_RESTART_NS, "restart", self.start, host)

    def stopped(self, host: ClusterHost, reason: str) -> None:
        """A node ended by itself: its operator starts an empty one in its place."""
        if "removed" in reason:
            host.wipe()
        self.restart_later(host)

    def gone(self, host: ClusterHost) -> None:
        """A node's process ended: its peers see its connections break."""
        for other in self.hosts:
            if other is not host:
                self._break(host, other)

    # Connections

    def _tick(self) -> None:
        hosts = self.hosts
        for place, one in enumerate(hosts):
            for other in hosts[place + 1 :]:
                if one.is_alive and other.is_alive:
                    self._look_after(one, other)
        for host in hosts:
            host.prepare_disk()
        self.world.schedule.after(_LINK_TICK_NS, "links", self._tick)

    def _look_after(self, one: ClusterHost, other: ClusterHost) -> None:
        network = self.world.network
        is_open = network.is_open(one.name, other.name) and network.is_open(other.name, one.name)
        link = self._links.get((one.slot, other.slot))
        if link is not None and not is_open and self.random.random() < _GIVES_UP:
            self._break(one, other)
        elif is_open and not one.is_suspended and not other.is_suspended:
            hellos = (one.hello(), other.hello())
            lives = (one.life, other.life)
            if link is None or link != (lives, hellos):
                self._links[one.slot, other.slot] = _Link(lives, hellos)
                one.later(MS, "peer up", self._up, one, hellos[1])
                other.later(MS, "peer up", self._up, other, hellos[0])

    def _up(self, host: ClusterHost, hello: PeerHello) -> None:
        host.begin_turn()
        if hello.cluster_id and not host.store.identity.cluster_id:
            host.store.note_cluster(hello.cluster_id)
        host.node.peer_up(hello, host.clock.now_ns())

    def _break(self, one: ClusterHost, other: ClusterHost) -> None:
        pair = (min(one.slot, other.slot), max(one.slot, other.slot))
        if self._links.pop(pair, None) is None:
            return
        for host, peer in ((one, other), (other, one)):
            if host.is_alive:
                host.later(MS, "peer down", self._down, host, peer.node_id)

    def _down(self, host: ClusterHost, node_id: int) -> None:
        host.begin_turn()
        host.node.peer_down(node_id, host.clock.now_ns())

    def send(self, host: ClusterHost, message: Message | Found) -> None:
        """Carry a message, where there is a connection."""
        target = self.by_id(message.to)
        if target is None or not self._is_linked(host, target):
            return
        life, sender, data = target.life, host.node_id, frames.encode(message)

        def arrive() -> None:
            if target.life == life:
                target.do(target.receive, sender, data)

        kind = type(message).__name__
        self.world.network.send(host.name, target.name, f"{host.name}>{target.name} {kind}", arrive)

    def _is_linked(self, host: ClusterHost, target: ClusterHost) -> bool:
        pair = (min(host.slot, target.slot), max(host.slot, target.slot))
        link = self._links.get(pair)
        return link is not None and link.lives == tuple(self.hosts[slot].life for slot in pair)

    def send_snapshot(self, host: ClusterHost, message: InstallSnapshot, file: bytes) -> None:
        """Carry a snapshot, which takes a while."""
        target = self.by_id(message.to)
        network = self.world.network
        is_lost = target is None or not self._is_linked(host, target)
        if is_lost or self.random.random() < max(network.loss, 0.05):
            self.snapshot_lost(host, message.to)
            return
        assert target is not None
        life = target.life

        def arrive() -> None:
            if not network.is_open(host.name, target.name):
                self.snapshot_lost(host, message.to)
            elif target.life == life:
                target.do(target.receive_snapshot, message, file)

        delay_ns = network.delay(host.name, target.name) + self.random.randrange(200 * MS)
        self.world.schedule.after(delay_ns, f"snapshot {host.name}>{target.name}", arrive)

    def snapshot_lost(self, host: ClusterHost, node_id: int) -> None:
        """The connection broke with a snapshot on it."""
        self.world.count("snapshot lost")
        target = self.by_id(node_id)
        if target is not None and self._is_linked(host, target):
            self._break(host, target)
        else:
            host.later(_BROKEN_NS, "peer down", self._down, host, node_id)

    # Checks

    def compare_whole_now_and_then(self, host: ClusterHost) -> None:
        """Compare a node's whole image each thousand events."""
        events = self.world.schedule.events
        if events - self._compared_at >= _EVENTS_BETWEEN_COMPARISONS and self.ledger.compare_whole(
            host.name, host.node.replica
        ):
            self._compared_at = events

    def unsettled(self) -> list[str]:
        """Return what hasn't come to its end; the faults have ended."""
        leader = self.leader()
        if leader is None:
            return ["no leader"]
        is_open = self.world.network.is_open
        found = []
        last = leader.node.raft.log.last_index
        for host in self.hosts:
            hears = is_open(leader.name, host.name) and is_open(host.name, leader.name)
            if host in self.broken or not hears:
                continue
            raft = host.node.raft if host.is_alive else None
            if raft is None or not raft.is_voter or raft.applied < last:
                said = "down" if raft is None else f"at {raft.applied}, voter: {raft.is_voter}"
                found.append(f"{host.name} is {said}; the leader is at {last}")
        seen = self.ledger.checks.before
        if seen is not None:
            found += [str(ticket) for ticket in seen.tickets.values()]
            found += [str(w) for w in seen.waiters.values() if w.state != DETACHED]
        return found

    def describe(self) -> str:
        """Return a line on every node."""
        lines = []
        for host in self.hosts:
            said = f"{host.name} {host.node_id:016x} life {host.life}: "
            if host.is_alive:
                raft = host.node.raft
                said += (
                    f"{raft.role} term {raft.term} log {raft.log.base_index}-{raft.log.last_index}/"
                    f"{raft.log.last_term} commit {raft.commit} applied {raft.applied} voters "
                    f"{[f'{voter:x}' for voter in sorted(raft.configuration.voters)]}"
                )
            else:
                said += f"down, {host.refused or 'not refused'}"
            lines.append(said + (" (stays broken)" if host in self.broken else ""))
        return "\n".join(lines)

    def compare_at_the_end(self) -> None:
        """Compare every node's whole image."""
        for host in self.hosts:
            if host.is_alive:
                self.ledger.compare_whole(host.name, host.node.replica)
