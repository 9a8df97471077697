"""What a node takes at once, and what it does when its disk takes no more."""

from __future__ import annotations

import pytest
from engine_driver import SPEC, Peered
from node_network import FOREVER, MS, SECOND, Host, Network, founded, granted
from ticketing_server.cluster import node
from ticketing_server.cluster.entries import BYTES_MAX, REQUESTS_MAX
from ticketing_server.raft.messages import Entry
from ticketing_spec.codec import encode


def alone() -> tuple[Network, Host]:
    network = Network(1)
    network.connect()
    network.run(6 * SECOND)
    return network, network.hosts[0]


def requests(first: int, count: int) -> bytes:
    fields = {"wait_ms": 0, "lease_ms": 60_000}
    return b"".join(
        encode(SPEC, "client", "acquire", {"request_id": number, "key": b"k%d" % number, **fields})
        for number in range(first, first + count)
    )


def unsynced(host: Host) -> list[Entry]:
    return [entry for save, _ in host.unsynced for entry in save.entries]


def test_two_entries_are_unsynced_and_what_comes_meanwhile_is_the_next() -> None:
    network, host = alone()
    peered, _ = host.welcome(client=1)
    network.settle()
    host.syncs = False
    for number in range(1, 8):
        host.feed(peered, requests(number, 1))
        assert host.node.reads_clients
    first = unsynced(host)
    assert len(first) == 2
    assert host.node.cluster_status().pending == 5 + 2
    host.sync()
    assert [fields["request_id"] for _, fields in peered.take()] == [1, 2]
    second = unsynced(host)
    # All five are one entry.
    assert len(second) == 1
    host.sync()
    assert [fields["request_id"] for _, fields in peered.take()] == [3, 4, 5, 6, 7]


def test_time_waits_for_the_disk_too() -> None:
    """A lease that is due while two entries are on their way ends when one of them is there."""
    network, host = alone()
    peered, _ = host.welcome(client=1)
    fields = {"request_id": 1, "wait_ms": 0, "lease_ms": 500, "key": b"k"}
    host.request(peered, "acquire", **fields)
    network.settle()
    token = granted(peered.take())
    host.syncs = False
    for number in (2, 3):
        host.feed(peered, requests(number, 1))
    network.run(2 * SECOND)
    assert len(unsynced(host)) == 2
    assert peered.take() == []
    host.syncs = True
    host.turn()
    network.settle()
    assert ("dropped", {"token": token, "reason": 1}) in peered.take()


def test_nothing_is_read_while_a_whole_entry_waits() -> None:
    network, host = alone()
    peered, _ = host.welcome(client=1)
    network.settle()
    host.syncs = False
    host.feed(peered, requests(1, 1))
    host.feed(peered, requests(2, 1))
    host.feed(peered, requests(3, REQUESTS_MAX - 1))
    assert host.node.reads_clients
    host.feed(peered, requests(REQUESTS_MAX + 2, 1))
    assert not host.node.reads_clients
    # Who isn't read isn't silent.
    network.run(60 * SECOND)
    assert peered.close == "no"
    host.syncs = True
    host.turn()
    network.settle()
    assert host.node.reads_clients
    assert [name for name, _ in peered.take()].count("granted") == REQUESTS_MAX + 2


def test_large_turns_are_cut_into_entries() -> None:
    network, host = alone()
    peered, _ = host.welcome(client=1)
    network.settle()
    host.feed(peered, requests(1, 10_000))
    network.settle()
    frames = peered.take()
    assert [fields["request_id"] for _, fields in frames] == list(range(1, 10_001))
    sizes = [len(entry.payload) for entry in host.disk.entries.values()]
    assert max(sizes) <= BYTES_MAX


def test_pings_are_answered_at_once() -> None:
    network, host = alone()
    peered, _ = host.welcome(client=1)
    network.settle()
    host.syncs = False
    host.feed(peered, requests(1, 1) + encode(SPEC, "client", "ping", {"echo": 4}))
    assert peered.take() == [("ping", {"echo": 4})]
    host.sync()
    granted(peered.take())


