"""What several test modules share: a server, and ways to wait for it to be empty."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from ticketing_server.testing import ServerThread

LONG = 30.0
"""Seconds after which something that must happen has not happened, on a loaded machine."""


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    """A server for all tests of a module; each leaves it empty."""
    with ServerThread() as running:
        yield running
        assert_empty(running)


def assert_empty(server: ServerThread) -> None:
    """Wait until nobody waits and nothing is held; fail where that does not come true."""
    give_up = time.monotonic() + LONG
    while True:
        counters = server.counters()
        left = (
            counters.tickets,
            counters.waiters_attached,
            counters.waiters_detached,
            counters.waiters_held_back,
        )
        if not any(left):
            return
        assert time.monotonic() < give_up, f"tickets, waiters left: {left}"
        time.sleep(0.005)
