"""Options, servers and clients of the server suite."""

from __future__ import annotations

import os
import secrets
import shlex
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ticketing_conformance.server_suite.raw import RawClient
from ticketing_conformance.server_suite.raw_v3 import RawV3Client
from ticketing_conformance.server_suite.servers import (
    PROGRAM,
    Server,
    StartedServer,
    given_server,
    start_server,
)

Connect = Callable[..., RawClient]
ConnectV3 = Callable[..., RawV3Client]
StartServer = Callable[..., StartedServer]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ticketing server suite")
    group.addoption(
        "--server",
        metavar="HOST:PORT",
        help="test the server that listens here (default: start the reference server)",
    )
    group.addoption(
        "--server-secret",
        metavar="SECRET",
        default=os.environ.get("TICKETING_SECRET", ""),
        help="its secret (default: TICKETING_SECRET, else none)",
    )
    group.addoption("--server-v3", metavar="HOST:PORT", help="its listener for version 3")
    group.addoption("--server-unix", metavar="PATH", help="its Unix socket")
    group.addoption(
        "--server-program",
        metavar="COMMAND",
        help="what starts the reference server, quoted as for a shell (default: this Python's)",
    )
    group.addoption(
        "--flood",
        type=int,
        default=200_000,
        metavar="N",
        help="requests that the client that never reads pipelines (default: %(default)s)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "requirement(*ids): the requirements of the spec that this test shows"
    )
    if getattr(config.option, "maxschedchunk", 0) is None:
        # Else one worker of pytest-xdist would be given all tests that wait for long.
        config.option.maxschedchunk = 1
    if config.getoption("--server-program"):
        PROGRAM[:] = shlex.split(config.getoption("--server-program"))
    config.addinivalue_line("markers", "slow: mostly waits for timers of several seconds")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Tests that mostly wait go first, so that they overlap with the many that are quick.
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(scope="session")
def server(pytestconfig: pytest.Config) -> Iterator[Server]:
    """A server with every setting at its default; tests share it and use keys of their own."""
    option: Callable[[str], Any] = pytestconfig.getoption
    if option("--server"):
        yield given_server(
            option("--server"),
            option("--server-secret").encode(),
            option("--server-v3"),
            option("--server-unix"),
        )
        return
    started = start_server()
    yield started
    started.stop()


@pytest.fixture(scope="session")
def _own_servers(pytestconfig: pytest.Config) -> Iterator[dict[Any, StartedServer]]:
    servers: dict[Any, StartedServer] = {}
    yield servers
    for started in servers.values():
        started.stop()


@pytest.fixture
def shared_server(
    pytestconfig: pytest.Config, _own_servers: dict[Any, StartedServer]
) -> StartServer:
    """Starts a server with these settings, or gives the one that an earlier test started."""
    refuse_given_server(pytestconfig)

    def start(*flags: str) -> StartedServer:
        if flags not in _own_servers:
            _own_servers[flags] = start_server(*flags)
        return _own_servers[flags]

    return start


@pytest.fixture
def own_server(pytestconfig: pytest.Config) -> Iterator[StartServer]:
    """Starts servers for this test alone, with settings of its own."""
    refuse_given_server(pytestconfig)
    servers: list[StartedServer] = []

    def start(*flags: str, **options: Any) -> StartedServer:
        servers.append(start_server(*flags, **options))
        return servers[-1]

    yield start
    for started in servers:
        started.stop()


def refuse_given_server(config: pytest.Config) -> None:
    """Skips a test that starts servers itself, where `--server` names the one to test."""
    if config.getoption("--server"):
        pytest.skip("needs a server with settings of its own, and --server names one that runs")


@pytest.fixture
def connect(server: Server) -> Iterator[Connect]:
    """Connects raw clients, to the shared server unless told; closes them after the test."""
    clients: list[RawClient] = []

    def open_client(at: Server | None = None, **options: Any) -> RawClient:
        clients.append((at or server).client(**options))
        return clients[-1]

    yield open_client
    for client in clients:
        client.close()


@pytest.fixture
def connect_v3(server: Server) -> Iterator[ConnectV3]:
    """Connects raw clients of version 3, to the shared server unless told."""
    clients: list[RawV3Client] = []

    def open_client(
        at: Server | None = None, *, secret: bytes | None = None, answer: bool = True
    ) -> RawV3Client:
        chosen = at or server
        if chosen.v3 is None:
            pytest.skip("--server-v3 names no listener for version 3 of the server that runs")
        secret = chosen.secret if secret is None else secret
        clients.append(RawV3Client(chosen.v3, secret, answer=answer))
        return clients[-1]

    yield open_client
    for client in clients:
        client.close()


@pytest.fixture
def brisk(shared_server: StartServer) -> StartedServer:
    """A server with a keep-alive of 1 s and a reattach grace of 2 s."""
    return shared_server("--keepalive", "1s", "--reattach-grace", "2s")


@pytest.fixture
def key() -> bytes:
    """A key that no other test uses."""
    return f"suite/{secrets.token_hex(8)}".encode()


@pytest.fixture
def keys() -> list[bytes]:
    """Sixteen keys in rising order that no other test uses."""
    prefix = f"suite/{secrets.token_hex(8)}/"
    return [f"{prefix}{number:02}".encode() for number in range(16)]
