"""A cluster of real processes on this machine, node by node at hand for whoever hurts it."""

from __future__ import annotations

import json
import random
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from ticketing_conformance.cluster.disk import SmallDisk
from ticketing_conformance.cluster.history import Mark
from ticketing_conformance.cluster.network import Network
from ticketing_conformance.real_server import RealServer, ServerBroken, total

POLL_SECONDS = 0.02
LEADER_SECONDS = 20.0
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
PORT_MIN = 12_000
CLUSTER_SECRET = "cluster-secret-of-the-harness"
# Inside a namespace of their own all ports are free.
PEER_PORT, CLIENT_PORT, V3_PORT, HTTP_PORT = 7000, 5225, 5226, 5228


@dataclass(frozen=True)
class View:
    """What a node says of itself."""

    is_leader: bool
    has_leader: bool
    term: int
    applied: int
    commit: int
    voters: int
    is_voter: bool


@dataclass(frozen=True)
class Plan:
    """How a cluster is set up."""

    slots: int = 3
    flags: tuple[str, ...] = ()
    """For every node."""
    flags_of: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """More of them, by slot."""
    environment: Mapping[str, str] = field(default_factory=dict)
    listen_v3: bool = False
    network: bool = False
    """Each node in a network namespace of its own."""
    disks: Mapping[int, int] = field(default_factory=dict)
    """Sizes in MiB of disks that can be full, by slot."""
    program: tuple[str, ...] = ()
    """Another server than the installed one."""


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on, and that no outgoing connection is given.

    A node that is killed has to find its ports free when it starts again.
    """
    first_given = int(EPHEMERAL.read_text().split()[0]) if EPHEMERAL.exists() else 32768
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(PORT_MIN, first_given)
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found


def now_ns() -> int:
    """The clock that clients of all languages count tickets on."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Cluster:
    """Nodes by slot. Used by one thread; `close` ends them and removes their files."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.slots = range(plan.slots)
        self.marks: list[Mark] = []
        """When nodes were killed or stopped."""
        self._folder = Path(tempfile.mkdtemp(prefix="ticketing-cluster-"))
        self._servers: dict[int, RealServer] = {}
        self._frozen: set[int] = set()
        self.disks: dict[int, SmallDisk] = {}
        self.network: Network | None = None
        try:
            self.network = Network(plan.slots) if plan.network else None
            self._lay_out()
            with ThreadPoolExecutor(plan.slots) as pool:
                list(pool.map(self._start, self.slots))
        except BaseException:
            self.close()
            raise

    def _lay_out(self) -> None:
        """Give each node its addresses and its directory."""
        if self.network is not None:
            hosts = self.network.addresses
            self._peers = [f"{host}:{PEER_PORT}" for host in hosts]
            self.clients = [f"{host}:{CLIENT_PORT}" for host in hosts]
            self.v3 = [f"{host}:{V3_PORT}" for host in hosts]
            self._http = [f"{host}:{HTTP_PORT}" for host in hosts]
        else:
            ports = [f"127.0.0.1:{port}" for port in free_ports(4 * self.plan.slots)]
            self._peers, self.clients, self.v3, self._http = (ports[part::4] for part in range(4))
        for slot, mebibytes in self.plan.disks.items():
            self.disks[slot] = SmallDisk(self._folder / f"disk-{slot}", mebibytes)

    def directory(self, slot: int) -> Path:
        """A node's data directory."""
        disk = self.disks.get(slot)
        return (disk.path if disk else self._folder) / f"data-{slot}"

    def _flags(self, slot: int, own: tuple[str, ...]) -> list[str]:
        members = ",".join(
            f"{peer}/{client}" for peer, client in zip(self._peers, self.clients, strict=True)
        )
        changed = {flag.partition("=")[0] for flag in own}
        common = [flag for flag in self.plan.flags if flag.partition("=")[0] not in changed]
        return [
            f"--data-dir={self.directory(slot)}",
            f"--slot={slot}",
            f"--cluster={members}",
            *([f"--listen-v3={self.v3[slot]}"] if self.plan.listen_v3 else []),
            *common,
            *own,
        ]

    def _start(self, slot: int) -> None:
        flags = self._flags(slot, self.plan.flags_of.get(slot, ()))
        environment = {"TICKETING_CLUSTER_SECRET": CLUSTER_SECRET, **self.plan.environment}
        inside = self.network.inside(slot) if self.network else []
        self._servers[slot] = RealServer(
            flags, environment, self.clients[slot], self.plan.program, self._http[slot], inside
        )

    @property
    def url(self) -> str:
        """A client's URL with all nodes, in slot order."""
        tls = any(flag.startswith("--tls-cert=") for flag in self.plan.flags)
        return f"ticketing{'s' if tls else ''}://{','.join(self.clients)}"

    def server(self, slot: int) -> RealServer:
        """A node's process."""
        return self._servers[slot]

    # What is done to nodes.

    def kill(self, slot: int) -> None:
        """End a node as a crash would."""
        self._mark()
        self._servers[slot].kill()
        self._frozen.discard(slot)

    def stop(self, slot: int) -> int:
        """Ask a node to end, and wait; returns its exit code."""
        self._mark()
        return self._servers[slot].stop()

    def again(self, slot: int) -> None:
        """Start a node that ended, with the files it left."""
        self._servers[slot].start()

    def change(self, slot: int, own: tuple[str, ...]) -> None:
        """Give a node other flags of its own, from its next start on."""
        self._servers[slot].flags = self._flags(slot, own)

    def wipe(self, slot: int) -> None:
        """Remove all files of a node that ended."""
        shutil.rmtree(self.directory(slot), ignore_errors=True)

    def freeze(self, slot: int) -> None:
        """Stop a node in its tracks."""
        self._mark()
        self._servers[slot].signal(signal.SIGSTOP)
        self._frozen.add(slot)

    def thaw(self, slot: int) -> None:
        """Let a frozen node go on."""
        self._servers[slot].signal(signal.SIGCONT)
        self._frozen.discard(slot)

    def _mark(self) -> None:
        self.marks.append(Mark(now_ns(), time.time_ns() // 1_000_000))

    # What nodes say.

    def view(self, slot: int) -> View | None:
        """What a node says now; None if it says nothing."""
        if slot in self._frozen or not self._servers[slot].alive:
            return None
        try:
            found = self._servers[slot].metrics()
        except OSError:
            return None
        return View(
            is_leader=total(found, "ticketing_raft_is_leader") == 1,
            has_leader=total(found, "ticketing_raft_has_leader") == 1,
            term=total(found, "ticketing_raft_term"),
            applied=total(found, "ticketing_raft_applied_index"),
            commit=total(found, "ticketing_raft_commit_index"),
            voters=total(found, "ticketing_raft_voters"),
            is_voter=total(found, "ticketing_raft_is_voter") == 1,
        )

    def state(self, slot: int) -> tuple[int, str]:
        """The index of the last entry that a node has applied, and the checksum of its effects."""
        try:
            page = json.loads(self._servers[slot].get("/status"))
        except OSError as error:
            raise ServerBroken(f"slot {slot} tells no status: {error}{self.tail()}") from None
        node = page["node"]
        return int(node["applied"]), str(node["checksum"])

    def views(self) -> dict[int, View]:
        """Of all nodes that say something."""
        found = {slot: self.view(slot) for slot in self.slots}
        return {slot: view for slot, view in found.items() if view is not None}

    def leader(self, seconds: float = LEADER_SECONDS) -> int:
        """The slot of the node that leads, as soon as there is one."""
        found = self.wait(leader_of, seconds, "no node leads")
        assert found is not None
        return found

    def wait_whole(self, seconds: float = LEADER_SECONDS) -> None:
        """Wait until every node is a voter, knows the leader, and has applied what it had."""
        committed = max((view.commit for view in self.views().values()), default=0)

        def is_whole(views: Mapping[int, View]) -> int | None:
            leader = leader_of(views)
            if leader is None or len(views) < self.plan.slots:
                return None
            head = views[leader]
            fits = all(
                view.has_leader
                and view.is_voter
                and view.voters == self.plan.slots
                and view.term == head.term
                and view.applied >= committed
                for view in views.values()
            )
            return leader if fits else None

        self.wait(is_whole, seconds, "not all nodes are voters that have caught up")

    def wait(
        self, ready: Callable[[Mapping[int, View]], int | None], seconds: float, what: str
    ) -> int:
        """Wait until `ready` makes something of the nodes' views. Raises ServerBroken."""
        deadline = time.monotonic() + seconds
        while True:
            views = self.views()
            found = ready(views)
            if found is not None:
                return found
            if time.monotonic() > deadline:
                raise ServerBroken(f"{what} after {seconds:g} s: {views}{self.tail()}")
            time.sleep(POLL_SECONDS)

    def tail(self) -> str:
        """The ends of all logs."""
        logs = [f"\nslot {slot}: {self._servers[slot].log()[-600:]}" for slot in self._servers]
        return "".join(logs)

    def close(self) -> None:
        """Kill all nodes and remove all files."""
        for server in self._servers.values():
            server.close()
        for disk in self.disks.values():
            disk.close()
        if self.network is not None:
            self.network.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def leader_of(views: Mapping[int, View]) -> int | None:
    """The one that leads in the highest term: an older one may not know yet that it does not."""
    leading = [(view.term, slot) for slot, view in views.items() if view.is_leader]
    if not leading:
        return None
    term, slot = max(leading)
    newer = any(view.term > term for view in views.values())
    return None if newer else slot
