"""Backups and directories that are damaged: restore and recover end in one line, and with 4."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from zlib import crc32

import pytest
from ticketing_server.admin.cli import main
from ticketing_server.admin.errors import DIRECTORY, DONE
from ticketing_server.cluster import snapshot_file
from ticketing_server.cluster.replica import Replica
from ticketing_server.raft.configuration import Configuration, encode_founding
from ticketing_server.raft.messages import FOUND, Entry, HardState, Snapshot
from ticketing_server.raft.saves import Save
from ticketing_server.storage.real_directory import RealDirectory
from ticketing_server.storage.store import Sizes, Store

NODE = 7
CLUSTER = Configuration(b"c" * 16, ((0, NODE), (1, 8), (2, 9)), 3)
FOUNDING = Entry(1, 1, FOUND, 5, encode_founding(CLUSTER))
Capture = pytest.CaptureFixture[str]


def numbers() -> Iterator[int]:
    yield from range(NODE, 100)


def backup() -> bytes:
    replica = Replica()
    replica.apply(FOUNDING)
    return snapshot_file.encode(Snapshot(1, 1, 5, CLUSTER), replica.dump())


def ends(capsys: Capture, *words: str) -> tuple[int, str]:
    """Return the exit code, and the one line that was said where it isn't 0."""
    code = main(words)
    text = capsys.readouterr().err
    assert text.count("\n") == (code != DONE), text
    assert code in (DONE, DIRECTORY), text
    return code, text


def damage(content: bytearray, random: Random) -> None:
    at = random.randrange(len(content))
    kind = random.randrange(4)
    if kind == 0:
        content[at] ^= 1 << random.randrange(8)
    elif kind == 1:
        content[at : at + 4] = random.choice((bytes(4), b"\xff" * 4, random.randbytes(4)))
    elif kind == 2:
        del content[at:]
    else:
        content += random.randbytes(3)


def test_damaged_backup_is_refused(tmp_path: Path, capsys: Capture) -> None:
    """Also where its checksum fits what is in it."""
    file, to = tmp_path / "backup", tmp_path / "to"
    words = ("restore", "--snapshot", str(file), "--data-dir", str(to), "--restart-grace", "1d")
    whole = backup()
    seen: Counter[tuple[bool, int]] = Counter()
    random = Random(1)
    for turn in range(100):
        content = bytearray(whole)
        damage(content, random)
        fits = turn % 2 == 0
        if fits:
            content[-4:] = crc32(content[:-4]).to_bytes(4, "big")
        if content == whole:
            continue
        file.write_bytes(content)
        code, _ = ends(capsys, *words)
        seen[fits, code] += 1
        if to.exists():
            shutil.rmtree(to)
    assert seen[False, DONE] == 0
    assert seen[True, DIRECTORY] > 10


@pytest.mark.parametrize("grace", ["1000000000d", "9223372037s"])
def test_grace_that_no_clock_reaches_is_refused(
    tmp_path: Path, capsys: Capture, grace: str
) -> None:
    file = tmp_path / "backup"
    file.write_bytes(backup())
    to = str(tmp_path / "to")
    words = ("restore", "--snapshot", str(file), "--data-dir", to, "--restart-grace")
    code, text = ends(capsys, *words, grace)
    assert code == DIRECTORY
    assert "give a shorter --restart-grace" in text
    assert ends(capsys, *words, "1d")[0] == DONE


def test_damaged_directory_is_not_recovered(tmp_path: Path, capsys: Capture) -> None:
    whole, damaged = tmp_path / "whole", tmp_path / "damaged"
    directory = RealDirectory(whole)
    store = Store.open(directory, numbers(), Sizes(32 * 1024, 64 * 1024)).store
    store.write([Save(1, HardState(1, NODE), None, (FOUNDING,))])
    store.put_snapshot(Snapshot(1, 1, 5, CLUSTER), backup())
    for term in range(2, 8):
        store.write([Save(term, HardState(term, NODE), None, ())])
    directory.close()
    seen: Counter[int] = Counter()
    random = Random(2)
    words = ("recover", "--data-dir", str(damaged), "--yes")
    for _ in range(60):
        shutil.copytree(whole, damaged)
        path = damaged / random.choice(sorted(os.listdir(whole)))
        content = bytearray(path.read_bytes())
        damage(content, random)
        path.write_bytes(content)
        seen[ends(capsys, *words)[0]] += 1
        shutil.rmtree(damaged)
    assert seen[DIRECTORY] > 20
    shutil.copytree(whole, damaged)
    assert ends(capsys, *words)[0] == DONE
