"""The writer's thread: groups of what queued, in order, and what it tells the loop."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue

import pytest
from faulty_directory import FaultyDirectory
from history import CLUSTER, FOUNDING, SMALL, entropy
from ticketing_server.raft.messages import BATCH, Entry, HardState, Snapshot
from ticketing_server.raft.saves import Save
from ticketing_server.storage.store import Store
from ticketing_server.storage.writer import Events, Writer


class SlowDirectory(FaultyDirectory):
    """Syncs of the log wait until a test lets them go on."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Event()

    def sync(self, name: str) -> None:
        if name.startswith("wal-"):
            self.waiting.set()
            assert self.gate.wait(30)
        super().sync(name)


class Loop:
    """Takes what the writer tells, as an event loop would."""

    def __init__(self) -> None:
        self.told: SimpleQueue[tuple[str, object]] = SimpleQueue()

    def call_soon(self, event: Callable[..., None], *arguments: object) -> None:
        event(*arguments)

    def events(self) -> Events:
        return Events(
            self.call_soon,
            lambda number, seconds: self.told.put(("synced", number)),
            lambda is_full: self.told.put(("full", is_full)),
            lambda error: self.told.put(("failed", error)),
        )

    def next(self) -> tuple[str, object]:
        return self.told.get(timeout=30)


def entry(index: int, size: int = 100) -> Entry:
    return Entry(index, 1, BATCH, index * 10, bytes(size))


def save(number: int, size: int = 100) -> Save:
    """Entry 1 with the first save, and so on."""
    if number == 1:
        return Save(1, HardState(1, 7), None, (FOUNDING,))
    return Save(number, None, None, (entry(number, size),))


@contextmanager
def writing(directory: FaultyDirectory) -> Iterator[tuple[Loop, Writer, Store]]:
    loop = Loop()
    store = Store.open(directory, entropy(), SMALL).store
    writer = Writer(store, loop.events())
    try:
        yield loop, writer, store
    finally:
        writer.close()


def test_what_queues_during_a_sync_is_one_group() -> None:
    directory = SlowDirectory()
    with writing(directory) as (loop, writer, _store):
        directory.gate.clear()
        directory.waiting.clear()
        writer.save(save(1))
        assert directory.waiting.wait(30)
        for number in range(2, 40):
            writer.save(save(number))
        directory.gate.set()
        assert [loop.next(), loop.next()] == [("synced", 1), ("synced", 39)]
    assert Store.open(directory, entropy(), SMALL).restored.entries[-1].index == 39


def test_installed_snapshot_begins_a_group_and_calls_keep_their_turn() -> None:
    directory = SlowDirectory()
    snapshot = Snapshot(50, 2, 500, CLUSTER)
    with writing(directory) as (loop, writer, store):
        directory.gate.clear()
        directory.waiting.clear()
        writer.save(save(1))
        assert directory.waiting.wait(30)
        writer.save(save(2))
        writer.save(Save(3, HardState(2), snapshot, ()), b"file")
        writer.save(_in_term(4, 51))
        writer.note_cluster(b"m" * 16, lambda: loop.told.put(("noted", store.identity.cluster_id)))
        writer.save(_in_term(5, 52))
        directory.gate.set()
        told = [loop.next() for _ in range(5)]
    assert told == [
        ("synced", 1), ("synced", 2), ("synced", 4), ("noted", b"m" * 16), ("synced", 5),
    ]  # fmt: skip
    opened = Store.open(directory, entropy(), SMALL)
    assert opened.restored.snapshot == snapshot
    assert [held.index for held in opened.restored.entries] == [51, 52]
    assert opened.snapshot_file == b"file"


def _in_term(number: int, index: int) -> Save:
    return Save(number, None, None, (Entry(index, 2, BATCH, index * 10, b""),))


def test_own_snapshot_is_marked_and_the_log_dropped() -> None:
    directory = FaultyDirectory()
    with writing(directory) as (loop, writer, store):
        for number in range(1, 61):
            writer.save(save(number, 3000))
        while loop.next() != ("synced", 60):
            pass
        snapshot = Snapshot(55, 1, 550, CLUSTER)
        before = store.wal_bytes
        writer.put_snapshot(snapshot, b"file", 50, lambda kept: loop.told.put(("kept", kept)))
        assert loop.next() == ("kept", True)
        assert store.read_snapshot(55) == b"file"
        assert store.wal_bytes < before
    assert Store.open(directory, entropy(), SMALL).restored.snapshot == snapshot


def test_failed_write_is_told_once_and_nothing_is_written_after_it() -> None:
    directory = FaultyDirectory()
    with writing(directory) as (loop, writer, _store):
        writer.save(save(1))
        assert loop.next() == ("synced", 1)
        directory.fail_from = directory.steps + 1
        writer.save(save(2))
        told, error = loop.next()
        assert told == "failed"
        assert isinstance(error, OSError)
        assert error.errno == errno.EIO
        directory.fail_from = None
        writer.save(save(3))
    assert loop.told.empty()
    entries = Store.open(directory, entropy(), SMALL).restored.entries
    assert [held.index for held in entries] == [1, 2]


def test_snapshot_that_cannot_be_kept_ends_the_process() -> None:
    directory = FaultyDirectory()
    with writing(directory) as (loop, writer, _store):
        writer.save(save(1))
        assert loop.next() == ("synced", 1)
        directory.fail_from = directory.steps + 1
        writer.put_snapshot(Snapshot(1, 1, 10, CLUSTER), b"file", 0)
        assert loop.next()[0] == "failed"


def test_own_snapshot_without_room_is_given_up() -> None:
    directory = FaultyDirectory()
    with writing(directory) as (loop, writer, store):
        writer.save(save(1))
        assert loop.next() == ("synced", 1)
        directory.room = directory.used + 1000
        snapshot = Snapshot(1, 1, 10, CLUSTER)
        writer.put_snapshot(snapshot, bytes(2000), 0, lambda kept: loop.told.put(("kept", kept)))
        assert loop.next() == ("kept", False)
        assert store.snapshot is None
        assert not [name for name in directory.list() if name.startswith("snapshot")]
        writer.save(save(2))
        assert loop.next() == ("synced", 2)


def test_full_disk_is_told_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ticketing_server.storage.writer.RETRY_FULL_S", 0.01)
    directory = FaultyDirectory()
    with writing(directory) as (loop, writer, _store):
        writer.save(save(1))
        assert loop.next() == ("synced", 1)
        directory.room = directory.used + 1000
        writer.save(save(2, 15000))
        assert sorted([loop.next(), loop.next()]) == [("full", True), ("synced", 2)]
        directory.room = None
        assert loop.next() == ("full", False)
