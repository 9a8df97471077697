"""A seeded network of cores, with disks that lose what wasn't synced, and what must always hold.

Each event is one message, tick, sync or fault; after each the node it touched is checked. Checks
cost in proportion to what changed: the logs that were replaced, the entries that were handed out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from heapq import heappop, heappush

from ticketing_server.raft.configuration import Configuration
from ticketing_server.raft.core import Raft, founding_entry
from ticketing_server.raft.messages import (
    NOOP,
    Entry,
    HardState,
    InstallSnapshot,
    Message,
    Snapshot,
    VoteReply,
)
from ticketing_server.raft.saves import Save
from ticketing_server.raft.state import LEADER, Effects, Restored
from ticketing_server.raft.timing import MS, Timing, Windows

CLUSTER = b"a-cluster's-id.."


class Broken(AssertionError):
    """Something that must always hold doesn't."""


class Disk:
    """What a node has on disk: saves that are synced, and those that a crash loses."""

    def __init__(self) -> None:
        self.hard_state = HardState()
        self.snapshot: Snapshot | None = None
        self.entries: dict[int, Entry] = {}
        self.unsynced: list[Save] = []

    def sync(self, number: int) -> None:
        while self.unsynced and self.unsynced[0].number <= number:
            save = self.unsynced.pop(0)
            if save.hard_state is not None:
                self.hard_state = save.hard_state
            if save.snapshot is not None:
                self.snapshot = save.snapshot
                self.entries = {}
            if save.entries:
                first = save.entries[0].index
                self.entries = {i: e for i, e in self.entries.items() if i < first}
                self.entries.update((entry.index, entry) for entry in save.entries)

    def has(self, entry: Entry) -> bool:
        """Whether an entry is here, or in the snapshot."""
        is_inside = self.snapshot is not None and entry.index <= self.snapshot.index
        return is_inside or self.entries.get(entry.index) == entry

    def restored(self) -> Restored:
        base = self.snapshot.index if self.snapshot else 0
        entries = tuple(self.entries[i] for i in sorted(self.entries) if i > base)
        return Restored(self.hard_state, self.snapshot, entries)


class Checks:
    """The invariants, over the life of a whole network."""

    def __init__(self) -> None:
        self.leaders: dict[int, int] = {}
        self.votes: dict[tuple[int, int], int] = {}
        self.committed: dict[int, Entry] = {}
        self.committed_by: dict[int, int] = {}
        """Term by which an entry was committed."""
        self.seen: dict[tuple[int, int], tuple[Entry, int]] = {}
        self.answering: tuple[int, int] = (0, 0)

    def after(self, core: Raft, effects: Effects) -> None:
        if effects.elected:
            self._elected(core)
        for entry in effects.committed:
            known = self.committed.setdefault(entry.index, entry)
            self.committed_by.setdefault(entry.index, core.term)
            if known != entry:
                raise Broken(f"state machine safety: {core.node_id} has {entry}, not {known}")
            if entry.index > 1 and entry.stamp < self.committed[entry.index - 1].stamp:
                raise Broken(f"cluster time fell at {entry}")
        if core.role == LEADER and effects.committed:
            # By term: an older one's leader doesn't answer once a newer one's has.
            if core.term < self.answering[0]:
                raise Broken(f"{core.node_id} answers in {core.term} after {self.answering}")
            self.answering = (core.term, core.node_id)
        if effects.save is not None:
            self._saved(core, effects.save)

    def sent(self, message: Message) -> None:
        if isinstance(message, VoteReply) and message.granted and not message.pre:
            key = message.sender, message.campaign
            if self.votes.setdefault(key, message.to) != message.to:
                raise Broken(f"{message.sender} votes twice in term {message.campaign}")

    def _elected(self, core: Raft) -> None:
        if self.leaders.setdefault(core.term, core.node_id) != core.node_id:
            raise Broken(f"election safety: two leaders in term {core.term}")
        if core.vote != core.node_id:
            raise Broken(f"{core.node_id} leads term {core.term} and voted for {core.vote}")
        vote = self.votes.setdefault((core.node_id, core.term), core.node_id)
        if vote != core.node_id:
            raise Broken(f"{core.node_id} votes twice in term {core.term}")
        for index, entry in self.committed.items():
            # A leader elected late, of an older term than the commit, may lack it.
            is_older = self.committed_by[index] < core.term
            if is_older and index > core.log.base_index and core.log.term(index) != entry.term:
                raise Broken(f"leader completeness: {core.node_id} lacks {entry}")

    def _saved(self, core: Raft, save: Save) -> None:
        """Log matching: an entry and the term before it are the same wherever they occur."""
        for entry in save.entries:
            before = core.log.term(entry.index - 1)
            if before is None:
                continue
            known = self.seen.setdefault((entry.index, entry.term), (entry, before))
            if known != (entry, before):
                raise Broken(f"log matching: {core.node_id} has {entry} after {before}: {known}")


