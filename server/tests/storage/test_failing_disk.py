"""Errors of the disk: a write that fails, a sync that lies afterwards, and no room."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from faulty_directory import FaultyDirectory
from history import CLUSTER, FOUNDING, SMALL, Life, entropy, held_of
from ticketing_server.raft.messages import BATCH, Entry, HardState, Snapshot
from ticketing_server.raft.saves import Save
from ticketing_server.storage.store import Opened, Store, is_full


def begin(directory: FaultyDirectory) -> Opened:
    return Store.open(directory, entropy(), SMALL)


def live(directory: FaultyDirectory, life: Life, actions: int) -> Store:
    store = begin(directory).store
    for _ in range(actions):
        life.act(store)
    return store


def test_error_at_every_step_loses_nothing_that_was_synced() -> None:
    """The process restarts after it, and is believed only in what survives a loss of power too."""
    seen: Counter[bool] = Counter()
    for seed in range(3):
        whole = FaultyDirectory()
        live(whole, Life(Random(seed)), 12)
        for step in range(1, whole.steps + 1):
            directory = FaultyDirectory()
            directory.fail_from = step
            life = Life(Random(seed))
            with pytest.raises(OSError, match="Input/output error"):
                live(directory, life, 12)
            directory.fail_from = None
            found = held_of(begin(directory))
            assert found in life.possible
            seen[found == life.possible[0]] += 1
            directory.lose_power(Random(step))
            assert held_of(begin(directory)) == found
    assert min(seen[True], seen[False]) > 10


def test_nothing_is_written_after_a_failure() -> None:
    directory = FaultyDirectory()
    store = live(directory, Life(Random(1)), 3)
    directory.fail_from = directory.steps + 1
    with pytest.raises(OSError, match="Input/output error"):
        store.write([Save(1, HardState(50, 7), None, ())])
    directory.fail_from = None
    for write in (
        lambda: store.write([Save(2, HardState(51, 7), None, ())]),
        lambda: store.put_snapshot(Snapshot(1, 1, 10, CLUSTER), b"file"),
    ):
        with pytest.raises(RuntimeError, match="a write failed"):
            write()


def entry(index: int, size: int = 3000) -> Save:
    return Save(index, None, None, (Entry(index, 1, BATCH, index, bytes(size)),))


def test_no_room_for_a_next_segment_is_seen_at_half_of_the_present_one() -> None:
    directory = FaultyDirectory()
    store = begin(directory).store
    store.write([Save(1, HardState(1, 7), None, (FOUNDING,))])
    directory.room = directory.used + 1000
    index = 1
    while not store.is_full:
        index += 1
        store.write([entry(index)])
    # The other half is for votes.
    for term in (2, 3):
        store.write([Save(100 + term, HardState(term, 8), None, ())])
    names = [name for name in directory.list() if not name.startswith("wal-")]
    assert names == ["identity"]
    opened = begin(directory)
    opened.store.prepare()
    assert opened.store.is_full
    assert opened.restored.hard_state == HardState(3, 8)
    assert opened.restored.entries[-1].index == index
    directory.room = None
    opened.store.prepare()
    assert not opened.store.is_full
    for more in range(index + 1, index + 20):
        opened.store.write([entry(more)])
    assert begin(directory).restored.entries[-1].index == index + 19


def test_where_a_larger_segment_has_no_room_the_next_one_is_of_the_smallest_size() -> None:
    directory = FaultyDirectory()
    store = begin(directory).store
    store.write([Save(1, HardState(1, 7), None, (FOUNDING,))])
    index = 1
    while "spare" not in directory.list():
        index += 1
        store.write([entry(index)])
    sizes = {name: directory.size(name) for name in directory.list()}
    first = min(size for name, size in sizes.items() if name.startswith("wal-"))
    directory.room = directory.used + first
    while len([name for name in directory.list() if name.startswith("wal-")]) < 3:
        index += 1
        store.write([entry(index)])
    assert not store.is_full
    assert directory.size(max(name for name in directory.list() if "wal-" in name)) == first
    assert begin(directory).restored.entries[-1].index == index


def test_segment_that_is_full_without_a_next_one_fails_and_loses_nothing() -> None:
    directory = FaultyDirectory()
    store = begin(directory).store
    store.write([Save(1, HardState(1, 7), None, (FOUNDING,))])
    directory.room = directory.used
    written = [1]

    def fill() -> None:
        for index in range(2, 100):
            store.write([entry(index)])
            written.append(index)

    with pytest.raises(OSError, match="No space left") as failure:
        fill()
    assert is_full(failure.value)
    directory.room = None
    restored = begin(directory).restored
    assert [held.index for held in restored.entries] == written


def test_snapshot_without_room_leaves_no_part_of_itself() -> None:
    directory = FaultyDirectory()
    store = live(directory, Life(Random(1)), 1)
    names = directory.list()
    directory.room = directory.used + 100
    with pytest.raises(OSError, match="No space left"):
        store.put_snapshot(Snapshot(1, 1, 5, CLUSTER), bytes(101))
    assert directory.list() == names
    store.put_snapshot(Snapshot(1, 1, 5, CLUSTER), bytes(99))


def test_save_larger_than_any_segment_has_one_of_its_own() -> None:
    directory = FaultyDirectory()
    store = begin(directory).store
    store.write([Save(1, HardState(1, 7), None, (FOUNDING,))])
    for index in range(2, 12):
        store.write([entry(index, SMALL.largest * (index % 3))])
    entries = begin(directory).restored.entries
    assert [len(held.payload) // SMALL.largest for held in entries[1:]] == [
        index % 3 for index in range(2, 12)
    ]
