"""A store on a real directory: what is written is found again."""

from __future__ import annotations

from pathlib import Path

import pytest
from history import CLUSTER, FOUNDING, entropy
from ticketing_server.raft.messages import BATCH, Entry, HardState, Snapshot
from ticketing_server.raft.saves import Save
from ticketing_server.raft.state import Restored
from ticketing_server.storage.directory import Refused
from ticketing_server.storage.real_directory import RealDirectory
from ticketing_server.storage.store import Opened, Sizes, Store

SMALL = Sizes(64 * 1024, 256 * 1024)


def batch(index: int, term: int = 1, size: int = 100) -> Entry:
    return Entry(index, term, BATCH, index * 10, bytes([index % 251]) * size)


def reopen(path: Path, directory: RealDirectory | None = None) -> tuple[RealDirectory, Opened]:
    if directory is not None:
        directory.close()
    directory = RealDirectory(path)
    return directory, Store.open(directory, entropy(), SMALL)


def test_new_directory_has_an_identity_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a" / "data"
    directory, opened = reopen(path)
    assert opened.restored == Restored()
    assert opened.snapshot_file is None
    assert opened.identity[:3] == (1001, b"", False)
    assert path.stat().st_mode & 0o777 == 0o700
    directory, again = reopen(path, directory)
    assert again.identity == opened.identity
    directory.close()


def test_saves_are_found_again_over_many_segments(tmp_path: Path) -> None:
    directory, (store, *_) = reopen(tmp_path)
    store.write([Save(1, HardState(1, 7), None, (FOUNDING,))])
    entries = tuple(batch(index, size=5000) for index in range(2, 200))
    for entry in entries:
        store.write([Save(entry.index, None, None, (entry,))])
    directory, opened = reopen(tmp_path, directory)
    assert opened.restored == Restored(HardState(1, 7), None, (FOUNDING, *entries))
    assert opened.identity.cluster_id == CLUSTER.cluster_id
    assert opened.identity.has_log
    assert opened.store.notes == []
    directory.close()


def test_entries_replace_all_from_their_first_index_on(tmp_path: Path) -> None:
    directory, (store, *_) = reopen(tmp_path)
    store.write([Save(1, HardState(1, 7), None, (FOUNDING, *map(batch, range(2, 11))))])
    replaced = (batch(5, 2), batch(6, 2))
    store.write([Save(2, HardState(2, None), None, replaced), Save(3, HardState(3, 8), None, ())])
    directory, opened = reopen(tmp_path, directory)
    kept = (FOUNDING, *map(batch, range(2, 5)), *replaced)
    assert opened.restored == Restored(HardState(3, 8), None, kept)
    directory.close()


def test_snapshot_stands_for_the_log_before_it(tmp_path: Path) -> None:
    directory, (store, *_) = reopen(tmp_path)
    store.write([Save(1, HardState(1, 7), None, (FOUNDING,))])
    for index in range(2, 101):
        store.write([Save(index, None, None, (batch(index, size=3000),))])
    before = len(directory.list())
    for index in (50, 90):
        snapshot = Snapshot(index, 1, index * 10, CLUSTER)
        store.put_snapshot(snapshot, b"table as of %d" % index)
        assert store.read_snapshot(index) == b"table as of %d" % index
    assert store.read_snapshot(50) is None
    store.drop_below(80)
    assert len(directory.list()) < before
    directory, opened = reopen(tmp_path, directory)
    entries = tuple(batch(index, size=3000) for index in range(91, 101))
    assert opened.restored == Restored(HardState(1, 7), snapshot, entries)
    assert opened.snapshot_file == b"table as of 90"
    directory.close()


def test_installed_snapshot_replaces_the_log(tmp_path: Path) -> None:
    directory, (store, *_) = reopen(tmp_path)
    store.write([Save(1, HardState(1, 7), None, (FOUNDING, *map(batch, range(2, 900))))])
    snapshot = Snapshot(500, 3, 5000, CLUSTER)
    after = (batch(501, 3), batch(502, 3))
    store.write([Save(2, HardState(3, None), snapshot, after)], install=b"sent by the leader")
    directory, opened = reopen(tmp_path, directory)
    assert opened.restored == Restored(HardState(3, None), snapshot, after)
    assert opened.snapshot_file == b"sent by the leader"
    directory.close()


