"""What goes wrong with the nodes of a cluster, their disks and what is between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ticketing_server.storage.wal import PREFIX

from ticketing_sim.cluster import Cluster
from ticketing_sim.cluster_host import ClusterHost
from ticketing_sim.faults import Faults
from ticketing_sim.host import Host
from ticketing_sim.schedule import MS

if TYPE_CHECKING:
    from ticketing_sim.world import World

_SECTOR = 4096


class ClusterFaults(Faults):
    """Those of clients and streams, and these."""

    def __init__(self, world: World, cluster: Cluster) -> None:
        self.cluster = cluster
        super().__init__(world)

    def _set_kinds(self) -> None:
        super()._set_kinds()
        self._kinds += [
            (self.crash_node, 6), (self.hang_sync, 3), (self.slow_disk, 2), (self.fail_disk, 1),
            (self.fill_disk, 2), (self.jump_wall_clock, 1), (self.make_snapshot, 4),
            (self.change_settings, 3), (self.force_release, 3), (self.damage_disk, 1),
            (self.stop_node, 2),
        ]  # fmt: skip
        if self.cluster.size > 1:
            self._kinds += [
                (self.part_nodes, 8), (self.transfer, 4), (self.wipe_node, 2),
                (self.lose_messages, 3), (self.crash_all, 1), (self.differ_in_versions, 1),
            ]  # fmt: skip

    def end(self) -> None:
        """Let a majority go on well; the others may stay dead, slow or cut off."""
        cluster, random, network = self.cluster, self.random, self.world.network
        broken: list[ClusterHost] = []
        if cluster.can_lose_a_disk() and random.random() < 0.6:
            spare = (cluster.size - 1) // 2
            broken = random.sample(cluster.hosts, random.randint(1, spare))
        # Whoever is to be put right at the end is, but for these.
        super().end()
        for host in broken:
            kind = random.choice(("dead", "slow", "bridged", "unheard"))
            self.world.count(f"stays {kind}")
            others = [other for other in cluster.hosts if other is not host]
            if kind == "dead":
                cluster.stays_down.add(host.slot)
                if host.is_alive:
                    host.crash(is_power=False)
            elif kind == "slow":
                network.slow[host.name] = 300 * MS
            elif kind == "unheard":
                network.block([(host.name, other.name) for other in others])
            else:
                other = random.choice(others)
                network.block(_both((host.name, one.name) for one in others if one is not other))
        cluster.broken = broken
        for host in cluster.hosts:
            host.directory.free_bytes = host.directory.fail_at = None
            cluster.start(host)

    # Nodes

    def _node(self, *, is_running: bool = True) -> ClusterHost | None:
        """Choose a node, as often as not the leader."""
        leader = self.cluster.leader()
        if leader is not None and self.random.random() < 0.5:
            return leader
        host = self.random.choice(self.cluster.hosts)
        return host if host.is_alive or not is_running else None

    def choose_host(self) -> Host:
        """Choose a server, the leader often."""
        return self._node(is_running=False) or self.cluster.hosts[0]

    def crash_node(self) -> None:
        """Kill a node, or switch its machine off."""
        host = self._node()
        if host is None:
            return
        is_power = self.random.random() < 0.6
        self.world.count("power lost" if is_power else "node killed")
        host.crash(is_power=is_power)
        if is_power:
            self.world.network.power(host.name, is_on=False)
        if self.random.random() < 0.1:
            host.directory.crash_within(20)
        self._for(self._some_time(), lambda: self.cluster.start(host))

    def stop_node(self) -> None:
        """Stop a node as an operator does: it hands the lead over, sends clients away, and ends."""
        host = self._node()
        if host is None or host.is_suspended:
            return
        self.world.count("node stopped")
        host.begin_turn()
        host.node.transfer(None, host.clock.now_ns())
        host.later(500 * MS, "drain", self._drain, host)
        self._for(3_000 * MS + self._some_time(), self._starter(host))

    def _drain(self, host: ClusterHost) -> None:
        host.begin_turn()
        host.node.drain(host.clock.now_ns())
        host.later(500 * MS, "stop", self._stop, host)

    def _stop(self, host: ClusterHost) -> None:
        host.crash(is_power=False)
        if self._is_over:
            self.cluster.start(host)

    def crash_all(self) -> None:
        """Switch all machines off at once."""
        self.world.count("power lost everywhere")
        for host in self.cluster.hosts:
            if host.is_alive:
                host.crash(is_power=True)
            self._for(self._some_time(), self._starter(host))

    def _starter(self, host: ClusterHost) -> Callable[[], None]:
        return lambda: self.cluster.start(host)

    def wipe_node(self) -> None:
        """Give a node an empty disk; it comes back under a new id."""
        host = self._node()
        if host is not None and self.cluster.can_lose_a_disk():
            self.world.count("node wiped")
            host.crash(is_power=True)
            host.wipe()
            self._for(self._some_time(), lambda: self.cluster.start(host))

    def damage_disk(self) -> None:
        """Flip a bit of what was synced long ago; the node must notice before it votes."""
        host = self._node()
        if host is None or not (self.cluster.can_lose_a_disk() or self.cluster.size == 1):
            return
        places = _damageable(host)
        host.crash(is_power=False)
        if places and self.cluster.size > 1:
            self.world.count("bit flipped")
            name, offset = self.random.choice(places)
            host.is_damaged = True
            host.directory.flip(name, offset, self.random.randrange(8))
        self._for(self._some_time(), lambda: self.cluster.start(host))

    def transfer(self) -> None:
        """Have the lead handed over, sometimes to who can't take it."""
        leader = self.cluster.leader()
        if leader is None or leader.is_suspended:
            return
        slot = self.random.choice([None, *range(self.cluster.size)])
        leader.begin_turn()
        if leader.node.transfer(slot, leader.clock.now_ns()):
            self.world.count("transfer")
            leader.watch_transfer()
            if self.random.random() < 0.4:
                self.part_nodes()

    def make_snapshot(self) -> None:
        """Have a node make a snapshot."""
        host = self._node()
        if host is not None and not host.is_suspended:
            host.begin_turn()
            host.node.request_snapshot()

    def change_settings(self) -> None:
        """Give a node other settings than the others have."""
        host = self._node()
        if host is None or host.is_suspended:
            return
        self.world.count("settings changed")
        host.limits = self.cluster.draw_limits()
        host.failover_grace_ms = self.cluster.draw_grace_ms()
        host.begin_turn()
        host.configure()

    def differ_in_versions(self) -> None:
        """Let a node be of a version that offers more, from its next start on."""
        slot = self.random.randrange(self.cluster.size)
        self.cluster.versions[slot] = (1, self.random.choice((1, 2)))
        self.world.count("version changed")

    def jump_wall_clock(self) -> None:
        """Set a node's wall clock."""
        host = self.random.choice(self.cluster.hosts)
        host.clock.jump(self.random.choice((-3_600_000, -5_000, 1_000, 86_400_000)))
        self.world.count("wall clock set")

    def force_release(self) -> None:
        """Let an operator end a ticket."""
        leader = self.cluster.leader()
        if leader is None or leader.is_suspended:
            return
        seen = self.cluster.ledger.checks.before
        if seen is not None and seen.holders:
            key = self.random.choice(sorted(seen.holders))
            leader.begin_turn()
            if leader.node.force_release(key, seen.holders[key]):
                self.world.count("forced release")
                self.world.beliefs.forced.add(seen.holders[key])

    # Disks

    def hang_sync(self) -> None:
        """Let no sync of a node return for a while."""
        host = self._node()
        if host is None or host.is_hung:
            return
        self.world.count("hung sync")
        host.is_hung = True

        def undo() -> None:
            host.is_hung = False
            host.go_on_writing()

        self._for(self._some_time(), undo)

    def slow_disk(self) -> None:
        """Make a disk slower or faster."""
        host = self.random.choice(self.cluster.hosts)
        host.sync_ns = self.random.choice((1, 2, 8, 60)) * MS
        self.world.count("disk speed changed")

    def fail_disk(self) -> None:
        """Let a disk give out; later it is well again, without what wasn't synced."""
        host = self._node()
        if host is None:
            return
        self.world.count("EIO")
        directory = host.directory
        directory.fail_at = directory.steps + self.random.randrange(1, 10)

        def undo() -> None:
            directory.fail_at = None

        self._for(self._some_time(), undo)

    def fill_disk(self) -> None:
        """Leave a disk little or no room."""
        host = self._node()
        if host is None:
            return
        self.world.count("disk full")
        directory = host.directory
        directory.free_bytes = self.random.choice((0, 5_000, 30_000))

        def undo() -> None:
            directory.free_bytes = None

        self._for(3 * self._some_time(), undo)

    # Between nodes

    def part_nodes(self) -> None:
        """Cut nodes from each other: in two, one from some, one way only, or around a bridge."""
        names = [host.name for host in self.cluster.hosts]
        self.random.shuffle(names)
        kind = self.random.choice(("split", "one way", "bridge", "ring"))
        self.world.count(f"partition: {kind}")
        if kind == "bridge":
            half = len(names) // 2
            paths = _both((a, b) for a in names[:half] for b in names[half + 1 :])
        elif kind == "ring":
            paths = _both([(names[0], names[1])])
        else:
            cut = self.random.randint(1, len(names) - 1)
            paths = [(a, b) for a in names[:cut] for b in names[cut:]]
            if kind == "split":
                paths = _both(paths)
        self.world.network.block(paths)
        self._for(self._some_time(), lambda: self.world.network.unblock(paths))

    def lose_messages(self) -> None:
        """Lose and double messages for a while."""
        network = self.world.network
        network.loss, network.double = self.random.choice(((0.02, 0.0), (0.1, 0.2), (0.3, 0.3)))
        self.world.count("messages lost and doubled")

        def undo() -> None:
            network.loss = network.double = 0.0

        self._for(self._some_time(), undo)


def _both(paths: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    there = list(paths)
    return there + [(b, a) for a, b in there]


def _damageable(host: ClusterHost) -> list[tuple[str, int]]:
    """Return places of the log that hold something, below its last group."""
    directory = host.directory
    places = []
    names = [name for name in directory.list() if name.startswith(PREFIX)]
    for name in names:
        data = directory.read(name)
        end = len(data.rstrip(b"\0"))
        last = end - _SECTOR if name == names[-1] else end
        places += [(name, offset) for offset in range(0, last, 61) if data[offset]]
    return places
