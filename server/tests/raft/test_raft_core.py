"""Limits, refusals and errors of the core, which no scenario needs to tell."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

import pytest
from ticketing_server.raft.configuration import (
    Configuration,
    History,
    encode_founding,
    encode_member,
)
from ticketing_server.raft.core import Raft, founding_entry
from ticketing_server.raft.messages import (
    ADD,
    NOOP,
    REMOVE,
    Append,
    AppendReply,
    Entry,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    VoteReply,
    VoteRequest,
)
from ticketing_server.raft.progress import PROBE, REPLICATE, Progress
from ticketing_server.raft.saves import Saves
from ticketing_server.raft.state import FOLLOWER, LEADER, Restored
from ticketing_server.raft.timing import MS, Timing, Windows

SECOND = 1000 * MS
CLUSTER = Configuration(b"sixteen bytes ..", ((0, 1), (1, 2), (2, 3)), 3)
ALONE = Configuration(CLUSTER.cluster_id, ((0, 1),), 1)


def entropy() -> Iterator[int]:
    return repeat(0)


def founded(configuration: Configuration, windows: Windows | None = None) -> Raft:
    """Node 1, founded and synced."""
    node = Raft(1, Restored(), entropy(), 0, windows=windows)
    assert node.found(founding_entry(configuration), 0)
    sync(node, 0)
    return node


def sync(node: Raft, now_ns: int) -> None:
    """Let the disk take everything."""
    effects = node.take(now_ns)
    while effects.save is not None:
        node.synced(effects.save.number, now_ns)
        if effects.elected:
            node.propose(b"", now_ns, NOOP)
        effects = node.take(now_ns)
    if effects.elected:
        node.propose(b"", now_ns, NOOP)
        sync(node, now_ns)


def leading(windows: Windows | None = None) -> Raft:
    """Node 1 of three, leader of term 2, heard by all at 400 ms."""
    node = founded(CLUSTER, windows)
    for now in range(0, 401, 50):
        node.tick(now * MS)
    now_ns = 400 * MS
    node.step(VoteReply(2, 1, 1, 2, True, True), now_ns)
    sync(node, now_ns)
    node.step(VoteReply(2, 1, 2, 2, False, True), now_ns)
    assert node.role == LEADER
    sync(node, now_ns)
    for peer in (2, 3):
        node.step(HeartbeatReply(peer, 1, 2, 1), now_ns)
        node.step(AppendReply(peer, 1, 2, True, 2, 0, 0, 1), now_ns)
    assert node.commit == 2
    node.take(now_ns)
    return node


def test_over_the_uncommitted_limit_nothing_is_proposed() -> None:
    node = leading(Windows(uncommitted_bytes=100, unsynced_entries=1000))
    now_ns = 410 * MS
    assert node.propose(bytes(69), now_ns) == 3
    assert not node.may_propose
    assert node.propose(b"", now_ns) is None
    sync(node, now_ns)
    node.step(AppendReply(2, 1, 2, True, 3, 0, 0, 1), now_ns)
    assert node.may_propose


def test_the_window_counts_bytes_too() -> None:
    windows = Windows(bytes=300, unsynced_entries=1000)
    node = leading(windows)
    for _ in range(5):
        node.propose(bytes(68), 410 * MS)
    sent = [m for m in node.take(410 * MS).now if isinstance(m, Append) and m.to == 2]
    assert [entry.index for message in sent for entry in message.entries] == [3, 4, 5]


def test_only_commands_are_proposed_and_only_to_a_leader() -> None:
    node = founded(CLUSTER)
    assert node.propose(b"x", 0) is None
    assert node.propose(b"", 0, NOOP) is None
    with pytest.raises(ValueError, match="kind 3 is not proposed from outside"):
        node.propose(b"x", 0, REMOVE)
    leader = leading()
    assert leader.propose(b"", 410 * MS, NOOP) is None


def test_a_second_leader_of_one_term_is_an_error() -> None:
    with pytest.raises(AssertionError, match="two leaders in term 2"):
        leading().step(Heartbeat(2, 1, 2, 0, 1), 410 * MS)


def test_what_is_committed_is_never_written_over() -> None:
    node = leading()
    with pytest.raises(AssertionError, match="entry 2 is committed"):
        node._replace_from(2)


def test_who_is_nobodys_peer_and_who_asks_another_is_not_heard() -> None:
    node = leading()
    node.step(AppendReply(9, 1, 7, True, 2, 0, 0, 99), 410 * MS)
    node.step(HeartbeatReply(2, 3, 7, 99), 410 * MS)
    assert (node.role, node.term) == (LEADER, 2)


def test_only_an_empty_node_is_founded() -> None:
    assert not founded(CLUSTER).found(founding_entry(ALONE), 0)


def test_a_node_whose_sync_hangs_does_not_campaign() -> None:
    node = Raft(1, Restored(), entropy(), 0)
    node.found(founding_entry(CLUSTER), 0)
    node.take(0)
    for now in range(0, 850, 50):
        node.tick(now * MS)
    asked = [m.term for m in node.take(850 * MS).now]
    for now in range(850, 3000, 50):
        node.tick(now * MS)
    assert asked
    assert node.take(3000 * MS).now == []


def test_what_a_removed_node_knows() -> None:
    node = founded(CLUSTER)
    removal = Entry(2, 2, REMOVE, 0, encode_member(0, 1))
    node.step(Append(2, 1, 2, 1, 1, (removal,), 1, 1), 0)
    assert not node.is_voter
    assert not node.is_removed
    node.step(Heartbeat(2, 1, 2, 2, 2), 0)
    assert node.is_removed
    assert node.wake_ns() is None


def test_a_node_with_nothing_to_do_asks_for_no_tick() -> None:
    alone = founded(ALONE)
    assert alone.wake_ns() == 0
    alone.tick(0)
    assert alone.wake_ns() is None
    sync(alone, 0)
    assert (alone.role, alone.wake_ns()) == (LEADER, None)
    assert (alone.named_leader(10**12), alone.may_propose) == (1, True)
    empty = Raft(7, Restored(), entropy(), 0)
    empty.tick(10**12)
    assert (empty.wake_ns(), empty.role, empty.is_removed) == (None, FOLLOWER, False)


def test_a_follower_asks_for_a_tick_often_enough_to_see_a_stall() -> None:
    node = founded(CLUSTER)
    assert node.wake_ns() == Timing().heartbeat_ns
    leader = leading()
    assert leader.wake_ns() == 450 * MS
    leader.propose(b"x", 420 * MS)
    leader.transfer(420 * MS, 2)
    assert leader.wake_ns() == 450 * MS


def test_compaction_takes_what_is_applied_and_synced() -> None:
    node = leading()
    node.propose(b"x", 410 * MS)
    for index, text in ((3, "no snapshot of entry 3: 0 to 2"), (9, "no snapshot of entry 9")):
        with pytest.raises(ValueError, match=text):
            node.compact(index, 0)
    made = node.compact(2, 1)
    assert (made.index, made.term, made.configuration) == (2, 2, CLUSTER)
    assert node.log.base_index == 1
    with pytest.raises(ValueError, match="older than 2"):
        node.compact(2, 0)


def test_a_snapshot_brings_its_configuration_back() -> None:
    node = leading()
    made = node.compact(2, 0)
    again = Raft(1, Restored(node._saved_hard, made), entropy(), 0)
    assert (again.configuration, again.commit, again.applied) == (CLUSTER, 2, 2)
    assert (again.log.last_index, again.log.last_term, again.term) == (2, 2, 2)


def test_leave_forgets_learners_only() -> None:
    node = leading()
    assert node.join(13, 2, 410 * MS)
    assert not founded(CLUSTER).join(13, 2, 0)
    assert not node.join(14, 3, 410 * MS)
    assert not node.join(2, 2, 410 * MS)
    node.leave(13)
    node.leave(2)
    assert sorted(node.peers) == [2, 3]


def test_transfer_chooses_who_has_most() -> None:
    node = leading()
    node.propose(b"x", 410 * MS)
    node.step(AppendReply(3, 1, 2, True, 3, 0, 0, 1), 410 * MS)
    assert node.transfer(410 * MS) == 3
    assert node.transfer(410 * MS) is None
    assert founded(CLUSTER).transfer(0) is None


def test_configurations_change_by_one_member() -> None:
    fewer = CLUSTER.without(2, 3)
    assert (fewer.voters, fewer.majority, fewer.holder(2)) == ({1, 2}, 2, None)
    assert CLUSTER.without(2, 9) == CLUSTER
    assert fewer.with_member(2, 13).voters == {1, 2, 13}
    for slot, node in ((2, 13), (4, 1)):
        with pytest.raises(ValueError, match=f"slot {slot} or node {node} is in"):
            CLUSTER.with_member(slot, node)
    with pytest.raises(ValueError, match="cluster id has 3 bytes, takes 16"):
        encode_founding(Configuration(b"abc", ()))
    with pytest.raises(ValueError, match="don't fill slots 0 to 2"):
        encode_founding(fewer)


def test_history_follows_the_log() -> None:
    history = History(0, Configuration())
    history.push(1, CLUSTER)
    history.push(5, ALONE)
    assert (history.at(4), history.now, history.changed_at) == (CLUSTER, ALONE, 5)
    history.compact(3)
    history.truncate(4)
    assert (history.now, history.changed_at) == (CLUSTER, 3)
    history.truncate(1)
    assert history.now == CLUSTER


def test_a_save_that_was_not_given_is_an_error() -> None:
    saves = Saves(0)
    with pytest.raises(ValueError, match="save 1 was not given, the last one is 0"):
        saves.synced(1)


def test_probe_and_replicate_take_only_answers_that_still_count() -> None:
    peer = Progress(8, 0)
    assert not peer.refused(5, 3)
    assert peer.refused(7, 3)
    assert (peer.state, peer.next) == (PROBE, 3)
    assert peer.accepted(4, 0)
    assert (peer.state, peer.next) == (REPLICATE, 5)
    assert not peer.refused(4, 2)
    assert not peer.accepted(4, 0)
    assert peer.refused(6, 2)
    assert (peer.state, peer.next, peer.match) == (PROBE, 5, 4)


def test_added_members_count_from_the_entry_on() -> None:
    node = founded(ALONE)
    addition = Entry(2, 2, ADD, 0, encode_member(1, 2))
    node.step(Append(2, 1, 2, 1, 1, (addition,), 1, 1), 0)
    assert node.configuration.voters == {1, 2}


def asked(node: Raft, now_ms: int, *, transfer: bool = False) -> bool:
    """Ask a node of term 1 for its vote and return what it says."""
    node.step(VoteRequest(2, 1, 2, False, 9, 1, transfer), now_ms * MS)
    effects = node.take(now_ms * MS)
    answers = [*effects.now, *effects.after_sync]
    assert isinstance(answers[0], VoteReply)
    return answers[0].granted


def test_a_member_votes_that_lacks_the_entry_which_says_it_is_one() -> None:
    """It may be the one that is missing to a majority, and no entry comes without a leader."""
    others = Configuration(CLUSTER.cluster_id, ((1, 2), (2, 3)), 3)
    node = Raft(1, Restored(entries=(Entry(1, 1, NOOP, 0, b""),)), entropy(), 0)
    node.history.push(1, others)
    assert not node.is_voter
    now = node.timing.refusal_ns
    node.step(VoteRequest(2, 1, 3, False, 0, 0, False), now)
    assert [reply.granted for reply in _replies(node, now)] == [False]
    node.step(VoteRequest(3, 1, 4, False, 1, 1, False), now)
    assert [reply.granted for reply in _replies(node, now)] == [True]
    node.step(VoteRequest(2, 1, 4, False, 9, 3, False), now)
    assert [reply.granted for reply in _replies(node, now)] == [False]
    node.tick(now + SECOND)
    assert not node.take(now + SECOND).now


def _replies(node: Raft, now_ns: int) -> list[VoteReply]:
    effects = node.take(now_ns)
    return [m for m in (*effects.now, *effects.after_sync) if isinstance(m, VoteReply)]


def test_no_votes_for_400_ms_after_the_start_but_by_transfer() -> None:
    assert not asked(founded(CLUSTER), 399)
    assert asked(founded(CLUSTER), 399, transfer=True)
    assert asked(founded(CLUSTER), 400)


def test_no_votes_for_400_ms_after_a_leader_was_heard_but_by_transfer() -> None:
    for now_ms, transfer, granted in ((999, False, False), (999, True, True), (1000, False, True)):
        node = founded(CLUSTER)
        node.step(Heartbeat(3, 1, 1, 0, 1), 600 * MS)
        node.leader = None
        node.take(600 * MS)
        assert asked(node, now_ms, transfer=transfer) is granted


def with_learner() -> Raft:
    """Node 1 leads and has learner 13 for the slot of node 3, of which nothing more is heard."""
    node = leading()
    node.join(13, 2, 410 * MS)
    node.step(AppendReply(13, 1, 2, True, 2, 0, 0, 1), 410 * MS)
    return node


def live(node: Raft, until_ms: int, heard: tuple[int, ...]) -> None:
    """Tick every 50 ms; the disk takes all, and these peers answer each round at once."""
    start_ms = node.now_ns // MS
    for now_ms in range(start_ms, until_ms + 1, 50):
        node.tick(now_ms * MS)
        for peer in heard:
            if peer in node.peers:
                node.step(HeartbeatReply(peer, 1, node.term, node.rounds.last), now_ms * MS)
        sync(node, now_ms * MS)


def test_who_is_gone_is_replaced_only_while_a_majority_of_the_others_is_heard() -> None:
    node = with_learner()
    live(node, 9_950, (2, 13))
    live(node, 10_500, (13,))
    assert node.role == LEADER
    assert node.configuration == CLUSTER
    live(node, 10_600, (2, 13))
    assert node.configuration.voters == {1, 2}
    assert 3 not in node.peers


def test_a_member_is_added_only_when_the_removal_is_committed() -> None:
    node = with_learner()
    live(node, 12_000, (2, 13))
    assert node.configuration.voters == {1, 2}
    node.step(AppendReply(13, 1, 2, True, 3, 0, 0, 1), 12_000 * MS)
    live(node, 12_100, (2, 13))
    assert node.commit == 2
    node.step(AppendReply(2, 1, 2, True, 3, 0, 0, 1), 12_100 * MS)
    live(node, 12_200, (2, 13))
    assert (node.commit, node.configuration.voters) == (3, {1, 2, 13})


def test_a_learner_that_lacks_what_is_committed_replaces_nobody() -> None:
    node = leading()
    node.join(13, 2, 410 * MS)
    live(node, 12_000, (2, 13))
    assert node.configuration == CLUSTER


def test_nobody_is_replaced_before_the_terms_noop_is_committed() -> None:
    node = with_learner()
    node.commit = 1
    live(node, 12_000, (2, 13))
    assert node.configuration == CLUSTER


def test_who_loses_the_connection_to_its_leader_campaigns_sooner() -> None:
    for broken, latest in ((2, 500), (3, 800)):
        node = Raft(1, Restored(), repeat(2**64 - 1), 0)
        node.found(founding_entry(CLUSTER), 0)
        sync(node, 0)
        node.step(Heartbeat(2, 1, 2, 0, 1), 1000 * MS)
        node.unreachable(broken)
        node.tick((1000 + latest - 400) * MS)
        assert node.deadline_ns <= (1000 + latest) * MS
        assert (node.deadline_ns > 1500 * MS) == (broken != 2)
        # Its next word puts that off again.
        node.step(Heartbeat(2, 1, 2, 0, 2), 1300 * MS)
        assert node.deadline_ns >= 1700 * MS


def test_a_snapshot_that_is_not_answered_is_sent_again() -> None:
    node = leading()
    node.compact(2, 0)
    node.peers[3] = Progress(1, 400 * MS)
    sent = []
    for now_ns in range(500 * MS, 90 * SECOND, 100 * MS):
        node.tick(now_ns)
        for peer in (2, 3):
            node.step(HeartbeatReply(peer, 1, 2, node.rounds.last), now_ns)
        node.step(AppendReply(3, 1, 2, False, 2, 0, 0, node.rounds.last), now_ns)
        if any(isinstance(message, InstallSnapshot) for message in node.take(now_ns).now):
            sent.append(now_ns)
    assert sent == [500 * MS, 60_500 * MS]
    assert node.peers[2].state == REPLICATE
