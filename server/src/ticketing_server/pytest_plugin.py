"""Fixtures for tests that need a lock server; pytest finds them once the package is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from ticketing_server.testing import ClusterProcesses, ServerThread, running_cluster


@pytest.fixture
def ticketing_server() -> Iterator[ServerThread]:
    """A server of this test's own on a free port, without a secret."""
    with ServerThread() as server:
        yield server


@pytest.fixture
def start_ticketing_server() -> Iterator[Callable[..., ServerThread]]:
    """A function that takes what `ServerThread` takes and starts it; all stop with the test."""
    with ExitStack() as stack:

        def start(secret: str = "", **settings: str) -> ServerThread:
            return stack.enter_context(ServerThread(secret, **settings))

        yield start


@pytest.fixture
def ticketing_cluster() -> Iterator[ClusterProcesses]:
    """Three nodes of this test's own, as processes, without a secret; one of them leads."""
    with running_cluster() as cluster:
        yield cluster
