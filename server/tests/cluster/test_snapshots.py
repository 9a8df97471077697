"""Snapshots: made as of an entry, compared with what the node itself came to, and sent on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from node_network import MS, SECOND, Host, Network, founded, granted, numbers
from ticketing_server.cluster import snapshot_file
from ticketing_server.cluster.node import ClusterNode
from ticketing_server.cluster.replica import Replica
from ticketing_server.cluster.values import SnapshotPolicy
from ticketing_server.raft.configuration import Configuration
from ticketing_server.raft.messages import Snapshot
from ticketing_server.session import Session

POLICY = SnapshotPolicy(entries=10, bytes=1 << 20, trailing=3)


def work(network: Network, host: Host, rounds: int, first_client: int = 1) -> int:
    """Let clients come, hold keys and leave one; return the last token."""
    token = 0
    for round_number in range(rounds):
        client = first_client + round_number
        peered, _ = host.welcome(client=client)
        key = b"key %d" % client
        host.request(peered, "acquire", request_id=1, wait_ms=0, lease_ms=300_000, key=key)
        network.settle()
        token = granted(peered.take())
        if round_number % 2:
            host.request(peered, "release", request_id=2, token=token, key=key)
            network.settle()
    return token


def test_is_made_when_enough_was_applied_and_compacts_the_log() -> None:
    network = Network(1, policy=POLICY)
    (host,) = network.hosts
    network.connect()
    network.settle()
    work(network, host, 3)
    assert host.disk.snapshot is None
    work(network, host, 10, 100)
    assert host.disk.snapshot is not None
    raft = host.node.raft
    assert raft.snapshot == host.disk.snapshot
    assert raft.log.base_index == raft.snapshot.index - POLICY.trailing
    assert host.node.cluster_status().snapshot_index == raft.snapshot.index


def test_what_stays_of_the_log_is_bounded_in_bytes() -> None:
    network = Network(1, policy=replace(POLICY, trailing=1000, trailing_bytes=400))
    (host,) = network.hosts
    network.connect()
    network.settle()
    work(network, host, 20)
    raft = host.node.raft
    assert raft.snapshot is not None
    kept = raft.log.slice(raft.log.base_index + 1, raft.snapshot.index)
    assert 0 < sum(entry.size for entry in kept) <= 400
    host.begin()
    host.turn()
    network.settle()
    work(network, host, 1, 50)


def test_a_full_disk_has_one_made_that_keeps_nothing_behind_it() -> None:
    network = Network(1, policy=replace(POLICY, entries=1000))
    (host,) = network.hosts
    network.connect()
    network.settle()
    work(network, host, 10)
    assert host.disk.snapshot is None
    applied = host.node.replica.index
    host.node.disk_full(True, network.now)
    host.turn()
    network.settle()
    raft = host.node.raft
    assert raft.snapshot is not None
    assert (raft.snapshot.index, raft.log.base_index) == (applied, applied)
    host.node.disk_full(False, network.now)
    work(network, host, 1, 50)


def test_a_restart_goes_on_from_it() -> None:
    network = Network(1, policy=POLICY)
    (host,) = network.hosts
    network.connect()
    network.settle()
    last = work(network, host, 15)
    cluster_id, tickets = host.node.cluster_id, host.node.table.tickets
    assert host.disk.snapshot is not None
    host.begin()
    host.turn()
    network.settle()
    assert host.node.cluster_id == cluster_id
    assert host.node.table.tickets == tickets
    assert work(network, host, 1, 50) > last
    # Its checksum went on from the snapshot's, and fits a replay from there.
    host.node.request_snapshot()
    host.turn()
    network.settle()
    assert host.stop == ""
    assert host.disk.snapshot.index == host.node.replica.index


def test_one_who_lags_behind_the_log_gets_it() -> None:
    network = founded(policy=POLICY)
    leader = network.leader()
    lagging = leader.followers()[0]
    network.crash(lagging)
    work(network, leader, 20)
    assert leader.node.raft.log.base_index > lagging.node.raft.log.last_index
    network.start(lagging)
    network.run(SECOND)
    assert lagging.disk.snapshot is not None
    assert lagging.disk.file is not None
    network.agree()
    # And it starts from that.
    network.crash(lagging)
    network.start(lagging)
    network.run(SECOND)
    network.agree()


def test_a_file_that_is_damaged_or_another_one_never_arrived() -> None:
    network = founded(policy=POLICY)
    leader = network.leader()
    lagging = leader.followers()[0]
    network.isolate(lagging)
    work(network, leader, 20)
    file = leader.disk.file
    assert file is not None
    leader.disk.file = file[:-9] + b"damage..."
    network.heal()
    network.run(200 * MS)
    assert "snapshot_refused" in lagging.events
    assert lagging.disk.snapshot is None
    leader.disk.file = file
    network.heal()
    network.run(2 * SECOND)
    network.agree()


def test_a_replay_that_comes_to_something_else_stops_the_node() -> None:
    network = Network(1, policy=POLICY)
    (host,) = network.hosts
    network.connect()
    network.settle()
    work(network, host, 3)
    host.node.replica.checksum = bytes(16)
    host.node.request_snapshot()
    host.turn()
    network.settle()
    assert "came to" in host.stop


def test_a_snapshot_that_failed_is_tried_again() -> None:
    network = Network(1, policy=POLICY)
    (host,) = network.hosts
    network.connect()
    network.settle()
    work(network, host, 2)
    host.node.request_snapshot()
    host.turn()
    ((_, index),) = network.making
    network.making.clear()
    host.node.snapshot_failed(index, network.now)
    host.turn()
    assert network.making == []
    work(network, host, 12, 20)
    assert host.disk.snapshot is not None


def test_it_waits_until_its_entry_is_on_disk() -> None:
    network = founded()
    leader = network.leader()
    follower = leader.followers()[0]
    follower.syncs = False
    work(network, leader, 2)
    network.run(200 * MS)
    node = follower.node
    assert node.raft.stable_index < node.replica.index
    node.request_snapshot()
    follower.turn()
    network.settle()
    assert follower.effects.make_snapshot is None
    follower.syncs = True
    follower.sync()
    network.settle()
    assert follower.disk.snapshot is not None


def test_files() -> None:
    meta = Snapshot(0, 0, 0, Configuration(b"c" * 16, ((0, 5), (2, 7)), 3))
    replica = Replica()
    data = snapshot_file.encode(meta, replica.dump())
    assert snapshot_file.decode(data) == (meta, replica.dump())
    assert snapshot_file.read(data)[1].dump() == replica.dump()
    for at in range(len(data)):
        damaged = data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :]
        with pytest.raises(ValueError, match="snapshot"):
            snapshot_file.read(damaged)
        with pytest.raises(ValueError, match="snapshot"):
            snapshot_file.read(data[:at])
    with pytest.raises(ValueError, match="says"):
        snapshot_file.read(
            snapshot_file.encode(Snapshot(3, 1, 0, meta.configuration), replica.dump())
        )
    with pytest.raises(ValueError, match="cluster"):
        snapshot_file.encode(Snapshot(0, 0, 0, Configuration()), b"")


def test_a_start_with_another_snapshot_is_refused() -> None:
    network = Network(1, policy=POLICY)
    (host,) = network.hosts
    network.connect()
    network.settle()
    work(network, host, 15)
    restored = host.disk.restored()
    settings = host.node.settings
    with pytest.raises(ValueError, match="without its table"):
        ClusterNode(settings, restored, None, numbers(1), lambda: 1, {4: Session}, 0)
    meta, image = snapshot_file.decode(host.disk.file or b"")
    moved = replace(meta, configuration=meta.configuration._replace(slots=3))
    other = snapshot_file.encode(moved, image)
    with pytest.raises(ValueError, match="is of entry"):
        ClusterNode(settings, restored, other, numbers(1), lambda: 1, {4: Session}, 0)
