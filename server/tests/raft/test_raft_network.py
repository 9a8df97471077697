"""Random schedules of faults against the core: what must hold holds after every event."""

from __future__ import annotations

from collections import Counter

import pytest
from raft_network import Broken, Network
from ticketing_server.raft.timing import MS

SEEDS = 200
BATCH_OF_SEEDS = 40
SLICE_MAX_MS = 120
SLICES = 70
PAUSES_MS = (100, 250, 380, 700, 1500)


def disturb(net: Network) -> None:
    """Let one thing happen, as often as not to the leader."""
    random = net.random
    leader = net.leader()
    victim = random.choice(list(net.disks))
    if leader is not None and random.random() < 0.5:
        victim = leader.node_id
    down = [node for node in net.disks if node not in net.nodes]
    others = [node for node in net.disks if node != victim]
    chance = random.random()
    if chance < 0.10:
        if victim in net.nodes and len(down) < (len(net.disks) + 1) // 2:
            net.crash(victim)
    elif chance < 0.25:
        if down:
            net.start(random.choice(down))
    elif chance < 0.40:
        # Cut from some in one direction or both; from all, sometimes.
        for other in random.sample(others, random.randint(1, len(others))):
            net.cut.add((victim, other))
            if random.random() < 0.6:
                net.cut.add((other, victim))
    elif chance < 0.55:
        net.cut.clear()
    elif chance < 0.62:
        if victim in net.nodes:
            net.compact(victim)
    elif chance < 0.66:
        net.loss, net.double = random.choice([(0.0, 0.0), (0.1, 0.3), (0.3, 0.3)])
    elif chance < 0.70:
        net.delay_ns = random.choice([2, 10, 80]) * MS
    elif chance < 0.74:
        net.sync_ns = random.choice([1, 5, 60]) * MS
    elif chance < 0.80:
        net.paused[victim] = net.now_ns + random.choice(PAUSES_MS) * MS
    elif chance < 0.84 and leader is not None and not net.is_paused(leader.node_id):
        if leader.transfer(net.now_ns):
            net.count("transfer")
        net.settle(leader.node_id)


def play(seed: int) -> Network:
    """Run one schedule, then let it heal and see that it goes on."""
    net = Network(seed, size=3 if seed % 3 else 5)
    number = 0
    replaced = False
    net.run(net.random.randrange(400, 700) * MS)
    for _ in range(SLICES):
        for _ in range(net.random.randrange(4)):
            number += 1
            net.propose(b"command %d" % number)
            net.run(net.random.randrange(4) * MS)
        disturb(net)
        down = [node for node in net.disks if node not in net.nodes]
        if down and not replaced and seed % 4 == 0:
            net.replace(down[0], down[0] + 10)
            replaced = True
        net.knock()
        net.run(net.random.randrange(SLICE_MAX_MS) * MS)
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
