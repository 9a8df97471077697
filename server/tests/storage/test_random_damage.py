"""Damage of any kind at any place: what a directory held is found, or opening it is refused."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from faulty_directory import FaultyDirectory
from history import SMALL, Held, Life, entropy, held_of
from ticketing_server.storage.directory import Refused
from ticketing_server.storage.store import Opened, Store
from ticketing_server.storage.wal import segments_of

MUTATIONS = 60
FLIP, RANDOM, ZEROS, CUT, LONGER, GONE = range(6)


def begin(directory: FaultyDirectory) -> Opened:
    return Store.open(directory, entropy(), SMALL)


class Remembered(Life):
    """A life that keeps in mind all that was ever held."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self.ever = [self.held]

    def _done(self) -> None:
        self.ever += self.possible
        super()._done()


def damage(directory: FaultyDirectory, random: Random) -> int:
    """Damage one file in one way, and return which."""
    name = random.choice(directory.list())
    data = bytearray(directory.read(name))
    # Most of a segment is zeros: go to where there is something.
    used = [at for at in range(0, len(data), 61) if data[at]]
    place = random.choice(used) if used and random.random() < 0.5 else 0
    place = place or random.randrange(len(data) + 1)
    kind = random.choice((FLIP, RANDOM, ZEROS, CUT, LONGER, GONE))
    if kind == FLIP and place < len(data):
        data[place] ^= 1 << random.randrange(8)
    elif kind == RANDOM:
        size = min(len(data) - place, random.choice((1, 4, 50, 512, 5000)))
        data[place : place + size] = random.randbytes(size)
    elif kind == ZEROS:
        place -= place % 512
        data[place : place + 512] = bytes(len(data[place : place + 512]))
    elif kind == CUT:
        del data[place:]
    elif kind == LONGER:
        data += random.randbytes(random.choice((1, 4096)))
    directory.unlink(name)
    if kind != GONE:
        directory.create(name, 0)
        directory.write_at(name, 0, bytes(data))
    return kind


def check(whole: FaultyDirectory, life: Remembered, random: Random) -> str:
    """Damage a copy once or twice, open it, and return what came of it."""
    directory = whole.copy()
    kinds = {damage(directory, random) for _ in range(random.choice((1, 1, 2)))}
    if "identity" not in directory.list() and not segments_of(directory):
        return "empty"
    try:
        opened = begin(directory)
    except Refused:
        return "refused"
    found = held_of(opened)
    assert found in life.ever
    assert held_of(begin(directory)) == found
    if found == life.held:
        return "whole"
    # A last group turned to zeros looks as if it had never been written.
    assert opened.store.notes or ZEROS in kinds
    return "short"


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_damaged_is_found_or_refused(seed: int) -> None:
    random = Random(seed)
    seen: Counter[str] = Counter()
    for actions in (1, 4, 25):
        whole = FaultyDirectory()
        life = Remembered(random)
        store = begin(whole).store
        for _ in range(actions):
            life.act(store)
        seen.update(check(whole, life, random) for _ in range(MUTATIONS // 3))
    assert min(seen["refused"], seen["whole"]) > 0
    assert Held() in life.ever
