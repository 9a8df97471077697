"""What the driver does when something goes wrong: it ends the process rather than go on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from plain_client import PlainClient
from ticketing_server import cluster_driver
from ticketing_server.cluster_driver import is_of_node
from ticketing_server.serve import Service
from ticketing_server.storage.snapshotting import SnapshotFailed
from ticketing_server.testing import ServerThread

WAIT_S = 30.0


def eventually(holds: Callable[[], object], what: str) -> None:
    """Wait until something is true, for as long as a loaded machine may need."""
    give_up_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < give_up_s, what
        time.sleep(0.01)


def break_turns(service: Service) -> None:
    """Let the node fail in the middle of each turn from now on."""
    assert service.driver is not None
    raft = service.driver.node.raft
    raft.take = lambda now_ns: raft.log.slice("nothing")  # type: ignore


def test_a_node_that_fails_says_nothing_more_and_ends(tmp_path: Path) -> None:
    server = ServerThread(data_dir=str(tmp_path))
    server.start()
    with PlainClient(server.address) as client:
        client.hold(b"key")
        server.call(break_turns)
        client.acquire(b"other")
        assert client.read_frame() == (0, b"")
    assert server._service is not None
    assert server._service.exit_code == 1
    server.stop()
    assert any("this is a bug" in line for line in server.log_lines)
    with ServerThread(data_dir=str(tmp_path)) as again, PlainClient(again.address) as client:
        client.hold(b"other")


def test_what_fails_beside_the_node_does_not_end_it(tmp_path: Path) -> None:
    with ServerThread(data_dir=str(tmp_path)) as server, PlainClient(server.address) as client:
        error = ZeroDivisionError("elsewhere")
        loop = server.call(lambda service: service.server.loop)
        server.call(lambda service: service.log_bug(loop, {"exception": error}))
        client.hold(b"key")
        assert not is_of_node(error)


def test_a_snapshot_that_fails_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = cluster_driver.make_snapshot

    async def fails(path: Path, index: int) -> tuple[bytes, bytes]:
        raise SnapshotFailed("no memory")

    with ServerThread(data_dir=str(tmp_path)) as server, PlainClient(server.address) as client:
        client.hold(b"key")
        driver = server.call(lambda service: service.driver)
        assert driver is not None
        assert server._loop is not None

        def snapshot() -> bytes:
            assert driver is not None
            assert server._loop is not None
            waiting = asyncio.run_coroutine_threadsafe(driver.snapshot_now(), server._loop)
            return waiting.result(WAIT_S)

        monkeypatch.setattr(cluster_driver, "make_snapshot", fails)
        with pytest.raises(RuntimeError, match="no memory"):
            snapshot()
        monkeypatch.setattr(cluster_driver, "make_snapshot", made)
        file = snapshot()
        assert file
        eventually(lambda: any(tmp_path.glob("snapshot-*")), "the snapshot is kept")
        # Nothing came since: it is the same one.
        assert snapshot() == file


def test_a_disk_that_hangs_does_not_keep_a_stopping_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_driver, "CLOSE_S", 0.2)
    server = ServerThread(data_dir=str(tmp_path))
    server.start()

    def hang(service: Service) -> None:
        assert service.driver is not None
        service.driver._store.write = lambda saves, install: time.sleep(2)  # type: ignore

    with PlainClient(server.address) as client:
        client.hold(b"key")
        server.call(hang)
        client.acquire(b"other")
    begun = time.monotonic()
    server.call(lambda service: service.stop_asked.set())
    server.stop()
    assert time.monotonic() - begun < WAIT_S
