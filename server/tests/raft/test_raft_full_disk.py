"""A node whose disk takes no more entries: it votes, and neither leads nor acknowledges any."""

from __future__ import annotations

from test_raft_core import ALONE, CLUSTER, founded, leading, sync
from ticketing_server.raft.messages import (
    BATCH,
    Append,
    AppendReply,
    Entry,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    Snapshot,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from ticketing_server.raft.state import CANDIDATE, FOLLOWER, LEADER
from ticketing_server.raft.timing import MS

SECOND = 1000 * MS


def test_a_leader_steps_down_and_an_only_node_stays_and_proposes_nothing() -> None:
    node = leading()
    node.disk_full(is_full=True, now_ns=400 * MS)
    assert node.role == FOLLOWER
    alone = founded(ALONE)
    alone.tick(0)
    sync(alone, 0)
    assert alone.may_propose
    alone.disk_full(is_full=True, now_ns=0)
    assert alone.role == LEADER
    assert alone.propose(b"x", 0) is None
    alone.disk_full(is_full=False, now_ns=0)
    assert alone.propose(b"x", 0) == 3


def test_nobody_campaigns_with_it() -> None:
    node = founded(CLUSTER)
    node.disk_full(is_full=True, now_ns=0)
    for now in range(0, 3000, 50):
        node.tick(now * MS)
    node.step(Heartbeat(2, 1, 2, 0, 1), 3 * SECOND)
    node.step(TimeoutNow(2, 1, 2), 3 * SECOND)
    assert node.role == FOLLOWER
    assert not any(isinstance(m, VoteRequest) for m in node.take(3 * SECOND).now)
    node.disk_full(is_full=False, now_ns=3 * SECOND)
    node.step(TimeoutNow(2, 1, 2), 3 * SECOND)
    assert node.role == CANDIDATE
    alone = founded(ALONE)
    alone.disk_full(is_full=True, now_ns=0)
    alone.tick(0)
    assert alone.role == FOLLOWER
    assert alone.wake_ns() is None
    alone.disk_full(is_full=False, now_ns=0)
    assert alone.wake_ns() == 0


def test_a_candidate_gives_up() -> None:
    node = founded(CLUSTER)
    node.step(Heartbeat(2, 1, 2, 0, 1), SECOND)
    node.step(TimeoutNow(2, 1, 2), SECOND)
    assert node.role == CANDIDATE
    node.disk_full(is_full=True, now_ns=SECOND)
    assert node.role == FOLLOWER


def test_it_hears_the_leader_and_takes_no_entries() -> None:
    node = founded(CLUSTER)
    node.disk_full(is_full=True, now_ns=SECOND)
    entry = Entry(2, 2, BATCH, 5, b"")
    node.step(Append(2, 1, 2, 1, 1, (entry,), 1, 1), SECOND)
    node.step(InstallSnapshot(3, 1, 2, Snapshot(9, 2, 9, CLUSTER), 1), SECOND)
    node.step(Heartbeat(2, 1, 2, 1, 1), SECOND)
    effects = node.take(SECOND)
    assert [type(message) for message in effects.now] == [HeartbeatReply]
    assert node.log.last_index == 1
    assert node.leader == 2
    # What it has already it may well confirm.
    node.step(Append(2, 1, 2, 1, 1, (), 1, 1), SECOND)
    sync_and_replies = node.take(SECOND)
    answers = [*sync_and_replies.now, *sync_and_replies.after_sync]
    assert [(m.accepted, m.index) for m in answers if isinstance(m, AppendReply)] == [(True, 1)]
    node.disk_full(is_full=False, now_ns=SECOND)
    node.step(Append(2, 1, 2, 1, 1, (entry,), 1, 1), SECOND)
    assert node.log.last_index == 2


def test_it_votes() -> None:
    node = founded(CLUSTER)
    node.disk_full(is_full=True, now_ns=SECOND)
    node.step(VoteRequest(2, 1, 2, False, 1, 1, False), SECOND)
    effects = node.take(SECOND)
    assert effects.save is not None
    (reply,) = [*effects.now, *effects.after_sync]
    assert isinstance(reply, VoteReply)
    assert reply.granted
