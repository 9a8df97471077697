"""A durable server alone: on the wire like memory mode, and nothing is forgotten."""

from __future__ import annotations

from node_network import FOREVER, MS, SECOND, WALL_MS, Network, granted


def test_founds_itself_serves_and_survives_a_restart() -> None:
    network = Network(1)
    (host,) = network.hosts
    network.settle()
    network.connect()
    network.settle()
    peered, welcome = host.welcome(client=7)
    assert (welcome["role"], welcome["keepalive_s"], welcome["leader"]) == (0, 5, b"")
    assert welcome["fingerprint"] == bytes(32)
    assert peered.greeting[8:10] == bytes((0, 255))
    host.syncs = False
    host.request(peered, "acquire", request_id=1, wait_ms=0, lease_ms=60_000, key=b"k")
    assert peered.take() == []
    host.syncs = True
    host.turn()
    network.settle()
    token = granted(peered.take())
    assert token >= WALL_MS << 20

    host.begin()
    host.turn()
    network.settle()
    again, _ = host.welcome(client=7, connection=2)
    host.request(again, "acquire", request_id=1, wait_ms=0, lease_ms=60_000, key=b"k")
    network.settle()
    assert granted(again.take()) == token
    host.request(again, "release", request_id=2, token=token, key=b"k")
    network.settle()
    assert [name for name, _ in again.take()] == ["released"]
    other, _ = host.welcome(client=8)
    host.request(other, "acquire", request_id=1, wait_ms=0, lease_ms=1000, key=b"k")
    network.settle()
    assert granted(other.take()) > token


def test_a_lease_ends_at_its_time() -> None:
    network = Network(1)
    (host,) = network.hosts
    network.connect()
    network.run(6 * SECOND)
    holder, _ = host.welcome(client=1)
    waiter, _ = host.welcome(client=2)
    host.request(holder, "acquire", request_id=1, wait_ms=0, lease_ms=2000, key=b"k")
    host.request(waiter, "acquire", request_id=1, wait_ms=FOREVER, lease_ms=2000, key=b"k")
    network.settle()
    granted(holder.take())
    network.run(2 * SECOND - 1 * MS)
    assert waiter.take() == []
    network.run(1 * MS)
    granted(waiter.take())
    assert [name for name, _ in holder.take()] == ["dropped"]


def test_an_idle_table_writes_nothing() -> None:
    network = Network(1)
    (host,) = network.hosts
    network.connect()
    network.run(10 * SECOND)
    saves = host.disk.saves
    network.run(60 * SECOND)
    assert host.disk.saves == saves
