"""Durable servers and clusters as real processes: what survives, who leads, how they end."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import ticketing.sync
from plain_client import PlainClient
from ticketing_server import constants_gen as c
from ticketing_server.storage import store
from ticketing_server.testing import (
    ClusterProcesses,
    ServerProcess,
    ServerThread,
    make_certificates,
    running_cluster,
)

SECRET = "0123456789abcdef0123456789abcdef"
WAIT_S = 60.0


def eventually(holds: Callable[[], object], what: str) -> None:
    """Wait until something is true, for as long as a loaded machine may need."""
    give_up_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < give_up_s, what
        time.sleep(0.02)


def metrics(server: ServerProcess) -> dict[str, float]:
    with urlopen(f"{server.http_url}/metrics", timeout=WAIT_S) as answer:
        lines = answer.read().decode().splitlines()
    return {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))
    }


def end_of(server: ServerProcess) -> int:
    assert server.process is not None
    return server.process.wait(WAIT_S)


class TestDurable:
    def test_what_a_client_was_told_survives_kill_9(self, tmp_path: Path) -> None:
        with ServerProcess(SECRET, data_dir=str(tmp_path / "data")) as server:
            port = server.address[1]
            with ticketing.sync.connect(server.url, secret=SECRET) as client:
                held = client.acquire("held", lease=600.0)
                freed = client.acquire("freed")
                freed.release()
                server.kill()
                server._flags["listen"] = f"127.0.0.1:{port}"
                server.start()
                again = client.acquire("freed")
                assert again.token > max(held.token, freed.token)
                with ticketing.sync.connect(server.url, secret=SECRET) as other:
                    assert other.try_acquire("held") is None
                    held.release()
                    taken = other.try_acquire("held")
                    assert taken is not None
                    assert taken.token > again.token
            assert server.values("mode") == ["durable"]

    def test_it_is_standalone_on_the_wire(self, tmp_path: Path) -> None:
        with (
            ServerThread(SECRET, data_dir=str(tmp_path)) as server,
            PlainClient(server.address, SECRET) as client,
        ):
            mode, slot = client.greeting[8], client.greeting[9]
            assert (mode, slot) == (c.MODE_STANDALONE, c.SLOT_STANDALONE)
            assert client.welcome[0] == c.ROLE_STANDALONE
            assert client.welcome[3:35] == bytes(32)
            client.hold(b"key")
            with urlopen(f"{server.http_url}/status", timeout=WAIT_S) as answer:
                status = json.load(answer)
            assert status["mode"] == "durable"
            assert status["node"]["role"] == "leader"

    def test_a_log_that_grows_becomes_a_snapshot(self, tmp_path: Path) -> None:
        with ServerThread(data_dir=str(tmp_path)) as server, PlainClient(server.address) as client:
            client.hold(b"key")
            loop = server._loop
            assert loop is not None
            driver = server.call(lambda service: service.driver)
            assert driver is not None
            file = asyncio.run_coroutine_threadsafe(driver.snapshot_now(), loop).result(WAIT_S)
            assert file
            eventually(lambda: any(tmp_path.glob("snapshot-*")), "the snapshot is kept")
        with (
            ServerThread(data_dir=str(tmp_path)) as server,
            PlainClient(server.address, client_id=2) as client,
        ):
            client.acquire(b"key")
            assert client.read_frame()[0] == c.REPLY_TIMED_OUT

    def test_a_failing_disk_ends_the_process_with_5(self, tmp_path: Path) -> None:
        with ServerProcess(data_dir=str(tmp_path / "data")) as server:
            assert server.process is not None
            with PlainClient(server.address) as client:
                client.hold(b"before")
                # Every write beyond this many bytes of a file fails from now on.
                resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (4_096, 4_096))
                client.acquire(b"after")
                assert client.read_frame() == (0, b"")
            assert end_of(server) == 5
            assert "can't be written" in server.log
            assert "bug" not in server.log


class TestDataDirRefused:
    def refusal(self, *argv: str) -> str:
        done = subprocess.run(
            [*ServerProcess.command(), "--listen", "127.0.0.1:0", "--http-listen", "off", *argv],
            capture_output=True, text=True, timeout=WAIT_S,
        )  # fmt: skip
        assert done.returncode == 4, done
        return done.stderr

    def test_one_that_is_in_use(self, tmp_path: Path) -> None:
        with ServerThread(data_dir=str(tmp_path)):
            assert "is in use by another process" in self.refusal("--data-dir", str(tmp_path))
            assert "is in use" in self.refusal("--data-dir", str(tmp_path), "--check")

    def test_one_of_another_place(self, tmp_path: Path) -> None:
        with ServerThread(data_dir=str(tmp_path)):
            pass
        nodes = ",".join(f"127.0.0.1:{at}/127.0.0.1:{at + 3}" for at in (7_001, 7_002, 7_003))
        text = self.refusal("--data-dir", str(tmp_path), "--cluster", nodes, "--slot", "1")
        assert "is of a durable server alone, and is started as a cluster of 3" in text

    def test_an_address_for_peers_that_is_taken_is_named(self, tmp_path: Path) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            nodes = f"127.0.0.1:{port}/127.0.0.1:1,127.0.0.1:2/127.0.0.1:3,127.0.0.1:4/127.0.0.1:5"
            done = subprocess.run(
                [*ServerProcess.command(), "--listen", "127.0.0.1:0", "--http-listen", "off",
                 "--data-dir", str(tmp_path), "--cluster", nodes, "--slot", "0"],
                capture_output=True, text=True, timeout=WAIT_S,
            )  # fmt: skip
        assert done.returncode == 3
        assert done.stderr.startswith(f"ticketing-server: --peer-listen 127.0.0.1:{port}: ")
        assert "Traceback" not in done.stderr

    def test_one_that_is_damaged(self, tmp_path: Path) -> None:
        with ServerThread(data_dir=str(tmp_path)):
            pass
        path = tmp_path / "identity"
        path.write_bytes(path.read_bytes()[:-1] + b"x")
        assert "Move the directory away" in self.refusal("--data-dir", str(tmp_path))

    def test_check_finds_what_a_start_would_and_touches_nothing(self, tmp_path: Path) -> None:
        def check(path: Path) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [*ServerProcess.command(), "--listen", "127.0.0.1:0", "--http-listen", "off",
                 "--data-dir", str(path), "--check"],
                capture_output=True, text=True, timeout=WAIT_S,
            )  # fmt: skip

        def content(path: Path) -> dict[str, bytes]:
            return {found.name: found.read_bytes() for found in path.iterdir()}

        used, empty = tmp_path / "used", tmp_path / "empty"
        empty.mkdir()
        with ServerThread(data_dir=str(used)) as server, PlainClient(server.address) as client:
            client.hold(b"key")
        before = content(used)
        assert check(used).returncode == check(empty).returncode == 0
        assert content(used) == before
        assert content(empty) == {}
        (used / "wal-000000000001").unlink()
        done = check(used)
        assert done.returncode == 4, done
        assert content(used).keys() == before.keys() - {"wal-000000000001"}

    def test_check_makes_no_directory(self, tmp_path: Path) -> None:
        path = tmp_path / "new"
        done = subprocess.run(
            [*ServerProcess.command(), "--listen", "127.0.0.1:0", "--http-listen", "off",
             "--data-dir", str(path), "--check"],
            capture_output=True, text=True, timeout=WAIT_S,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (0, "ticketing-server would start\n")
        assert not path.exists()


@pytest.fixture
def cluster() -> Iterator[ClusterProcesses]:
    with running_cluster(secret=SECRET) as running:
        yield running


class TestCluster:
    def test_clients_go_on_when_the_leader_is_killed(self, cluster: ClusterProcesses) -> None:
        with ticketing.sync.connect(cluster.url, secret=SECRET) as client:
            held = client.acquire("held", lease=600.0)
            for _ in range(2):
                leader = cluster.leader()
                cluster.kill(leader)
                with client.acquire("key") as ticket:
                    assert ticket.token > held.token
                cluster.restart(leader)
                eventually(lambda slot=leader: self.hears_leader(cluster, slot), "it is back")
            held.release()
            with ticketing.sync.connect(cluster.url, secret=SECRET) as other:
                assert other.try_acquire("held") is not None

    def test_sigterm_moves_the_lead_first(self, cluster: ClusterProcesses) -> None:
        with ticketing.sync.connect(cluster.url, secret=SECRET) as client:
            for _ in range(2):
                leader = cluster.leader()
                cluster.stop(leader)
                assert end_of(cluster.nodes[leader]) == 0
                begun = time.monotonic()
                client.acquire("key").release()
                assert time.monotonic() - begun < 10
                assert cluster.leader() != leader
                cluster.restart(leader)
                eventually(lambda slot=leader: self.hears_leader(cluster, slot), "it is back")

    def test_an_empty_directory_joins_in_place_of_the_one_before(
        self, cluster: ClusterProcesses
    ) -> None:
        with ticketing.sync.connect(cluster.url, secret=SECRET) as client:
            client.acquire("held", lease=600.0)
            slot = (cluster.leader() + 1) % 3
            before = metrics(cluster.nodes[slot])
            assert before["ticketing_raft_is_voter"] == 1
            assert before["ticketing_raft_voters"] == 3
            cluster.kill(slot)
            cluster.wipe(slot)
            cluster.restart(slot)
            node = cluster.nodes[slot]
            eventually(lambda: metrics(node)["ticketing_raft_is_voter"] == 1, "it votes again")
            # With it the other follower isn't needed.
            cluster.kill(next(s for s in range(3) if s not in (slot, cluster.leader())))
            client.acquire("key").release()

    def test_a_leader_that_was_paused_is_no_leader_when_it_goes_on(
        self, cluster: ClusterProcesses
    ) -> None:
        leader = cluster.leader()
        cluster.pause(leader)
        eventually(
            lambda: any(
                metrics(cluster.nodes[slot])["ticketing_raft_is_leader"]
                for slot in range(3)
                if slot != leader
            ),
            "another one leads",
        )
        cluster.resume(leader)
        eventually(lambda: self.hears_leader(cluster, leader), "it follows")
        assert cluster.leader() != leader

    def test_without_a_majority_nobody_is_ready(self, cluster: ClusterProcesses) -> None:
        leader = cluster.leader()
        node = cluster.nodes[leader]
        assert (node.values("slot"), node.values("mode")) == ([str(leader)], ["cluster"])
        with urlopen(f"{node.http_url}/readyz", timeout=WAIT_S) as answer:
            assert answer.status == 200
        for slot in range(3):
            if slot != leader:
                cluster.kill(slot)

        def refused() -> bool:
            try:
                with urlopen(f"{node.http_url}/readyz", timeout=WAIT_S):
                    return False
            except HTTPError as error:
                return error.code == 503 and b"no leader is known" in error.read()

        eventually(refused, "not ready")
        found = metrics(node)
        assert found["ticketing_raft_has_leader"] == 0
        assert found[f'ticketing_raft_peer_up{{peer="{(leader + 1) % 3}"}}'] == 0

    def test_all_killed_at_once_come_back_with_all(self, cluster: ClusterProcesses) -> None:
        with ticketing.sync.connect(cluster.url, secret=SECRET) as client:
            held = client.acquire("held", lease=600.0)
            for slot in range(3):
                cluster.kill(slot)
            for slot in range(3):
                cluster.restart(slot)
            assert client.acquire("key").token > held.token
            with ticketing.sync.connect(cluster.url, secret=SECRET) as other:
                assert other.try_acquire("held") is None

    def test_a_full_disk_gives_up_the_lead_and_loses_nothing(
        self, cluster: ClusterProcesses
    ) -> None:
        leader = cluster.leader()
        process = cluster.nodes[leader].process
        assert process is not None
        with ticketing.sync.connect(cluster.url, secret=SECRET) as client:
            held = client.acquire("held", lease=600.0)
            # What is there may be filled, a next segment of even the smallest size can't be made.
            limit = store.DEFAULT_SIZES.first - 4_096
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            give_up_s = time.monotonic() + WAIT_S
            keys = [f"{'k' * 100}{number}" for number in range(200)]
            while "disk_full" not in cluster.nodes[leader].log:
                assert time.monotonic() < give_up_s, "the disk is full"
                client.acquire_set(keys[:16]).release()
            assert cluster.leader() != leader
            assert client.acquire("key").token > held.token
            resource.prlimit(
                process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
            )
            eventually(lambda: "there is room" in cluster.nodes[leader].log, "room again")
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT_S) == 0

    def test_peers_speak_tls_and_take_only_certificates_of_their_authority(
        self, tmp_path: Path
    ) -> None:
        files = make_certificates(tmp_path)
        tls = {
            "peer_tls_cert": str(files.server_cert),
            "peer_tls_key": str(files.server_key),
            "peer_tls_ca": str(files.ca),
        }
        with running_cluster(secret=SECRET, **tls) as cluster:
            with ticketing.sync.connect(cluster.url, secret=SECRET) as client:
                client.acquire("key").release()
            leader = cluster.leader()
            assert 'use="peer"' in str(metrics(cluster.nodes[leader]))
            # Another authority's certificate: the node is left alone.
            (tmp_path / "other").mkdir()
            other = make_certificates(tmp_path / "other")
            slot = (leader + 1) % 3
            cluster.kill(slot)
            cluster.nodes[slot]._flags |= {
                "peer-tls-cert": str(other.server_cert), "peer-tls-key": str(other.server_key),
            }  # fmt: skip
            cluster.restart(slot)
            time.sleep(2)
            assert not self.hears_leader(cluster, slot)

    def test_the_cluster_secret_rotates_without_a_pause(self, tmp_path: Path) -> None:
        path = tmp_path / "cluster.secret"
        path.write_text("old the-first-cluster-secret\n")
        with running_cluster(secret=SECRET, cluster_secret_file=str(path)) as cluster:
            leader = cluster.leader()
            for lines in (
                "old the-first-cluster-secret\nnew the-second-cluster-secret\n",
                "new the-second-cluster-secret\nold the-first-cluster-secret\n",
                "new the-second-cluster-secret\n",
            ):
                path.write_text(lines)
                for node in cluster.nodes:
                    before = node.log.count("what=peers")
                    assert node.process is not None
                    node.process.send_signal(signal.SIGHUP)
                    eventually(
                        lambda n=node, b=before: n.log.count("what=peers") > b, "it is reloaded"
                    )
            assert cluster.leader() == leader
            slot = (leader + 1) % 3
            cluster.kill(slot)
            cluster.restart(slot)
            eventually(lambda: self.hears_leader(cluster, slot), "the new secret opens")
            cluster.kill(slot)
            path.write_text("old the-first-cluster-secret\n")
            cluster.restart(slot)
            eventually(lambda: "secrets differ" in cluster.nodes[leader].log, "it is refused")
            assert not self.hears_leader(cluster, slot)

    def hears_leader(self, cluster: ClusterProcesses, slot: int) -> bool:
        status = cluster.status(slot)
        return status is not None and status["node"]["leader_slot"] is not None
