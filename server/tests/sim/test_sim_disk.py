"""The simulated disk loses what it may lose, and nothing else."""

from __future__ import annotations

import errno
from random import Random

import pytest
from ticketing_sim.disk import SECTOR_BYTES, Crashed, SimDirectory

NEW = b"n" * SECTOR_BYTES
OLD = b"o" * SECTOR_BYTES


def made(seed: int) -> SimDirectory:
    directory = SimDirectory(Random(seed))
    directory.create("file", 0)
    directory.write_at("file", 0, OLD * 4)
    directory.sync("file")
    directory.sync_directory()
    return directory


def test_what_is_synced_survives() -> None:
    for seed in range(20):
        directory = made(seed)
        directory.crash()
        assert directory.list() == ["file"]
        assert directory.read("file") == OLD * 4


def test_each_unsynced_sector_is_kept_lost_or_torn() -> None:
    fates = set()
    for seed in range(60):
        directory = made(seed)
        directory.write_at("file", SECTOR_BYTES, NEW * 2)
        directory.crash()
        data = directory.read("file")
        assert data[:SECTOR_BYTES] == OLD
        assert data[3 * SECTOR_BYTES :] == OLD
        for place in (1, 2):
            sector = data[place * SECTOR_BYTES : (place + 1) * SECTOR_BYTES]
            kept = sector.rstrip(b"o")
            assert kept == kept.strip(b"o")
            fates.add("kept" if sector == NEW else "lost" if sector == OLD else "torn")
    assert fates == {"kept", "lost", "torn"}


def test_names_survive_in_order_and_only_for_certain_when_synced() -> None:
    seen = set()
    for seed in range(60):
        directory = made(seed)
        directory.create("next", 0)
        directory.rename("next", "other")
        directory.unlink("file")
        directory.crash()
        seen.add(tuple(directory.list()))
    assert seen == {("file",), ("file", "next"), ("file", "other"), ("other",)}


def test_crash_comes_at_its_step_and_no_later() -> None:
    directory = made(1)
    directory.crash_within(1)
    with pytest.raises(Crashed):
        directory.write_at("file", 0, NEW)
    directory.crash()
    directory.write_at("file", 0, NEW)


def test_errors_come_when_they_are_set() -> None:
    directory = made(1)
    directory.free_bytes = 10
    with pytest.raises(OSError) as full:  # noqa: PT011
        directory.write_at("file", 4 * SECTOR_BYTES, NEW)
    assert full.value.errno == errno.ENOSPC
    directory.fail_at = directory.steps + 2
    directory.sync("file")
    with pytest.raises(OSError) as broken:  # noqa: PT011
        directory.sync("file")
    assert broken.value.errno == errno.EIO


def test_flipped_bit_is_on_the_medium() -> None:
    directory = made(1)
    directory.flip("file", 3, 0)
    directory.crash()
    assert directory.read("file")[:5] == b"ooono"