def test_own_snapshot_that_an_installed_one_overtook_does_not_count(tmp_path: Path) -> None:
    directory, (store, *_) = reopen(tmp_path)
    store.write([Save(1, HardState(1, 7), None, (FOUNDING, *map(batch, range(2, 20))))])
    staged = store.stage_snapshot(Snapshot(10, 1, 100, CLUSTER), b"own")
    installed = Snapshot(500, 3, 5000, CLUSTER)
    file = bytes(range(250)) * 40_000
    store.write([Save(2, HardState(3, None), installed, ())], install=file)
    store.mark_snapshot(staged)
    assert len([name for name in directory.list() if name.startswith("snapshot-")]) == 1
    directory, opened = reopen(tmp_path, directory)
    assert opened.restored == Restored(HardState(3, None), installed, ())
    assert opened.snapshot_file == file
    directory.close()


def test_mark_survives_the_removal_of_its_segment(tmp_path: Path) -> None:
    directory, (store, *_) = reopen(tmp_path)
    store.write([Save(1, HardState(4, 7), None, (FOUNDING, *map(batch, range(2, 20))))])
    snapshot = Snapshot(19, 1, 190, CLUSTER)
    store.put_snapshot(snapshot, b"file")
    store.write([Save(2, None, None, (batch(20, size=100_000),))])
    store.drop_below(19)
    assert "wal-000000000001" not in directory.list()
    directory, opened = reopen(tmp_path, directory)
    assert opened.restored == Restored(HardState(4, 7), snapshot, (batch(20, size=100_000),))
    directory.close()


def test_what_an_installed_snapshot_made_void_is_removed_after_a_crash(tmp_path: Path) -> None:
    directory, (store, *_) = reopen(tmp_path)
    entries = tuple(batch(index, size=3000) for index in range(2, 100))
    store.write([Save(1, HardState(1, 7), None, (FOUNDING,))])
    for entry in entries:
        store.write([Save(entry.index, None, None, (entry,))])
    installed = Snapshot(20, 3, 200, CLUSTER)
    with pytest.MonkeyPatch.context() as patch:
        # As if the process ended between the mark and the removal.
        patch.setattr(store, "drop_below", lambda index: None)
        store.write([Save(100, HardState(3), installed, ())], install=b"sent by the leader")
    store.write([Save(101, None, None, (batch(21, 3, size=60_000),))])
    directory, opened = reopen(tmp_path, directory)
    assert opened.restored.entries == (batch(21, 3, size=60_000),)
    opened.store.drop_below(20)
    assert len([name for name in directory.list() if name.startswith("wal-")]) <= 2
    directory.close()


def test_second_process_is_refused(tmp_path: Path) -> None:
    directory, _ = reopen(tmp_path)
    with pytest.raises(Refused, match=f"{tmp_path} is in use by another process. Stop that one"):
        RealDirectory(tmp_path)
    directory.close()
    RealDirectory(tmp_path).close()


def test_cluster_that_was_met_is_kept(tmp_path: Path) -> None:
    directory, (store, *_) = reopen(tmp_path)
    store.note_cluster(b"m" * 16)
    directory, opened = reopen(tmp_path, directory)
    assert opened.identity.cluster_id == b"m" * 16
    assert not opened.identity.has_log
    directory.close()


def test_lost_log_is_refused(tmp_path: Path) -> None:
    directory, (store, *_) = reopen(tmp_path)
    store.write([Save(1, HardState(1, 7), None, (FOUNDING,))])
    for name in directory.list():
        if name.startswith("wal-"):
            directory.unlink(name)
    with pytest.raises(Refused, match="its log is missing"):
        reopen(tmp_path, directory)
