"""Real processes on a real directory: killed, two at once, and one that only reads."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import killed_writer
import pytest
from history import SMALL, entropy
from ticketing_server.storage.directory import Refused
from ticketing_server.storage.identity import read_identity
from ticketing_server.storage.real_directory import RealDirectory
from ticketing_server.storage.store import Store
from ticketing_server.storage.wal import read_log

HERE = Path(__file__).parent
ROUNDS = 20


@contextmanager
def writing(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that writes, until it has synced something; kill it at the end."""
    process = subprocess.Popen(
        [sys.executable, HERE / "killed_writer.py", path],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=HERE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        first = process.stdout.readline()
        assert first, process.stderr and process.stderr.read().decode()
        yield process
    finally:
        process.kill()
        process.communicate()


def killed_after(path: Path, delay_s: float) -> int:
    """Kill a writer, and return the last index it said was synced."""
    with writing(path) as process:
        time.sleep(delay_s)
        process.kill()
        output, _ = process.communicate(timeout=30)
    # What it was saying when it was killed may end in the middle of a number.
    whole = output.rpartition(b"\n")[0].split()
    return int(whole[-1]) if whole else 0


def test_killed_writer_loses_nothing_that_it_said_was_synced(tmp_path: Path) -> None:
    random = Random(1)
    before = 0
    for _ in range(ROUNDS):
        synced = killed_after(tmp_path, random.uniform(0.01, 0.15))
        directory = RealDirectory(tmp_path)
        restored, file = Store.open(directory, entropy(), SMALL)[1:3]
        directory.close()
        last = killed_writer.last_index(restored)
        assert last >= max(synced, before + 1)
        assert restored.hard_state == killed_writer.hard_state(last)
        base = 0
        if restored.snapshot is not None:
            base = restored.snapshot.index
            assert (restored.snapshot, file) == killed_writer.snapshot(base)
        assert restored.entries == tuple(map(killed_writer.entry, range(base + 1, last + 1)))
        before = last
    assert before > 200


def test_second_process_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    with writing(tmp_path) as process:
        with pytest.raises(Refused) as refused:
            RealDirectory(tmp_path)
        assert str(refused.value) == (
            f"data directory {tmp_path} is in use by another process. Stop that one, or give "
            "this one a directory of its own (--data-dir)"
        )
        assert process.poll() is None


def test_log_is_read_beside_a_writer(tmp_path: Path) -> None:
    """Each reading has what was synced before it began; what is dropped meanwhile is an error."""
    with writing(tmp_path) as process:
        assert process.stdout is not None
        directory = RealDirectory(tmp_path, is_reader=True)
        identity = read_identity(directory)
        assert identity is not None
        reached = 0
        for _ in range(20):
            synced = int(process.stdout.readline())
            try:
                replay = read_log(directory, identity.log_id, is_live=True).replay
            except FileNotFoundError:
                continue
            base = replay.mark.snapshot.index if replay.mark else 0
            entries = [held for held in replay.entries if held.index > base]
            assert entries[-1].index >= synced
            assert entries == [
                killed_writer.entry(index) for index in range(base + 1, entries[-1].index + 1)
            ]
            reached += 1
        directory.close()
    assert reached > 5
