"""A node of a cluster, or a durable server alone: an engine whose every change goes through a log.

Pure: the driver tells it what came in and when, calls `end_turn` once for all of it, and does what
`take_effects` says. The Raft core decides what is in the log, `replica` what it does to the table,
`serving` what clients hear of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from ticketing_server import constants_gen as c
from ticketing_server.cluster import entries, snapshot_file, status
from ticketing_server.cluster.entries import TABLE_VERSIONS, TICK
from ticketing_server.cluster.membership import Membership
from ticketing_server.cluster.messages import Found, PeerHello
from ticketing_server.cluster.replica import Replica
from ticketing_server.cluster.serving import ALONE, NOBODY, Serving, Standing
from ticketing_server.cluster.snapshots import Snapshots
from ticketing_server.cluster.values import (
    ClusterStatus,
    NodeEffects,
    NodeSettings,
    SnapshotPolicy,
)
from ticketing_server.connection_engine import SECOND
from ticketing_server.deadlines import NEVER
from ticketing_server.engine import Output
from ticketing_server.lock_table import Run
from ticketing_server.raft.core import Raft
from ticketing_server.raft.messages import NOOP, Entry, InstallSnapshot, Message
from ticketing_server.raft.state import LEADER, Restored
from ticketing_server.raft.timing import Timing, Windows
from ticketing_server.session import FaceFactory

__all__ = ["TABLE_VERSIONS", "ClusterNode"]
_TOKENS_PER_MS_BITS = 20
APPLIED_BYTES_MAX = 128 * 1024
"""Entries that are applied in one turn, so that peers are heard and answered between; the last one
may go over that."""


class _Proposed(NamedTuple):
    """What this node put into an entry, as it was parsed, until it is applied."""

    runs: list[Run]
    ends: list[int]
    """Connections that end in it."""


class ClusterNode(Serving):
    """See `engine.Engine`, and the module. Times are of one clock that counts suspended time.

    `entropy` gives whole numbers of 0 to 2^64 - 1 without end; `wall_ms` the unix time, which only
    keeps tokens rising when a cluster is begun anew.
    """

    def __init__(
        self, settings: NodeSettings, restored: Restored, snapshot: bytes | None,
        entropy: Iterator[int], wall_ms: Callable[[], int], faces: Mapping[int, FaceFactory],
        now_ns: int, timing: Timing | None = None, windows: Windows | None = None,
        policy: SnapshotPolicy | None = None,
    ) -> None:  # fmt: skip
        """Begin with what is on disk; `ValueError` where the snapshot isn't the log's."""
        super().__init__(faces, None if settings.is_durable_alone else settings.slot)
        self.settings = settings
        self.replica = _restore(restored, snapshot)
        self.table = self.replica.table
        self.raft = Raft(settings.node_id, restored, entropy, now_ns, timing, windows)
        self._wall_ms = wall_ms
        self.members = Membership(settings, self.raft, entropy)
        self._proposed: dict[int, _Proposed] = {}
        self._backlog: deque[Entry] = deque()
        """Committed entries that are yet to be applied."""
        self._effects: NodeEffects | None = None
        self._snapshots = Snapshots(self.raft, self.replica, policy or SnapshotPolicy())
        self._stood_in = b""
        self._about_leader: tuple[int, PeerHello | None, int] | None = None
        self._leader_stands = NOBODY
        self._told_of = (NOBODY.slot, 0)
        """Slot and term of the leader that the log named last."""
        self.members.found_alone(now_ns)
        self._stand(self._standing, self.cluster_id)
        self._look_who_leads(now_ns)

    # What the driver tells

    def step(self, message: Message, now_ns: int) -> None:
        """Take a message of a peer that proved its node id and the cluster id."""
        self.raft.step(message, now_ns)

    def step_snapshot(self, message: InstallSnapshot, file: bytes, now_ns: int) -> bool:
        """Take a snapshot whose file arrived whole.

        False where it can't be read or is another one: then it never arrived, and the driver
        breaks the connection, so that the leader sends it again.
        """
        if message.snapshot.index <= self.raft.commit:
            self.raft.step(message, now_ns)
            return True
        try:
            meta, replica = snapshot_file.read(file)
        except ValueError as problem:
            self._event("snapshot_refused", text=str(problem))
            return False
        if meta != message.snapshot:
            self._event("snapshot_refused", text="it is another one than the leader told of")
            return False
        applied = self.raft.applied
        self.raft.step(message, now_ns)
        if self.raft.applied != applied:
            self._install(replica)
        return True

    def found(self, message: Found, now_ns: int) -> None:
        """Take that slot 0 founded the cluster."""
        self.members.found(message, now_ns)

    def peer_up(self, hello: PeerHello, now_ns: int) -> None:
        """Take that a peer is connected, or that what it says of itself changed."""
        self.members.up(hello, now_ns)

    def peer_down(self, node_id: int, now_ns: int) -> None:
        """Take that a connection to a peer broke; what was sent to it may be lost."""
        self.members.down(node_id)

    def synced(self, number: int, now_ns: int) -> None:
        """Take that all saves up to this one are on disk."""
        self.raft.synced(number, now_ns)

    def snapshot_made(self, index: int, checksum: bytes, file: bytes | None, now_ns: int) -> None:
        """Take that a snapshot as of `index` is on disk, and what its replay came to."""
        self._snapshots.made(index, checksum)

    def snapshot_failed(self, index: int, now_ns: int) -> None:
        """Take that a snapshot could not be made; the next one is tried later."""
        self._snapshots.failed(index)

    def request_snapshot(self) -> None:
        """Make a snapshot soon, however little there is that is new."""
        self._snapshots.is_requested = True

    def disk_full(self, is_full: bool, now_ns: int) -> None:
        """Take that the disk takes no more entries, or does again."""
        self._is_disk_full = is_full
        self.raft.disk_full(is_full=is_full, now_ns=now_ns)
        self._snapshots.disk_full(is_full)
        if is_full and self._is_alone:
            self._refuse_queued()

    def transfer(self, slot: int | None, now_ns: int) -> bool:
        """Hand the lead over, to a slot or whoever has most; whether that has begun."""
        target = None
        if slot is not None:
            target = self.raft.configuration.holder(slot)
            if target is None:
                return False
        return self.raft.transfer(now_ns, target) is not None

    def drain(self, now_ns: int) -> None:
        """See `Engine.drain`; connections end when what they asked for is applied."""
        super().drain(now_ns)
        self.raft.is_leaving = not self._is_alone

    def force_release(self, key: bytes, token: int) -> bool:
        """See `Engine.force_release`; False where this node doesn't lead."""
        wanted = token.to_bytes(8, "big") if 0 <= token < 1 << 64 else b""
        ticket = self.table.ticket_of(key)
        if not self._leading or self._is_disk_full or ticket is None or ticket[0] != wanted:
            return False
        self._queue.add(entries.force_release(wanted, key))
        return True

    # What it says

    @property
    def reads_clients(self) -> bool:
        """Whether clients are read now; while not, the shell pauses all of them."""
        hands_over = self.raft.role == LEADER and self.raft.transfer_target is not None
        return not hands_over and not self._queue.is_full

    @property
    def cluster_id(self) -> bytes:
        """The cluster that this node is in; empty where it is in none."""
        return self.members.cluster_id

    @property
    def is_empty(self) -> bool:
        """Whether this node's log is empty, as its hello says."""
        return self.members.is_empty

    @property
    def pending(self) -> int:
        """Requests that are in no entry yet, and own entries that are not applied yet."""
        return self._queue.requests + len(self._proposed)

    def cluster_status(self) -> ClusterStatus:
        """Return this node's place in its cluster."""
        return status.of(self)

    def take_effects(self) -> NodeEffects:
        """Return what the last turn wants done; once after each."""
        effects, self._effects = self._effects, None
        return effects or NodeEffects()

    # The turn

    def end_turn(self, now_ns: int) -> tuple[list[Output], int | None]:
        """See `Engine.end_turn`."""
        if self._effects is not None:
            raise RuntimeError("the effects of the turn before were not taken")
        if now_ns >= self._timers.earliest_ns:
            self._do_timers(now_ns)
        raft = self.raft
        raft.tick(now_ns)
        self._look_who_leads(now_ns)
        founded = self.members.tell(now_ns)
        self._propose(now_ns)
        self._tick_table(now_ns)
        effects = raft.take(now_ns)
        self._backlog += effects.committed
        self._apply_backlog()
        marked = self._snapshots.wanted()
        self._effects = NodeEffects(
            effects.save, (*founded, *effects.now), tuple(effects.after_sync), effects.after,
            marked, self._snapshots.take_compacted(), raft.log.base_index, self._why_stop(),
        )  # fmt: skip
        self.now_ns = raft.cluster_time(now_ns) if raft.role == LEADER else self.replica.stamp
        outputs = self._outputs()
        return outputs, self._wake_at(now_ns)

    def _why_stop(self) -> str:
        if self.members.is_removed():
            return "this node was removed from its cluster; it keeps its files"
        return self._snapshots.diverged

    def _wake_at(self, now_ns: int) -> int | None:
        wake_at = self._timers.earliest_ns
        tick_at = self._tick_at(now_ns)
        if tick_at < wake_at and self.raft.may_propose:
            # Else a sync or a peer has to come first.
            wake_at = tick_at
        raft_ns = self.raft.wake_ns()
        if raft_ns is not None:
            wake_at = min(wake_at, raft_ns)
        if (self._queue and self.raft.may_propose) or (self._backlog and self._may_apply()):
            wake_at = now_ns
        return None if wake_at == NEVER else max(now_ns, wake_at)

    def _look_who_leads(self, now_ns: int) -> None:
        """Follow what the Raft core says of the lead, and tell clients."""
        raft = self.raft
        # The turn may have begun before the last message of a peer came.
        now_ns = max(now_ns, raft.now_ns)
        standing = ALONE if self._is_alone else self._standing_at(now_ns)
        changed = standing != self._standing
        if changed or self.cluster_id != self._stood_in:
            self._stood_in = self.cluster_id
            self._stand(standing, self.cluster_id)
        term = raft.term if raft.role == LEADER else 0
        if term != self._leading:
            if self._leading:
                self._proposed.clear()
                self._lose()
            if term:
                self._gain(term)
                self._begin_term(now_ns)
        if changed:
            self._tell_leader()
            self._log_leader(standing.slot)

    def _log_leader(self, slot: int) -> None:
        led, told = (slot, self.raft.term), self._told_of
        if slot == NOBODY.slot:
            self._event("leader_lost", slot=told[0], term=told[1])
        elif led == told:
            self._event("leader_heard", slot=slot, term=self.raft.term)
        else:
            self._told_of = led
            self._event("leader_changed", slot=slot, term=self.raft.term)

    def _standing_at(self, now_ns: int) -> Standing:
        raft = self.raft
        leader = raft.named_leader(now_ns)
        if leader is None:
            return NOBODY
        # All that the rest depends on; it is asked for in every turn.
        about = (leader, self.members.hellos.get(leader), raft.history.changed_at)
        if about != self._about_leader:
            self._about_leader = about
            self._leader_stands = self._standing_of(leader)
        return self._leader_stands

    def _standing_of(self, leader: int) -> Standing:
        slot = self.members.slot_of(leader)
        if slot is None:
            return NOBODY
        if leader == self.settings.node_id:
            return Standing(c.ROLE_LEADER, slot, self.members.address_of(slot, leader))
        if leader not in self.members.hellos:
            # It was heard a moment ago, but its connection broke: as likely as not it is gone, and
            # who is told of nobody hears of the next leader at once.
            return NOBODY
        return Standing(c.ROLE_FOLLOWER, slot, self.members.address_of(slot, leader))

    # The log

    def _begin_term(self, now_ns: int) -> None:
        limits, grace_ms = self._limits, self.settings.failover_grace_ms
        floor = self._wall_ms() << _TOKENS_PER_MS_BITS
        version = self.members.table_version(entries.TABLE_VERSION)
        payload = entries.encode_noop(limits, grace_ms, floor, version)
        self.raft.propose(payload, now_ns, NOOP)
        self.members.elected(now_ns)

    def _propose(self, now_ns: int) -> None:
        """Make entries of what was read, as long as the core takes them."""
        while self._queue and self.raft.may_propose:
            runs = self._queue.take()
            ends = []
            for run in runs:
                run.link.term = self.raft.term
                if run.kind == entries.DETACH:
                    ends.append(run.link.number)
            parsed: list[Run] = [(run.link, run.commands) for run in runs]
            self._put(entries.encode(runs), _Proposed(parsed, ends), now_ns)

    def _put(self, payload: bytes, proposed: _Proposed, now_ns: int) -> None:
        index = self.raft.propose(payload, now_ns)
        if index is None:
            raise AssertionError("the core takes no entry, and said that it would")
        self._proposed[index] = proposed

    def _tick_at(self, now_ns: int) -> int:
        """Return when time has to pass in the log, as something in the table waits for it."""
        if not self._leading or self._backlog:
            return NEVER
        raft = self.raft
        wake_at = self.table.wake_at()
        if wake_at == NEVER:
            return NEVER
        last = raft.log.last_stamp
        due = last + SECOND
        if not self._proposed or last < wake_at:
            # Else what is on its way does it.
            due = min(due, wake_at)
        return now_ns + max(0, due - raft.cluster_time(now_ns))

    def _tick_table(self, now_ns: int) -> None:
        if self._tick_at(now_ns) <= now_ns and self.raft.may_propose:
            self._put(TICK, _Proposed([], []), now_ns)

    def _apply_backlog(self) -> None:
        """Apply what is committed, a bounded part per turn, so that peers are heard in between.

        After a start that may be a long log; what clients wait for fits the bounds.
        """
        backlog = self._backlog
        size = 0
        while backlog and size < APPLIED_BYTES_MAX and self._may_apply():
            entry = backlog.popleft()
            size += entry.size
            self._apply(entry)
        if self.table.events:
            self._name_events()

    def _may_apply(self) -> bool:
        # A leader answers with it, and only one that is heard may.
        return self.raft.role != LEADER or self.raft.is_confirmed

    def _apply(self, entry: Entry) -> None:
        replica = self.replica
        proposed = self._proposed.pop(entry.index, None)
        if proposed is None:
            # Nobody here waits for its replies.
            replica.apply(entry)
            replica.forget_events()
        else:
            replica.apply(entry, proposed.runs, self._replies)
            for number in proposed.ends:
                self._applied_end(number)
            for link, frame in self.table.refused:
                self._close_refused(link, frame)
            self.table.refused.clear()
        self._snapshots.count(entry)

    def _install(self, replica: Replica) -> None:
        self.replica = replica
        self.table = replica.table
        self._backlog.clear()
        self._snapshots.installed(replica)


def _restore(restored: Restored, snapshot: bytes | None) -> Replica:
    if restored.snapshot is None:
        return Replica()
    if snapshot is None:
        raise ValueError(
            f"the log begins behind entry {restored.snapshot.index}, without its table"
        )
    meta, replica = snapshot_file.read(snapshot)
    if meta != restored.snapshot:
        raise ValueError(
            f"the snapshot is of entry {meta.index}, the log begins behind "
            f"{restored.snapshot.index}"
        )
    return replica
