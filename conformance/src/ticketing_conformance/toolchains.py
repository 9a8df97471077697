"""`nox -s toolchains`: install, on Debian and Ubuntu, what tests and harness use and is missing.

Each tool is probed first, so a second run installs nothing. What comes from a language's own
registry needs that language; a language itself comes from the distribution only where the
distribution's version is new enough for the client.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ticketing_conformance.adapters import ROOT_DIR


@dataclass(frozen=True)
class Tool:
    """Something that is installed where its probe finds nothing."""

    name: str
    what_for: str
    probe: str
    """A program on the PATH, or a path under the root of the clone."""
    packages: tuple[str, ...] = ()
    """Debian packages that bring it."""
    command: tuple[str, ...] = ()
    """Else: the command that brings it, run at the root of the clone."""
    needs: str = ""
    """The program that the command starts with, where that may be missing too."""

    def is_there(self) -> bool:
        """Whether nothing has to be done."""
        return shutil.which(self.probe) is not None or (ROOT_DIR / self.probe).exists()


TOOLS = (
    Tool("C compiler", "load generator, C constants", "gcc", ("gcc", "libc6-dev")),
    Tool("make", "load generator", "make", ("make",)),
    Tool("clang", "C# and C formatting, C sanitizers", "clang", ("clang", "clang-format")),
    Tool("Redis", "the peer that the bench measures", "redis-server", ("redis-server",)),
    Tool("etcd", "the bench's peer for clusters", "etcd", ("etcd-server", "etcd-client")),
    Tool("ZooKeeper", "another one", "/usr/share/java/zookeeper.jar", ("zookeeper",)),
    Tool("iproute2", "networks of nodes that are cut", "ip", ("iproute2",)),
    Tool("nftables", "networks of nodes that are cut", "nft", ("nftables",)),
    Tool("tshark", "the Wireshark dissector", "tshark", ("tshark",)),
    Tool("Chromium", "the dashboard in a browser", "chromium", ("chromium",)),
    Tool("Ruby", "Ruby constants", "ruby", ("ruby",)),
    Tool("Java", "Java constants", "javac", ("openjdk-17-jdk-headless",)),
    Tool(
        "TypeScript and Kaitai",
        "JavaScript constants, the Kaitai decoder",
        "spec/tools/node_modules/.bin/tsc",
        command=("npm", "install", "--no-package-lock", "--prefix", "spec/tools"),
        needs="npm",
    ),
)


def missing(tools: Sequence[Tool] = TOOLS) -> list[Tool]:
    """The tools whose probe finds nothing."""
    return [tool for tool in tools if not tool.is_there()]


def packages_of(tools: Sequence[Tool]) -> list[str]:
    """The Debian packages that bring these tools."""
    return [package for tool in tools for package in tool.packages]


def install_packages(packages: Sequence[str]) -> bool:
    """Install Debian packages; whether that worked. Says what to do where it can't."""
    if not packages:
        return True
    command = ["apt-get", "install", "-y", "-q", *packages]
    if shutil.which("apt-get") is None:
        print(f"no apt-get here; install what brings {', '.join(packages)}")
        return False
    if os.geteuid() != 0:
        print(f"needs root: sudo {' '.join(command)}")
        return False
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    steps: tuple[list[str], ...] = (["apt-get", "update", "-q"], command)
    return all(subprocess.run(step, env=environment, check=False).returncode == 0 for step in steps)


def run_command(tool: Tool, root: Path = ROOT_DIR) -> bool:
    """Run the command that brings a tool; whether that worked."""
    if shutil.which(tool.needs) is None:
        print(f"{tool.name} comes through {tool.needs}, which is missing: install that first")
        return False
    return subprocess.run(tool.command, cwd=root, check=False).returncode == 0


def main() -> int:
    """Install what is missing; 1 if something still is."""
    before = missing()
    for tool in before:
        print(f"missing: {tool.name} ({tool.what_for})")
    install_packages(packages_of(before))
    for tool in before:
        if tool.command:
            run_command(tool)
    still = missing()
    print(
        f"{len(TOOLS) - len(still)} of {len(TOOLS)} tools are there"
        + (f"; still missing: {', '.join(tool.name for tool in still)}" if still else "")
    )
    return 1 if still else 0


if __name__ == "__main__":
    sys.exit(main())
