"""A node of a cluster: the product's node and store, driven without sockets and threads."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from ticketing_server import constants_gen as c
from ticketing_server.cluster import snapshot_file
from ticketing_server.cluster.messages import Found, PeerHello
from ticketing_server.cluster.node import ClusterNode
from ticketing_server.cluster.values import NodeEffects, NodeSettings, SnapshotPolicy
from ticketing_server.limits import Limits
from ticketing_server.peers import frames
from ticketing_server.raft.messages import Append, InstallSnapshot, Message, Snapshot
from ticketing_server.raft.saves import Save
from ticketing_server.raft.state import LEADER, Restored
from ticketing_server.raft.timing import Timing, Windows
from ticketing_server.session import Session
from ticketing_server.session_v3 import SessionV3
from ticketing_server.storage.directory import Refused
from ticketing_server.storage.store import Sizes, Store

from ticketing_sim.disk import Crashed, SimDirectory
from ticketing_sim.host import PORT, Host, NamedSecret
from ticketing_sim.raft_checks import Durable
from ticketing_sim.schedule import MS, Broken, Clock

if TYPE_CHECKING:
    from ticketing_sim.cluster import Cluster

SIZES = Sizes(16 * 1024, 64 * 1024)
TIMING = Timing(replace_ns=1_500 * MS, snapshot_again_ns=3_000 * MS)
WINDOWS = Windows(append_bytes=2_000, messages=8, bytes=8_000)
POLICY = SnapshotPolicy(entries=150, bytes=1 << 20, trailing=20)
_WRITES_MAX = 8
_HALVES = 0.05
"""How often a frame of a peer arrives in two reads."""


class _Write(NamedTuple):
    """Something the writer does: saves, or a snapshot of the node's own."""

    saves: list[Save]
    install: bytes | None
    snapshot: tuple[Snapshot, bytes, int] | None
    """What was compacted, its file, and the new base."""


