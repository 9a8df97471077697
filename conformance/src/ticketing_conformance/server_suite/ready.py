"""The ready file of the reference server: `name=value` lines, one for each bound address."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ticketing_conformance.server_suite.raw import Target


@dataclass(frozen=True)
class Addresses:
    """Where a server that was just started listens."""

    tcp: Target
    v3: Target | None
    unix: Target | None


def read_ready_file(path: Path) -> Addresses:
    """The addresses in a ready file; the first TCP and the first Unix one of each listener."""
    lines = [line.partition("=") for line in path.read_text().splitlines()]
    targets = [parse_target(value) for name, _, value in lines if name == "listen"]
    v3 = [parse_target(value) for name, _, value in lines if name == "listen-v3"]
    return Addresses(
        tcp=next(target for target in targets if target.port),
        v3=next(iter(v3), None),
        unix=next((target for target in targets if target.path), None),
    )


def parse_target(text: str) -> Target:
    """`host:port`, `[v6]:port` or `unix:/path`; ValueError for anything else."""
    if text.startswith("unix:"):
        return Target(path=text.removeprefix("unix:"))
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal():
        raise ValueError(f"an address is host:port, [v6]:port or unix:/path, not {text!r}")
    return Target(host=host.strip("[]"), port=int(port))