class Network:
    """Nodes 1 to `size` of one cluster, and everything that can happen to them."""

    def __init__(self, seed: int, size: int = 3) -> None:
        self.random = random.Random(seed)
        self.windows = Windows(append_bytes=200, messages=4, bytes=600)
        self.timing = Timing(replace_ns=1_500 * MS)
        self.slots = {node: node - 1 for node in range(1, size + 1)}
        self.now_ns = 0
        self.disks: dict[int, Disk] = {}
        self.nodes: dict[int, Raft] = {}
        self.held: dict[int, list[tuple[int, Message]]] = {}
        self.wakes: dict[int, int | None] = {}
        self.checks = Checks()
        self.cut: set[tuple[int, int]] = set()
        self.loss = 0.0
        self.double = 0.0
        self.delay_ns = 5 * MS
        self.sync_ns = 5 * MS
        self.events: list[tuple[int, int, str, int, object]] = []
        self.counters: dict[str, int] = {}
        self.paused: dict[int, int] = {}
        self.last_saved: dict[int, int] = {}
        self._order = 0
        members = tuple((slot, node) for node, slot in self.slots.items())
        configuration = Configuration(CLUSTER, members, size)
        for node in range(1, size + 1):
            self.disks[node] = Disk()
            self.start(node)
            self.nodes[node].found(founding_entry(configuration), 0)
            self._after(node)

    # Nodes

    def _entropy(self) -> Iterator[int]:
        while True:
            yield self.random.getrandbits(64)

    def start(self, node: int) -> None:
        self.nodes[node] = Raft(
            node, self.disks[node].restored(), self._entropy(), self.now_ns,
            self.timing, self.windows,
        )  # fmt: skip
        self.held[node] = []
        self._after(node)

    def crash(self, node: int) -> None:
        """Stop a node; some of its unsynced saves, from the first on, may have got through."""
        disk = self.disks[node]
        kept = self.random.randrange(len(disk.unsynced) + 1)
        if kept:
            disk.sync(disk.unsynced[kept - 1].number)
        disk.unsynced.clear()
        del self.nodes[node], self.held[node]
        self.wakes.pop(node, None)
        self.count("crash")
        for other, core in self.nodes.items():
            core.unreachable(node)
            self._after(other)

    def count(self, name: str) -> None:
        self.counters[name] = self.counters.get(name, 0) + 1

    # Effects

    def _after(self, node: int) -> None:
        core = self.nodes[node]
        while True:
            before = core.commit
            effects = core.take(self.now_ns)
            self.checks.after(core, effects)
            if core.role == LEADER and "replace" not in self.counters:
                self._is_on_disks(effects.committed)
            if effects.save is not None:
                known = self.last_saved.get(node, 0)
                entries = effects.save.entries
                if entries and entries[0].index <= known:
                    self.count("truncate")
                self.last_saved[node] = core.log.last_index
                self.disks[node].unsynced.append(effects.save)
                if effects.save.snapshot is not None:
                    self.count("install")
                spread = 1 + self.random.random() * 3
                self._at(int(self.sync_ns * spread), "sync", node, (core, effects.save.number))
            for message in effects.now:
                self._send(message)
            self.held[node] += [(effects.after, message) for message in effects.after_sync]
            if effects.elected:
                self.count("election")
                core.propose(b"noop of %d" % core.term, self.now_ns, NOOP)
            elif before == core.commit:
                break
        self._wake(node)

    def _is_on_disks(self, entries: tuple[Entry, ...]) -> None:
        """What a leader answers clients with survives any minority's loss, and all crashes."""
        for entry in entries:
            held = sum(disk.has(entry) for disk in self.disks.values())
            if held <= len(self.disks) // 2:
                raise Broken(f"{entry} is answered, and on {held} disks only")

    def _wake(self, node: int) -> None:
        wake = self.nodes[node].wake_ns()
        if wake is not None and self.wakes.get(node) != wake:
            self.wakes[node] = wake
            self._at(max(0, wake - self.now_ns), "tick", node, wake)

    def _send(self, message: Message) -> None:
        self.checks.sent(message)
        lost = (message.sender, message.to) in self.cut or self.random.random() < self.loss
        if lost:
            self.count("lost")
            if isinstance(message, InstallSnapshot):
                self._at(50 * MS, "broken", message.sender, message.to)
            return
        for _ in range(2 if self.random.random() < self.double else 1):
            self._at(int(self.delay_ns * self.random.random()), "message", message.to, message)

    def _at(self, delay_ns: int, kind: str, node: int, what: object) -> None:
        self._order += 1
        heappush(self.events, (self.now_ns + delay_ns, self._order, kind, node, what))

    # Time

    def run(self, duration_ns: int) -> None:
        """Let everything happen that is due within this time."""
        until = self.now_ns + duration_ns
        while self.events and self.events[0][0] <= until:
            when, _, kind, node, what = heappop(self.events)
            self.now_ns = max(self.now_ns, when)
            core = self.nodes.get(node)
            paused_until = self.paused.get(node, 0)
            if paused_until > self.now_ns:
                # Nothing is lost: it reads all of it, in this order, when it goes on.
                self._order += 1
                heappush(self.events, (paused_until, self._order, kind, node, what))
                continue
            if core is None:
                if isinstance(what, InstallSnapshot):
                    self._at(50 * MS, "broken", what.sender, node)
                continue
            if kind == "message":
                core.step(what, self.now_ns)  # type: ignore[arg-type]
            elif kind == "sync":
                owner, number = what  # type: ignore[misc]
                if owner is not core:
                    continue
                self.disks[node].sync(number)
                core.synced(number, self.now_ns)
                ready = [message for after, message in self.held[node] if after <= number]
                self.held[node] = [pair for pair in self.held[node] if pair[0] > number]
                for message in ready:
                    self._send(message)
            elif kind == "broken":
                core.unreachable(what)  # type: ignore[arg-type]
            elif self.wakes.get(node) == what:
                self.wakes[node] = None
                core.tick(self.now_ns)
            else:
                continue
            self.count(kind)
            self._after(node)
        self.now_ns = until

    # Clients and faults

    def leader(self) -> Raft | None:
        """Return the leader of the newest term, if it is one still."""
        leading = [core for core in self.nodes.values() if core.role == LEADER]
        return max(leading, key=lambda core: core.term, default=None)

    def propose(self, payload: bytes) -> None:
        """Give a command to every node that thinks it leads and isn't stopped."""
        for node, core in self.nodes.items():
            if core.may_propose and not self.is_paused(node):
                core.propose(payload + b" to %d" % node, self.now_ns)
                self._after(node)

    def is_paused(self, node: int) -> bool:
        """Whether a node is stopped at present."""
        return self.paused.get(node, 0) > self.now_ns

    def settle(self, node: int) -> None:
        """Take up what a call made to a node from outside had as its effects."""
        self._after(node)

    def is_settled(self) -> bool:
        """Whether one leads, all vote, and all have applied the same."""
        leader = self.leader()
        if leader is None or not leader.may_propose:
            return False
        last = leader.log.last_index
        return all(
            core.is_voter and core.applied == last and core.leader == leader.node_id
            for core in self.nodes.values()
        )

    def describe(self) -> str:
        """Return one line on every node."""
        return "; ".join(
            f"{node} {core.role} term {core.term} log {core.log.base_index}-"
            f"{core.log.last_index}/{core.log.last_term} commit {core.commit} "
            f"voters {sorted(core.configuration.voters)}"
            for node, core in sorted(self.nodes.items())
        )

    def compact(self, node: int) -> None:
        """Let a node make a snapshot of what it applied, where there is something new."""
        core = self.nodes[node]
        index = min(core.applied, core.stable_index)
        if index > (core.snapshot.index if core.snapshot else 0):
            self.disks[node].snapshot = core.compact(index, self.random.randrange(4))
            self.count("compact")

    def replace(self, node: int, newcomer: int) -> None:
        """Put an empty node of another id into the slot of one that is down for good."""
        slot = self.slots.pop(node)
        del self.disks[node]
        self.slots[newcomer] = slot
        self.disks[newcomer] = Disk()
        self.start(newcomer)
        self.count("replace")

    def knock(self) -> None:
        """Let every node that votes nowhere ask the leader for its slot."""
        leader = self.leader()
        if leader is None or self.is_paused(leader.node_id):
            return
        for node, core in self.nodes.items():
            if not core.is_voter:
                leader.join(node, self.slots[node], self.now_ns)
                self._after(leader.node_id)

    def heal(self) -> None:
        """End all faults and start who is down."""
        self.paused.clear()
        self.cut.clear()
        self.loss = self.double = 0.0
        for node in self.disks:
            if node not in self.nodes:
                self.start(node)
