"""One node of a cluster: everything it hears and does, without a clock, a disk or a socket.

See the package for how a driver uses it. Elections are here; the leader's and follower's parts,
and what all share, are in the modules below it.
"""

from __future__ import annotations

from collections.abc import Iterator

from ticketing_server.raft.configuration import Configuration, encode_founding
from ticketing_server.raft.leading import Leading
from ticketing_server.raft.messages import (
    FOUND,
    Append,
    AppendReply,
    Entry,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    Message,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from ticketing_server.raft.state import (
    CANDIDATE,
    FOLLOWER,
    LEADER,
    PRE_CANDIDATE,
    Effects,
    Restored,
)
from ticketing_server.raft.timing import Timing, Windows

_FOUNDING_TERM = 1
_ANSWERS = (AppendReply, HeartbeatReply)
_LEADERS = (Append, Heartbeat, InstallSnapshot)
_DOUBLINGS_MAX = 8
"""Far more than it takes until a retry is as late as any election."""


def founding_entry(configuration: Configuration) -> Entry:
    """Return entry 1 of a new cluster, which slot 0 gives to all."""
    return Entry(1, _FOUNDING_TERM, FOUND, 0, encode_founding(configuration))


class Raft(Leading):
    """A node. Times are nanoseconds of one clock that counts suspended time.

    `entropy` gives whole numbers of 0 to 2^64 - 1 without end, from which delays are drawn.
    Not thread-safe: one caller at a time.
    """

    def __init__(
        self, node_id: int, restored: Restored, entropy: Iterator[int], now_ns: int,
        timing: Timing | None = None, windows: Windows | None = None,
    ) -> None:  # fmt: skip
        """Begin with what is on disk, as a follower that refuses votes for 400 ms."""
        super().__init__(
            node_id, restored, entropy, now_ns, timing or Timing(), windows or Windows()
        )
        self.peers = {}
        self._started_ns = now_ns
        self._votes: dict[int, bool] = {}
        self._own_vote_save = 0
        self._set_deadline()

    # Input

    def step(self, message: Message, now_ns: int) -> None:
        """Take one message of a peer whose node id and cluster id were proven."""
        self._see(now_ns)
        if message.to != self.node_id:
            return
        if isinstance(message, VoteRequest):
            self._on_vote_request(message)
            return
        is_answer = isinstance(message, _ANSWERS)
        if is_answer and message.sender not in self.peers:
            return
        from_leader = isinstance(message, _LEADERS)
        if message.term > self.term:
            self._follow(message.term, message.sender if from_leader else None)
        if isinstance(message, VoteReply):
            self._on_vote_reply(message)
            return
        if message.term < self.term:
            if from_leader:
                # Else a leader that this node has outrun, and that it can't depose as others
                # follow it, would never hear of the newer term.
                self._now.append(HeartbeatReply(self.node_id, message.sender, self.term, 0))
            return
        if self.role == LEADER:
            if isinstance(message, AppendReply):
                self._on_append_reply(message)
            elif isinstance(message, HeartbeatReply):
                self._on_heartbeat_reply(message)
            elif from_leader:
                raise AssertionError(f"two leaders in term {self.term}: {message}")
        elif isinstance(message, Append):
            self._on_append(message)
        elif isinstance(message, Heartbeat):
            self._on_heartbeat(message)
        elif isinstance(message, InstallSnapshot):
            self._on_install(message)
        elif isinstance(message, TimeoutNow) and self._may_campaign:
            self._campaign(is_transfer=True)

    @property
    def _may_campaign(self) -> bool:
        return self.is_voter and self.role == FOLLOWER and not self.is_full and not self.is_leaving

    def tick(self, now_ns: int) -> None:
        """Do what is due. Called at `wake_ns` at the latest."""
        self._see(now_ns)
        if self.role == LEADER:
            self._tick_leader()
            return
        if not self.is_voter:
            return
        if self.is_alone:
            if self.role == FOLLOWER and not self.is_full:
                self._campaign(is_transfer=False)
            return
        if now_ns < self.deadline_ns:
            return
        if self._was_stalled and not self._has_postponed:
            # What leaders said meanwhile may lie unread; twice running would be no excuse.
            self._has_postponed = True
            self._set_retry()
        elif self._sync_hangs() or self.is_full or self.is_leaving:
            self._set_retry()
        else:
            self._has_postponed = False
            if self.role != FOLLOWER:
                self._attempts = min(self._attempts + 1, _DOUBLINGS_MAX)
            self._pre_campaign()
        self._was_stalled = False

    def synced(self, number: int, now_ns: int) -> None:
        """Take that all saves up to `number` are on disk."""
        self._see(now_ns)
        self._saves.synced(number)
        if self.role == CANDIDATE and self._own_vote_save and number >= self._own_vote_save:
            self._own_vote_save = 0
            self._count(self.node_id, granted=True)
        elif self.role == LEADER:
            self._advance_commit()

    def unreachable(self, node: int) -> None:
        """Take that a connection to a peer broke, or a snapshot for it failed.

        A leader probes it again. Where it was this node's leader it is probably gone: unless it is
        heard again, this node campaigns as soon as others may vote.
        """
        super().unreachable(node)
        if self.role == FOLLOWER and node == self.leader and self.heard_ns is not None:
            timing = self.timing
            soon_ns = timing.election_min_ns + self._draw(timing.gone_span_ns)
            self.deadline_ns = min(self.deadline_ns, self.heard_ns + soon_ns)

    def disk_full(self, *, is_full: bool, now_ns: int) -> None:
        """Take that the disk takes no more entries, or does again.

        Meanwhile this node takes and acknowledges none, and doesn't lead unless it is alone.
        """
        self._see(now_ns)
        self.is_full = is_full
        if is_full and self.role != FOLLOWER and not self.is_alone:
            self._follow(self.term, None)

    def found(self, entry: Entry, now_ns: int) -> bool:
        """Take entry 1 of a new cluster; return whether it was taken: only an empty node does."""
        self._see(now_ns)
        if self.term or self.log.last_index:
            return False
        self.term = entry.term
        self._append((entry,))
        self._set_deadline()
        return True

    def take(self, now_ns: int) -> Effects:
        """Return what is to be done; call it after every other call, or a run of them."""
        self._see(now_ns)
        may_apply = self.role != LEADER or self.is_confirmed
        return self._take(self.commit if may_apply else self.applied)

    # What it says

    def wake_ns(self) -> int | None:
        """Return when `tick` is wanted, unless something else is called before."""
        if self.role == LEADER:
            if not self.peers:
                return None
            due = self.rounds.begun_ns + self.timing.heartbeat_ns
            return min(due, self.transfer_target.until_ns) if self.transfer_target else due
        if not self.is_voter:
            return None
        if self.is_alone:
            return None if self.role == CANDIDATE or self.is_full else self.now_ns
        # Called this often, a gap shows a stall.
        return min(self.deadline_ns, self.now_ns + self.timing.heartbeat_ns)

    def named_leader(self, now_ns: int) -> int | None:
        """Return whom to name to clients: the leader as long as it is heard."""
        if self.role == LEADER:
            age_ns = now_ns - self.rounds.confirmed_sent_ns
            is_heard = self.is_alone or (
                self.rounds.confirmed > 0 and age_ns < self.timing.confirmed_for_ns
            )
            hands_over = self.transfer_target is not None and self.transfer_target.is_sent
            return self.node_id if is_heard and not hands_over else None
        return self.leader if self._hears_leader(now_ns) else None

    # Elections

    def _see(self, now_ns: int) -> None:
        if now_ns - self.now_ns >= self.timing.stall_ns:
            self._was_stalled = True
        self.now_ns = max(self.now_ns, now_ns)

    def _hears_leader(self, now_ns: int) -> bool:
        if self.role == LEADER:
            return now_ns - self.rounds.confirmed_sent_ns < self.timing.refusal_ns
        return self.heard_ns is not None and now_ns - self.heard_ns < self.timing.refusal_ns

    def _refuses_votes(self) -> bool:
        if self._hears_leader(self.now_ns):
            return True
        # Before it stopped it may have heard one.
        return self.now_ns - self._started_ns < self.timing.refusal_ns

    def _set_retry(self) -> None:
        timing = self.timing
        delay_ns = (timing.retry_min_ns + self._draw(timing.retry_span_ns)) << self._attempts
        if delay_ns < timing.election_min_ns:
            self.deadline_ns = self.now_ns + delay_ns
        else:
            self._set_deadline()

    def _pre_campaign(self) -> None:
        self.role = PRE_CANDIDATE
        self.leader = None
        self._set_retry()
        self._votes = {}
        for node in sorted(self.history.voters - {self.node_id}):
            self._now.append(self._vote_request(node, self.term + 1, pre=True, transfer=False))
        self._count(self.node_id, granted=True)

    def _campaign(self, *, is_transfer: bool) -> None:
        self.role = CANDIDATE
        self.leader = None
        self.term += 1
        self.vote = self.node_id
        self._votes = {}
        self._own_vote_save = self._saves.given + 1
        self._set_retry()
        for node in sorted(self.history.voters - {self.node_id}):
            # What it claims to have has to be on disk: a vote may reach it after a crash.
            self._after.append(self._vote_request(node, self.term, pre=False, transfer=is_transfer))

    def _vote_request(self, node: int, term: int, *, pre: bool, transfer: bool) -> VoteRequest:
        log = self.log
        return VoteRequest(self.node_id, node, term, pre, log.last_index, log.last_term, transfer)

    def _on_vote_request(self, message: VoteRequest) -> None:
        # Whether a vote counts is for the candidate to say: one that was added may lack just the
        # entry that says so, and be needed. Who has no log at all was never added.
        if not self.is_voter and not self.log.last_index:
            return
        is_recent = self.log.is_as_recent(message.last_index, message.last_term)
        if message.term < self.term or (not message.transfer and self._refuses_votes()):
            self._now.append(self._vote_reply(message, granted=False))
        elif message.pre:
            granted = message.term > self.term and is_recent
            self._now.append(self._vote_reply(message, granted=granted))
        else:
            if message.term > self.term:
                self._follow(message.term, None)
            granted = is_recent and self.vote in (None, message.sender) and self.leader is None
            if granted:
                self.vote = message.sender
                self.role = FOLLOWER
                self._set_deadline()
            self._after.append(self._vote_reply(message, granted=granted))

    def _vote_reply(self, message: VoteRequest, *, granted: bool) -> VoteReply:
        return VoteReply(
            self.node_id, message.sender, self.term, message.term, message.pre, granted
        )

    def _on_vote_reply(self, message: VoteReply) -> None:
        if message.pre:
            is_wanted = self.role == PRE_CANDIDATE and message.campaign == self.term + 1
        else:
            is_wanted = self.role == CANDIDATE and message.campaign == self.term
        if is_wanted and message.sender in self.history.voters:
            self._count(message.sender, message.granted)

    def _count(self, node: int, granted: bool) -> None:
        self._votes[node] = granted
        if sum(self._votes.values()) < self.configuration.majority:
            return
        if self.role == PRE_CANDIDATE:
            self._campaign(is_transfer=False)
        else:
            self._lead()
