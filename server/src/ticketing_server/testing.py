"""A real server for other people's tests, in a thread or in a process of its own, or a cluster.

::

    with ServerThread(secret="something long", max_lease="10s") as server:
        connect(server.url, secret=server.secret)

    with running_cluster(secret="something long") as cluster:
        connect(cluster.url, secret=cluster.secret)
        cluster.kill(cluster.leader())

Keywords are settings with `_` for `-`, as text like that of the flags; ports are free ones
unless given. `pytest` users get the fixtures of `ticketing_server.pytest_plugin`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from ticketing_server.banner import ready_lines
from ticketing_server.engine import Counters
from ticketing_server.event_loop import loop_factory
from ticketing_server.log import EventLog
from ticketing_server.serve import Service
from ticketing_server.settings import BY_NAME, Settings
from ticketing_server.settings_cluster import CLUSTER_SECRET_ENV
from ticketing_server.settings_load import SECRET_ENV, gather, load

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
LEADER_TIMEOUT_S = 30.0
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_PORT_MIN, _PORT_MAX = 10_000, 32_768
_CLUSTER_ENV = {CLUSTER_SECRET_ENV: "cluster-secret-of-a-test-run-only"}
_Result = TypeVar("_Result")


class _TestServer:
    """What thread and process have in common: where to connect."""

    def __init__(self, secret: str = "", **settings: str) -> None:
        self.secret = secret
        unknown = [name for name in settings if name.replace("_", "-") not in BY_NAME]
        if unknown:
            raise TypeError(f"no such setting: {', '.join(unknown)}")
        self._flags = {"listen": "127.0.0.1:0", "http-listen": "127.0.0.1:0"}
        self._flags |= {name.replace("_", "-"): text for name, text in settings.items()}
        self._ready: list[tuple[str, str]] = []

    def start(self) -> None:
        """Start, and return when clients can connect."""
        raise NotImplementedError

    def stop(self) -> None:
        """Drain and stop; without effect on one that is stopped."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def values(self, name: str) -> list[str]:
        """The lines of the ready file that have this name."""
        return [value for key, value in self._ready if key == name]

    @property
    def url(self) -> str:
        """What a client's `connect` takes."""
        return self.values("url")[0]

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the first TCP address for clients."""
        return _host_and_port(next(a for a in self.values("listen") if a[:5] != "unix:"))

    @property
    def v3_address(self) -> tuple[str, int]:
        """Host and port of the first TCP address for clients of version 3."""
        return _host_and_port(next(a for a in self.values("listen-v3") if a[:5] != "unix:"))

    @property
    def http_url(self) -> str:
        """Begin of every URL of the HTTP pages, without a slash at the end."""
        return f"http://{self.values('http-listen')[0]}"


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


class ServerThread(_TestServer):
    """A server on an event loop of its own in a thread of this process.

    What it logs is in `log_lines`. Start, stop and the other calls are for one thread.
    """

    def __init__(self, secret: str = "", **settings: str) -> None:
        """Take a secret and settings; SettingsError comes from `start`."""
        super().__init__(secret, **settings)
        self.log_lines: list[str] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._service: Service | None = None
        self._thread: threading.Thread | None = None
        self._started = threading.Event()
        self._stop: asyncio.Event | None = None
        self._failure: BaseException | None = None

    def start(self) -> None:
        """Start, and return when clients can connect; raises what kept it from starting."""
        self._thread = threading.Thread(target=self._main, name="ticketing-server", daemon=True)
        self._thread.start()
        if not self._started.wait(START_TIMEOUT_S):
            raise TimeoutError(f"the server did not start in {START_TIMEOUT_S:.0f} s")
        if self._failure is not None:
            self._thread.join(STOP_TIMEOUT_S)
            raise self._failure

    def stop(self) -> None:
        """Drain and stop; raises what went wrong meanwhile, if anything did."""
        if self._thread is None or self._loop is None or self._stop is None:
            return
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(STOP_TIMEOUT_S)
        if self._thread.is_alive():
            raise TimeoutError(f"the server did not stop in {STOP_TIMEOUT_S:.0f} s")
        self._thread = None
        if self._failure is not None:
            raise self._failure

    def call(self, what: Callable[[Service], _Result]) -> _Result:
        """Call `what` with the running `Service` on its event loop, and return what it returns."""
        service, loop = self._service, self._loop
        if service is None or loop is None:
            raise RuntimeError("the server was not started")

        async def run() -> _Result:
            return what(service)

        return asyncio.run_coroutine_threadsafe(run(), loop).result(STOP_TIMEOUT_S)

    def counters(self) -> Counters:
        """The numbers behind the metrics."""
        return self.call(lambda service: service.server.engine.counters())

    def reload(self) -> None:
        """Do what SIGHUP does."""
        self.call(lambda service: service.reload())

    def _main(self) -> None:
        try:
            env = {SECRET_ENV: self.secret} if self.secret else {}
            settings = load(gather({name: [text] for name, text in self._flags.items()}, env))
            with asyncio.Runner(loop_factory=loop_factory(settings)) as runner:
                runner.run(self._serve(settings))
        except BaseException as error:
            self._failure = error
        self._started.set()

    async def _serve(self, settings: Settings) -> None:
        self._loop = asyncio.get_running_loop()
        log = EventLog(self.log_lines.append, style=settings.log_format, level=settings.log_level)
        service = Service(settings, log)
        self._stop = service.stop_asked
        await service.start()
        self._service = service
        self._ready = ready_lines(service)
        self._started.set()
        await self._stop.wait()
        if not service.exit_code:
            await service.drain()
        await service.stop()


class ServerProcess(_TestServer):
    """A server in a process of its own; its log is the text `log`."""

    def __init__(self, secret: str = "", env: Mapping[str, str] | None = None, **settings: str):
        """Take a secret, further environment variables, and settings."""
        super().__init__(secret, **settings)
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("TICKETING_")}
        self._env = {**inherited, **({SECRET_ENV: secret} if secret else {}), **(env or {})}
        self._folder = tempfile.TemporaryDirectory(prefix="ticketing-")
        self._log_path = Path(self._folder.name, "log")
        self._ready_path = Path(self._folder.name, "ready")
        self.process: subprocess.Popen[bytes] | None = None

    @staticmethod
    def command() -> list[str]:
        """Return the words that start a server, before its settings."""
        return [sys.executable, "-m", "ticketing_server"]

    @property
    def log(self) -> str:
        """What it has logged so far."""
        return self._log_path.read_text(errors="replace")

    def start(self) -> None:
        """Start, and return when clients can connect; RuntimeError with the log if it ends."""
        self.begin()
        self.wait_ready()

    def begin(self) -> None:
        """Start, and return at once."""
        flags = {"ready-file": str(self._ready_path), **self._flags}
        # One that was killed has left it.
        Path(flags["ready-file"]).unlink(missing_ok=True)
        argv = [part for name, text in flags.items() for part in (BY_NAME[name].flag, text)]
        with self._log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.command(), *argv],
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def wait_ready(self) -> None:
        """Return when clients can connect, after `begin`."""
        process = self.process
        if process is None:
            raise RuntimeError("the server was not started")
        ready_path = Path(self._flags.get("ready-file", self._ready_path))
        give_up_s = time.monotonic() + START_TIMEOUT_S
        while not ready_path.exists():
            if process.poll() is not None:
                raise RuntimeError(f"it ended with {process.returncode}:\n{self.log}")
            if time.monotonic() > give_up_s:
                self.kill()
                raise TimeoutError(f"not ready in {START_TIMEOUT_S:.0f} s:\n{self.log}")
            time.sleep(0.01)
        lines = ready_path.read_text().splitlines()
        self._ready = [(name, value) for name, _, value in (s.partition("=") for s in lines)]

    def stop(self) -> None:
        """Send SIGTERM, wait for the end, and forget the log's file."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
        self._folder.cleanup()

    def kill(self) -> None:
        """Send SIGKILL and wait for the end."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(STOP_TIMEOUT_S)


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
            env={} if "cluster_secret_file" in self._settings else _CLUSTER_ENV,
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
    """Ports that nobody listens on now, all different.

    None of those from which outgoing connections take theirs: a node that starts again later must
    find its port free.
    """
    high = _PORT_MAX
    with suppress(OSError):
        high = min(high, int(_EPHEMERAL.read_text().split()[0]))
    ports = range(_PORT_MIN, high)
    found: list[int] = []
    with ExitStack() as stack:
        for port in random.sample(ports, k=len(ports)):
            sock = stack.enter_context(socket.socket())
            with suppress(OSError):
                sock.bind(("127.0.0.1", port))
                found.append(port)
            if len(found) == count:
                return found
    raise RuntimeError(f"there are no {count} free ports from {_PORT_MIN} to {high}")


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files of a certificate authority and of two certificates that it signed, in PEM."""

    ca: Path
    server_cert: Path
    server_key: Path
    client_cert: Path
    client_key: Path


