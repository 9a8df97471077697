"""Version 3 clients of a cluster: their connections stay open when the lead changes."""

from __future__ import annotations

from typing import Any

from engine_driver import SECRET
from node_network import MS, SECOND, Host, founded
from ticketing_server import constants_v3_gen as v3
from ticketing_server.cluster.serving import fingerprint
from ticketing_server.raft.messages import Append
from ticketing_spec import load_spec
from ticketing_spec.codec import decode, encode, mac, split

SPEC = load_spec("version3")


class Older:
    """One version 3 connection: bytes written by the node, by hand."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.data = b""
        self.sent = 0
        self.close = "no"
        self.number = host.adopt(self)
        host.node.open(self.number, host.peer(3), self.number.to_bytes(2, "big") * 16, host.now)
        host.turn()
        greeting, self.data = self.data, b""
        assert greeting[8:12] == bytes((0, 3, v3.MODE_CLUSTER, host.slot))
        fields = {"fingerprint": fingerprint(host.node.cluster_id)}
        self.feed(mac(SPEC, SECRET, greeting, fields))
        assert self.data == b"\1"
        self.data = b""

    def got(self, output: Any) -> None:
        self.data += output.data
        assert self.close == "no"
        self.close = output.close

    def feed(self, data: bytes) -> None:
        self.host.node.feed(self.number, data, self.host.now)
        self.host.turn()

    def acquire(self, request_id: int, key: bytes = b"k", wait_s: int = 0) -> None:
        fields = {"request_id": request_id, "wait_s": wait_s, "lease_s": 60, "key": key}
        self.feed(encode(SPEC, "client", "acquire", fields))

    def take(self) -> list[tuple[str, dict[str, Any]]]:
        frames, rest = split(SPEC, "server", self.data)
        assert not rest
        self.data = b""
        return [decode(SPEC, "server", frame) for frame in frames]


def test_a_follower_sends_requests_on() -> None:
    """REQ-V3-MOVED: with the leader's slot."""
    network = founded()
    leader = network.leader()
    older = Older(leader.followers()[0])
    older.acquire(5)
    assert older.take() == [("moved", {"request_id": 5, "slot": leader.slot})]
    assert older.close == "no"


def test_the_leader_serves_through_the_log() -> None:
    network = founded()
    leader = network.leader()
    older = Older(leader)
    older.acquire(1)
    older.acquire(1, key=b"other")
    network.settle()
    (_, one), (_, two) = older.take()
    assert one["request_id"] == two["request_id"] == 1
    fields = {"request_id": 2, "token": one["token"], "keys": [b"k", b"other"]}
    older.feed(encode(SPEC, "client", "release_set", fields))
    network.settle()
    assert older.take() == [("error", {"request_id": 2, "code": v3.ERROR_GROUP_MISMATCH})]
    network.agree()


def test_a_loss_of_the_lead_leaves_requests_undecided() -> None:
    """REQ-V3-LEAD: I for each that is unanswered, then L; the connection stays."""
    network = founded()
    old = network.leader()
    holder, older = Older(old), Older(old)
    holder.acquire(1)
    older.acquire(1, wait_s=200)
    network.settle()
    holder.take()
    assert older.take() == []
    network.isolate(old, is_noticed=False)
    older.acquire(2, key=b"x")
    network.run(2 * SECOND)
    assert older.take() == [
        ("indeterminate", {"request_id": 1}),
        ("indeterminate", {"request_id": 2}),
        ("leader", {"slot": 255}),
    ]
    older.acquire(3)
    assert older.take() == [("moved", {"request_id": 3, "slot": 255})]
    network.heal()
    network.run(SECOND)
    new = network.leader()
    assert older.take() == [("leader", {"slot": new.slot})]
    older.acquire(4)
    assert older.take() == [("moved", {"request_id": 4, "slot": new.slot})]
    assert older.close == "no"
    network.agree()
    # The waiter of a version 3 client left with its term.
    assert new.node.counters().waiters_attached == new.node.counters().waiters_held_back == 0


def test_a_connection_serves_when_its_node_gains_the_lead() -> None:
    network = founded()
    old = network.leader()
    target = old.followers()[1]
    older = Older(target)
    assert old.node.transfer(target.slot, network.now)
    old.turn()
    network.run(SECOND)
    assert older.take() == [("leader", {"slot": target.slot})]
    older.acquire(1)
    network.settle()
    assert [name for name, _ in older.take()] == ["granted"]
    old_node = network.leader()
    assert target is old_node
    assert target.node.transfer(old.slot, network.now)
    target.turn()
    network.run(SECOND)
    assert [name for name, _ in older.take()][-1] == "leader"
    network.run(100 * MS)
    network.agree()


def test_a_drain_answers_what_was_proposed_and_refuses_what_waits() -> None:
    network = founded()
    leader = network.leader()
    holder, older = Older(leader), Older(leader)
    holder.acquire(1)
    network.settle()
    holder.take()
    older.acquire(1, wait_s=200)
    older.acquire(2, key=b"x")
    leader.node.drain(network.now)
    leader.turn()
    assert older.take() == []
    network.settle()
    assert [(name, fields["request_id"]) for name, fields in older.take()] == [
        ("granted", 2),
        ("error", 1),
    ]
    assert older.close == "linger"


def test_what_is_refused_in_the_turn_of_a_loss_is_not_undecided() -> None:
    network = founded()
    old = network.leader()
    older = Older(old)
    older.acquire(1, wait_s=200)
    network.settle()
    older.take()
    fields = {"request_id": 2, "wait_s": 0, "lease_s": 60, "key": b"k"}
    data = encode(SPEC, "client", "acquire", fields)
    # A lease that is too long is refused at once.
    old.node.feed(older.number, data[:12] + b"\xff" + data[13:], network.now)
    waits = encode(SPEC, "client", "acquire", {**fields, "request_id": 3})
    old.node.feed(older.number, waits, network.now)
    network.now += 2 * SECOND
    old.turn()
    assert older.take() == [
        ("error", {"request_id": 2, "code": v3.ERROR_BAD_LEASE}),
        ("indeterminate", {"request_id": 3}),
        ("leader", {"slot": 255}),
    ]


def test_what_was_decided_before_a_connection_ended_is_answered_when_the_lead_is_lost() -> None:
    network = founded()
    old = network.leader()
    older = Older(old)
    network.settle()
    older.acquire(1)
    # It ends, and the entry that says so gets lost.
    old.node.eof(older.number)
    old.turn()
    end = old.node.raft.log.last_index
    network.messages = [
        message
        for message in network.messages
        if not (isinstance(message, Append) and message.entries[-1].index == end)
    ]
    network.settle()
    assert old.node.replica.index == end - 1
    assert older.take() == []
    network.isolate(old, is_noticed=False)
    network.run(2 * SECOND)
    assert [name for name, _ in older.take()] == ["granted"]
    assert older.close == "linger"
