"""Founding a cluster, and replacing who is gone for good."""

from __future__ import annotations

from dataclasses import replace

import pytest
from engine_driver import Named
from node_network import MS, SECOND, Host, Network, founded, granted, numbers
from ticketing_server.cluster import snapshot_file
from ticketing_server.cluster.entries import TABLE_VERSIONS
from ticketing_server.cluster.messages import Found, PeerHello
from ticketing_server.cluster.node import ClusterNode
from ticketing_server.cluster.values import NodeSettings, SnapshotPolicy
from ticketing_server.limits import Limits
from ticketing_server.raft.configuration import Configuration
from ticketing_server.raft.core import founding_entry
from ticketing_server.raft.messages import HardState, Snapshot
from ticketing_server.raft.state import Restored
from ticketing_server.session import Session

OTHER = b"another cluster."


def hello(slot: int, **changes: object) -> PeerHello:
    said = PeerHello(100 + slot, slot, b"", True, b"host:1", TABLE_VERSIONS)
    return said._replace(**changes)  # type: ignore[arg-type]


def empty_node(slot: int = 0, cluster_id: bytes = b"") -> ClusterNode:
    settings = NodeSettings(slot, 3, 100 + slot, cluster_id, False, (b"a", b"b", b"c"), 5000)
    node = ClusterNode(settings, Restored(), None, numbers(1), lambda: 1, {4: Session}, 0)
    node.configure(Limits(), (Named("test", b"x"),), 0)
    return node


def is_founded(node: ClusterNode) -> bool:
    node.end_turn(1 * SECOND)
    node.take_effects()
    return bool(node.cluster_id)


def test_slot_0_founds_when_all_others_are_there_and_empty() -> None:
    node = empty_node()
    node.peer_up(hello(1), 0)
    assert not is_founded(node)
    node.peer_up(hello(2), 0)
    assert is_founded(node)
    assert node.raft.configuration.members == ((0, 100), (1, 101), (2, 102))


@pytest.mark.parametrize(
    "second",
    [
        hello(2, is_empty=False),
        hello(2, cluster_id=OTHER),
        hello(1, node_id=7),
        hello(0, node_id=7),
        hello(3),
    ],
)
def test_nothing_is_founded_with_others(second: PeerHello) -> None:
    node = empty_node()
    node.peer_up(hello(1), 0)
    node.peer_up(second, 0)
    assert not is_founded(node)


def test_no_other_slot_founds() -> None:
    node = empty_node(1)
    node.peer_up(hello(0), 0)
    node.peer_up(hello(2), 0)
    assert not is_founded(node)


def test_who_has_met_a_cluster_never_founds_one() -> None:
    node = empty_node()
    node.peer_up(hello(1, cluster_id=OTHER, is_empty=False), 0)
    node.peer_down(101, 0)
    node.peer_up(hello(1), 0)
    node.peer_up(hello(2), 0)
    assert not is_founded(node)
    restarted = empty_node(cluster_id=OTHER)
    restarted.peer_up(hello(1), 0)
    restarted.peer_up(hello(2), 0)
    assert not is_founded(restarted)


@pytest.mark.parametrize(
    ("cluster_id", "members", "is_taken"),
    [
        (OTHER, ((0, 100), (1, 101), (2, 102)), True),
        (OTHER, ((0, 100), (1, 999), (2, 102)), False),
        (b"a third cluster.", ((0, 100), (1, 101), (2, 102)), False),
    ],
)
def test_a_founding_is_taken_where_it_names_this_node_in_a_cluster_it_may_join(
    cluster_id: bytes, members: tuple[tuple[int, int], ...], is_taken: bool
) -> None:
    node = empty_node(1, cluster_id=OTHER)
    entry = founding_entry(Configuration(cluster_id, members, 3))
    node.found(Found(100, 101, entry), 0)
    assert is_founded(node) == is_taken


def test_a_founding_that_was_lost_is_told_again() -> None:
    network = Network(3)
    network.connect()
    network.messages.clear()
    network.hosts[0].sync()
    network.messages.clear()
    network.run(2 * SECOND)
    assert not any(host.node.cluster_id for host in network.hosts[1:])
    network.connect()
    network.run(2 * SECOND)
    assert len({host.node.cluster_id for host in network.hosts}) == 1
    network.leader()


def test_nobody_hears_of_a_founding_that_is_not_on_disk() -> None:
    network = Network(3)
    network.hosts[0].syncs = False
    network.connect()
    network.settle()
    assert network.hosts[0].node.cluster_id
    assert not network.hosts[1].node.cluster_id
    network.crash(network.hosts[0])
    network.start(network.hosts[0])
    network.hosts[0].syncs = True
    network.connect()
    network.run(2 * SECOND)
    network.leader()


def serve(network: Network, client: int) -> int:
    """Let a new client have a key; return its token."""
    leader = network.leader()
    peered, _ = leader.welcome(client=client)
    key = b"key %d" % client
    leader.request(peered, "acquire", request_id=1, wait_ms=0, lease_ms=60_000, key=key)
    network.settle()
    return granted(peered.take())


def lose(network: Network, host: Host) -> None:
    network.crash(host)
    network.run(2 * SECOND)


