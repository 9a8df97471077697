"""Random faults over three nodes with small snapshots: nothing raises, and all end up equal."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from engine_driver import SPEC, Peered
from node_network import FOREVER, MS, SECOND, Host, Network, founded
from ticketing_server.cluster.values import SnapshotPolicy
from ticketing_spec.codec import encode

POLICY = SnapshotPolicy(entries=25, bytes=1 << 20, trailing=4)
KEYS = (b"a", b"b", b"c")


class Client:
    """One of version 4 that goes where it is sent, and sends again what was not answered."""

    def __init__(self, number: int, random: Random) -> None:
        self.number = number
        self.random = random
        self.host: Host | None = None
        self.peered: Peered | None = None
        self.connection = 0
        self.next_request = 1
        self.unanswered: dict[int, bytes] = {}
        self.held: dict[int, tuple[bytes, int]] = {}
        """By token: key, and when its lease is over at the latest, as this client believes."""

    def connect(self, host: Host) -> None:
        self.connection += 1
        peered, welcome = host.welcome(self.number, self.connection)
        self.peered = peered if welcome["role"] == 1 else None
        self.host = host
        if self.peered is not None and self.unanswered:
            host.feed(peered, b"".join(self.unanswered[i] for i in sorted(self.unanswered)))

    def lost(self) -> None:
        self.peered = self.host = None

    def act(self, network: Network) -> None:
        """Send something, or look for the leader."""
        draw = self.random
        running = [host for host in network.hosts if host.slot not in network.down]
        if self.host not in running or self.peered is None or self.peered.close != "no":
            self.lost()
            self.connect(draw.choice(running))
            return
        number, self.next_request = self.next_request, self.next_request + 1
        fields: dict[str, Any] = {"request_id": number, "key": draw.choice(KEYS)}
        if self.held and draw.random() < 0.5:
            token = draw.choice(list(self.held))
            name = "release"
            fields |= {"token": token, "key": self.held.pop(token)[0]}
        else:
            name = "acquire"
            fields |= {"wait_ms": draw.choice((0, 1000, FOREVER)), "lease_ms": 3000}
        data = encode(SPEC, "client", name, fields)
        self.unanswered[number] = data
        assert self.host is not None
        self.host.feed(self.peered, data)

    def read(self, network: Network) -> None:
        if self.peered is None:
            return
        for name, fields in self.peered.take():
            if name == "granted":
                data = self.unanswered.pop(fields["request_id"], None)
                if data is not None:
                    self.held[fields["token"]] = (data[19:], network.now)
            elif name == "dropped":
                self.held.pop(fields["token"], None)
            elif name == "leader":
                self.peered.close = "linger"
            else:
                self.unanswered.pop(fields["request_id"], None)


def disturb(network: Network, random: Random) -> None:
    """Let one thing go wrong, or right again."""
    what = random.random()
    running = [host for host in network.hosts if host.slot not in network.down]
    if what < 0.25 and len(running) > 2:
        network.crash(random.choice(running))
    elif what < 0.45 and network.down:
        network.start(network.hosts[random.choice(sorted(network.down))])
    elif what < 0.60 and not network.cut:
        network.isolate(random.choice(running), is_noticed=random.random() < 0.5)
    elif what < 0.75:
        network.heal()
    elif what < 0.85:
        random.choice(running).node.transfer(None, network.now)
    elif what < 0.95:
        host = random.choice(running)
        host.syncs = not host.syncs
        host.turn()
    elif network.messages:
        lost = random.choice(network.messages)
        pair = {lost.sender, lost.to}
        network.messages = [m for m in network.messages if {m.sender, m.to} != pair]
        network.broken.append((network.by_id[lost.sender], network.by_id[lost.to]))
        network.heal()


@pytest.mark.parametrize("seed", range(12))
def test_faults(seed: int) -> None:
    random = Random(seed)
    network = founded(policy=POLICY)
    clients = [Client(number, random) for number in range(1, 6)]
    for _ in range(150):
        if random.random() < 0.2:
            disturb(network, random)
        for client in random.sample(clients, 2):
            client.act(network)
        network.run(random.choice((0, 1, 20, 100, 400, 1500)) * MS)
        for client in clients:
            client.read(network)
        assert not any(host.stop for host in network.hosts), [h.stop for h in network.hosts]
    for host in network.hosts:
        host.syncs = True
        if host.slot in network.down:
            network.start(host)
        host.turn()
    network.heal()
    network.run(10 * SECOND)
    network.leader()
    network.agree()
    tokens = [host.node.table.next_token for host in network.hosts]
    assert len(set(tokens)) == 1
