"""Servers for the suite: the reference server as a process of its own, or one that runs already."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from ticketing_conformance.real_server import RealServer
from ticketing_conformance.server_suite.raw import LABEL, RawClient, Target

SECRET = b"correct horse battery staple"
PROGRAM = [sys.executable, "-m", "ticketing_server"]
"""What starts the reference server; the option --server-program replaces it."""


@dataclass
class Server:
    """A server under test: where it listens, and its secret."""

    tcp: Target
    secret: bytes
    v3: Target | None = None
    unix: Target | None = None

    def client(
        self,
        *,
        target: Target | None = None,
        secret: bytes | None = None,
        client_id: int | None = None,
        connection: int = 1,
        first_id: int = 1,
        hello: bool = True,
        label: bytes = LABEL,
    ) -> RawClient:
        """A raw client connected to this server; the caller closes it."""
        client = RawClient(
            target or self.tcp,
            self.secret if secret is None else secret,
            client_id=client_id,
            connection=connection,
            first_id=first_id,
            label=label,
        )
        if hello:
            try:
                client.hello()
            except BaseException:
                client.close()
                raise
        return client


@dataclass
class StartedServer(Server):
    """The reference server as a process that the suite started, and may signal."""

    running: RealServer = field(kw_only=True)
    folder: Path = field(kw_only=True)
    """Where its Unix socket is, and its secrets where they come from a file."""

    @property
    def pid(self) -> int:
        return int(self.running.addresses["pid"][0])

    def rss_bytes(self) -> int:
        """Resident memory of the server's process."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def log(self) -> str:
        return self.running.log()

    def signal(self, number: signal.Signals) -> None:
        self.running.signal(number)

    def wait(self) -> int:
        """Waits for the process to end; returns its exit code."""
        return self.running.wait()

    def stop(self) -> None:
        """Ends the process, at once: nothing of a test needs a drain."""
        self.running.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def start_server(
    *flags: str, secret: bytes = SECRET, secret_file: str | None = None
) -> StartedServer:
    """Starts the reference server with these flags on free ports, and waits until it is ready.

    It listens on loopback, on a Unix socket, and for version 3 on a port of its own.
    """
    folder = Path(tempfile.mkdtemp(prefix="ticketing-suite-"))
    all_flags = ["--listen-v3=127.0.0.1:0", *flags]
    if secret_file is not None:
        (folder / "secrets").write_text(secret_file)
        all_flags.append(f"--secret-file={folder / 'secrets'}")
    environment = {"TICKETING_SECRET": "" if secret_file else secret.decode()}
    listen = f"127.0.0.1:0,unix:{folder / 'socket'}"
    try:
        running = RealServer(all_flags, environment, listen, PROGRAM)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    targets = [parse_target(text) for text in running.addresses["listen"]]
    return StartedServer(
        tcp=next(target for target in targets if target.port),
        secret=secret,
        v3=parse_target(running.addresses["listen-v3"][0]),
        unix=next(target for target in targets if target.path),
        running=running,
        folder=folder,
    )


def given_server(address: str, secret: bytes, v3: str | None, unix: str | None) -> Server:
    """The server that runs already at `host:port`, as the command line names it."""
    return Server(
        tcp=parse_target(address),
        secret=secret,
        v3=parse_target(v3) if v3 else None,
        unix=Target(path=unix) if unix else None,
    )


def parse_target(text: str) -> Target:
    """`host:port`, `[v6]:port` or `unix:/path`; ValueError for anything else."""
    if text.startswith("unix:"):
        return Target(path=text.removeprefix("unix:"))
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal():
        raise ValueError(f"an address is host:port, [v6]:port or unix:/path, not {text!r}")
    return Target(host=host.strip("[]"), port=int(port))
