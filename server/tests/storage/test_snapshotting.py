"""The process that makes snapshots, beside a store that is open and goes on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from history import CLUSTER, FOUNDING, SMALL, entropy
from ticketing_server.cluster import entries as payloads
from ticketing_server.cluster import snapshot_file
from ticketing_server.limits import Limits
from ticketing_server.raft.messages import BATCH, NOOP, Entry, HardState
from ticketing_server.raft.saves import Save
from ticketing_server.storage.real_directory import RealDirectory
from ticketing_server.storage.snapshotting import SnapshotFailed, make_from, make_snapshot
from ticketing_server.storage.store import Store
from ticketing_server.table_state import Link

ENTRIES = (
    FOUNDING,
    Entry(2, 1, NOOP, 20, payloads.encode_noop(Limits(), 5000, 1 << 60)),
    *(
        Entry(index, 1, BATCH, index * 10, payloads.encode([payloads.connect(Link(index, 1, b""))]))
        for index in range(3, 40)
    ),
)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[RealDirectory]:
    directory = RealDirectory(tmp_path)
    yield directory
    directory.close()


@pytest.fixture
def store(directory: RealDirectory) -> Store:
    store = Store.open(directory, entropy(), SMALL).store
    store.write([Save(1, HardState(1, 7), None, ENTRIES[:30])])
    return store


def test_snapshot_is_made_beside_an_open_store(tmp_path: Path, store: Store) -> None:
    file, checksum = asyncio.run(make_snapshot(tmp_path, 20))
    assert (file, checksum) == snapshot_file.make(None, ENTRIES, 20)
    meta, _ = snapshot_file.decode(file)
    assert meta.index == 20
    assert meta.configuration == CLUSTER
    store.put_snapshot(meta, file)
    store.drop_below(20)
    store.write([Save(2, None, None, ENTRIES[30:])])
    assert asyncio.run(make_snapshot(tmp_path, 39)) == snapshot_file.make(None, ENTRIES, 39)


def test_what_is_not_on_disk_is_no_snapshot(tmp_path: Path, store: Store) -> None:
    with pytest.raises(SnapshotFailed, match="the log reaches entry 30, the snapshot is of 31"):
        asyncio.run(make_snapshot(tmp_path, 31))


def test_directory_that_is_none_is_no_snapshot(tmp_path: Path) -> None:
    with pytest.raises(SnapshotFailed, match="can't be used: No such file or directory"):
        asyncio.run(make_snapshot(tmp_path / "none", 31))
    (tmp_path / "empty").mkdir()
    with pytest.raises(SnapshotFailed, match="empty is no data directory"):
        asyncio.run(make_snapshot(tmp_path / "empty", 31))


def test_reader_holds_nothing(tmp_path: Path, directory: RealDirectory, store: Store) -> None:
    reader = RealDirectory(tmp_path, is_reader=True)
    names = reader.list()
    assert make_from(reader, 30) == snapshot_file.make(None, ENTRIES, 30)
    assert reader.list() == names
    directory.close()
    RealDirectory(tmp_path).close()
    reader.close()


def test_cancelled_it_ends_the_process(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[asyncio.subprocess.Process] = []
    create = asyncio.create_subprocess_exec

    async def recorded(*arguments: str, **options: object) -> asyncio.subprocess.Process:
        started.append(await create(*arguments, **options))  # type: ignore[arg-type]
        return started[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", recorded)

    async def cancel() -> None:
        making = asyncio.create_task(make_snapshot(tmp_path, 20))
        while not started:
            await asyncio.sleep(0.01)
        making.cancel()
        with pytest.raises(asyncio.CancelledError):
            await making

    asyncio.run(asyncio.wait_for(cancel(), 60))
    (child,) = started
    assert child.returncode is not None
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)


def test_secrets_of_the_server_are_not_handed_on(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, str] = {}
    create = asyncio.create_subprocess_exec

    async def recorded(*arguments: str, **options: object) -> asyncio.subprocess.Process:
        given.update(options["env"])  # type: ignore[call-overload]
        return await create(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", recorded)
    monkeypatch.setenv("TICKETING_CLUSTER_SECRET", "not for others")
    asyncio.run(make_snapshot(tmp_path, 20))
    assert "PATH" in given
    assert not [name for name in given if name.startswith("TICKETING_")]
