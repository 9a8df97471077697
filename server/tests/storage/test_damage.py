"""Bits that flip, files that go missing, and segments from elsewhere."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from faulty_directory import FaultyDirectory
from history import CLUSTER, FOUNDING, SMALL, Held, Life, entropy, held_of
from ticketing_server.raft.messages import BATCH, Entry, HardState, Snapshot
from ticketing_server.raft.saves import Save
from ticketing_server.storage.directory import Refused
from ticketing_server.storage.identity import read_identity
from ticketing_server.storage.records import (
    ENTRY_OVERHEAD,
    HEADER_BYTES,
    SECTOR,
    Header,
    decode_header,
    encode_header,
)
from ticketing_server.storage.store import Opened, Store
from ticketing_server.storage.wal import last_header, segment_name, segments_of

RECORD_END_BYTES = 4
"""Of the chain, behind a payload."""


def begin(directory: FaultyDirectory) -> Opened:
    return Store.open(directory, entropy(), SMALL)


def lived(seed: int, actions: int = 25) -> tuple[FaultyDirectory, Life]:
    """Return a directory after a random life that ended well."""
    directory = FaultyDirectory()
    life = Life(Random(seed))
    store = begin(directory).store
    for _ in range(actions):
        life.act(store)
    return directory, life


def groups(directory: FaultyDirectory, segment: int) -> list[Header]:
    identity = read_identity(directory)
    assert identity is not None
    data = directory.read(segment_name(segment))
    found = (
        decode_header(data, offset, identity.log_id, segment)
        for offset in range(0, len(data), SECTOR)
    )
    return [header for header in found if header is not None]


def tail(directory: FaultyDirectory) -> Header:
    """Return the last group's header."""
    identity = read_identity(directory)
    assert identity is not None
    for segment in reversed(segments_of(directory)):
        data = directory.read(segment_name(segment))
        header = last_header(data, identity.log_id, segment)
        if header is not None:
            return header
    raise AssertionError("no group")


@pytest.mark.parametrize("seed", range(8))
def test_flip_below_the_last_header_is_refused_wherever_it_is(seed: int) -> None:
    whole, life = lived(seed)
    random = Random(seed)
    last = tail(whole)
    for segment in segments_of(whole):
        for header in groups(whole, segment):
            if (segment, header.offset) == (last.segment, last.offset):
                continue
            places = {header.offset, header.begin - 1, header.begin, header.end - 1}
            places |= {random.randrange(header.offset, header.end) for _ in range(6)}
            for offset in places:
                directory = whole.copy()
                directory.flip(segment_name(segment), offset, random.randrange(8))
                names = directory.list()
                with pytest.raises(Refused) as refused:
                    begin(directory)
                text = str(refused.value)
                assert f"/data/{segment_name(segment)} is damaged at byte " in text
                found = int(text.split("at byte ")[1].split(" ")[0])
                assert header.offset <= found <= offset
                assert "To rejoin a cluster, move this directory away" in text
                assert directory.list() == names, "what is refused is left as it is"
    assert held_of(begin(whole)) == life.held


@pytest.mark.parametrize("seed", range(8))
def test_flip_in_the_last_group_is_cut_and_kept_aside(seed: int) -> None:
    whole, life = lived(seed)
    random = Random(seed)
    # What opening wrote is the last group: cut it, and what was found before it is found again.
    begin(whole)
    last = tail(whole)
    name = segment_name(last.segment)
    for offset in range(last.offset, last.end):
        directory = whole.copy()
        directory.flip(name, offset, random.randrange(8))
        damaged = directory.read(name)
        opened = begin(directory)
        assert held_of(opened) == life.held
        (note,) = opened.store.notes
        (kept,) = (name for name in directory.list() if name.startswith("torn-"))
        assert f"/data/{kept}" in note
        content = directory.read(kept)
        begun = int(kept.split("-")[-1])
        assert damaged[begun:].rstrip(b"\0") == content
        again = begin(directory)
        assert held_of(again) == life.held
        assert again.store.notes == []