def make_certificates(folder: Path, *, valid_for: timedelta = timedelta(days=30)) -> Certificates:
    """Make an authority, a server's certificate (localhost, loopback) and a client's.

    A negative `valid_for` makes expired ones. Needs the package `cryptography`.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    now = datetime.now(UTC)
    since, until = min(now, now + 2 * valid_for) - timedelta(minutes=5), now + valid_for

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def save(key: ec.EllipticCurvePrivateKey, cert: x509.Certificate, stem: str) -> None:
        pem = serialization.Encoding.PEM
        (folder / f"{stem}.pem").write_bytes(cert.public_bytes(pem))
        key_path = folder / f"{stem}.key"
        key_path.touch(0o600)
        key_path.write_bytes(
            key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )

    authority_key = ec.generate_private_key(ec.SECP256R1())

    def sign(subject: str, key: ec.EllipticCurvePrivateKey, *, is_ca: bool) -> x509.Certificate:
        names: list[x509.GeneralName] = [x509.DNSName("localhost")]
        names += [x509.IPAddress(ip_address(text)) for text in ("127.0.0.1", "::1")]
        builder = (
            x509.CertificateBuilder()
            .subject_name(name(subject))
            .issuer_name(name("Ticketing test authority"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(since)
            .not_valid_after(until)
            .add_extension(x509.BasicConstraints(is_ca, None), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
                critical=False,
            )
        )
        if is_ca:
            usage = x509.KeyUsage(
                digital_signature=False,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                key_cert_sign=True,
                crl_sign=True,
                encipher_only=False,
                decipher_only=False,
            )
            builder = builder.add_extension(usage, critical=True)
        else:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(authority_key, hashes.SHA256())

    save(authority_key, sign("Ticketing test authority", authority_key, is_ca=True), "ca")
    for stem in ("server", "client"):
        key = ec.generate_private_key(ec.SECP256R1())
        save(key, sign(stem, key, is_ca=False), stem)
    return Certificates(
        folder / "ca.pem",
        folder / "server.pem",
        folder / "server.key",
        folder / "client.pem",
        folder / "client.key",
    )
