"""Starts and ends clusters of three nodes on loopback, with their data on one disk."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL

from measure import greeting, servers
from measure.servers import BenchError

NODES = 3
LEADER_SECONDS = 60.0
SECRET = "the bench's own secret, of no other use"
SECRETS = {"TICKETING_SECRET": SECRET, "TICKETING_CLUSTER_SECRET": SECRET}
ETCD_MISSING = (
    "ETCD IS MISSING: no cluster is compared with it, and no gate of a cluster is decided.\n"
    "Install it and run again:  apt-get install etcd-server"
)
ZOOKEEPER_JAR = Path("/usr/share/java/zookeeper.jar")
ZOOKEEPER_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
ZOOKEEPER_MISSING = (
    "ZOOKEEPER IS MISSING: no cluster is compared with it.\n"
    "Install it and run again:  apt-get install zookeeper"
)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Three nodes with a leader, by slot."""

    protocol: str
    addresses: tuple[str, ...]
    """Where clients connect."""
    pids: tuple[int, ...]
    leader: int
    """The slot of the node that led when all were up."""


def etcd_version() -> str:
    """etcd's version, or "" where it is not installed."""
    program = shutil.which("etcd")
    if program is None:
        return ""
    done = subprocess.run(
        [program, "--version"], capture_output=True, text=True, timeout=30, check=True
    )
    return done.stdout.partition("\n")[0].rpartition(" ")[2]


@contextmanager
def etcd(disk: Path) -> Iterator[Cluster]:
    """etcd as it comes, each node with its data directory; it syncs before it answers."""
    program = shutil.which("etcd")
    if program is None:
        raise BenchError(ETCD_MISSING)
    peers = [f"http://127.0.0.1:{servers.free_port()}" for _ in range(NODES)]
    addresses = [f"127.0.0.1:{servers.free_port()}" for _ in range(NODES)]
    members = ",".join(f"node{slot}={peer}" for slot, peer in enumerate(peers))

    def command(slot: int, folder: Path) -> list[str]:
        client = f"http://{addresses[slot]}"
        return [
            *(program, "--name", f"node{slot}", "--data-dir", str(folder / "data")),
            *("--listen-peer-urls", peers[slot], "--initial-advertise-peer-urls", peers[slot]),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--initial-cluster", members, "--initial-cluster-state", "new"),
        ]

    with _cluster("etcd", disk, addresses, command, _etcd_leader) as cluster:
        yield cluster


def zookeeper_version() -> str:
    """ZooKeeper's version, or "" where Debian's package of it, or Java, is not installed."""
    if shutil.which("java") is None or not ZOOKEEPER_JAR.exists():
        return ""
    named = [path.stem for path in ZOOKEEPER_JAR.parent.glob("zookeeper-[0-9]*.jar")]
    return named[0].rpartition("-")[2] if named else "of an unknown version"


@contextmanager
def zookeeper(disk: Path) -> Iterator[Cluster]:
    """ZooKeeper as it comes; it syncs before it answers."""
    if not zookeeper_version():
        raise BenchError(ZOOKEEPER_MISSING)
    ports = [[servers.free_port() for _ in range(3)] for _ in range(NODES)]
    addresses = [f"127.0.0.1:{client}" for client, _, _ in ports]
    members = [f"server.{slot}=127.0.0.1:{a}:{b}" for slot, (_, a, b) in enumerate(ports)]

    def command(slot: int, folder: Path) -> list[str]:
        (folder / "data").mkdir()
        (folder / "data" / "myid").write_text(f"{slot}\n", encoding="ascii")
        lines = [
            *("tickTime=2000", "initLimit=10", "syncLimit=5"),
            *(f"dataDir={folder / 'data'}", "maxClientCnxns=0", "admin.enableServer=false"),
            *("clientPortAddress=127.0.0.1", f"clientPort={ports[slot][0]}"),
        ]
        settings = folder / "zoo.cfg"
        settings.write_text("\n".join([*lines, *members]) + "\n", encoding="ascii")
        return ["java", "-cp", str(ZOOKEEPER_JAR), ZOOKEEPER_CLASS, str(settings)]

    with _cluster("zookeeper", disk, addresses, command, _zookeeper_leader) as cluster:
        yield cluster