def test_flip_in_the_last_group_loses_only_what_is_in_it_from_there_on() -> None:
    seen: Counter[int] = Counter()
    for seed in range(60):
        random = Random(seed)
        directory, life = lived(seed, random.randrange(2, 12))
        store = begin(directory).store
        before = life.held
        life._save(store, saves := life._saves())
        steps = [before]
        for save in saves:
            parts = (save.hard_state, *save.entries) if save.hard_state else save.entries
            for part in parts:
                steps.append(steps[-1].step(part))
        last = tail(directory)
        directory.flip(
            segment_name(last.segment), random.randrange(last.offset, last.end), random.randrange(8)
        )
        found = held_of(begin(directory))
        assert found in steps[:-1] or steps == [before]
        seen[steps.index(found)] += 1
    assert seen[0]
    assert len(seen) > 3


def test_torn_tails_are_kept_three_at_most() -> None:
    directory, life = lived(3)
    for _ in range(6):
        begin(directory)
        last = tail(directory)
        directory.flip(segment_name(last.segment), last.begin + 2, 1)
    assert held_of(begin(directory)) == life.held
    assert len([name for name in directory.list() if name.startswith("torn-")]) == 3


def test_segment_of_another_directory_is_not_read() -> None:
    """Its groups are valid in themselves, and its number is the next one."""
    directory, life = lived(5)
    segment = segments_of(directory)[-1] + 1
    other = FaultyDirectory()
    store = Store.open(other, iter(range(77, 100)), SMALL).store
    store.write([Save(1, HardState(9, 9), None, (FOUNDING,))])
    index = 1
    while segment not in segments_of(other):
        index += 1
        store.write([Save(index, None, None, (Entry(index, 9, BATCH, index, bytes(9000)),))])
    data = other.read(segment_name(segment))
    directory.create(segment_name(segment), len(data))
    directory.write_at(segment_name(segment), 0, data)
    opened = begin(directory)
    assert held_of(opened) == life.held
    assert len(opened.store.notes) == 1
    assert held_of(begin(directory)) == life.held


def test_older_segment_under_a_newer_number_is_not_read() -> None:
    directory, life = lived(5, 60)
    first, *_, last = segments_of(directory)
    assert first != last
    data = directory.read(segment_name(first))
    directory.create(segment_name(last + 1), len(data))
    directory.write_at(segment_name(last + 1), 0, data)
    assert held_of(begin(directory)) == life.held


def test_segment_that_came_back_after_its_removal_is_not_read() -> None:
    directory = FaultyDirectory()
    store = begin(directory).store
    store.write([Save(1, HardState(1, 7), None, (FOUNDING,))])
    for index in range(2, 40):
        store.write([Save(index, None, None, (Entry(index, 1, BATCH, index, bytes(5000)),))])
    first, second, *_ = segments_of(directory)
    old = directory.read(segment_name(first))
    snapshot = Snapshot(35, 1, 35, CLUSTER)
    store.put_snapshot(snapshot, b"file")
    store.drop_below(35)
    assert second not in segments_of(directory)
    directory.create(segment_name(first), len(old))
    directory.write_at(segment_name(first), 0, old)
    opened = begin(directory)
    assert opened.restored.snapshot == snapshot
    assert [entry.index for entry in opened.restored.entries] == [36, 37, 38, 39]
    assert first not in segments_of(directory)


def long_log() -> FaultyDirectory:
    directory = FaultyDirectory()
    store = begin(directory).store
    store.write([Save(1, HardState(1, 7), None, (FOUNDING,))])
    for index in range(2, 60):
        store.write([Save(index, None, None, (Entry(index, 1, BATCH, index, bytes(5000)),))])
    assert len(segments_of(directory)) > 3
    return directory


@pytest.mark.parametrize("place", [0, 1])
def test_missing_segment_is_refused(place: int) -> None:
    directory = long_log()
    directory.unlink(segment_name(segments_of(directory)[place]))
    names = directory.list()
    with pytest.raises(Refused, match="what is between is missing"):
        begin(directory)
    assert directory.list() == names


def test_empty_segment_in_the_middle_is_refused() -> None:
    directory = long_log()
    segment = segments_of(directory)[1]
    directory.create(segment_name(segment), SMALL.largest)
    with pytest.raises(Refused, match=f"{segment_name(segment)} is damaged at byte 0"):
        begin(directory)


def test_all_groups_of_a_log_damaged_is_refused() -> None:
    directory = long_log()
    for segment in segments_of(directory):
        directory.create(segment_name(segment), SMALL.largest)
    with pytest.raises(Refused, match="no group in the log is whole"):
        begin(directory)


