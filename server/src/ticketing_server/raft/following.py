"""What a node does for a leader that it hears: appends, heartbeats, snapshots."""

from __future__ import annotations

from ticketing_server.raft.messages import (
    Append,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
)
from ticketing_server.raft.state import FOLLOWER, NodeState


class Following(NodeState):
    """The follower's part; candidates and leaders fall back to it."""

    leader: int | None = None
    """Node id of the leader of `term`, once it was heard."""
    heard_ns: int | None = None
    """When a leader was heard last; None since the start."""
    deadline_ns: int = 0
    """When to campaign, unless a leader is heard before."""
    _attempts: int = 0
    _was_stalled: bool = False
    _has_postponed: bool = False

    def _follow(self, term: int, leader: int | None) -> None:
        """Become a follower, in a newer term or in this one."""
        if term > self.term:
            self.term = term
            self.vote = None
        self.role = FOLLOWER
        self.leader = leader
        self._set_deadline()

    def _set_deadline(self) -> None:
        timing = self.timing
        self.deadline_ns = (
            self.now_ns + timing.election_min_ns + self._draw(timing.election_span_ns)
        )

    def _hear(self, leader: int) -> None:
        self.heard_ns = self.now_ns
        self._attempts = 0
        self._was_stalled = self._has_postponed = False
        self._follow(self.term, leader)

    def _on_heartbeat(self, message: Heartbeat) -> None:
        self._hear(message.sender)
        self._commit_to(min(message.commit, self.log.last_index))
        self._now.append(HeartbeatReply(self.node_id, message.sender, self.term, message.round))

    def _on_append(self, message: Append) -> None:
        self._hear(message.sender)
        if self.is_full and message.entries:
            return
        log = self.log
        previous = message.prev_index
        if previous < self.commit:
            # An old append, or one resent: what is committed agrees with every leader.
            self._answer(message, self.commit)
            return
        if log.term(previous) != message.prev_term:
            hint = log.last_at_most(min(previous, log.last_index), message.prev_term)
            hint_term = log.term(hint)
            self._now.append(
                AppendReply(
                    self.node_id, message.sender, self.term, False, previous, hint,
                    0 if hint_term is None else hint_term, message.round,
                )
            )  # fmt: skip
            return
        conflict = log.first_conflict(message.entries)
        if conflict is not None:
            if conflict <= log.last_index:
                self._replace_from(conflict)
            self._append(message.entries[conflict - previous - 1 :])
        agreed = previous + len(message.entries)
        self._commit_to(min(message.commit, agreed))
        self._answer(message, agreed)

    def _on_install(self, message: InstallSnapshot) -> None:
        self._hear(message.sender)
        if self.is_full:
            return
        snapshot = message.snapshot
        if snapshot.index > self.commit:
            if self.log.term(snapshot.index) == snapshot.term:
                self._commit_to(snapshot.index)
            else:
                self._restore(snapshot)
        self._answer(message, self.commit)

    def _answer(self, message: Append | InstallSnapshot, index: int) -> None:
        """Say what is as the leader's, once it is synced."""
        self._after.append(
            AppendReply(self.node_id, message.sender, self.term, True, index, 0, 0, message.round)
        )

    def _commit_to(self, index: int) -> None:
        self.commit = max(self.commit, index)