def test_an_empty_node_takes_the_place_of_who_is_gone() -> None:
    network = founded()
    serve(network, 1)
    old = network.leader().followers()[0]
    lose(network, old)
    new = network.replace(old.slot, 777)
    network.run(12 * SECOND)
    network.agree()
    leader = network.leader()
    status = leader.node.cluster_status()
    assert status.members[new.slot].node_id == 777
    assert new.node.raft.is_voter
    assert new.node.cluster_id == leader.node.cluster_id
    serve(network, 2)
    # With the other old follower gone too, the new one is needed.
    (other,) = (host for host in leader.followers() if host is not new)
    network.crash(other)
    network.run(SECOND)
    serve(network, 3)


def test_a_member_that_comes_back_in_time_keeps_its_place() -> None:
    network = founded()
    old = network.leader().followers()[0]
    lose(network, old)
    network.run(5 * SECOND)
    network.start(old)
    network.run(12 * SECOND)
    network.agree()
    assert old.node.raft.is_voter
    assert old.stop == ""


def test_a_removed_node_that_returns_stops() -> None:
    network = founded()
    old = network.leader().followers()[0]
    lose(network, old)
    network.replace(old.slot, 777)
    network.run(12 * SECOND)
    network.agree()
    network.hosts.append(old)
    network.by_id[old.node_id] = old
    old.begin()
    network.heal()
    network.run(2 * SECOND)
    assert "removed" in old.stop
    assert network.hosts[old.slot].node.raft.is_voter


def test_a_removed_node_that_gets_a_snapshot_stops_too() -> None:
    """A snapshot doesn't tell who was a member before it; the node itself knows."""
    network = founded(policy=SnapshotPolicy(entries=8, trailing=1))
    old = network.leader().followers()[0]
    lose(network, old)
    network.replace(old.slot, 777)
    network.run(12 * SECOND)
    for client in range(1, 8):
        serve(network, client)
    network.agree()
    network.hosts.append(old)
    network.by_id[old.node_id] = old
    old.begin()
    network.heal()
    network.run(2 * SECOND)
    assert old.disk.snapshot is not None
    assert "removed" in old.stop


def test_a_learner_goes_on_under_the_next_leader() -> None:
    network = founded()
    old = network.leader().followers()[0]
    lose(network, old)
    new = network.replace(old.slot, 777)
    network.run(SECOND)
    leader = network.leader()
    (target,) = (host for host in leader.followers() if host is not new)
    assert not new.node.raft.is_voter
    assert leader.node.transfer(target.slot, network.now)
    leader.turn()
    network.run(SECOND)
    assert network.leader() is target
    kinds = [member.kind for member in target.node.cluster_status().members]
    assert kinds.count("learner") == 1
    network.run(15 * SECOND)
    assert new.node.raft.is_voter
    network.agree()


def test_an_undone_membership_does_not_stop_a_learner() -> None:
    node = empty_node(2)
    raft = node.raft
    raft.found(founding_entry(Configuration(OTHER, ((0, 100), (1, 101), (2, 50)), 3)), 0)
    raft.commit = 1
    before = raft.history.now
    raft.history.push(2, before.without(2, 50).with_member(2, 102))
    assert not node.members.is_removed()
    raft.history.truncate(2)
    assert not node.members.is_removed()


def test_limits_of_the_term_are_those_of_its_leader() -> None:
    network = founded(limits=replace(Limits(), max_lease_ms=5000))
    leader = network.leader()
    peered, _ = leader.welcome(client=1)
    for host in network.hosts:
        host.node.configure(replace(Limits(), max_lease_ms=1000), (Named("t", b"x"),), network.now)
    leader.request(peered, "acquire", request_id=1, wait_ms=0, lease_ms=5000, key=b"k")
    network.settle()
    granted(peered.take())
    network.run(200 * MS)
    network.agree()


def test_empty_nodes_join_one_that_was_restored() -> None:
    """A restored node is all of its cluster, until the empty slots are taken."""
    source = Network(1)
    source.connect()
    source.run(6 * SECOND)
    token = serve_alone(source)
    replica = source.hosts[0].node.replica
    network = Network(3)
    restored = network.hosts[1]
    members = ((restored.slot, restored.node_id),)
    meta = Snapshot(
        replica.index, replica.term, replica.stamp, Configuration(OTHER, members, network.size)
    )
    restored.disk.snapshot = meta
    restored.disk.file = snapshot_file.encode(meta, replica.dump())
    restored.disk.hard_state = HardState(replica.term, None)
    restored.begin()
    restored.turn()
    network.run(SECOND)
    assert network.leader() is restored
    _, welcome = restored.welcome(client=1)
    assert welcome["role"] == 1
    network.heal()
    network.run(SECOND)
    network.connect()
    network.run(SECOND)
    network.agree()
    assert all(host.node.raft.is_voter for host in network.hosts)
    (ticket,) = network.hosts[0].node.inspect("tickets", None, 5)
    assert ticket.token == token
    network.crash(restored)
    network.run(2 * SECOND)
    assert network.leader() is not restored


def serve_alone(network: Network) -> int:
    (host,) = network.hosts
    peered, _ = host.welcome(client=1)
    host.request(peered, "acquire", request_id=1, wait_ms=0, lease_ms=600_000, key=b"k")
    network.settle()
    return granted(peered.take())
