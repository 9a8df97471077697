"""Servers for the suite: the reference server as a process of its own, or one that runs already."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from ticketing_conformance.server_suite.raw import RawClient, Target
from ticketing_conformance.server_suite.ready import parse_target, read_ready_file

SECRET = b"correct horse battery staple"
START_S = 60.0
STOP_S = 30.0
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
        label: bytes | None = None,
    ) -> RawClient:
        """A raw client connected to this server; the caller closes it."""
        client = RawClient(
            target or self.tcp,
            self.secret if secret is None else secret,
            client_id=client_id,
            connection=connection,
            first_id=first_id,
            hello=False,
            **({} if label is None else {"label": label}),
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

    process: subprocess.Popen[bytes] = field(kw_only=True)
    folder: Path = field(kw_only=True)

    @property
    def pid(self) -> int:
        return self.process.pid

    def rss_bytes(self) -> int:
        """Resident memory of the server's process."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, within_s: float = STOP_S) -> int:
        """Waits for the process to end; returns its exit code."""
        return self.process.wait(within_s)

    def stop(self) -> None:
        """Ends the process, at once: nothing of a test needs a drain."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(STOP_S)
        shutil.rmtree(self.folder, ignore_errors=True)


def start_server(
    *flags: str,
    secret: bytes = SECRET,
    secret_file: str | None = None,
    listen: tuple[str, ...] = ("127.0.0.1:0",),
    tls: bool = False,
) -> StartedServer:
    """Starts the reference server with these flags on free ports, and waits until it is ready.

    It listens on `listen`, on a Unix socket, and for version 3 on a port of its own.
    """
    folder = Path(tempfile.mkdtemp(prefix="ticketing-suite-"))
    ready = folder / "ready"
    command = [*PROGRAM, "--ready-file", str(ready)]
    for address in (*listen, *(() if tls else (f"unix:{folder / 'socket'}",))):
        command += ["--listen", address]
    command += ["--listen-v3", "127.0.0.1:0", "--http-listen", "off", *flags]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TICKETING_")}
    if secret_file is None:
        environment["TICKETING_SECRET"] = secret.decode()
    else:
        (folder / "secrets").write_text(secret_file)
        command += ["--secret-file", str(folder / "secrets")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
    try:
        return _await_ready(process, folder, ready, secret)
    except BaseException:
        process.kill()
        process.wait(STOP_S)
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _await_ready(
    process: subprocess.Popen[bytes], folder: Path, ready: Path, secret: bytes
) -> StartedServer:
    deadline = time.monotonic() + START_S
    while not ready.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            log = (folder / "log").read_text(errors="replace")
            raise AssertionError(f"the server did not start (exit {process.poll()}):\n{log}")
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.02)
    addresses = read_ready_file(ready)
    return StartedServer(
        tcp=addresses.tcp,
        secret=secret,
        v3=addresses.v3,
        unix=addresses.unix,
        process=process,
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
