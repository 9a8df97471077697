"""What a leader does: entries, windows, rounds, commit, transfer, and who joins its cluster."""

from __future__ import annotations

from typing import NamedTuple

from ticketing_server.raft.configuration import decode_member, encode_member, majority_of
from ticketing_server.raft.following import Following
from ticketing_server.raft.messages import (
    ADD,
    BATCH,
    NOOP,
    REMOVE,
    Append,
    AppendReply,
    Entry,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    TimeoutNow,
)
from ticketing_server.raft.progress import PROBE, REPLICATE, SNAPSHOT, Progress
from ticketing_server.raft.rounds import Rounds
from ticketing_server.raft.state import LEADER


class _Transfer(NamedTuple):
    target: int
    until_ns: int
    is_sent: bool


class Leading(Following):
    """The leader's part. All of it begins anew with each election."""

    peers: dict[int, Progress]
    """By node id: the other voters, and learners."""
    rounds: Rounds
    transfer_target: _Transfer | None = None
    _elected_at: int = 0
    _base_stamp: int = 0
    _elected_ns: int = 0
    _noop_index: int = 0
    _uncommitted_bytes: int = 0

    # Election won, lost

    def _lead(self) -> None:
        self.role = LEADER
        self.leader = self.node_id
        last = self.log.last_index
        self.rounds = Rounds(self.now_ns)
        self.peers = {
            node: Progress(last + 1, self.now_ns)
            for node in sorted(self.history.voters - {self.node_id})
        }
        self.transfer_target = None
        self._elected_at = last
        self._base_stamp = self.log.last_stamp
        self._elected_ns = self.now_ns
        self._noop_index = 0
        self._uncommitted_bytes = sum(entry.size for entry in self.log.slice(self.commit + 1))
        self._attempts = 0
        self._elected = True
        self._begin_round()

    def _tick_leader(self) -> None:
        now, timing = self.now_ns, self.timing
        if not self.is_alone:
            unheard_ns = now - self.rounds.confirmed_sent_ns
            if unheard_ns >= timing.step_down_ns or self._sync_hangs():
                self._follow(self.term, None)
                return
        transfer = self.transfer_target
        if transfer is not None and now >= transfer.until_ns:
            self.transfer_target = None
            if transfer.is_sent:
                self._follow(self.term, None)
                return
        if now - self.rounds.begun_ns >= timing.heartbeat_ns:
            self._begin_round()
        self._replace_members()

    def _begin_round(self) -> None:
        number = self.rounds.begin(self.now_ns)
        for node, peer in self.peers.items():
            commit = min(self.commit, peer.match)
            self._now.append(Heartbeat(self.node_id, node, self.term, commit, number))

    # Entries

    @property
    def may_propose(self) -> bool:
        """Whether `propose` takes a command now; while not, clients aren't read."""
        unsynced = self.log.last_index - max(self.stable_index, self._elected_at)
        return (
            self.role == LEADER
            and not self.is_full
            and self._noop_index > 0
            and self.transfer_target is None
            and unsynced < self.windows.unsynced_entries
            and self._uncommitted_bytes <= self.windows.uncommitted_bytes
        )

    def cluster_time(self, now_ns: int) -> int:
        """Return the stamp that an entry proposed now would get. Only a leader has one."""
        return max(self.log.last_stamp, self._base_stamp + now_ns - self._elected_ns)

    def propose(self, payload: bytes, now_ns: int, kind: int = BATCH) -> int | None:
        """Append one command and return its index; None where this can't be now.

        The NOOP goes first in each term and once. That an entry has an index doesn't mean that
        it will be committed: it was where it comes back in `Effects.committed` with this term.
        """
        self.now_ns = max(self.now_ns, now_ns)
        if kind == NOOP:
            if self.role != LEADER or self._noop_index:
                return None
            self._noop_index = self.log.last_index + 1
        elif kind != BATCH:
            raise ValueError(f"kind {kind} is not proposed from outside")
        elif not self.may_propose:
            return None
        return self._propose(kind, payload)

    def _propose(self, kind: int, payload: bytes) -> int:
        index = self.log.last_index + 1
        entry = Entry(index, self.term, kind, self.cluster_time(self.now_ns), payload)
        self._append((entry,))
        self._uncommitted_bytes += entry.size
        if kind == REMOVE:
            self.peers.pop(decode_member(payload)[1], None)
        for node in self.peers:
            self._replicate(node)
        self._advance_commit()
        return index

    def _replicate(self, node: int, *, even_empty: bool = False) -> None:
        peer = self.peers[node]
        while peer.is_open(self.windows) or (even_empty and peer.state == REPLICATE):
            previous = peer.next - 1
            previous_term = self.log.term(previous)
            if previous_term is None:
                self._send_snapshot(node, peer)
                return
            entries: tuple[Entry, ...] = ()
            if peer.is_open(self.windows):
                entries = self.log.slice(peer.next, limit_bytes=self.windows.append_bytes)
            if not entries and not even_empty:
                return
            self._send_append(node, previous, previous_term, entries)
            peer.sent(entries, self.rounds.last)
            even_empty = False

    def _send_append(
        self, node: int, previous: int, previous_term: int, entries: tuple[Entry, ...]
    ) -> None:
        self._now.append(
            Append(
                self.node_id, node, self.term, previous, previous_term, entries,
                self.commit, self.rounds.last,
            )
        )  # fmt: skip

    def _send_snapshot(self, node: int, peer: Progress) -> None:
        if self.snapshot is None:
            raise AssertionError(f"entry {peer.next} is compacted, and there is no snapshot")
        peer.awaits_snapshot(self.snapshot, self.now_ns)
        self._now.append(
            InstallSnapshot(self.node_id, node, self.term, self.snapshot, self.rounds.last)
        )

    def _advance_commit(self) -> None:
        """Commit what a majority has synced, from this term's entries on."""
        held = self.configuration
        synced = [
            self.stable_index if node == self.node_id else self.peers[node].match
            for node in self.history.voters
        ]
        index = majority_of(synced, held.majority)
        if index <= self.commit or self.log.term(index) != self.term:
            return
        done = self.log.slice(self.commit + 1, index)
        self._uncommitted_bytes -= sum(entry.size for entry in done)
        self.commit = index

    # Answers

    def _on_append_reply(self, message: AppendReply) -> None:
        peer = self._heard_from(message)
        if message.index > self.log.last_index:
            return
        if message.accepted:
            is_news = peer.accepted(message.index, self.log.base_index)
            if is_news:
                self._advance_commit()
                self._hand_over()
        else:
            next_index = self.log.last_at_most(message.hint_index, message.hint_term) + 1
            if not peer.refused(message.index, next_index):
                return
        # A probe that was refused is followed by the next one, empty or not.
        self._replicate(message.sender, even_empty=peer.state == PROBE and not message.accepted)

    def _on_heartbeat_reply(self, message: HeartbeatReply) -> None:
        peer = self._heard_from(message)
        if (
            peer.state == SNAPSHOT
            and self.now_ns - peer.snapshot_ns >= self.timing.snapshot_again_ns
        ):
            # It answers, and had no room for it, or a driver has forgotten to say that it is lost.
            peer.lost()
        if peer.state == SNAPSHOT and peer.snapshot is not None:
            # Its word that it has the snapshot may be lost: asked this way it says so again.
            self._send_append(message.sender, peer.snapshot.index, peer.snapshot.term, ())
            return
        peer.heard_round(message.round)
        if peer.match < self.log.last_index or peer.state == PROBE:
            # Where an append was lost, the empty one behind it is refused and shows it.
            self._replicate(message.sender, even_empty=True)

    def _heard_from(self, message: AppendReply | HeartbeatReply) -> Progress:
        peer = self.peers[message.sender]
        peer.heard_ns = self.now_ns
        peer.answered = True
        if message.round > peer.round:
            peer.round = message.round
            held = self.configuration
            acknowledged = [
                self.rounds.last if node == self.node_id else self.peers[node].round
                for node in self.history.voters
            ]
            self.rounds.confirm(majority_of(acknowledged, held.majority))
        return peer

    def unreachable(self, node: int) -> None:
        """Take that a connection to a peer broke, or a snapshot for it failed: probe again."""
        if self.role == LEADER and node in self.peers:
            self.peers[node].lost()

    @property
    def is_confirmed(self) -> bool:
        """Whether a leader may apply, and so answer, at the time of the last call."""
        if self.is_alone:
            return True
        if self.transfer_target is not None and self.transfer_target.is_sent:
            return False
        age_ns = self.now_ns - self.rounds.confirmed_sent_ns
        return self.rounds.confirmed > 0 and age_ns < self.timing.confirmed_for_ns

    # Transfer

    def transfer(self, now_ns: int, target: int | None = None) -> int | None:
        """Hand the lead over, to the voter that has most where none is named.

        Returns whom to; None where this node doesn't lead, is handing over already, or nobody
        of that id votes and was heard. From now on nothing is proposed, until it is off.
        """
        self.now_ns = max(self.now_ns, now_ns)
        if self.role != LEADER or self.transfer_target is not None:
            return None
        fit = [
            (peer.match, node)
            for node, peer in self.peers.items()
            if node in self.history.voters and self._is_heard(peer)
        ]
        if target is None and fit:
            target = max(fit)[1]
        if target not in {node for _, node in fit}:
            return None
        self.transfer_target = _Transfer(target, self.now_ns + self.timing.transfer_ns, False)
        self._hand_over()
        return target

    def _hand_over(self) -> None:
        transfer = self.transfer_target
        if transfer is None or transfer.is_sent or transfer.target not in self.peers:
            return
        if self.peers[transfer.target].match < self.log.last_index:
            return
        until_ns = self.now_ns + self.timing.transfer_ns
        self.transfer_target = transfer._replace(until_ns=until_ns, is_sent=True)
        self._now.append(TimeoutNow(self.node_id, transfer.target, self.term))

    # Members

    def join(self, node: int, slot: int, now_ns: int) -> bool:
        """Take an empty node as a learner for a slot of this cluster; return whether it is one.

        It belongs to no configuration and counts for nothing. When it has all that is
        committed and its slot's holder is unheard for 10 s, it takes its place.
        """
        self.now_ns = max(self.now_ns, now_ns)
        is_voter = node in self.history.voters
        if self.role != LEADER or is_voter or not 0 <= slot < self.configuration.slots:
            return False
        if node not in self.peers:
            self.peers[node] = Progress(self.log.last_index + 1, self.now_ns, slot)
            self._replicate(node, even_empty=True)
        return True

    def leave(self, node: int) -> None:
        """Forget a learner whose connection ended; nothing where it votes by now."""
        if self.role == LEADER and node not in self.history.voters:
            self.peers.pop(node, None)

    def _is_heard(self, peer: Progress) -> bool:
        return peer.answered and self.now_ns - peer.heard_ns < self.timing.refusal_ns

    def _replace_members(self) -> None:
        """Take the next step towards putting a learner in the place of who is gone.

        One change at a time, each committed before the next, and none before this term's NOOP
        is: else two configurations without a common majority could both decide.
        """
        if all(peer.slot is None for peer in self.peers.values()):
            # No learner is there.
            return
        is_settled = self._noop_index and self.commit >= max(
            self._noop_index, self.history.changed_at
        )
        if not is_settled or not self.may_propose:
            return
        held = self.configuration
        for node, peer in self.peers.items():
            if node in held.voters or peer.slot is None or not self._is_heard(peer):
                continue
            if peer.state != REPLICATE or peer.match < self.commit:
                continue
            holder = held.holder(peer.slot)
            if holder is None:
                self._propose(ADD, encode_member(peer.slot, node))
                return
            if self._is_gone(holder) and self._remain_without(holder):
                self._propose(REMOVE, encode_member(peer.slot, holder))
                return

    def _is_gone(self, holder: int) -> bool:
        peer = self.peers.get(holder)
        return peer is not None and self.now_ns - peer.heard_ns >= self.timing.replace_ns

    def _remain_without(self, holder: int) -> bool:
        """Whether a majority of the other voters is heard."""
        others = self.history.voters - {holder}
        heard = [n for n in others if n == self.node_id or self._is_heard(self.peers[n])]
        return len(heard) >= len(others) // 2 + 1