@contextmanager
def ticketing(python: str, disk: Path) -> Iterator[Cluster]:
    """The server from this tree's package, as `python` has it installed."""
    addresses = [f"127.0.0.1:{servers.free_port()}" for _ in range(NODES)]
    peers = [f"127.0.0.1:{servers.free_port()}" for _ in range(NODES)]
    nodes = ",".join(f"{peer}/{address}" for peer, address in zip(peers, addresses, strict=True))

    def command(slot: int, folder: Path) -> list[str]:
        return [
            *(python, "-m", "ticketing_server", "--loop", "uvloop", "--http-listen", "127.0.0.1:0"),
            *("--data-dir", str(folder / "data"), "--slot", str(slot), "--cluster", nodes),
        ]

    with _cluster("ticketing", disk, addresses, command, _ticketing_leader) as cluster:
        yield cluster


@contextmanager
def _cluster(
    protocol: str,
    disk: Path,
    addresses: list[str],
    command: Callable[[int, Path], list[str]],
    leader_named_by: Callable[[str, list[str]], int | None],
) -> Iterator[Cluster]:
    environment = servers.environment() | SECRETS
    with ExitStack() as stack:
        folder = stack.enter_context(servers.folder_on(disk))
        processes, logs = [], []
        for slot in range(NODES):
            place = folder / f"node{slot}"
            place.mkdir()
            logs.append(place / "log")
            node = servers.process(
                command(slot, place), logs[slot], environment, cpus=None, ended_by=SIGKILL
            )
            processes.append(stack.enter_context(node))
        leader = _wait_for_leader(processes, logs, addresses, leader_named_by)
        pids = tuple(process.pid for process in processes)
        yield Cluster(protocol, tuple(addresses), pids, leader)


def _wait_for_leader(
    processes: list[subprocess.Popen[bytes]],
    logs: list[Path],
    addresses: list[str],
    leader_named_by: Callable[[str, list[str]], int | None],
) -> int:
    """The slot of the leader, once every node names the same one."""
    deadline = time.monotonic() + LEADER_SECONDS
    while time.monotonic() < deadline:
        named = {leader_named_by(address, addresses) for address in addresses}
        leader = named.pop()
        if leader is not None and not named:
            return leader
        for process, log in zip(processes, logs, strict=True):
            if process.poll() is not None:
                raise BenchError(f"a node ended by itself; it said:\n{servers.said(log)}")
        time.sleep(0.1)
    told = "\n".join(servers.said(log) for log in logs)
    raise BenchError(f"no leader of all nodes within {LEADER_SECONDS:.0f} s; they said:\n{told}")


def _zookeeper_leader(address: str, addresses: list[str]) -> int | None:
    """A node tells what it is itself alone, so all are asked."""
    leaders = [each for each in addresses if "Mode: leader" in _zookeeper_status(each)]
    serves = "Mode: " in _zookeeper_status(address)
    return addresses.index(leaders[0]) if serves and len(leaders) == 1 else None


def _zookeeper_status(address: str) -> str:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=2.0) as connection:
            connection.sendall(b"srvr")
            with connection.makefile(encoding="ascii", errors="replace") as stream:
                return stream.read()
    except OSError:
        return ""


def _ticketing_leader(address: str, addresses: list[str]) -> int | None:
    host, _, port = address.rpartition(":")
    named = greeting.leader_named_by(host, int(port), SECRET.encode())
    return addresses.index(named) if named in addresses else None


def _etcd_leader(address: str, addresses: list[str]) -> int | None:
    """Members are asked for, as status names the leader by its id alone."""
    try:
        leader = _etcd_call(address, "maintenance/status").get("leader")
        members = _etcd_call(address, "cluster/member/list")["members"]
    except (OSError, ValueError, KeyError):
        return None
    assert isinstance(members, list)
    urls = {member["ID"]: member.get("clientURLs", [""])[0] for member in members}
    named = urls.get(leader, "").removeprefix("http://")
    return addresses.index(named) if named in addresses else None


def _etcd_call(address: str, name: str) -> dict[str, object]:
    request = urllib.request.Request(f"http://{address}/v3/{name}", data=b"{}", method="POST")
    with urllib.request.urlopen(request, timeout=2.0) as reply:
        answer: dict[str, object] = json.load(reply)
    return answer