def test_only_segment_emptied_is_refused_where_there_was_a_log() -> None:
    directory = FaultyDirectory()
    store = begin(directory).store
    store.write([Save(1, HardState(1, 7), None, (FOUNDING,))])
    directory.create(segment_name(1), SMALL.first)
    with pytest.raises(Refused, match="its log is missing"):
        begin(directory)


def test_snapshot_missing_or_damaged_is_refused() -> None:
    directory = long_log()
    store = begin(directory).store
    store.put_snapshot(Snapshot(50, 1, 50, CLUSTER), b"the table")
    (name,) = (name for name in directory.list() if name.startswith("snapshot-"))
    broken = directory.copy()
    broken.flip(name, 3, 3)
    with pytest.raises(Refused, match=f"{name}, the node's snapshot, is damaged"):
        begin(broken)
    directory.unlink(name)
    with pytest.raises(Refused, match=f"{name}, the node's snapshot, is missing"):
        begin(directory)


def test_identity_missing_or_damaged_is_refused() -> None:
    whole, _ = lived(1)
    for offset in range(whole.size("identity")):
        directory = whole.copy()
        directory.flip("identity", offset, offset % 8)
        with pytest.raises(Refused, match="doesn't know who it is"):
            begin(directory)
    whole.unlink("identity")
    with pytest.raises(Refused, match="no file identity that says whose"):
        begin(whole)


def test_bytes_of_a_client_cannot_pass_for_a_group() -> None:
    """A payload with a header for each place it may land, right in all but the log id."""
    directory = FaultyDirectory()
    store = begin(directory).store
    store.write([Save(1, HardState(1, 7), None, (FOUNDING,))])
    held = tail(directory)
    begun = held.offset + SECTOR + HEADER_BYTES + ENTRY_OVERHEAD - RECORD_END_BYTES
    size = directory.size(segment_name(held.segment))
    payload = bytearray(4 * SECTOR)
    for offset in range(begun + SECTOR - begun % SECTOR, begun + 3 * SECTOR, SECTOR):
        fake = Header(1, held.segment, held.group + 2, 0, offset, offset, 0, 0, size)
        payload[offset - begun : offset - begun + HEADER_BYTES] = encode_header(fake)
    store.write([Save(2, None, None, (Entry(2, 1, BATCH, 2, bytes(payload)),))])
    name = segment_name(held.segment)
    data = directory.read(name)
    assert decode_header(data, held.offset + 2 * SECTOR, 1, held.segment)
    directory.flip(name, held.offset + SECTOR + HEADER_BYTES, 1)
    assert begin(directory).restored.entries == (FOUNDING,)


def test_group_of_another_history_of_this_log_is_refused() -> None:
    """As if a disk had gone back to what it had before: all is valid but the chain."""
    directory = FaultyDirectory()
    store = begin(directory).store
    store.write([Save(1, HardState(1, 7), None, (FOUNDING,))])
    store.write([Save(2, None, None, (Entry(2, 1, BATCH, 2, b"one"),))])
    held = tail(directory)
    name = segment_name(held.segment)
    other = directory.copy()
    begun = Store.open(other, entropy(), SMALL).store
    begun.write([Save(3, None, None, (Entry(2, 1, BATCH, 2, b"two"),))])
    store.write([Save(3, HardState(2, 8), None, ())])
    store.write([Save(4, HardState(3, 8), None, ())])
    sector = other.read(name)[held.offset + SECTOR :][:SECTOR]
    assert sector.strip(b"\0")
    directory.write_at(name, held.offset + SECTOR, sector)
    with pytest.raises(Refused, match="a group does not continue the one before"):
        begin(directory)


def test_two_segments_without_a_group_are_refused() -> None:
    """The second was begun when the first was full, so the first had groups."""
    directory = long_log()
    *_, first, second = segments_of(directory)
    for segment in (first, second):
        directory.create(segment_name(segment), SMALL.largest)
    with pytest.raises(Refused, match=f"{segment_name(first)} is damaged at byte 0"):
        begin(directory)


def test_nothing_found_is_nothing_lost() -> None:
    """A directory of a node that joined nothing yet may be emptied of its log."""
    directory = FaultyDirectory()
    store = begin(directory).store
    store.note_cluster(b"m" * 16)
    assert held_of(begin(directory)) == Held()