def test_a_full_disk_alone_refuses_requests_until_there_is_room() -> None:
    network, host = alone()
    peered, _ = host.welcome(client=1)
    network.settle()
    host.syncs = False
    for number in (1, 2, 3):
        host.feed(peered, requests(number, 1))
    host.node.disk_full(True, network.now)
    host.feed(peered, requests(4, 1))
    # The third was in no entry yet: nothing was done.
    assert codes(peered) == [(3, 10), (4, 10)]
    host.sync()
    assert [fields["request_id"] for _, fields in peered.take()] == [1, 2]
    newcomer, welcome = host.welcome(client=2)
    assert welcome["role"] == 0
    host.node.eof(newcomer.number)
    host.turn()
    assert newcomer.close == "linger"
    host.node.disk_full(False, network.now)
    host.syncs = True
    host.feed(peered, requests(5, 1))
    network.settle()
    granted(peered.take())


def codes(peered: Peered) -> list[tuple[int, int]]:
    return [(fields["request_id"], fields["code"]) for _, fields in peered.take()]


def test_a_leader_with_a_full_disk_gives_up_the_lead() -> None:
    network = founded()
    old = network.leader()
    peered, _ = old.welcome(client=1)
    network.settle()
    old.node.disk_full(True, network.now)
    old.turn()
    network.run(3 * SECOND)
    new = network.leader()
    assert new is not old
    assert [name for name, _ in peered.take()] == ["leader"]
    again, _ = new.welcome(client=1, connection=2)
    new.feed(again, requests(1, 1))
    network.settle()
    granted(again.take())
    network.run(SECOND)
    assert old.node.raft.log.last_index < new.node.raft.log.last_index
    # It votes: without the third node it is what makes the majority of an election.
    (third,) = (host for host in network.hosts if host not in (old, new))
    network.crash(third)
    network.run(2 * SECOND)
    assert new.node.raft.role == "leader"
    new.feed(again, requests(2, 1))
    network.run(200 * MS)
    assert again.take() == []
    old.node.disk_full(False, network.now)
    network.run(SECOND)
    granted(again.take())
    network.agree()


def test_a_drain_waits_for_what_is_on_its_way_to_the_disk() -> None:
    """REQ-LEAD-DRAIN: what was proposed is answered, then L."""
    network, host = alone()
    peered, _ = host.welcome(client=1)
    waiting, _ = host.welcome(client=2)
    network.settle()
    host.syncs = False
    host.feed(peered, requests(1, 1))
    fields = {"request_id": 1, "wait_ms": FOREVER, "lease_ms": 9, "key": b"k1"}
    host.request(waiting, "acquire", **fields)
    host.node.drain(network.now)
    host.turn()
    assert peered.take() == []
    assert peered.close == "no"
    host.feed(peered, requests(2, 1))
    host.syncs = True
    host.turn()
    network.settle()
    assert [name for name, _ in peered.take()] == ["granted", "leader"]
    assert [name for name, _ in waiting.take()] == ["leader"]
    assert peered.close == waiting.close == "linger"
    late = host.open()
    assert [fields["code"] for _, fields in late.take()] == [10]


def test_what_was_read_before_the_end_of_a_connection_is_answered() -> None:
    network, host = alone()
    for client, ends in ((1, True), (2, False)):
        peered, _ = host.welcome(client=client)
        network.settle()
        host.syncs = False
        host.feed(peered, requests(client, 1))
        if ends:
            host.node.eof(peered.number)
            host.turn()
        else:
            host.feed(peered, b"?")
        assert peered.close == "no"
        host.syncs = True
        host.turn()
        network.settle()
        assert [name for name, _ in peered.take()] == ["granted", "error"][: 1 if ends else 2]
        assert peered.close == "linger"
        assert host.node.connections == {}
        assert host.node.counters().connections == {}


def test_a_long_log_is_applied_in_bounded_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "APPLIED_BYTES_MAX", 40_000)
    network, host = alone()
    peered, _ = host.welcome(client=1)
    network.settle()
    for first in range(1, 8_000, 500):
        host.feed(peered, requests(first, 500))
        network.settle()
    tickets, checksum = host.node.table.tickets, host.node.replica.checksum
    size = sum(len(entry.payload) for entry in host.disk.entries.values())
    host.begin()
    host.turn()
    turns = 0
    while host.node.replica.checksum != checksum:
        before = host.node.replica.index
        network.syncing.clear()
        host.sync()
        host.turn()
        turns += host.node.replica.index > before
        assert turns < 100
    # Each round is two turns.
    assert turns >= size // 80_000 > 1
    network.settle()
    assert host.node.table.tickets == tickets
