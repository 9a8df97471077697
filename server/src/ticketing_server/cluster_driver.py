"""What moves a node: its disk, its peers and the snapshots' process, on the listener's event loop.

`ClusterNode` decides and does no I/O; this performs its effects at the end of each turn, and tells
it what came of them in later ones.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ticketing_server import no_leader
from ticketing_server.cluster.entries import TABLE_VERSIONS
from ticketing_server.cluster.messages import Found, PeerHello
from ticketing_server.cluster.node import ClusterNode
from ticketing_server.cluster.values import NodeEffects, NodeSettings
from ticketing_server.engine import Histogram
from ticketing_server.entropy import cheap_numbers, secret_numbers
from ticketing_server.listener import clock_ns
from ticketing_server.peers.frames import PeerMessage
from ticketing_server.peers.handshake import Hello
from ticketing_server.peers.transport import PeerKeys, Peers, PeerSettings
from ticketing_server.raft.configuration import Configuration
from ticketing_server.raft.messages import InstallSnapshot, Message, Snapshot
from ticketing_server.raft.saves import Save
from ticketing_server.raft.state import LEADER
from ticketing_server.session import Session
from ticketing_server.session_v3 import SessionV3
from ticketing_server.settings import Settings
from ticketing_server.storage.directory import Directory, Refused
from ticketing_server.storage.real_directory import RealDirectory
from ticketing_server.storage.snapshotting import SnapshotFailed, make_snapshot
from ticketing_server.storage.store import Store
from ticketing_server.storage.untouched_directory import UntouchedDirectory
from ticketing_server.storage.wal import REJOIN
from ticketing_server.storage.writer import Events, Writer

EXIT_BUG, EXIT_DATA_DIR, EXIT_DISK = 1, 4, 5
TRANSFER_S = 1.5
"""How long a leader that stops waits for another to take over."""
SNAPSHOT_S = 120.0
MEASURE_S = 5.0
NO_LEADER_S = 5
"""How long no leader is known before the log says why."""
CLOSE_S = 5.0
"""How long a stopping node waits for its disk."""
_FSYNC_BOUNDS_NS = tuple(int(1e6 * ms) for ms in (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 1000))
_SNAPSHOT_BOUNDS_NS = tuple(int(1e9 * s) for s in (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300))

Log = Callable[[str, str, dict[str, Any], str], None]
"""Level, event, fields, text."""


class _Waiting(NamedTuple):
    """Messages that leave once all saves up to a number are on disk."""

    after: int
    messages: tuple[Message, ...]


class ClusterDriver:
    """One node, from its directory to its peers. After `start` all calls are on its event loop."""

    def __init__(
        self,
        settings: Settings,
        log: Log,
        fail: Callable[[int, str], None],
        *,
        only_check: bool = False,
    ) -> None:
        """Open the directory: `Refused` or OSError where that fails. Nothing else is opened yet.

        `fail` is told exit code and reason when the process has to end, as what it could say from
        then on may not be true. One that only checks writes nothing, and can't be started.
        """
        if settings.data_dir is None:
            raise ValueError("a node needs a data directory")
        self.settings = settings
        self.fsyncs = Histogram(_FSYNC_BOUNDS_NS, [0] * (len(_FSYNC_BOUNDS_NS) + 1))
        self.snapshots = Histogram(_SNAPSHOT_BOUNDS_NS, [0] * (len(_SNAPSHOT_BOUNDS_NS) + 1))
        self.leader_changes = 0
        self.peers: Peers | None = None
        self._log = log
        self._fail = fail
        self._path: Path = settings.data_dir
        self._directory = RealDirectory(self._path)
        try:
            self._open(
                settings, UntouchedDirectory(self._directory) if only_check else self._directory
            )
        except BaseException:
            self._directory.close()
            raise
        self._begin_turn: Callable[[], int]
        self._writer: Writer | None = None
        self._loop: asyncio.AbstractEventLoop
        self._waiting: deque[_Waiting] = deque()
        self._arrived: tuple[Snapshot, bytes] | None = None
        self._own_file: tuple[Snapshot, bytes] | None = None
        self._made: bytes = b""
        self._refused_files: set[int] = set()
        self._met = self._identity.cluster_id
        self._told_identity = self.identity()
        self._led: tuple[int, str, int | None] = (0, "", None)
        self._last_leader: tuple[int, int] = (0, 0)
        self._tasks: set[asyncio.Task[None]] = set()
        self._snapshot_waiters: list[tuple[int, asyncio.Future[bytes]]] = []
        """By the entry that the snapshot has to reach."""
        self._has_failed = False
        self._has_ended = threading.Event()
        self.wal_bytes = self._store.wal_bytes
        """Bytes that the log took on disk a moment ago."""

    def _open(self, settings: Settings, directory: Directory) -> None:
        opened = Store.open(directory, secret_numbers())
        self._store, self._identity = opened.store, opened.identity
        for note in self._store.notes:
            self._log("warning", "data_dir", {"path": str(self._path)}, note)
        cluster = settings.cluster
        clients = cluster.clients if cluster is not None else settings.listen[:1]
        place = NodeSettings(
            slot=cluster.slot if cluster is not None else 0,
            slots=len(clients),
            node_id=self._identity.node_id,
            cluster_id=self._identity.cluster_id,
            is_durable_alone=cluster is None,
            addresses=tuple(str(address).encode() for address in clients),
            failover_grace_ms=settings.failover_grace_ms,
        )
        try:
            self.node = ClusterNode(
                place, opened.restored, opened.snapshot_file, cheap_numbers(),
                lambda: time.time_ns() // 1_000_000, {3: SessionV3, 4: Session}, clock_ns(),
            )  # fmt: skip
        except ValueError as error:
            raise Refused(
                f"the snapshot in data directory {self._path} can't be used: {error}. {REJOIN}"
            ) from error
        self._check_place(self.node.raft.configuration)

    def _check_place(self, configuration: Configuration) -> None:
        """Refuse a directory that belongs to another place than the one it is started in."""
        if not configuration.members:
            return
        cluster = self.settings.cluster
        slots = 1 if cluster is None else len(cluster.peers)
        if configuration.slots != slots:
            kinds = {1: "a durable server alone"}
            was = kinds.get(configuration.slots, f"a cluster of {configuration.slots}")
            now = kinds.get(slots, f"a cluster of {slots}")
            raise Refused(
                f"data directory {self._path} is of {was}, and is started as {now}. Start it as it"
                " was, or take another directory"
            )
        own = self._identity.node_id
        slot = next((s for s, node in configuration.members if node == own), None)
        if cluster is not None and slot is not None and slot != cluster.slot:
            raise Refused(
                f"data directory {self._path} is of slot {slot}, and is started with --slot"
                f" {cluster.slot}. Start it with --slot {slot}, or take another directory"
            )

    # Life

    async def start(
        self, begin_turn: Callable[[], int], bound: list[socket.socket], keys: PeerKeys | None
    ) -> None:
        """Begin to write, and to talk to peers on listening sockets that are bound already."""
        self._loop = asyncio.get_running_loop()
        self._begin_turn = begin_turn
        call_soon = self._loop.call_soon_threadsafe
        self._writer = Writer(
            self._store, Events(call_soon, self._on_synced, self._on_full, self._on_failed)
        )
        threading.Thread(target=self._measure, name="wal-size", daemon=True).start()
        cluster = self.settings.cluster
        if cluster is not None and keys is not None:
            self.peers = Peers(
                PeerSettings(
                    self._identity.node_id, cluster.slot, cluster.peers,
                    str(cluster.clients[cluster.slot]).encode(), TABLE_VERSIONS,
                ),
                keys,
                self,
            )  # fmt: skip
            await self.peers.start(bound)
            self._run(self._watch_leader())
        begin_turn()

    def not_ready(self) -> str:
        """Return why this node can't serve or name who does, "" where it can."""
        status = self.node.cluster_status()
        if status.leader_slot is None:
            peers = self.peers
            reason = "" if peers is None else no_leader.why(
                status.slot, len(peers.settings.addresses), status.cluster_id, peers.up()
            )  # fmt: skip
            return f"no leader is known{reason and ': ' + reason}"
        if self.peers is None and self.node.raft.is_full:
            return "the disk is full"
        return ""

    async def _watch_leader(self) -> None:
        """Log once per reason why no leader is known for a while."""
        told = ""
        waited_s = 0
        while True:
            await asyncio.sleep(1)
            reason = self.not_ready()
            waited_s = waited_s + 1 if reason else 0
            if not reason:
                told = ""
            elif waited_s >= NO_LEADER_S and reason != told:
                told = reason
                self._log("warning", "no_leader", {}, reason)

    async def hand_over(self) -> None:
        """Give the lead to another node, if this one has it; wait a while for that."""
        if self.peers is None or self.node.cluster_status().role != "leader":
            return
        self._begin_turn()
        if not self.node.transfer(None, clock_ns()):
            return
        give_up_s = self._loop.time() + TRANSFER_S
        while self._loop.time() < give_up_s:
            await asyncio.sleep(0.01)
            status = self.node.cluster_status()
            if status.role != "leader" and status.leader_slot is not None:
                return

    async def stop(self) -> None:
        """End peers and processes, write what is queued, and let the directory go."""
        self._has_ended.set()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.peers is not None:
            await self.peers.stop()
        if self._writer is None or self._has_failed or await self._close(self._writer):
            self._directory.close()

    async def _close(self, writer: Writer) -> bool:
        """Let all that is queued be written, unless the disk hangs."""
        closed = asyncio.Event()

        def close() -> None:
            writer.close()
            # Late, nobody waits any more.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(closed.set)

        # Not of the loop's own threads, whose end the process would wait for.
        threading.Thread(target=close, name="closing", daemon=True).start()
        try:
            await asyncio.wait_for(closed.wait(), CLOSE_S)
        except TimeoutError:
            self._log("error", "disk", {}, f"{self._path}: a write has hung for {CLOSE_S:.0f} s")
            return False
        return True

    # The turn

    def after_turn(self) -> bool:
        """Perform what the node wants done, once at the end of each turn.

        Return whether clients are to be read.
        """
        effects: NodeEffects = self.node.take_effects()
        peers = self.peers
        if effects.now and peers is not None:
            for message in effects.now:
                if isinstance(message, InstallSnapshot):
                    self._send_snapshot(message)
                else:
                    peers.send(message)
        if effects.save is not None:
            self._save(effects.save)
        if effects.after_sync:
            self._waiting.append(_Waiting(effects.after, tuple(effects.after_sync)))
        if effects.compacted is not None:
            self._keep_snapshot(effects.compacted, effects.base_index)
        if effects.make_snapshot is not None:
            self._run(self._make_snapshot(effects.make_snapshot))
        if effects.stop:
            self._fail(EXIT_DATA_DIR, effects.stop)
        raft = self.node.raft
        if raft.term != self._led[0] or raft.role != self._led[1] or raft.leader != self._led[2]:
            self._see_leader()
        if self._told_identity[1]:
            self._tell_identity()
        return self.node.reads_clients

    def _see_leader(self) -> None:
        """Count that another node leads."""
        raft = self.node.raft
        self._led = (raft.term, raft.role, raft.leader)
        leader = raft.node_id if raft.role == LEADER else raft.leader
        if leader is None or (raft.term, leader) == self._last_leader:
            return
        self._last_leader = (raft.term, leader)
        self.leader_changes += 1
        if raft.role == LEADER and (left_s := self.grants_held_s()):
            text = (
                f"nothing is granted for {left_s:.0f} s, as leases of before a restore or recover"
                " may still run; another --restart-grace of that command makes it shorter"
            )
            self._log("warning", "grants_held", {"left_s": round(left_s, 3)}, text)

    def grants_held_s(self) -> float:
        """For how long nothing is granted yet, since a restore or recover; 0 where it is."""
        until_ns = self.node.table.grants_held_until
        if until_ns is None:
            return 0.0
        return max(0.0, (until_ns - self.node.cluster_status().cluster_time_ns) / 1e9)

    def _save(self, save: Save) -> None:
        install = None
        if save.snapshot is not None:
            if self._arrived is None or self._arrived[0] != save.snapshot:
                raise AssertionError(f"no file for the snapshot of entry {save.snapshot.index}")
            install, self._arrived, self._own_file = self._arrived[1], None, None
            fields = {"index": save.snapshot.index, "bytes": len(install)}
            self._log("info", "snapshot_installed", fields, "")
        if self._writer is not None:
            self._writer.save(save, install)

    def _on_synced(self, number: int, took_s: float) -> None:
        self.fsyncs.add(int(took_s * 1e9))
        waiting = self._waiting
        peers = self.peers
        while waiting and waiting[0].after <= number:
            for message in waiting.popleft().messages:
                if peers is not None:
                    peers.send(message)
        self._begin_turn()
        self.node.synced(number, clock_ns())

    def _on_full(self, is_full: bool) -> None:
        text = "no room for more of the log" if is_full else "there is room for the log again"
        self._log("error" if is_full else "info", "disk_full", {"full": is_full}, text)
        self._begin_turn()
        self.node.disk_full(is_full, clock_ns())
        if not is_full:
            for sender in self._refused_files:
                self._send_again(sender, "there was no room for the snapshot that it sent")
            self._refused_files.clear()

    def _on_failed(self, error: Exception) -> None:
        self._has_failed = True
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        if isinstance(error, OSError):
            self._fail(EXIT_DISK, f"{self._path} can't be written: {reason}")
        else:
            self._fail(EXIT_BUG, f"the log failed: {type(error).__name__}: {reason}")

    # What peers tell

    def identity(self) -> tuple[bytes, bool]:
        """See `PeerHost.identity`."""
        return self.node.cluster_id, self.node.is_empty

    def peer_up(self, hello: PeerHello) -> None:
        """See `PeerHost.peer_up`."""
        if hello.cluster_id and not self._met and self._writer is not None:
            # It must never found a cluster of its own again, not after a restart either.
            self._met = hello.cluster_id
            self._writer.note_cluster(hello.cluster_id)
        self._begin_turn()
        self.node.peer_up(hello, clock_ns())

    def peer_down(self, node_id: int) -> None:
        """See `PeerHost.peer_down`."""
        self._begin_turn()
        self.node.peer_down(node_id, clock_ns())

    def message(self, message: PeerMessage) -> None:
        """See `PeerHost.message`."""
        self._begin_turn()
        if isinstance(message, Found):
            self.node.found(message, clock_ns())
        else:
            self.node.step(message, clock_ns())

    def snapshot(self, message: InstallSnapshot, file: bytes) -> None:
        """See `PeerHost.snapshot`."""
        raft = self.node.raft
        if raft.is_full:
            # There is no room for the file.
            self._refused_files.add(message.sender)
            return
        self._begin_turn()
        commit = raft.commit
        if not self.node.step_snapshot(message, file, clock_ns()):
            self._send_again(message.sender, "the snapshot that it sent can't be used")
        elif raft.commit != commit:
            self._arrived = (message.snapshot, file)

    def met_other_cluster(self, hello: Hello) -> None:
        """See `PeerHost.met_other_cluster`.

        A sole voter of several slots was restored or recovered, and waits for empty nodes. Where
        another slot has a cluster of its own, both would grant the same locks.
        """
        configuration = self.node.raft.configuration
        if len(configuration.voters) == 1 and configuration.slots > 1:
            self._fail(
                EXIT_DATA_DIR,
                f"slot {hello.slot} belongs to cluster {hello.cluster_id.hex()}, and this node"
                " alone to another: both would grant the same locks. After a restore or recover on"
                " one node the others start with empty directories",
            )

    def _send_again(self, sender: int, reason: str) -> None:
        """Have a leader send a snapshot again: it does to who connects anew."""
        if self.peers is not None:
            self.peers.disconnect(sender, reason)

    def peer_event(self, name: str, fields: dict[str, object], text: str) -> None:
        """See `PeerHost.peer_event`."""
        level = "info" if name == "peer_up" else "warning"
        self._log("error" if fields.get("reason") == "double" else level, name, fields, text)

    def _tell_identity(self) -> None:
        identity = self.identity()
        if identity != self._told_identity:
            self._told_identity = identity
            if self.peers is not None:
                self.peers.identity_changed()

    # Snapshots

    async def snapshot_now(self) -> bytes:
        """Return the file of a snapshot of all that is applied; RuntimeError where none is made."""
        raft = self.node.raft
        if not raft.applied:
            raise RuntimeError("nothing is applied yet")
        if raft.snapshot is not None and raft.snapshot.index >= raft.applied:
            file = await self._file_of(raft.snapshot)
            if file is not None:
                return file
        waiter: asyncio.Future[bytes] = self._loop.create_future()
        self._snapshot_waiters.append((raft.applied, waiter))
        self._begin_turn()
        self.node.request_snapshot()
        async with asyncio.timeout(SNAPSHOT_S):
            return await waiter

    async def _make_snapshot(self, index: int) -> None:
        begun_s = time.monotonic()
        try:
            file, checksum = await make_snapshot(self._path, index)
        except (SnapshotFailed, OSError) as error:
            self._log("warning", "snapshot_failed", {"index": index}, str(error))
            self._begin_turn()
            self.node.snapshot_failed(index, clock_ns())
            self._settle(RuntimeError(f"no snapshot was made: {error}"))
            return
        self.snapshots.add(int((time.monotonic() - begun_s) * 1e9))
        self._made = file
        self._begin_turn()
        self.node.snapshot_made(index, checksum, file, clock_ns())

    def _keep_snapshot(self, snapshot: Snapshot, base_index: int) -> None:
        file, self._made = self._made, b""
        self._own_file = (snapshot, file)
        self._log("info", "snapshot", {"index": snapshot.index, "bytes": len(file)}, "")
        if self._writer is not None:
            self._writer.put_snapshot(snapshot, file, base_index, partial(self._kept, snapshot))
        self._settle(file, snapshot.index)
        if self._snapshot_waiters:
            # This one was begun before they asked.
            self._begin_turn()
            self.node.request_snapshot()

    def _kept(self, snapshot: Snapshot, is_kept: bool) -> None:
        """Forget the file once it is on disk; without room there it stays here for peers."""
        if is_kept and self._own_file is not None and self._own_file[0] == snapshot:
            self._own_file = None

    def _settle(self, result: bytes | Exception, index: int = 0) -> None:
        """Answer those who wait for a snapshot: all of them where there is none."""
        waiters, self._snapshot_waiters = self._snapshot_waiters, []
        for wanted, waiter in waiters:
            if waiter.done():
                continue
            if isinstance(result, Exception):
                waiter.set_exception(result)
            elif index >= wanted:
                waiter.set_result(result)
            else:
                self._snapshot_waiters.append((wanted, waiter))

    def _send_snapshot(self, message: InstallSnapshot) -> None:
        self._run(self._read_and_send(message))

    async def _file_of(self, snapshot: Snapshot) -> bytes | None:
        """Return the file of the newest snapshot; None if it has just been replaced."""
        if self._own_file is not None and self._own_file[0] == snapshot:
            return self._own_file[1]
        with suppress(OSError):
            return await asyncio.to_thread(self._store.read_snapshot, snapshot.index)
        return None

    async def _read_and_send(self, message: InstallSnapshot) -> None:
        file = await self._file_of(message.snapshot)
        if self.peers is None:
            return
        if file is not None:
            self.peers.send_snapshot(message, file)
        else:
            # A newer one has just taken its place; the pair comes back, and then that one is sent.
            self.peers.disconnect(message.to, "the snapshot that it needs was replaced")

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # Making or sending a snapshot failed, which is tried again: nothing was promised.
            self._log("error", "bug", {}, f"a task of the node ended: {error!r}")
            self._settle(RuntimeError(f"no snapshot was made: {error!r}"))

    def _measure(self) -> None:
        """Keep `wal_bytes` current, on a thread of its own: the disk may hang."""
        while not self._has_ended.wait(MEASURE_S):
            with suppress(OSError):
                self.wal_bytes = self._store.wal_bytes


_NODE_MODULES = (
    "cluster", "cluster_driver", "raft", "storage", "lock_table", "table_state", "queues",
    "deadlines",
)  # fmt: skip


def is_of_node(error: BaseException) -> bool:
    """Whether an exception came out of the node, and not of what shows or serves it."""
    trace = error.__traceback__
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__", ""))
        if module.removeprefix("ticketing_server.").partition(".")[0] in _NODE_MODULES:
            return True
        trace = trace.tb_next
    return False
