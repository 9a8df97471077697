"""What every node has, whatever its role: term, vote, log, configuration, and what goes out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ticketing_server.raft.configuration import (
    Configuration,
    History,
    decode_founding,
    decode_member,
)
from ticketing_server.raft.log import Log
from ticketing_server.raft.messages import ADD, FOUND, REMOVE, Entry, HardState, Message, Snapshot
from ticketing_server.raft.saves import Save, Saves
from ticketing_server.raft.timing import Timing, Windows

FOLLOWER = "follower"
PRE_CANDIDATE = "pre-candidate"
CANDIDATE = "candidate"
LEADER = "leader"


def changed(held: Configuration, entry: Entry) -> Configuration:
    """Return who votes from an entry on, where `held` says who did before it."""
    if entry.kind == FOUND:
        return decode_founding(entry.payload)
    if entry.kind == REMOVE:
        return held.without(*decode_member(entry.payload))
    if entry.kind == ADD:
        return held.with_member(*decode_member(entry.payload))
    return held


class Restored(NamedTuple):
    """What a node reads from its disk before it begins; nothing, the first time."""

    hard_state: HardState = HardState()
    snapshot: Snapshot | None = None
    entries: tuple[Entry, ...] = ()
    """From the snapshot's index + 1 on, or from 1."""


@dataclass(slots=True)
class Effects:
    """What the driver does after a call, in any order but for what the fields say."""

    save: Save | None = None
    now: list[Message] = field(default_factory=list)
    """Sent at once."""
    after_sync: list[Message] = field(default_factory=list)
    """Sent when all saves up to `after` are synced, never before."""
    after: int = 0
    committed: tuple[Entry, ...] = ()
    """To be applied in order, after an installed snapshot. A leader answers clients with them."""
    elected: bool = False
    """The node has become leader: propose the NOOP of its term now."""


class NodeState:
    """The part of a node that knows no rule of elections or replication."""

    def __init__(
        self, node_id: int, restored: Restored, entropy: Iterator[int], now_ns: int,
        timing: Timing, windows: Windows,
    ) -> None:  # fmt: skip
        """Begin as a follower with what is on disk."""
        base = restored.snapshot or Snapshot(0, 0, 0, Configuration())
        self.node_id = node_id
        self.timing = timing
        self.windows = windows
        self.role = FOLLOWER
        self.term, self.vote = restored.hard_state
        self.log = Log(base.index, base.term, base.stamp, restored.entries)
        self.commit = base.index
        self.applied = base.index
        """Last entry handed out in `Effects.committed`."""
        self.snapshot = restored.snapshot
        """The newest snapshot here; lagging peers get it."""
        self.is_full = False
        """Whether the disk takes no more entries: this node votes, and does nothing else."""
        self.is_leaving = False
        """Whether the process is about to end: this node doesn't campaign any more."""
        self.history = History(base.index, base.configuration)
        for entry in restored.entries:
            self._configure(entry)
        self.now_ns = now_ns
        self._entropy = entropy
        self._saves = Saves(self.log.last_index)
        self._saved_hard = restored.hard_state
        self._unsaved_from = self.log.last_index + 1
        self._installed: Snapshot | None = None
        self._now: list[Message] = []
        self._after: list[Message] = []
        self._elected = False

    @property
    def configuration(self) -> Configuration:
        """Who votes, as far as this node's log goes."""
        return self.history.now

    @property
    def is_voter(self) -> bool:
        """Whether this node votes and campaigns."""
        return self.node_id in self.history.voters

    @property
    def is_alone(self) -> bool:
        """Whether this node is all of its cluster."""
        voters = self.history.voters
        return len(voters) == 1 and self.node_id in voters

    @property
    def stable_index(self) -> int:
        """All entries up to here are on this node's disk."""
        return self._saves.stable_index

    @property
    def is_removed(self) -> bool:
        """Whether a committed entry took this node out of its cluster: the driver stops it."""
        if self.is_voter or not self.configuration.members:
            return False
        return self.history.was_member(self.node_id) and self.commit >= self.history.changed_at

    def _draw(self, span_ns: int) -> int:
        return next(self._entropy) % span_ns

    def _sync_hangs(self) -> bool:
        begun = self._saves.oldest_begun_ns
        return begun is not None and self.now_ns - begun >= self.timing.sync_hangs_ns

    # The log

    def _append(self, entries: tuple[Entry, ...]) -> None:
        self.log.append(entries)
        for entry in entries:
            self._configure(entry)

    def _configure(self, entry: Entry) -> None:
        if entry.kind in (FOUND, REMOVE, ADD):
            self.history.push(entry.index, changed(self.configuration, entry))

    def _replace_from(self, index: int) -> None:
        """Make room for a leader's entries where they differ from this node's."""
        if index <= self.commit:
            raise AssertionError(f"entry {index} is committed (to {self.commit}), and conflicts")
        self.log.truncate(index)
        self.history.truncate(index)
        self._unsaved_from = min(self._unsaved_from, index)

    def _restore(self, snapshot: Snapshot) -> None:
        self.log = Log(snapshot.index, snapshot.term, snapshot.stamp)
        self.history = History(snapshot.index, snapshot.configuration)
        self.commit = self.applied = snapshot.index
        self.snapshot = self._installed = snapshot
        self._unsaved_from = snapshot.index + 1

    def compact(self, index: int, trailing: int) -> Snapshot:
        """Take that a snapshot as of `index` is on disk; keep `trailing` entries before it.

        `ValueError` where that entry was not applied, is not on disk yet (what follows it there
        might be another leader's), or is older than the snapshot there is.
        """
        term = self.log.term(index)
        last = min(self.applied, self.stable_index)
        if term is None or index > last:
            raise ValueError(
                f"no snapshot of entry {index}: {self.log.base_index} to {last} are applied and "
                "on disk"
            )
        if self.snapshot is not None and index <= self.snapshot.index:
            raise ValueError(f"snapshot of entry {index} is older than {self.snapshot.index}")
        configuration = self.history.at(index)
        self.snapshot = Snapshot(index, term, self.log.stamp(index), configuration)
        # What is not handed out to be saved yet has to stay until it is.
        base = min(max(0, index - trailing), self._unsaved_from - 1)
        self.log.compact(base)
        self.history.compact(self.log.base_index)
        return self.snapshot

    # What goes out

    def _take_save(self) -> Save | None:
        hard = HardState(self.term, self.vote)
        entries = self.log.slice(self._unsaved_from)
        if hard == self._saved_hard and not entries and self._installed is None:
            return None
        save = self._saves.give(
            None if hard == self._saved_hard else hard, self._installed, entries, self.now_ns
        )
        self._saved_hard = hard
        self._installed = None
        self._unsaved_from = self.log.last_index + 1
        return save

    def _take(self, committed_to: int) -> Effects:
        effects = Effects(self._take_save(), self._now, elected=self._elected)
        self._now = []
        self._elected = False
        if self._after:
            effects.after = self._saves.given
            if self._saves.done == self._saves.given:
                effects.now += self._after
            else:
                effects.after_sync = self._after
            self._after = []
        if committed_to > self.applied:
            effects.committed = self.log.slice(self.applied + 1, committed_to)
            self.applied = committed_to
        return effects