class ClusterHost(Host):
    """One slot's machine over all lives of its process and its disk."""

    node: ClusterNode

    def __init__(
        self, cluster: Cluster, slot: int, clock: Clock, random: Random, limits: Limits,
        failover_grace_ms: int,
    ) -> None:  # fmt: skip
        super().__init__(cluster.world, f"n{slot}", clock, random)
        self.cluster = cluster
        self.slot = slot
        self.limits = limits
        self.failover_grace_ms = failover_grace_ms
        self.directory = SimDirectory(random)
        self.store: Store
        self.node_id = 0
        self.sync_ns = 2 * MS
        self.is_hung = False
        """Whether no sync returns at present."""
        self.is_alive = False
        self.was_wiped = False
        """Whether it lost its disk and has yet to vote again."""
        self.is_damaged = False
        """Whether bits of its disk were flipped since it last started."""
        self.refused = ""
        """Why its last start was refused."""
        self._queue: list[_Write] = []
        self._writing: list[_Write] = []
        self._has_failed = False
        """Whether a write failed: the process ends, and writes nothing more."""
        self._held: list[tuple[int, Message]] = []
        self._synced = 0
        self._applied = 0
        self._files: dict[tuple[int, int], bytes] = {}
        self._own_snapshot: tuple[Snapshot, bytes] | None = None
        self._not_taken: set[int] = set()
        """Who sent a snapshot while there was no room for it."""
        self._made: dict[int, bytes] = {}
        self._said: dict[int, tuple[int, int]] = {}
        self._last_saved = 0

    # Lives

    def _entropy(self) -> Iterator[int]:
        while True:
            yield self.random.getrandbits(64)

    def start(self) -> bool:
        """Open the disk and begin; False where that is refused or fails."""
        world = self.world
        try:
            store, restored, file, identity = Store.open(self.directory, self._entropy(), SIZES)
        except Crashed:
            world.count("crash while opening")
            self.directory.crash()
            return False
        except Refused as refused:
            self.refused = str(refused)
            return False
        except OSError:
            world.count("start failed")
            return False
        self.refused = ""
        self.is_damaged = False
        if store.notes:
            world.count("torn tail")
        self.store = store
        self._check_disk(identity.node_id, restored)
        self._begin(restored, file, identity.cluster_id)
        return True

    def _check_disk(self, node_id: int, restored: Restored) -> None:
        unsynced = [save for write in self._writing + self._queue for save in write.saves]
        if self.node_id and node_id != self.node_id:
            raise Broken(f"{self.name} was {self.node_id:x}, and is {node_id:x}")
        self.node_id = node_id
        durable = self.cluster.raft_checks.durable.setdefault(node_id, Durable())
        durable.check(self.name, restored, unsynced)
        self._queue, self._writing = [], []

    def _begin(self, restored: Restored, file: bytes | None, cluster_id: bytes) -> None:
        cluster = self.cluster
        settings = NodeSettings(
            slot=self.slot, slots=cluster.size, node_id=self.node_id, cluster_id=cluster_id,
            is_durable_alone=cluster.size == 1,
            addresses=tuple(b"n%d:%d" % (slot, PORT) for slot in range(cluster.size)),
            failover_grace_ms=self.failover_grace_ms,
        )  # fmt: skip
        self.is_alive = True
        self.node = self.engine = ClusterNode(
            settings, restored, file, self._entropy(), self.clock.wall_ms,
            {3: SessionV3, 4: Session}, self.clock.now_ns(), TIMING, WINDOWS, POLICY,
        )  # fmt: skip
        self._own_snapshot = None
        if restored.snapshot is not None and file is not None:
            self._own_snapshot = (restored.snapshot, file)
        self._held = []
        self._has_failed = False
        self._synced = 0
        self._files.clear()
        self._made.clear()
        self._not_taken.clear()
        self._said.clear()
        self._applied = self.node.replica.index
        self._last_saved = self.node.raft.log.last_index
        self.reads_clients = True
        self.configure()
        cluster.ledger.compare(self.name, self.node.replica)
        self.begin_turn()

    def configure(self) -> None:
        """Take the settings it has now."""
        secrets = (NamedSecret("sim", self.world.secret),)
        self.node.configure(self.limits, secrets, self.clock.now_ns())

    def crash(self, *, is_power: bool) -> None:
        """End the process; with the power, what wasn't synced goes too."""
        if self._writing and not self._has_failed and self.random.random() < 0.7:
            self.directory.crash_within(self.random.choice((2, 3, 3, 8)))
            self._try_write(self._writing)
        self.directory.crash_at = None
        self.dies("the node crashed")
        if is_power:
            self.directory.crash()
            self.clock.reboot()
        self.cluster.gone(self)

    def _try_write(self, writes: list[_Write]) -> None:
        try:
            for write in writes:
                self._do_write(write)
        except (Crashed, OSError):
            self.world.count("crash in a disk step")

    def wipe(self) -> None:
        """Put an empty disk in."""
        self.directory = SimDirectory(self.random)
        self.refused = ""
        self.is_damaged = False
        self.was_wiped = True
        self.node_id = 0
        self._queue, self._writing = [], []

    def hello(self) -> PeerHello:
        """Return what it says of itself to peers."""
        raft = self.node.raft
        cluster_id = raft.configuration.cluster_id or self.store.identity.cluster_id
        versions = self.cluster.versions[self.slot]
        return PeerHello(
            self.node_id, self.slot, cluster_id, raft.log.last_index == 0 and raft.term == 0,
            b"n%d:%d" % (self.slot, PORT), versions,
        )  # fmt: skip

    # Turns

    def after_turn(self, now_ns: int) -> None:
        """Do what the node wants, and check what it did."""
        node, cluster = self.node, self.cluster
        self._check_applied()
        effects = node.take_effects()
        raft = node.raft
        if raft.role == LEADER and cluster.raft_checks.leads(raft):
            self.world.count("election")
        if self.was_wiped and raft.is_voter:
            self.was_wiped = False
            self.world.count("node voted again after a wipe")
        if effects.save is not None:
            self._save(effects.save)
        self.has_work_on_its_way = raft.role != LEADER
        for message in effects.now:
            self.has_work_on_its_way |= isinstance(message, Append) and bool(message.entries)
            self._send(message)
        for message in effects.after_sync:
            self._held.append((effects.after, message))
        self._release_held()
        if effects.make_snapshot is not None:
            delay_ns = self.random.randrange(5, 400) * MS
            self.later(delay_ns, "snapshot made", self._snapshot_made, effects.make_snapshot)
        self._compacted(effects)
        self.reads_clients = node.reads_clients
        if effects.stop:
            self.world.count(f"stopped: {effects.stop.split(':')[0]}")
            self.crash(is_power=False)
            cluster.stopped(self, effects.stop)

    def _check_applied(self) -> None:
        node, cluster = self.node, self.cluster
        raft, replica = node.raft, node.replica
        for index in range(self._applied + 1, replica.index + 1):
            if index <= raft.log.base_index:
                continue
            (entry,) = raft.log.slice(index, index)
            is_first = cluster.ledger.take(self.name, entry)
            cluster.raft_checks.applied(raft, entry, is_first=is_first)
            self.world.applied += 1
        if replica.index < self._applied:
            raise Broken(f"{self.name} goes back from {self._applied} to {replica.index}")
        if replica.index != self._applied:
            self._applied = replica.index
            cluster.ledger.compare(self.name, replica)
            cluster.compare_whole_now_and_then(self)

    def _compacted(self, effects: NodeEffects) -> None:
        if effects.compacted is None:
            return
        self.world.count("snapshot made")
        file = self._made.pop(effects.compacted.index)
        self._own_snapshot = (effects.compacted, file)
        self._put(_Write([], None, (effects.compacted, file, effects.base_index)))

    def _snapshot_made(self, index: int) -> None:
        """The process beside the server has come to its end."""
        now_ns = self.clock.now_ns()
        self.begin_turn()
        held = self._own_snapshot
        log = self.node.raft.log
        first = max(log.base_index, held[0].index if held else 0) + 1
        try:
            entries = log.slice(first, index)
            file, checksum = snapshot_file.make(held[1] if held else None, entries, index)
        except ValueError:
            # Another snapshot was installed meanwhile.
            self.node.snapshot_failed(index, now_ns)
            return
        self._made[index] = file
        self.node.snapshot_made(index, checksum, file, now_ns)

    # The disk

    def _save(self, save: Save) -> None:
        raft = self.node.raft
        self.cluster.raft_checks.saved(raft, save)
        if save.entries and save.entries[0].index <= self._last_saved and save.snapshot is None:
            self.world.count("truncation")
        self._last_saved = raft.log.last_index
        install = None
        if save.snapshot is not None:
            install = self._files.pop((save.snapshot.index, save.snapshot.term))
            self._own_snapshot = (save.snapshot, install)
            self.world.count("snapshot installed")
        self._put(_Write([save], install, None))

    def _put(self, write: _Write) -> None:
        self._queue.append(write)
        self.go_on_writing()

    def go_on_writing(self) -> None:
        """Write what waits, if nothing is being written."""
        if self._writing or not self._queue or self.is_hung or not self.is_alive:
            return
        group = [self._queue.pop(0)]
        while self._queue and len(group) < _WRITES_MAX and group[0].snapshot is None:
            if self._queue[0].snapshot is not None or self._queue[0].install is not None:
                break
            group.append(self._queue.pop(0))
        self._writing = group
        spread = 1 + 3 * self.random.random()
        self.later(int(self.sync_ns * spread), "synced", self._written)

    def _written(self) -> None:
        """A write and its sync are done: all of it happens now, for the disk."""
        if self.is_hung:
            self.later(self.sync_ns, "synced", self._written)
            return
        group = self._writing
        try:
            if group[0].snapshot is not None:
                self._do_write(group[0])
            else:
                saves = [save for write in group for save in write.saves]
                self._do_write(_Write(saves, group[0].install, None))
        except Crashed:
            self.world.count("crash in a disk step")
            self._lose_power()
            return
        except OSError:
            self.world.count("disk error")
            self._has_failed = True
            self.crash(is_power=False)
            self.cluster.restart_later(self)
            return
        self._writing = []
        durable = self.cluster.raft_checks.durable[self.node_id]
        for write in group:
            for save in write.saves:
                durable.take(save)
            if write.snapshot is not None:
                durable.snapshot_index = max(durable.snapshot_index, write.snapshot[0].index)
        numbers = [save.number for write in group for save in write.saves]
        if numbers:
            self._synced = max(numbers)
            self.begin_turn()
            self.node.synced(self._synced, self.clock.now_ns())
            self._release_held()
        self._tell_full()
        self.go_on_writing()

    def _do_write(self, write: _Write) -> None:
        if write.snapshot is not None:
            snapshot, file, base_index = write.snapshot
            held = self.store.snapshot
            if held is None or snapshot.index > held.index:
                self.store.put_snapshot(snapshot, file)
                self.store.drop_below(base_index)
        else:
            self.store.write(write.saves, write.install)

    def _lose_power(self) -> None:
        self.dies("the node's machine lost power")
        self.directory.crash()
        self.clock.reboot()
        self.cluster.gone(self)
        self.cluster.restart_later(self)

    def _tell_full(self) -> None:
        self.node.disk_full(self.store.is_full, self.clock.now_ns())
        if not self.store.is_full:
            # Else nothing says to them that it wasn't taken.
            for sender in sorted(self._not_taken):
                self.cluster.snapshot_lost(self, sender)
            self._not_taken.clear()

    def prepare_disk(self) -> None:
        """Try to make room again, as each second."""
        if self.is_alive and not self._writing and self.store.is_full:
            try:
                self.store.prepare()
            except Crashed:
                self._lose_power()
                return
            self.begin_turn()
            self._tell_full()

    # Peers

    def _release_held(self) -> None:
        ready = [message for after, message in self._held if after <= self._synced]
        self._held = [pair for pair in self._held if pair[0] > self._synced]
        for message in ready:
            self._send(message)

    def _send(self, message: Message | Found) -> None:
        self.cluster.raft_checks.sent(message)
        if isinstance(message, InstallSnapshot):
            held = self._own_snapshot
            if held is None or held[0] != message.snapshot:
                self.cluster.snapshot_lost(self, message.to)
            else:
                self.cluster.send_snapshot(self, message, held[1])
        else:
            self.cluster.send(self, message)

    def receive(self, sender: int, data: bytes) -> None:
        """Take the frame of what a peer said, sometimes in two reads."""
        self.begin_turn()
        now_ns = self.clock.now_ns()
        reader = frames.FrameReader(frames.FRAME_BYTES_MAX)
        cut = self.random.randrange(len(data)) if self.random.random() < _HALVES else 0
        (frame,) = [*reader.feed(data[:cut]), *reader.feed(data[cut:])]
        message = frames.decode(frame.kind, frame.body, sender, self.node_id)
        assert not isinstance(message, frames.Incoming)
        if isinstance(message, Found):
            self.node.found(message, now_ns)
        else:
            self.node.step(message, now_ns)

    def receive_snapshot(self, message: InstallSnapshot, file: bytes) -> None:
        """Take a snapshot that arrived whole."""
        self.begin_turn()
        self._files[message.snapshot.index, message.snapshot.term] = file
        leader = self.cluster.leader()
        if leader is None or leader.node_id != message.sender:
            self.world.count("snapshot during an election")
        if self.node.raft.is_full:
            self._not_taken.add(message.sender)
        if not self.node.step_snapshot(message, file, self.clock.now_ns()):
            self.cluster.snapshot_lost(self, message.sender)

    def watch_transfer(self) -> None:
        """Count a transfer that comes to nothing."""
        term = self.node.raft.term

        def look() -> None:
            if self.node.raft.term == term:
                self.world.count("transfer off")

        self.later(1_000 * MS, "transfer over", look)

    # Clients

    def _write(self, outputs: list) -> None:  # type: ignore[type-arg]
        for number, data, _ in outputs:
            self._check_said(number, data)
        super()._write(outputs)

    def _check_said(self, number: int, data: bytes) -> None:
        """What is confirmed to clients of version 4 is decided."""
        end = self.sockets.get(number)
        if end is None or end.protocol != 4 or not data:
            return
        if data[: len(c.GREETING_MAGIC)] == c.GREETING_MAGIC:
            data = data[c.GREETING_BYTES :]
        if data[:1] == b"W" and data[3] in (c.ROLE_STANDALONE, c.ROLE_LEADER):
            self._said[number] = (self.node.raft.term, 0)
        said = self._said.get(number)
        if said is not None:
            term, at = said
            at = self.cluster.ledger.answered(self.name, term, number, data, at)
            self._said[number] = (term, at)
