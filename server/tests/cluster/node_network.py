"""Nodes in memory, with disks, a network and clients that tests move by hand."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from engine_driver import SECRET, SPEC, Frame, Named, Peered
from ticketing_server.cluster import snapshot_file
from ticketing_server.cluster.entries import TABLE_VERSIONS
from ticketing_server.cluster.messages import Found, PeerHello
from ticketing_server.cluster.node import ClusterNode
from ticketing_server.cluster.values import NodeEffects, NodeSettings, SnapshotPolicy
from ticketing_server.engine import Peer
from ticketing_server.limits import Limits
from ticketing_server.raft.messages import Entry, HardState, InstallSnapshot, Message, Snapshot
from ticketing_server.raft.saves import Save
from ticketing_server.raft.state import Restored
from ticketing_server.session import Session
from ticketing_server.session_v3 import SessionV3
from ticketing_spec.codec import client_nonce, encode, mac

MS = 1_000_000
SECOND = 1_000_000_000
FOREVER = 0xFFFFFFFF
WALL_MS = 1_700_000_000_000


class Disk:
    """What a node has synced."""

    def __init__(self) -> None:
        self.hard_state = HardState()
        self.snapshot: Snapshot | None = None
        self.file: bytes | None = None
        self.entries: dict[int, Entry] = {}
        self.saves = 0

    def write(self, save: Save, file: bytes | None) -> None:
        self.saves += 1
        if save.hard_state is not None:
            self.hard_state = save.hard_state
        if save.snapshot is not None:
            assert file is not None
            self.snapshot, self.file = save.snapshot, file
            self.entries = {}
        if save.entries:
            first = save.entries[0].index
            self.entries = {i: e for i, e in self.entries.items() if i < first}
            self.entries.update((entry.index, entry) for entry in save.entries)

    def restored(self) -> Restored:
        base = self.snapshot.index if self.snapshot else 0
        entries = tuple(self.entries[i] for i in sorted(self.entries) if i > base)
        return Restored(self.hard_state, self.snapshot, entries)


def numbers(seed: int) -> Iterator[int]:
    drawn = Random(seed)
    while True:
        yield drawn.getrandbits(64)


class Host:
    """One node with its disk, its clients and what it says to others."""

    def __init__(self, network: Network, slot: int, node_id: int) -> None:
        self.network = network
        self.slot = slot
        self.node_id = node_id
        self.disk = Disk()
        self.syncs = True
        self.unsynced: list[tuple[Save, bytes | None]] = []
        self.held: list[tuple[int, Message]] = []
        self.clients: dict[int, Peered] = {}
        self.events: list[str] = []
        self.stop = ""
        self.deadline: int | None = None
        self.effects = NodeEffects()
        self._next_connection = 0
        self._file: bytes | None = None
        self.starts = 0
        self.begin()

    def begin(self) -> None:
        """Start the node from its disk."""
        network = self.network
        self.starts += 1
        cluster_id = b""
        self.node = ClusterNode(
            NodeSettings(
                self.slot, network.size, self.node_id, cluster_id, network.size == 1,
                network.addresses, 5000,
            ),
            self.disk.restored(), self.disk.file, numbers(self.node_id * 1000 + self.starts),
            lambda: WALL_MS, {3: SessionV3, 4: Session}, network.now, policy=network.policy,
        )  # fmt: skip
        self.node.configure(network.limits, (Named("test", SECRET),), network.now)
        self.unsynced.clear()
        self.held.clear()
        self.clients = {}

    def hello(self) -> PeerHello:
        return PeerHello(
            self.node_id, self.slot, self.node.cluster_id, self.node.is_empty,
            self.network.addresses[self.slot], TABLE_VERSIONS,
        )  # fmt: skip

    def followers(self) -> list[Host]:
        return [host for host in self.network.hosts if host is not self]

    # Clients

    @property
    def now(self) -> int:
        return self.network.now

    def peer(self, protocol: Any = 4) -> Peer:
        """Say where the newest connection came from."""
        return Peer("tcp", f"127.0.0.1:{self._next_connection}", protocol)

    def adopt(self, client: Any) -> int:
        """Let something hear the outputs of the connection whose number this returns."""
        self._next_connection += 1
        self.clients[self._next_connection] = client
        return self._next_connection

    def open(self) -> Peered:
        """Open a connection and read its greeting."""
        peered = Peered(0)
        peered.number = self.adopt(peered)
        drawn = peered.number.to_bytes(16, "big") * 2
        self.node.open(peered.number, self.peer(), drawn, self.now)
        self.turn()
        return peered

    def welcome(self, client: int = 1, connection: int = 1) -> tuple[Peered, dict[str, Any]]:
        """Be welcomed; return the connection and the fields of W."""
        peered = self.open()
        fields: dict[str, Any] = {
            "version": 4,
            "client_id": client,
            "connection": connection,
            "client_nonce": client_nonce(SPEC, bytes(16), connection),
            "label": b"test:1;python/0.1.0",
        }
        fields["mac"] = mac(SPEC, SECRET, peered.greeting, fields)
        self.feed(peered, encode(SPEC, "client", "hello", fields))
        (name, welcome), *rest = peered.take()
        assert name == "welcome"
        assert not rest
        return peered, welcome

    def feed(self, peered: Peered, data: bytes) -> None:
        """Feed bytes as one turn."""
        self.node.feed(peered.number, data, self.network.now)
        self.turn()

    def request(self, peered: Peered, name: str, **fields: Any) -> None:
        self.feed(peered, encode(SPEC, "client", name, fields))

    # Turns

    def turn(self) -> None:
        """End a turn, and do what it asks for."""
        network = self.network
        outputs, self.deadline = self.node.end_turn(network.now)
        for output in outputs:
            if output.connection in self.clients:
                self.clients[output.connection].got(output)
        self.events += [event.name for event in self.node.take_events()]
        self.effects = effects = self.node.take_effects()
        self.stop = self.stop or effects.stop
        if effects.compacted is not None:
            self.disk.snapshot, self.disk.file = effects.compacted, self._file
            self.disk.entries = {
                i: e for i, e in self.disk.entries.items() if i > effects.base_index
            }
        if effects.save is not None:
            file = network.arrived.get(self.node_id) if effects.save.snapshot else None
            self.unsynced.append((effects.save, file))
        for message in effects.now:
            network.send(message)
        self.held += [(effects.after, message) for message in effects.after_sync]
        if effects.make_snapshot is not None:
            network.making.append((self, effects.make_snapshot))
        if self.syncs and self.unsynced:
            network.syncing.append(self)

    def sync(self) -> None:
        """Let all that was saved survive."""
        if not self.unsynced:
            return
        for save, file in self.unsynced:
            self.disk.write(save, file)
        number = self.unsynced[-1][0].number
        self.unsynced.clear()
        self.node.synced(number, self.network.now)
        for after, message in self.held:
            assert after <= number
            self.network.send(message)
        self.held.clear()
        self.turn()

    def make_snapshot(self, index: int) -> None:
        """Do what the process beside the server does."""
        log = [self.disk.entries[i] for i in sorted(self.disk.entries)]
        try:
            self._file, checksum = snapshot_file.make(self.disk.file, log, index)
        except ValueError:
            # A leader's came in between, which is newer.
            assert self.disk.snapshot is not None
            assert self.disk.snapshot.index > index
            self.node.snapshot_failed(index, self.now)
            self.turn()
            return
        self.node.snapshot_made(index, checksum, self._file, self.network.now)
        self.turn()


class Network:
    """Hosts by slot. Nothing moves but by `settle` and `run`."""

    def __init__(
        self, size: int, limits: Limits | None = None, policy: SnapshotPolicy | None = None
    ) -> None:
        self.size = size
        self.now = 1000 * SECOND
        self.limits = limits or Limits()
        self.policy = policy or SnapshotPolicy()
        self.addresses = tuple(b"host-%d:5225" % slot for slot in range(size))
        self.messages: list[Message | Found] = []
        self.syncing: list[Host] = []
        self.making: list[tuple[Host, int]] = []
        self.broken: list[tuple[Host, Host]] = []
        """Pairs whose connection the receiver of a snapshot broke."""
        self.arrived: dict[int, bytes | None] = {}
        self.down: set[int] = set()
        """Slots whose node isn't running."""
        self.cut: set[int] = set()
        """Slots that run, and that no message reaches or leaves."""
        self.hosts = [Host(self, slot, 100 + slot) for slot in range(size)]
        self.by_id = {host.node_id: host for host in self.hosts}

    def connect(self) -> None:
        """Let every pair that can hear each other meet."""
        for one in self.hosts:
            for other in self.hosts:
                if one is not other and self._hear(one, other):
                    one.node.peer_up(other.hello(), self.now)
        for host in self.hosts:
            if host.slot not in self.down:
                host.turn()

    def send(self, message: Message | Found) -> None:
        self.messages.append(message)

    def _hear(self, one: Host, other: Host) -> bool:
        return not {one.slot, other.slot} & (self.down | self.cut)

    def isolate(self, host: Host, *, is_noticed: bool = True) -> None:
        """Cut a node off; where it is noticed, connections break."""
        self.cut.add(host.slot)
        for other in self.hosts:
            if is_noticed and other is not host:
                other.node.peer_down(host.node_id, self.now)
                host.node.peer_down(other.node_id, self.now)
                other.turn()
        host.turn()

    def heal(self) -> None:
        """Let all that run meet again."""
        pairs = {(one.node_id, other.node_id) for one, other in self.broken}
        ids = {host.node_id for host in self.hosts}
        pairs |= {(host.node_id, i) for host in self.hosts if host.slot in self.cut for i in ids}
        for one, other in pairs:
            if one != other:
                self.by_id[one].node.peer_down(other, self.now)
                self.by_id[other].node.peer_down(one, self.now)
        self.broken.clear()
        self.cut.clear()
        self.connect()
        self.settle()

    def crash(self, host: Host) -> None:
        """Stop a node at once: what it didn't sync is gone."""
        self.down.add(host.slot)
        for other in self.hosts:
            if other is not host and other.slot not in self.down:
                other.node.peer_down(host.node_id, self.now)
                other.turn()
        self.syncing = [syncing for syncing in self.syncing if syncing is not host]
        self.messages = [m for m in self.messages if m.to != host.node_id]

    def start(self, host: Host) -> None:
        """Start a node that was stopped, and let it meet the others."""
        self.down.discard(host.slot)
        host.begin()
        self.heal()

    def replace(self, slot: int, node_id: int) -> Host:
        """Put an empty node into a slot whose node is stopped for good."""
        self.down.discard(slot)
        del self.by_id[self.hosts[slot].node_id]
        host = self.hosts[slot] = Host(self, slot, node_id)
        self.by_id[node_id] = host
        self.heal()
        return host

    def _deliver(self, message: Message | Found) -> None:
        sender, receiver = self.by_id.get(message.sender), self.by_id.get(message.to)
        if sender is None or receiver is None or not self._hear(sender, receiver):
            return
        if isinstance(message, Found):
            receiver.node.found(message, self.now)
        elif isinstance(message, InstallSnapshot):
            assert sender.disk.file is not None
            self.arrived[receiver.node_id] = sender.disk.file
            if not receiver.node.step_snapshot(message, sender.disk.file, self.now):
                self.broken.append((sender, receiver))
        else:
            receiver.node.step(message, self.now)
        receiver.turn()

    def settle(self) -> None:
        """Deliver and sync until nothing is on its way; no time passes."""
        for _ in range(10_000):
            if self.syncing:
                self.syncing.pop(0).sync()
            elif self.messages:
                self._deliver(self.messages.pop(0))
            elif self.making:
                host, index = self.making.pop(0)
                host.make_snapshot(index)
            else:
                due = [
                    host
                    for host in self.hosts
                    if host.deadline is not None
                    and host.deadline <= self.now
                    and host.slot not in self.down
                ]
                if not due:
                    return
                for host in due:
                    host.turn()
                    assert (
                        host.deadline is None
                        or host.deadline > self.now
                        or (host.unsynced or self.messages or self.syncing)
                    ), "a node asks to be called again at once for nothing"
        raise AssertionError("it never settles")

    def run(self, duration_ns: int) -> None:
        """Let time pass from deadline to deadline."""
        until = self.now + duration_ns
        self.settle()
        while True:
            wakes = [
                host.deadline
                for host in self.hosts
                if host.deadline is not None and host.slot not in self.down
            ]
            due = min(wakes, default=until)
            if due >= until:
                break
            self.now = max(self.now, due)
            self.settle()
        self.now = until
        self.settle()

    def agree(self) -> None:
        """See that all that run come to the same table."""
        running = [host.node for host in self.hosts if host.slot not in self.down | self.cut]
        for _ in range(100):
            if len({node.replica.index for node in running}) == 1:
                break
            self.run(10 * MS)
        assert len({node.replica.index for node in running}) == 1
        assert len({node.replica.checksum for node in running}) == 1
        assert len({node.replica.dump() for node in running}) == 1

    def leader(self) -> Host:
        """Return the one leader among those that hear each other."""
        leading = [
            host
            for host in self.hosts
            if host.slot not in self.down | self.cut and host.node.raft.role == "leader"
        ]
        assert len(leading) == 1, [host.node.raft.role for host in self.hosts]
        return leading[0]


def founded(
    size: int = 3, limits: Limits | None = None, policy: SnapshotPolicy | None = None
) -> Network:
    """Return a network that has a leader, whose NOOP is long over."""
    network = Network(size, limits, policy)
    network.connect()
    network.run(2 * SECOND)
    network.connect()
    network.run(6 * SECOND)
    return network


def granted(frames: list[Frame]) -> int:
    """Return the token of the only frame, an A."""
    ((name, fields),) = frames
    assert name == "granted", frames
    token: int = fields["token"]
    return token
