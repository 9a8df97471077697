"""A cluster of server processes on this machine, for tests that kill and stop nodes.

::

    with running_cluster(secret="something long") as cluster:
        connect(cluster.url, secret=cluster.secret)
        cluster.kill(cluster.leader())
"""

from __future__ import annotations

import json
import shutil
import signal
import socket
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ticketing_server.settings_cluster import CLUSTER_SECRET_ENV
from ticketing_server.testing import STOP_TIMEOUT_S, ServerProcess

LEADER_TIMEOUT_S = 30.0
_CLUSTER_SECRET = "cluster-secret-of-a-test-run-only"


class ClusterProcesses:
    """Three or five nodes, each with a folder of its own; slots count from 0."""

    def __init__(self, folder: Path, size: int = 3, secret: str = "", **settings: str) -> None:
        """Choose free ports; `settings` go to every node, as `ServerProcess` takes them."""
        self.secret = secret
        self._folder = folder
        self._settings = settings
        ports = _free_ports(2 * size)
        self.addresses = tuple(f"127.0.0.1:{port}" for port in ports[:size])
        """Where clients connect, by slot."""
        self._cluster = ",".join(
            f"127.0.0.1:{port}/{client}"
            for port, client in zip(ports[size:], self.addresses, strict=True)
        )
        self.nodes = [self._node(slot) for slot in range(size)]

    @property
    def url(self) -> str:
        """What a client's `connect` takes: all nodes."""
        return f"ticketing://{','.join(self.addresses)}"

    def start(self) -> None:
        """Start all nodes, and return when one of them leads."""
        for node in self.nodes:
            node.begin()
        for node in self.nodes:
            node.wait_ready()
        self.leader()

    def status(self, slot: int) -> dict[str, Any] | None:
        """Return a node's /status, None where it doesn't answer."""
        try:
            with urllib.request.urlopen(f"{self.nodes[slot].http_url}/status", timeout=1) as answer:
                found: dict[str, Any] = json.load(answer)
        except (OSError, ValueError, IndexError):
            return None
        return found

    def leader(self, timeout_s: float = LEADER_TIMEOUT_S) -> int:
        """Return the slot that leads, waiting until there is one."""
        give_up_s = time.monotonic() + timeout_s
        while time.monotonic() < give_up_s:
            for slot in range(len(self.nodes)):
                status = self.status(slot)
                if status is not None and status["node"]["leader_slot"] == slot:
                    return slot
            time.sleep(0.02)
        raise TimeoutError(f"no node leads after {timeout_s:.0f} s")

    def kill(self, slot: int) -> None:
        """Send SIGKILL to a node and wait for its end."""
        self.nodes[slot].kill()

    def pause(self, slot: int) -> None:
        """Stop a node where it is (SIGSTOP)."""
        self._signal(slot, signal.SIGSTOP)

    def resume(self, slot: int) -> None:
        """Let a paused node go on (SIGCONT)."""
        self._signal(slot, signal.SIGCONT)

    def stop(self, slot: int) -> None:
        """Send SIGTERM to a node and wait for its end: it hands the lead over, and drains."""
        process = self.nodes[slot].process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(STOP_TIMEOUT_S)

    def restart(self, slot: int) -> None:
        """Start a node that has ended, on its addresses and with what its folder holds."""
        self.nodes[slot].start()

    def wipe(self, slot: int) -> None:
        """Remove all that a node which has ended has kept."""
        shutil.rmtree(self._folder / str(slot), ignore_errors=True)

    def close(self) -> None:
        """End every node."""
        for node in self.nodes:
            if node.process is not None and node.process.poll() is None:
                node.process.send_signal(signal.SIGCONT)
                node.kill()
            node.stop()

    def _node(self, slot: int) -> ServerProcess:
        return ServerProcess(
            self.secret,
            env={CLUSTER_SECRET_ENV: _CLUSTER_SECRET},
            **{
                "listen": self.addresses[slot],
                "cluster": self._cluster,
                "slot": str(slot),
                "data_dir": str(self._folder / str(slot)),
                **self._settings,
            },
        )

    def _signal(self, slot: int, number: signal.Signals) -> None:
        process = self.nodes[slot].process
        if process is not None:
            process.send_signal(number)


@contextmanager
def running_cluster(size: int = 3, secret: str = "", **settings: str) -> Iterator[ClusterProcesses]:
    """Run a cluster of processes on free ports, and end it with the block."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ticketing-cluster-"))
        cluster = ClusterProcesses(Path(folder), size, secret, **settings)
        stack.callback(cluster.close)
        cluster.start()
        yield cluster


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now, all different."""
    with ExitStack() as stack:
        socks = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in socks:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in socks]
