"""A network of its own for each node of a cluster, whose links can be cut: for root on Linux.

Every node lives in a network namespace with one address, all on one bridge, where clients are too.
Cuts are packet filter rules (nft) inside the namespaces, so that connections go silent instead of
ending, as they do when a cable is pulled.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterable

TABLE = "ticketing"
_SUBNETS = itertools.count(1)


class NoNetwork(Exception):
    """Namespaces can't be made here; the text says what is missing."""


def missing() -> str:
    """What is missing for networks of their own, or nothing."""
    if os.geteuid() != 0:
        return "network namespaces take root"
    absent = [tool for tool in ("ip", "nft") if shutil.which(tool) is None]
    return f"the programs {' and '.join(absent)} (nox -s toolchains)" if absent else ""


class Network:
    """Namespaces for `count` nodes, on a bridge of this process's own."""

    def __init__(self, count: int) -> None:
        if reason := missing():
            raise NoNetwork(reason)
        # Process id and a counter keep test processes on one machine apart: 10.x.y.0/24.
        number = (os.getpid() * 16 + next(_SUBNETS)) % 0xFFFF
        self._prefix = f"10.{64 + (number >> 8) % 128}.{number & 0xFF}"
        self._name = f"tk{number:x}"
        self.addresses = [f"{self._prefix}.{slot + 1}" for slot in range(count)]
        self.gateway = f"{self._prefix}.254"
        try:
            self._make(count)
        except (OSError, subprocess.CalledProcessError) as error:
            self.close()
            said = getattr(error, "stderr", b"") or b""
            raise NoNetwork(f"{error} {said.decode('utf-8', 'replace')}".strip()) from None

    def _make(self, count: int) -> None:
        bridge = self._name
        _run("ip", "link", "add", bridge, "type", "bridge")
        _run("ip", "addr", "add", f"{self.gateway}/24", "dev", bridge)
        _run("ip", "link", "set", bridge, "up")
        for slot in range(count):
            space, veth = self.namespace(slot), f"{self._name}v{slot}"
            _run("ip", "netns", "add", space)
            _run("ip", "link", "add", veth, "type", "veth", "peer", "name", "eth0", "netns", space)
            _run("ip", "link", "set", veth, "master", bridge, "up")
            _run("ip", "-n", space, "addr", "add", f"{self.addresses[slot]}/24", "dev", "eth0")
            _run("ip", "-n", space, "link", "set", "lo", "up")
            _run("ip", "-n", space, "link", "set", "eth0", "up")
            self._nft(slot, f"add table inet {TABLE}")
            for hook in ("input", "output"):
                self._nft(
                    slot,
                    f"add chain inet {TABLE} {hook} {{ type filter hook {hook} priority 0; }}",
                )

    def namespace(self, slot: int) -> str:
        """The name of a node's namespace."""
        return f"{self._name}n{slot}"

    def inside(self, slot: int) -> list[str]:
        """What a command line begins with, to run there."""
        return ["ip", "netns", "exec", self.namespace(slot)]

    def cut(self, slot: int, others: Iterable[int]) -> None:
        """Let nothing pass between a node and the others, both ways."""
        for other in others:
            self._nft(slot, f"add rule inet {TABLE} input ip saddr {self.addresses[other]} drop")
            self._nft(slot, f"add rule inet {TABLE} output ip daddr {self.addresses[other]} drop")

    def cut_one_way(self, slot: int, others: Iterable[int]) -> None:
        """Let nothing pass from a node to the others; what they send still arrives."""
        for other in others:
            self._nft(slot, f"add rule inet {TABLE} output ip daddr {self.addresses[other]} drop")

    def cut_clients(self, slot: int, port: int) -> None:
        """Let nothing pass between a node's port for clients and the clients."""
        clients = self.gateway
        self._nft(slot, f"add rule inet {TABLE} input ip saddr {clients} tcp dport {port} drop")
        self._nft(slot, f"add rule inet {TABLE} output ip daddr {clients} tcp sport {port} drop")

    def heal(self, slot: int) -> None:
        """Let everything pass at a node again."""
        self._nft(slot, f"flush table inet {TABLE}")

    def _nft(self, slot: int, rule: str) -> None:
        _run(*self.inside(slot), "nft", rule)

    def close(self) -> None:
        """Remove namespaces and bridge; what is there no more is no error."""
        for slot in range(len(self.addresses)):
            _run("ip", "netns", "del", self.namespace(slot), check=False)
            _run("ip", "link", "del", f"{self._name}v{slot}", check=False)
        _run("ip", "link", "del", self._name, check=False)


def _run(*command: str, check: bool = True) -> None:
    subprocess.run(command, check=check, capture_output=True, timeout=20)
