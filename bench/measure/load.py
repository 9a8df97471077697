"""Runs the load generator and the program that drives clusters, and reads their JSON."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from measure import servers
from measure.clusters import SECRETS, Cluster
from measure.servers import GENERATOR_CPU, SERVER_CPU, BenchError, Running

BENCH = Path(__file__).resolve().parents[1]
FOLDER = BENCH / "loadgen"
CLUSTER_SOURCES = BENCH / "clients" / "cluster"
CLUSTER_PROGRAM = CLUSTER_SOURCES / "build" / "cluster"
BUILD_SECONDS_MAX = 600
RUN_SECONDS_MAX = 300
CLUSTER_CONNECTIONS = 64
#: A node that is starved of CPU may lose the lead; such a run is said and made again.
TRIES = 3
#: The JVM compiles for long; what it compiles it does faster.
PEER_WARMUP = {"etcd": "1s", "zookeeper": "15s"}
#: A follower of etcd loses what it forwards to a leader that is dead, and says so after 7 s; a
#: caller that wants its lock gone sooner asks again.
ETCD_UNLOCK_TIMEOUT = "250ms"
GO_MISSING = (
    "GO IS MISSING: what drives a cluster's peers is in Go, so no cluster is measured.\n"
    "Install it and run again:  https://go.dev/dl"
)


def build() -> None:
    """Compile the generator if its sources are newer than it."""
    try:
        done = subprocess.run(
            ["make", "--silent", "-C", str(FOLDER)], capture_output=True, text=True, check=False
        )
    except FileNotFoundError as error:
        raise BenchError(
            "the load generator is in C and there is no make: apt-get install gcc make"
        ) from error
    if done.returncode != 0:
        raise BenchError(f"the load generator does not compile:\n{done.stdout}{done.stderr}")


def go_version() -> str:
    """Go's version, or "" where it is not installed."""
    if shutil.which("go") is None:
        return ""
    done = subprocess.run(
        ["go", "env", "GOVERSION"], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


def build_cluster_program() -> None:
    """Compile what drives etcd and kills leaders; Go knows itself what is up to date."""
    command = ["go", "build", "-C", str(CLUSTER_SOURCES), "-o", str(CLUSTER_PROGRAM), "."]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=BUILD_SECONDS_MAX, check=False
    )
    if done.returncode != 0:
        raise BenchError(f"{CLUSTER_SOURCES} does not compile:\n{done.stderr}")


def ceiling(seconds: float) -> float:
    """Requests/s of the generator against a server that does nothing but answer."""
    mirror = subprocess.Popen([FOLDER / "mirror"], stdout=subprocess.PIPE, text=True)
    try:
        os.sched_setaffinity(mirror.pid, {SERVER_CPU})
        assert mirror.stdout is not None
        port = int(mirror.stdout.readline())
        figures = run(Running("ticketing", port, mirror.pid), seconds=seconds)
        return float(figures["requests_per_s"])
    finally:
        mirror.kill()
        mirror.communicate()


def run(server: Running, **options: str | int | float | bool) -> dict[str, Any]:
    """One verified run against `server`; `options` are the generator's, with underscores."""
    command = [str(FOLDER / "loadgen"), "--json", "--protocol", server.protocol]
    command += ["--port", str(server.port), "--server-pid", str(server.pid)]
    command += ["--cpu", str(GENERATOR_CPU)]
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        command += [flag] if value is True else [flag, str(value)]
    figures = _figures_of(command, servers.environment())
    if figures["job"] != "hold":
        _check_requests(figures)
    return figures


def cluster_pairs(cluster: Cluster, *, in_flight: int, seconds: float) -> dict[str, Any]:
    """The generator in C through a cluster's leader, on any core."""
    command = [str(FOLDER / "loadgen"), "--json", "--cluster", ",".join(cluster.addresses)]
    command += ["--server-pid", ",".join(map(str, cluster.pids)), "--warmup", "1"]
    command += ["--connections", str(CLUSTER_CONNECTIONS), "--in-flight", str(in_flight)]
    return _of_cluster([*command, "--seconds", str(seconds)])


def peer_pairs(cluster: Cluster, *, in_flight: int, seconds: float) -> dict[str, Any]:
    """The same on a peer, through its usual client for Go.

    It is connected to the leader alone, so that no request is forwarded; a session, which is a
    lease, is granted once per connection, so that a lock costs what it has to.
    """
    command = [str(CLUSTER_PROGRAM), "pairs", "-peer", cluster.protocol]
    command += ["-endpoints", cluster.addresses[cluster.leader]]
    command += ["-server-pids", ",".join(map(str, cluster.pids))]
    command += ["-warmup", PEER_WARMUP[cluster.protocol]]
    command += ["-connections", str(CLUSTER_CONNECTIONS), "-in-flight", str(in_flight)]
    return _of_cluster([*command, "-time", f"{seconds}s"])


def failover(cluster: Cluster) -> dict[str, Any]:
    """Kills the leader, and measures when the waiter at the head of a queue has its lock."""
    command = [str(CLUSTER_PROGRAM), "failover", "-peer", cluster.protocol]
    command += ["-endpoints", ",".join(cluster.addresses)]
    command += ["-leader-pid", str(cluster.pids[cluster.leader])]
    if cluster.protocol == "etcd":
        command += ["-unlock-timeout", ETCD_UNLOCK_TIMEOUT]
    return _figures_of(command, servers.environment() | SECRETS)


def _of_cluster(command: list[str]) -> dict[str, Any]:
    environment = servers.environment() | SECRETS
    for _ in range(TRIES - 1):
        try:
            return _check_requests(_figures_of(command, environment))
        except BenchError as error:
            print(f"once more, as {error}", file=sys.stderr, flush=True)
    return _check_requests(_figures_of(command, environment))


def _figures_of(command: list[str], environment: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
        env=environment,
    )
    if done.returncode != 0:
        raise BenchError(f"{' '.join(command)}\nended with {done.returncode}: {done.stderr}")
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def _check_requests(figures: dict[str, Any]) -> dict[str, Any]:
    if not figures["requests"]:
        raise BenchError(
            f"not one reply of {figures['protocol']} within the measured time: this machine is"
            " too busy to measure on, or --seconds is too short"
        )
    return figures
