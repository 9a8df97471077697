"""Three nodes in one process: they found, elect, replicate, and say where the leader is."""

from __future__ import annotations

from node_network import MS, SECOND, Network, granted


def founded(size: int = 3) -> Network:
    network = Network(size)
    network.connect()
    network.run(2 * SECOND)
    network.connect()
    network.settle()
    return network


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
    checksums = {host.node.replica.checksum for host in network.hosts}
    images = {host.node.replica.dump() for host in network.hosts}
    assert len(checksums) == len(images) == 1
    for host in network.hosts:
        if host is not leader:
            follower, said = host.welcome(client=8)
            assert said["role"] == 2
            assert said["leader"] == network.addresses[leader.slot]
            assert said["fingerprint"] == welcome["fingerprint"]
            host.request(follower, "acquire", request_id=1, wait_ms=0, lease_ms=1, key=b"x")
            ((name, fields),) = follower.take()
            assert (name, fields["code"]) == ("error", 10)
