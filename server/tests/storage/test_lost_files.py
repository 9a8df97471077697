"""Files that lose their end or are gone: a log is never taken for a shorter one that is whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from faulty_directory import FaultyDirectory
from history import CLUSTER, FOUNDING, SMALL, entropy
from ticketing_server.raft.messages import BATCH, Entry, HardState, Snapshot
from ticketing_server.raft.saves import Save
from ticketing_server.storage.directory import Refused
from ticketing_server.storage.real_directory import RealDirectory
from ticketing_server.storage.records import SECTOR
from ticketing_server.storage.store import Opened, Store
from ticketing_server.storage.wal import segment_name, segments_of

REJOINS = "To rejoin a cluster, move this directory away and start with an empty one"


def begin(directory: FaultyDirectory) -> Opened:
    return Store.open(directory, entropy(), SMALL)


def batch(index: int, size: int = 5000) -> Save:
    return Save(index, None, None, (Entry(index, 1, BATCH, index, bytes(size)),))


def long_log(last: int = 60) -> FaultyDirectory:
    """Return a directory whose log has several segments."""
    directory = FaultyDirectory()
    store = begin(directory).store
    store.write([Save(1, HardState(1, 7), None, (FOUNDING,))])
    for index in range(2, last):
        store.write([batch(index)])
    return directory


def short_log() -> FaultyDirectory:
    """Return a directory whose log has one segment that is far from full."""
    return long_log(4)


def cut(directory: FaultyDirectory, segment: int, size: int) -> None:
    name = segment_name(segment)
    data = directory.read(name)[:size]
    directory.create(name, 0)
    directory.write_at(name, 0, data)


def refused(directory: FaultyDirectory) -> str:
    """Open what can't be used: it says how to rejoin, and leaves all as it is."""
    before = {name: directory.read(name) for name in directory.list()}
    with pytest.raises(Refused) as problem:
        begin(directory)
    assert {name: directory.read(name) for name in directory.list()} == before
    assert REJOINS in str(problem.value)
    return str(problem.value)


@pytest.mark.parametrize("make", [short_log, long_log])
def test_newest_segment_that_lost_its_end_is_refused_wherever_it_ends(make: object) -> None:
    assert callable(make)
    whole = make()
    segment = segments_of(whole)[-1]
    size = whole.size(segment_name(segment))
    for left in (*range(0, size, 997), *range(0, size, SECTOR), size - 1):
        directory = whole.copy()
        cut(directory, segment, left)
        refused(directory)


def test_where_the_end_was_lost_is_said() -> None:
    directory = short_log()
    cut(directory, 1, 20_000)
    text = refused(directory)
    assert "/data/wal-000000000001 is damaged at byte 20000 (the file has 20000 bytes" in text


def test_any_segment_that_lost_its_end_is_refused() -> None:
    whole = long_log()
    for segment in segments_of(whole):
        directory = whole.copy()
        cut(directory, segment, whole.size(segment_name(segment)) - 1)
        assert segment_name(segment) in refused(directory)


def test_segment_that_grew_is_refused() -> None:
    directory = long_log()
    name = segment_name(segments_of(directory)[-1])
    directory.write_at(name, directory.size(name), bytes(SECTOR))
    assert name in refused(directory)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_newest_segments_missing_are_refused(count: int) -> None:
    directory = long_log()
    for segment in segments_of(directory)[-count:]:
        directory.unlink(segment_name(segment))
    assert f"{segment_name(segment - count + 1)} is missing" in refused(directory)


def test_newest_segment_emptied_of_its_groups_is_refused() -> None:
    directory = long_log()
    name = segment_name(segments_of(directory)[-1])
    directory.create(name, directory.size(name))
    assert f"{name} is missing, or nothing in it is whole" in refused(directory)


def test_only_segment_left_missing_or_emptied_is_refused() -> None:
    """The ones before it are dropped, so only the identity says that there was a log."""
    whole = long_log()
    store = begin(whole).store
    store.put_snapshot(Snapshot(59, 1, 59, CLUSTER), b"the table")
    while len(segments_of(whole)) > 1:
        store.write([batch(60, 20_000)])
        store.put_snapshot(Snapshot(60, 1, 60, CLUSTER), b"the next table")
        store.drop_below(60)
    (segment,) = segments_of(whole)
    for left in (None, 0, 100):
        directory = whole.copy()
        if left is None:
            directory.unlink(segment_name(segment))
        else:
            cut(directory, segment, left)
        refused(directory)


def test_older_segments_missing_are_refused_where_the_newest_has_no_entry() -> None:
    directory = long_log()
    newest = segments_of(directory)[-1]
    store = begin(directory).store
    while segments_of(directory)[-1] == newest:
        store.write([Save(99, HardState(2, 7), None, ())])
    for segment in segments_of(directory)[:-1]:
        directory.unlink(segment_name(segment))
    assert "what is between is missing" in refused(directory)


def test_older_segments_may_be_missing_where_a_snapshot_stands_for_them() -> None:
    directory = long_log()
    store = begin(directory).store
    store.put_snapshot(Snapshot(59, 1, 59, CLUSTER), b"the table")
    newest = segments_of(directory)[-1]
    while segments_of(directory)[-1] == newest:
        store.write([Save(99, HardState(2, 7), None, ())])
    store.drop_below(59)
    assert len(segments_of(directory)) == 1
    assert begin(directory).restored.snapshot == Snapshot(59, 1, 59, CLUSTER)


def test_snapshot_without_an_identity_is_refused() -> None:
    directory = short_log()
    begin(directory).store.put_snapshot(Snapshot(3, 1, 3, CLUSTER), b"the table")
    for name in directory.list():
        if not name.startswith("snapshot-"):
            directory.unlink(name)
    assert "no file identity that says whose" in refused(directory)


def test_next_segment_that_took_no_group_yet_is_none() -> None:
    """What a loss of power leaves behind while a next segment is begun."""
    whole = long_log()
    entries = begin(whole).restored.entries
    segment = segments_of(whole)[-1] + 1
    for size in (0, SECTOR, SMALL.largest):
        directory = whole.copy()
        directory.create(segment_name(segment), size)
        assert begin(directory).restored.entries == entries
        assert begin(directory).restored.entries == entries


def test_closing_that_was_not_written_is_written_when_the_log_is_opened() -> None:
    directory = long_log()
    *_, older, newest = segments_of(directory)
    name = segment_name(older)
    end = directory.size(name) - SECTOR
    for content in (bytes(SECTOR), b"TKT" + bytes(SECTOR - 3)):
        directory.write_at(name, end, content)
        begin(directory)
        assert directory.read(name)[end:].strip(b"\0")
        broken = directory.copy()
        broken.unlink(segment_name(newest))
        assert f"{segment_name(newest)} is missing" in refused(broken)


def test_other_names_mean_nothing(tmp_path: Path) -> None:
    directory = RealDirectory(tmp_path)
    store = Store.open(directory, entropy(), SMALL).store
    store.write([Save(1, HardState(1, 7), None, (FOUNDING,))])
    for name in ("wal-000000000077", "snapshot-x", "lost+found", "torn-1", "a.tmp"):
        (tmp_path / name).mkdir()
    for name in ("wal-1", "wal-x", "wal-\u0663", "README"):
        (tmp_path / name).write_text("x")
    directory.close()
    for _ in range(2):
        directory = RealDirectory(tmp_path)
        assert Store.open(directory, entropy(), SMALL).restored.entries == (FOUNDING,)
        directory.close()
    assert (tmp_path / "wal-1").read_text() == "x"
