"""What Raft promises, checked over the life of a whole cluster (compare tests/raft).

Each check costs in proportion to what changed: the entries that were saved or applied.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ticketing_server.raft.core import Raft
from ticketing_server.raft.messages import (
    ADD,
    REMOVE,
    AppendReply,
    Entry,
    HardState,
    VoteReply,
)
from ticketing_server.raft.saves import Save
from ticketing_server.raft.state import LEADER, Restored

from ticketing_sim.schedule import Broken


@dataclass
class Durable:
    """What a node was told is on its disk."""

    hard_state: HardState = field(default_factory=HardState)
    snapshot_index: int = 0
    terms: dict[int, int] = field(default_factory=dict)
    """By index."""

    def take(self, save: Save) -> None:
        """A save was synced."""
        if save.hard_state is not None:
            self.hard_state = save.hard_state
        if save.snapshot is not None:
            self.snapshot_index = save.snapshot.index
            self.terms.clear()
        if save.entries:
            self._cut(save.entries[0].index)
            self.terms.update((entry.index, entry.term) for entry in save.entries)

    def _cut(self, first: int) -> None:
        for index in [index for index in self.terms if index >= first]:
            del self.terms[index]

    def has(self, entry: Entry) -> bool:
        """Whether an entry is there, or in the snapshot."""
        return entry.index <= self.snapshot_index or self.terms.get(entry.index) == entry.term

    def check(self, who: str, restored: Restored, unsynced: list[Save]) -> None:
        """A node starts with what it finds: nothing that was synced is missing."""
        held, found = self.hard_state, restored.hard_state
        states = [held, *(save.hard_state for save in unsynced if save.hard_state is not None)]
        if found not in states:
            raise Broken(f"{who} finds {found}, and {held} was synced")
        base = restored.snapshot.index if restored.snapshot is not None else 0
        if base < self.snapshot_index:
            raise Broken(f"{who} finds a snapshot of {base}, and {self.snapshot_index} was synced")
        last = min((save.entries[0].index for save in unsynced if save.entries), default=None)
        terms = {entry.index: entry.term for entry in restored.entries}
        for index, term in self.terms.items():
            if index <= base or (last is not None and index >= last):
                continue
            if terms.get(index) != term:
                raise Broken(f"{who} lost entry {index} of term {term}, which was synced")
        if restored.entries and restored.entries[-1].term > found.term:
            raise Broken(f"{who} finds {restored.entries[-1]}, and {found} only")
        self.hard_state = found
        self.snapshot_index = base
        self.terms = terms


class RaftChecks:
    """The invariants of one cluster."""

    def __init__(self) -> None:
        self.durable: dict[int, Durable] = {}
        """By node id; those of nodes that are gone stay, as their word counted."""
        self.leaders: dict[int, int] = {}
        self._votes: dict[tuple[int, int], int] = {}
        self._seen: dict[tuple[int, int], tuple[Entry, int]] = {}
        self._committed: dict[int, Entry] = {}
        self._committed_by: dict[int, int] = {}
        self._answering = 0
        self._commits: dict[int, int] = {}
        """How far the leader of each term knew it was committed when it was elected."""

    def sent(self, message: object) -> None:
        """A message leaves: what it promises is on the disk."""
        if isinstance(message, VoteReply) and message.granted and not message.pre:
            self._vote(message.sender, message.campaign, message.to)
            held = self.durable[message.sender].hard_state
            if held.term == message.campaign:
                is_kept = held.vote == message.to
            else:
                is_kept = held.term > message.campaign
            if not is_kept:
                raise Broken(f"{message} leaves, and {held} is on the disk")
        elif isinstance(message, AppendReply) and message.accepted and message.index:
            durable = self.durable[message.sender]
            if message.index > durable.snapshot_index and message.index not in durable.terms:
                raise Broken(f"{message} leaves, and that entry is not on the disk")

    def _vote(self, node: int, term: int, candidate: int) -> None:
        if self._votes.setdefault((node, term), candidate) != candidate:
            raise Broken(f"{node:x} votes twice in term {term}")

    def saved(self, core: Raft, save: Save) -> None:
        """Log matching: an entry and the term before it are the same wherever they occur."""
        if core.role == LEADER and any(entry.kind in (ADD, REMOVE) for entry in save.entries):
            self._changed(core)
        for entry in save.entries:
            before = core.log.term(entry.index - 1)
            if before is None:
                continue
            known = self._seen.setdefault((entry.index, entry.term), (entry, before))
            if known != (entry, before):
                raise Broken(f"log matching: {core.node_id:x} has {entry} after {before}: {known}")

    def _changed(self, core: Raft) -> None:
        """Members change one at a time, each change committed before the next."""
        (_, *before), (_, now) = core.history._steps[:-1], core.history._steps[-1]
        held = core.history._steps[-2][1] if len(core.history._steps) > 1 else now
        if len(set(held.members) ^ set(now.members)) > 1:
            raise Broken(f"{core.node_id:x} goes from {held} to {now} at once")
        if any(index > core.commit for index, _ in before):
            raise Broken(f"{core.node_id:x} goes to {now} before {held} is committed")

    def leads(self, core: Raft) -> bool:
        """A node leads; returns whether that is news."""
        commit = core.commit
        if core.log.term(commit) != core.term and commit > self._commits.get(core.term, commit):
            raise Broken(f"{core.node_id:x} commits up to {commit}, which isn't of its term")
        self._commits.setdefault(core.term, commit)
        known = self.leaders.setdefault(core.term, core.node_id)
        if known != core.node_id:
            raise Broken(f"election safety: {known:x} and {core.node_id:x} lead term {core.term}")
        if (core.node_id, -core.term) in self._votes:
            return False
        self._votes[core.node_id, -core.term] = 0
        self._vote(core.node_id, core.term, core.node_id)
        for index, entry in self._committed.items():
            # A leader elected late, of an older term than the commit, may lack it.
            is_older = self._committed_by[index] < core.term
            if is_older and index > core.log.base_index and core.log.term(index) != entry.term:
                raise Broken(f"leader completeness: {core.node_id:x} lacks {entry}")
        return True

    def applied(self, core: Raft, entry: Entry, *, is_first: bool) -> None:
        """A node applied an entry."""
        if is_first:
            self._committed[entry.index] = entry
            self._committed_by[entry.index] = core.term
        if core.role != LEADER:
            return
        # By term: an older one's leader doesn't answer once a newer one's has.
        if core.term < self._answering:
            raise Broken(f"{core.node_id:x} answers in {core.term} after {self._answering}")
        self._answering = core.term
        if is_first:
            voters = core.configuration.voters
            held = [node for node in voters if self.durable[node].has(entry)]
            if len(held) < core.configuration.majority:
                raise Broken(f"{entry} is answered, and on {len(held)} disks only")
