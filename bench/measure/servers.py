"""Starts and ends the servers under measurement, each pinned to the server's core."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

START_SECONDS = 30.0
STOP_SECONDS = 15.0
SERVER_CPU = 0
GENERATOR_CPU = 1
REDIS_MISSING = (
    "REDIS IS MISSING: nothing is compared with it, and no gate is decided.\n"
    "Install it and run again:  apt-get install redis-server"
)


class BenchError(Exception):
    """The bench can't go on; its text says why."""


@dataclass(frozen=True, slots=True)
class Running:
    """A server that takes connections on loopback."""

    protocol: str
    port: int
    pid: int


def redis_version() -> str:
    """Redis's version, or "" where it is not installed."""
    program = shutil.which("redis-server")
    if program is None:
        return ""
    done = subprocess.run(
        [program, "--version"], capture_output=True, text=True, timeout=30, check=True
    )
    words = dict(word.split("=", 1) for word in done.stdout.split() if "=" in word)
    return words.get("v", done.stdout.strip())


@contextmanager
def ticketing(python: str, *options: str) -> Iterator[Running]:
    """The server from this tree's package, as `python` has it installed."""
    with tempfile.TemporaryDirectory() as folder:
        ready = Path(folder) / "ready"
        command = [python, "-m", "ticketing_server", "--listen", "127.0.0.1:0"]
        command += ["--loop", "uvloop", "--ready-file", str(ready), *options]
        log = Path(folder) / "log"
        with process(command, log, environment(), cpus={SERVER_CPU}) as server:
            port = _wait_until(server, log, lambda: _port_of(ready))
            yield Running("ticketing", port, server.pid)


@contextmanager
def redis() -> Iterator[Running]:
    """Redis without persistence: the job is locks in memory on both sides."""
    port = free_port()
    program = shutil.which("redis-server")
    if program is None:
        raise BenchError(REDIS_MISSING)
    with tempfile.TemporaryDirectory() as folder:
        command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", folder]
        command += ["--save", "", "--appendonly", "no"]
        log = Path(folder) / "log"
        with process(command, log, environment(), cpus={SERVER_CPU}) as server:
            _wait_until(server, log, lambda: _connects(port))
            yield Running("redis", port, server.pid)


@contextmanager
def folder_on(disk: Path) -> Iterator[Path]:
    """A folder there for as long as servers have their data in it."""
    with tempfile.TemporaryDirectory(prefix="ticketing-bench-", dir=disk) as name:
        yield Path(name)


def environment() -> dict[str, str]:
    """This process's environment without settings of the server."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TICKETING_")}


@contextmanager
def process(
    command: list[str],
    log: Path,
    environment: dict[str, str],
    cpus: set[int] | None,
    ended_by: signal.Signals = signal.SIGTERM,
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with this context; `cpus` are those it may run on, None for all."""
    with log.open("wb") as output:
        started = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
        )
    if cpus is not None:
        os.sched_setaffinity(started.pid, cpus)
    try:
        yield started
    finally:
        started.send_signal(ended_by)
        try:
            started.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


def said(log: Path) -> str:
    """The end of what a process wrote."""
    return log.read_text(encoding="utf-8", errors="replace").strip()[-2000:]


def _wait_until(started: subprocess.Popen[bytes], log: Path, find_port: Callable[[], int]) -> int:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        port = find_port()
        if port:
            return port
        if started.poll() is not None:
            break
        time.sleep(0.02)
    raise BenchError(f"the server did not start within {START_SECONDS:.0f} s:\n{said(log)}")


def _port_of(ready: Path) -> int:
    """The port on the ready file's `listen` line, 0 while there is none."""
    try:
        lines = ready.read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    for line in lines:
        name, _, value = line.partition("=")
        if name == "listen":
            return int(value.rpartition(":")[2])
    return 0


def free_port() -> int:
    """A port of loopback that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _connects(port: int) -> int:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return 0
    return port
