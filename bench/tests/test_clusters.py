"""Clusters under measurement: who leads is asked for, and etcd's are started, loaded and killed."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from measure import clusters, load, machine
from measure.greeting import leader_named_by
from measure.servers import BenchError, free_port
from scripted_server import ScriptedServer, honest

SECRET = b"one"


@pytest.mark.parametrize(
    ("role", "told", "leader"),
    [(1, "here:1", "here:1"), (2, "there:2", "there:2"), (3, "", "")],
)
def test_each_node_is_asked_who_leads(role: int, told: str, leader: str) -> None:
    with ScriptedServer(honest, secret=SECRET, welcomes=[(role, told)]) as node:
        assert leader_named_by("127.0.0.1", node.port, SECRET) == leader


def test_a_node_that_is_down_or_refuses_names_nobody() -> None:
    assert leader_named_by("127.0.0.1", free_port(), SECRET) == ""
    with ScriptedServer(honest, secret=b"another", welcomes=[(1, "here:1")]) as node:
        assert leader_named_by("127.0.0.1", node.port, SECRET) == ""


def test_memory_is_no_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine.filesystem(tmp_path)
    monkeypatch.setattr(machine, "filesystem", lambda folder: "tmpfs")
    with pytest.raises(BenchError, match="name another --disk"):
        machine.check_disk(tmp_path)


def test_a_missing_etcd_is_said_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert clusters.etcd_version() == ""
    with pytest.raises(BenchError, match="apt-get install etcd-server"), clusters.etcd(tmp_path):
        pass


def test_a_cluster_is_loaded_through_its_leader(tmp_path: Path) -> None:
    load.build()
    with clusters.ticketing(sys.executable, tmp_path) as cluster:
        figures = load.cluster_pairs(cluster, in_flight=4, seconds=0.5)
    assert figures["leader"] == cluster.addresses[cluster.leader]
    assert figures["requests"] > 0
    assert figures["verified"]["granted"] == figures["verified"]["released"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(shutil.which("go") is None, reason="no Go: https://go.dev/dl")
def test_the_waiter_of_a_killed_leader_has_its_lock(tmp_path: Path) -> None:
    load.build_cluster_program()
    with clusters.ticketing(sys.executable, tmp_path) as cluster:
        figures = load.failover(cluster)
    assert (figures["waiter_errors"], figures["holder_errors"]) == (0, 0)
    assert figures["load_pairs_per_s"] > 0
    assert figures["seconds"] > 0.1


@pytest.mark.skipif(not clusters.zookeeper_version(), reason="apt install zookeeper")
@pytest.mark.skipif(shutil.which("go") is None, reason="no Go: https://go.dev/dl")
def test_zookeeper_is_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(load.PEER_WARMUP, "zookeeper", "100ms")
    load.build_cluster_program()
    with clusters.zookeeper(tmp_path) as cluster:
        pairs = load.peer_pairs(cluster, in_flight=2, seconds=0.5)
    assert pairs["protocol"] == "zookeeper"
    assert pairs["requests"] > 0
    assert pairs["server_cpu_us_per_request"] > 0


@pytest.mark.skipif(shutil.which("etcd") is None, reason="no etcd: apt install etcd-server")
@pytest.mark.skipif(shutil.which("go") is None, reason="no Go: https://go.dev/dl")
def test_etcd_is_loaded_and_its_leader_killed(tmp_path: Path) -> None:
    load.build_cluster_program()
    with clusters.etcd(tmp_path) as cluster:
        pairs = load.peer_pairs(cluster, in_flight=2, seconds=0.5)
        failover = load.failover(cluster)
    assert pairs["requests"] > 0
    assert pairs["server_cpu_us_per_request"] > 0
    assert pairs["verified_pairs"] > 0
    assert failover["load_pairs_per_s"] > 0
    assert failover["seconds"] > 0.1
    assert list(tmp_path.iterdir()) == []
