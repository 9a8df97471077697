"""The server under test as a process of its own, on free ports of loopback."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

START_SECONDS = 40.0
STOP_SECONDS = 20.0
POLL_SECONDS = 0.02
_SAMPLE = re.compile(r"([a-z_]+)(?:\{(.*)\})? (\S+)")


class ServerBroken(Exception):
    """The server did not start, or ended by itself; the text ends with its log."""


class RealServer:
    """`ticketing-server` with the given flags. Used by one thread."""

    def __init__(
        self,
        flags: Sequence[str],
        environment: Mapping[str, str],
        listen: str = "127.0.0.1:0",
        program: Sequence[str] | None = None,
        http_listen: str = "127.0.0.1:0",
        inside: Sequence[str] = (),
    ) -> None:
        """`inside`: what a command line begins with, to run in a network of its own."""
        program = program or (sys.executable, "-m", "ticketing_server")
        self._program = [*inside, *program]
        self.flags = list(flags)
        """For the next start."""
        self._environment = dict(environment)
        self._directory = tempfile.TemporaryDirectory(prefix="ticketing-server-")
        self._log_path = Path(self._directory.name) / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self._listen = listen
        self._http_listen = http_listen
        self.addresses: dict[str, list[str]] = {}
        self.start()

    def start(self) -> None:
        """Start it; after `stop` or `kill` on the same addresses as before."""
        ready = Path(self._directory.name) / "ready"
        ready.unlink(missing_ok=True)
        http = self.addresses.get("http-listen", [self._http_listen])[0]
        command = [
            *self._program,
            f"--listen={self._listen}",
            f"--http-listen={http}",
            f"--ready-file={ready}",
            *self.flags,
        ]
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **self._environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + START_SECONDS
        while not ready.exists() or not ready.read_text().endswith("\n"):
            if self._process.poll() is not None:
                raise ServerBroken(
                    f"the server ended with {self._process.returncode} at its start: {self.log()}"
                )
            if time.monotonic() > deadline:
                self.kill()
                raise ServerBroken(f"no ready file within {START_SECONDS:g} s: {self.log()}")
            time.sleep(POLL_SECONDS)
        self.addresses = {}
        for line in ready.read_text().splitlines():
            name, _, value = line.partition("=")
            self.addresses.setdefault(name, []).append(value)
        # Started again, it has to be found where it was.
        self._listen = ",".join(self.addresses["listen"])

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def address(self) -> str:
        """The first address for clients: host:port, or a path."""
        return self.addresses["listen"][0].removeprefix("unix:")

    def url(self, tls: bool = False) -> str:
        """A client's URL for the first address."""
        first = self.addresses["listen"][0]
        if first.startswith("unix:"):
            return f"ticketing+unix://{first.removeprefix('unix:')}"
        return f"ticketing{'s' if tls else ''}://{first}"

    def get(self, path: str) -> str:
        """A page of its HTTP listener."""
        address = self.addresses["http-listen"][0]
        with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
            body: bytes = answer.read()
        return body.decode("utf-8")

    def metrics(self) -> dict[tuple[str, str], float]:
        """All metrics, by name and labels as they are written."""
        found = {}
        for line in self.get("/metrics").splitlines():
            if sample := _SAMPLE.fullmatch(line):
                found[sample[1], sample[2] or ""] = float(sample[3])
        return found

    def metric(self, name: str, labels: str = "") -> int:
        """A metric's value, summed over the series whose labels contain `labels`."""
        return total(self.metrics(), name, labels)

    def holdings(self) -> tuple[int, int]:
        """How many tickets and waiters there are."""
        found = self.metrics()
        return total(found, "ticketing_tickets"), total(found, "ticketing_waiters")

    def log(self) -> str:
        """The end of what it logged."""
        if not self._log_path.exists():
            return ""
        return self._log_path.read_text("utf-8", "replace")[-4000:]

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self) -> int:
        """Drain it and wait for its end. Returns the exit code."""
        assert self._process is not None
        if self.alive:
            self.signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Wait for its end. Returns the exit code."""
        assert self._process is not None
        try:
            return self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerBroken(f"the server did not end in {STOP_SECONDS:g} s") from None

    def kill(self) -> None:
        """End it without a goodbye."""
        assert self._process is not None
        if self.alive:
            self._process.kill()
        self._process.wait(STOP_SECONDS)

    def close(self) -> None:
        """Kill it and remove its files."""
        self.kill()
        self._directory.cleanup()


def total(metrics: Mapping[tuple[str, str], float], name: str, labels: str = "") -> int:
    """A metric's value, summed over the series whose labels contain `labels`."""
    return int(sum(value for (n, of), value in metrics.items() if n == name and labels in of))
