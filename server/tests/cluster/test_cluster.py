"""Three nodes in one process: they found, elect, replicate, and say where the leader is."""

from __future__ import annotations

from engine_driver import Peered
from node_network import FOREVER, MS, SECOND, Host, Network, founded, granted


def test_founds_elects_replicates_and_names_the_leader() -> None:
    network = founded()
    leader = network.leader()
    peered, welcome = leader.welcome(client=7)
    assert welcome["role"] == 1
    assert welcome["leader"] == network.addresses[leader.slot]
    assert peered.greeting[8:10] == bytes((1, leader.slot))
    leader.request(peered, "acquire", request_id=1, wait_ms=0, lease_ms=60_000, key=b"k")
    assert peered.take() == []
    network.settle()
    granted(peered.take())
    network.run(200 * MS)
    network.agree()
    for host in network.hosts:
        if host is not leader:
            follower, said = host.welcome(client=8)
            assert said["role"] == 2
            assert said["leader"] == network.addresses[leader.slot]
            assert said["fingerprint"] == welcome["fingerprint"]
            host.request(follower, "acquire", request_id=1, wait_ms=0, lease_ms=1, key=b"x")
            ((name, fields),) = follower.take()
            assert (name, fields["code"]) == ("error", 10)


def acquire(host: Host, peered: Peered, request_id: int, key: bytes = b"k", **fields: int) -> None:
    asked = {"wait_ms": 0, "lease_ms": 60_000} | fields
    host.request(peered, "acquire", request_id=request_id, key=key, **asked)


def test_nobody_leads_before_the_founding() -> None:
    """REQ-LEAD-NOTSERVING: role 3, requests are refused, and L comes when there is a leader."""
    network = Network(3)
    host = network.hosts[1]
    peered, welcome = host.welcome(client=1)
    assert (welcome["role"], welcome["leader"]) == (3, b"")
    assert welcome["fingerprint"] == bytes(32)
    acquire(host, peered, 1)
    ((name, fields),) = peered.take()
    assert (name, fields["request_id"], fields["code"]) == ("error", 1, 10)
    host.request(peered, "ping", echo=5)
    assert peered.take() == [("ping", {"echo": 5})]
    network.connect()
    network.run(2 * SECOND)
    network.connect()
    network.settle()
    leader = network.leader()
    assert peered.take() == [("leader", {"leader": network.addresses[leader.slot]})]
    acquire(host, peered, 2)
    assert [fields["code"] for _, fields in peered.take()] == [10]
    assert peered.close == "no"


def test_who_was_welcomed_by_a_follower_is_refused_for_ever() -> None:
    network = founded()
    old = network.leader()
    target = old.followers()[0]
    peered, welcome = target.welcome(client=1)
    assert welcome["role"] == 2
    assert old.node.transfer(target.slot, network.now)
    old.turn()
    network.run(SECOND)
    assert network.leader() is target
    assert peered.take() == [("leader", {"leader": network.addresses[target.slot]})]
    acquire(target, peered, 1)
    network.settle()
    assert [fields["code"] for _, fields in peered.take()] == [10]
    again, welcome = target.welcome(client=1, connection=2)
    assert welcome["role"] == 1
    acquire(target, again, 1)
    network.settle()
    granted(again.take())


def test_a_transfer_sends_clients_to_the_new_leader() -> None:
    """REQ-LEAD-LOSS: L is the last frame, and nothing more is read."""
    network = founded()
    old = network.leader()
    peered, _ = old.welcome(client=1)
    other, _ = old.welcome(client=2)
    assert old.node.transfer(None, network.now)
    assert not old.node.reads_clients
    old.turn()
    network.settle()
    acquire(old, peered, 1)
    network.run(500 * MS)
    new = network.leader()
    assert new is not old
    assert old.node.reads_clients
    for client in (peered, other):
        # It gave up its place before it heard of the new leader.
        assert client.take() == [("leader", {"leader": b""})]
        assert client.close == "linger"
    acquire(old, peered, 2)
    assert peered.take() == []
    assert "leader_changed" in old.events


def test_a_leader_that_is_cut_off_answers_nothing_and_gives_up() -> None:
    network = founded()
    old = network.leader()
    peered, _ = old.welcome(client=1)
    network.isolate(old, is_noticed=False)
    acquire(old, peered, 1)
    network.run(400 * MS)
    assert peered.take() == []
    late, welcome = old.welcome(client=2)
    assert (welcome["role"], welcome["leader"]) == (3, b"")
    network.run(SECOND)
    assert peered.take() == [("leader", {"leader": b""})]
    assert peered.close == "linger"
    new = network.leader()
    again, _ = new.welcome(client=1, connection=2)
    acquire(new, again, 1)
    network.settle()
    token = granted(again.take())
    late.take()
    network.heal()
    network.run(SECOND)
    assert late.take() == [("leader", {"leader": network.addresses[new.slot]})]
    network.agree()
    (ticket,) = new.node.inspect("tickets", None, 10)
    assert ticket.token == token


def test_a_dead_leader_is_not_named() -> None:
    network = founded()
    old = network.leader()
    follower = old.followers()[0]
    network.crash(old)
    peered, welcome = follower.welcome(client=1)
    assert (welcome["role"], welcome["leader"]) == (3, b"")
    network.run(2 * SECOND)
    assert peered.take() == [("leader", {"leader": network.addresses[network.leader().slot]})]


