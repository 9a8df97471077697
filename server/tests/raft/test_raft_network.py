"""Random schedules of faults against the core: what must hold holds after every event."""

from __future__ import annotations

from collections import Counter

import pytest
from raft_network import Broken, Network
from ticketing_server.raft.timing import MS

SEEDS = 200
BATCH_OF_SEEDS = 40
SLICE_NS = 60 * MS
SLICES = 60
PAUSES_MS = (100, 250, 380, 700, 1500)


def disturb(net: Network) -> None:
    """Let one thing happen, mostly nothing bad."""
    chance = net.random.random()
    alive, all_nodes = list(net.nodes), list(net.disks)
    down = [node for node in all_nodes if node not in net.nodes]
    if chance < 0.07 and len(down) < (len(all_nodes) + 1) // 2:
        net.crash(net.random.choice(alive))
    elif chance < 0.16 and down:
        net.start(net.random.choice(down))
    elif chance < 0.22:
        one, other = net.random.sample(all_nodes, 2)
        net.cut.add((one, other))
        if net.random.random() < 0.6:
            net.cut.add((other, one))
    elif chance < 0.28:
        net.cut.clear()
    elif chance < 0.33 and alive:
        net.compact(net.random.choice(alive))
    elif chance < 0.36:
        net.loss, net.double = net.random.choice([(0.0, 0.0), (0.1, 0.1), (0.3, 0.2)])
    elif chance < 0.39:
        net.delay_ns = net.random.choice([2, 10, 80]) * MS
    elif chance < 0.42:
        net.sync_ns = net.random.choice([1, 5, 60]) * MS
    elif chance < 0.50:
        net.paused[net.random.choice(all_nodes)] = net.now_ns + net.random.choice(PAUSES_MS) * MS
    elif chance < 0.53:
        leader = net.leader()
        if leader is not None and net.paused.get(leader.node_id, 0) <= net.now_ns:
            if leader.transfer(net.now_ns):
                net.count("transfer")
            net.settle(leader.node_id)


def play(seed: int) -> Network:
    """Run one schedule, then let it heal and see that it goes on."""
    net = Network(seed, size=3 if seed % 3 else 5)
    number = 0
    replaced = False
    for _ in range(SLICES):
        disturb(net)
        down = [node for node in net.disks if node not in net.nodes]
        if down and not replaced and seed % 4 == 0:
            net.replace(down[0], down[0] + 10)
            replaced = True
        for _ in range(net.random.randrange(4)):
            number += 1
            net.propose(b"command %d" % number)
        net.knock()
        net.run(SLICE_NS)
    net.heal()
    for _ in range(60):
        net.run(100 * MS)
        net.knock()
        if net.is_settled():
            return net
    raise Broken(f"seed {seed}: not settled 6 s after all faults ended: {net.describe()}")


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH_OF_SEEDS))
def test_whatever_happens_what_must_hold_holds(first: int) -> None:
    counters: Counter[str] = Counter()
    for seed in range(first, first + BATCH_OF_SEEDS):
        try:
            counters.update(play(seed).counters)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
    rare = ("election", "crash", "lost", "install", "compact", "transfer", "replace", "truncate")
    assert all(counters[name] for name in rare), counters


def test_the_same_seed_gives_the_same_run() -> None:
    one, other = play(4), play(4)
    assert one.counters == other.counters
    assert one.describe() == other.describe()
