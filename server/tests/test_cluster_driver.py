"""What the driver does when something goes wrong: it ends the process rather than go on."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import ticketing.sync
from plain_client import PlainClient
from ticketing_server import cluster_driver
from ticketing_server import constants_gen as c
from ticketing_server.cluster import snapshot_file
from ticketing_server.cluster.replica import Replica
from ticketing_server.cluster_driver import is_of_node
from ticketing_server.raft.configuration import Configuration
from ticketing_server.raft.messages import HardState, Snapshot
from ticketing_server.raft.saves import Save
from ticketing_server.serve import Service
from ticketing_server.storage.directory import Refused
from ticketing_server.storage.real_directory import RealDirectory
from ticketing_server.storage.snapshotting import SnapshotFailed
from ticketing_server.storage.store import Store
from ticketing_server.testing import ServerThread, _free_ports

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


def test_a_snapshot_has_all_that_was_applied_when_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = cluster_driver.make_snapshot
    begun, goes_on = threading.Event(), threading.Event()

    async def slow(path: Path, index: int) -> tuple[bytes, bytes]:
        begun.set()
        while not goes_on.is_set():
            await asyncio.sleep(0.01)
        return await made(path, index)

    monkeypatch.setattr(cluster_driver, "make_snapshot", slow)
    with ServerThread(data_dir=str(tmp_path)) as server, PlainClient(server.address) as client:
        client.hold(b"key")
        driver = server.call(lambda service: service.driver)
        assert driver is not None
        assert server._loop is not None
        first = asyncio.run_coroutine_threadsafe(driver.snapshot_now(), server._loop)
        assert begun.wait(WAIT_S)
        client.hold(b"other")
        second = asyncio.run_coroutine_threadsafe(driver.snapshot_now(), server._loop)
        server.call(lambda service: None)
        goes_on.set()
        indexes = [snapshot_file.decode(f.result(WAIT_S))[0].index for f in (first, second)]
        assert indexes[0] < indexes[1]


def test_a_durable_server_without_room_is_not_ready(tmp_path: Path) -> None:
    def readiness() -> bytes:
        try:
            with urlopen(f"{server.http_url}/readyz", timeout=WAIT_S) as answer:
                return bytes(answer.read())
        except HTTPError as error:
            return error.read()

    def full(is_full: bool) -> None:
        server.call(lambda service: service.driver._on_full(is_full))  # type: ignore

    with ServerThread(data_dir=str(tmp_path)) as server:
        eventually(lambda: readiness() == b"ready\n", "ready")
        full(True)
        eventually(lambda: readiness() == b"the disk is full\n", "not ready")
        full(False)
        eventually(lambda: readiness() == b"ready\n", "ready again")


def threads(folder: Path) -> list[ServerThread]:
    """Three nodes in threads, so that what they stand on can be replaced."""
    ports = _free_ports(6)
    nodes = ",".join(
        f"127.0.0.1:{p}/127.0.0.1:{c}" for p, c in zip(ports[:3], ports[3:], strict=True)
    )
    return [
        ServerThread(
            cluster=nodes, slot=str(slot), data_dir=str(folder / str(slot)),
            listen=f"127.0.0.1:{ports[3 + slot]}",
        )
        for slot in range(3)
    ]  # fmt: skip


def leads(server: ServerThread) -> bool:
    return server.call(lambda service: service.driver.node.cluster_status().role) == "leader"  # type: ignore


def test_a_leader_whose_disk_hangs_gives_up_the_lead(tmp_path: Path) -> None:
    with ExitStack() as stack:
        nodes = [stack.enter_context(node) for node in threads(tmp_path)]
        eventually(lambda: any(map(leads, nodes)), "a node leads")
        leader = next(node for node in nodes if leads(node))
        goes_on = threading.Event()
        stack.callback(goes_on.set)
        store = leader.call(lambda service: service.driver._store)  # type: ignore
        write = store.write

        def hang(saves: Sequence[Save], install: bytes | None = None) -> None:
            goes_on.wait(WAIT_S)
            write(saves, install)

        store.write = hang
        with PlainClient(leader.address) as client:
            client.acquire(b"key")
            others = [node for node in nodes if node is not leader]
            eventually(lambda: any(map(leads, others)), "another one leads")
            # Two disks of three are a majority; then it says where to go.
            assert [client.read_frame()[0] for _ in range(2)] == [c.REPLY_GRANTED, c.REPLY_LEADER]
        heir = next(node for node in others if leads(node))
        url = ",".join("{}:{}".format(*node.address) for node in nodes)
        with ticketing.sync.connect(f"ticketing://{url}") as following:
            following.acquire("other").release()
        goes_on.set()
        eventually(
            lambda: (
                leader.call(lambda s: s.driver.node.cluster_status().applied)  # type: ignore
                == heir.call(lambda s: s.driver.node.cluster_status().applied)
            ),  # type: ignore
            "it follows again",
        )


def restore(path: Path, slot: int) -> None:
    """Make the directory of a node that is alone in a cluster of three slots."""
    directory = RealDirectory(path)
    store, _, _, identity = Store.open(directory, iter(range(slot + 1, 1_000)))
    configuration = Configuration(bytes([slot]) * 16, ((slot, identity.node_id),), 3)
    snapshot = Snapshot(1, 1, 0, configuration)
    replica = Replica()
    replica.index = 1
    file = snapshot_file.encode(snapshot, replica.dump())
    store.write([Save(1, HardState(1), snapshot, ())], install=file)
    directory.close()


def test_a_restored_server_says_for_how_long_it_grants_nothing(tmp_path: Path) -> None:
    directory = RealDirectory(tmp_path)
    store, _, _, identity = Store.open(directory, iter(range(1, 1_000)))
    snapshot = Snapshot(1, 1, 0, Configuration(bytes(16), ((0, identity.node_id),), 1))
    replica = Replica()
    replica.index = 1
    replica.table.hold_grants_until(3_600_000_000_000)
    file = snapshot_file.encode(snapshot, replica.dump())
    store.write([Save(1, HardState(1), snapshot, ())], install=file)
    directory.close()
    with ServerThread(data_dir=str(tmp_path)) as server:
        eventually(lambda: "nothing is granted for 3600 s" in str(server.log_lines), "it says so")
        with urlopen(f"{server.http_url}/status", timeout=WAIT_S) as answer:
            assert 3_500 < json.load(answer)["node"]["grants_held_s"] <= 3_600


def test_two_nodes_restored_apart_do_not_both_serve(tmp_path: Path) -> None:
    for slot in (1, 2):
        restore(tmp_path / str(slot), slot)
    nodes = threads(tmp_path)[1:]
    with ExitStack() as stack:
        for node in nodes:
            stack.enter_context(node)
        eventually(
            lambda: all(n._service is not None and n._service.exit_code == 4 for n in nodes),
            "both have ended",
        )
    for node in nodes:
        assert "both would grant the same locks" in str(node.log_lines)


def test_a_snapshot_that_can_not_be_read_is_refused(tmp_path: Path) -> None:
    directory = RealDirectory(tmp_path)
    store, _, _, identity = Store.open(directory, iter(range(1, 1_000)))
    snapshot = Snapshot(9, 1, 0, Configuration(bytes(16), ((0, identity.node_id),), 1))
    file = snapshot_file.encode(snapshot, Replica().dump())
    store.write([Save(1, HardState(1), snapshot, ())], install=file)
    directory.close()
    with pytest.raises(Refused, match="the snapshot says entry 9, its table 0"):
        ServerThread(data_dir=str(tmp_path)).start()


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