def test_a_failover_keeps_the_queue() -> None:
    network = founded()
    old = network.leader()
    clients = [old.welcome(client=client)[0] for client in (1, 2, 3)]
    for peered in clients:
        acquire(old, peered, 1, wait_ms=FOREVER)
        network.settle()
    token = granted(clients[0].take())
    network.crash(old)
    network.run(2 * SECOND)
    new = network.leader()
    third, _ = new.welcome(client=3, connection=2)
    acquire(new, third, 1, wait_ms=FOREVER)
    first, _ = new.welcome(client=1, connection=2)
    new.request(first, "release", request_id=2, token=token, key=b"k")
    network.settle()
    assert [name for name, _ in first.take()] == ["released"]
    # The second is held back: it keeps its place before the third, and is not granted unasked.
    assert third.take() == []
    assert new.node.counters().waiters_held_back == 1
    second, _ = new.welcome(client=2, connection=2)
    acquire(new, second, 1, wait_ms=FOREVER)
    network.settle()
    assert granted(second.take()) > token
    network.run(200 * MS)
    assert third.take() == []


def test_who_does_not_come_back_is_passed_over_after_the_grace() -> None:
    network = founded()
    old = network.leader()
    clients = [old.welcome(client=client)[0] for client in (1, 2)]
    for peered in clients:
        acquire(old, peered, 1, wait_ms=FOREVER, lease_ms=1000)
        network.settle()
    network.crash(old)
    network.run(2 * SECOND)
    new = network.leader()
    third, _ = new.welcome(client=3)
    acquire(new, third, 1, wait_ms=FOREVER)
    network.run(2 * SECOND)
    assert third.take() == []
    network.run(3 * SECOND)
    granted(third.take())


def test_a_take_over_on_one_node_detaches_first() -> None:
    network = founded()
    leader = network.leader()
    holder, _ = leader.welcome(client=9)
    acquire(leader, holder, 1)
    old, _ = leader.welcome(client=1)
    acquire(leader, old, 1, wait_ms=FOREVER)
    network.settle()
    token = granted(holder.take())
    new, _ = leader.welcome(client=1, connection=2)
    network.settle()
    assert [(name, fields["code"]) for name, fields in old.take()] == [("error", 7)]
    assert old.close == "linger"
    leader.request(holder, "release", request_id=2, token=token, key=b"k")
    network.settle()
    assert new.take() == []
    acquire(leader, new, 1, wait_ms=FOREVER)
    network.settle()
    granted(new.take())


def test_ids_of_both_versions_of_the_table_and_of_the_cluster_are_the_same_everywhere() -> None:
    network = founded()
    for host in network.hosts:
        status = host.node.cluster_status()
        leader = network.leader()
        assert status.leader_slot == leader.slot
        assert status.role == ("leader" if host is leader else "follower")
        assert [member.kind for member in status.members] == ["voter"] * 3
        assert [member.address for member in status.members] == list(network.addresses)
        assert status.applied == status.commit == status.last_index
        assert status.cluster_id == network.hosts[0].node.cluster_id != b""


def test_an_idle_cluster_writes_nothing() -> None:
    network = founded()
    network.run(30 * SECOND)
    saves = [host.disk.saves for host in network.hosts]
    network.run(60 * SECOND)
    assert [host.disk.saves for host in network.hosts] == saves


def test_time_passes_in_the_log_each_second_while_something_waits_for_it() -> None:
    network = founded()
    leader = network.leader()
    peered, _ = leader.welcome(client=1)
    acquire(leader, peered, 1, lease_ms=60_000)
    network.settle()
    granted(peered.take())
    index = leader.node.replica.index
    network.run(10 * SECOND)
    assert 9 <= leader.node.replica.index - index <= 12
    stamps = {host.node.replica.stamp for host in network.hosts}
    assert len(stamps) <= 2


def test_a_forced_release_goes_through_the_log() -> None:
    network = founded()
    leader = network.leader()
    peered, _ = leader.welcome(client=1)
    acquire(leader, peered, 1)
    network.settle()
    token = granted(peered.take())
    follower = leader.followers()[0]
    network.run(200 * MS)
    assert follower.node.table.ticket_of(b"k") is not None
    assert not follower.node.force_release(b"k", token)
    assert not leader.node.force_release(b"k", token + 1)
    assert leader.node.force_release(b"k", token)
    leader.turn()
    network.settle()
    assert peered.take() == [("dropped", {"token": token, "reason": 2})]
    network.run(200 * MS)
    assert all(host.node.table.tickets == 0 for host in network.hosts)
    assert "force_released" in leader.events
    assert "force_released" not in follower.events


def test_a_node_that_drains_does_not_take_the_lead() -> None:
    network = founded()
    old = network.leader()
    leaving, other = old.followers()
    leaving.node.drain(network.now)
    leaving.turn()
    late = leaving.open()
    assert [fields["code"] for _, fields in late.take()] == [10]
    network.crash(old)
    network.run(5 * SECOND)
    assert network.leader() is other


def test_the_log_says_that_a_leader_is_lost_and_names_each_once() -> None:
    network = founded()
    leader = network.leader()
    follower = leader.followers()[0]
    term = leader.node.raft.term
    follower.events.clear()
    network.isolate(follower)
    network.run(100 * MS)
    network.heal()
    network.run(100 * MS)
    assert follower.events == ["leader_lost", "leader_heard"]
    network.crash(leader)
    network.run(2 * SECOND)
    assert follower.events[2:] == ["leader_lost", "leader_changed"]
    assert network.leader().node.raft.term > term
