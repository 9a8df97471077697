"""Power is lost at every step of random lives: what was synced is there, and nothing else is."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from faulty_directory import FaultyDirectory, PowerLost
from history import SMALL, Held, Life, entropy, held_of
from ticketing_server.storage.store import Opened, Store

ACTIONS = 14
FATES = 3
"""How often a loss of power at one step is drawn anew."""


def begin(directory: FaultyDirectory) -> Opened:
    return Store.open(directory, entropy(), SMALL)


def live(directory: FaultyDirectory, life: Life, actions: int) -> None:
    """Open a store, and act until the power is lost."""
    opened = begin(directory)
    assert held_of(opened) == life.held
    for _ in range(actions):
        life.act(opened.store)


def recover(directory: FaultyDirectory, random: Random) -> Opened:
    """Open after a loss of power, maybe losing it again on the way."""
    for _ in range(4):
        directory.lose_power(random)
        directory.lose_power_at = directory.steps + random.randrange(1, 25)
        try:
            return begin(directory)
        except PowerLost:
            continue
    directory.lose_power(random)
    return begin(directory)


def check_all_crashes(seed: int) -> Counter[str]:
    """Lose power at each step that a random life has."""
    seen: Counter[str] = Counter()
    sector = 512 if seed % 2 else 4096
    whole = FaultyDirectory(sector)
    live(whole, Life(Random(seed)), ACTIONS)
    for step in range(1, whole.steps + 1):
        for fate in range(FATES):
            random = Random(f"{seed}/{step}/{fate}")
            directory = FaultyDirectory(sector)
            directory.lose_power_at = step
            life = Life(Random(seed))
            with pytest.raises(PowerLost):
                live(directory, life, ACTIONS)
            opened = recover(directory, random)
            found = held_of(opened)
            assert found in life.possible, (seed, step, fate)
            seen["lost" if found == life.possible[0] else "kept"] += 1
            seen["torn"] += bool(opened.store.notes)
            seen["part"] += found in life.possible[1:-1]
            go_on(directory, found, random)
    return seen


def go_on(directory: FaultyDirectory, found: Held, random: Random) -> None:
    """What was found is synced itself, and a next life goes on from it."""
    directory.lose_power(random)
    life = Life(random, found)
    live(directory, life, 3)
    directory.lose_power(random)
    assert held_of(begin(directory)) == life.held


@pytest.mark.parametrize("seed", range(6))
def test_power_lost_at_every_step(seed: int) -> None:
    seen = check_all_crashes(seed)
    assert min(seen["lost"], seen["kept"], seen["torn"]) > 0


def test_many_lives_of_one_directory() -> None:
    seen: Counter[str] = Counter()
    for seed in range(40):
        random = Random(seed)
        directory = FaultyDirectory(random.choice((512, 4096)))
        held = Held()
        for _ in range(12):
            life = Life(random, held)
            directory.lose_power_at = directory.steps + random.randrange(1, 60)
            try:
                live(directory, life, 30)
            except PowerLost:
                seen["losses"] += 1
            opened = recover(directory, random)
            held = held_of(opened)
            assert held in life.possible, seed
            seen["torn"] += bool(opened.store.notes)
            directory.lose_power_at = None
    assert seen["losses"] > 300
    assert seen["torn"] > 20
