"""What no peer can see: the options of the client's socket, and the clock that it counts on."""

from __future__ import annotations

import socket
import time

import pytest
import ticketing
from test_asyncio import run
from ticketing_server.testing import ServerThread


def test_options_of_the_socket(server: ServerThread) -> None:
    """REQ-CONN-NODELAY REQ-CONN-USERTIMEOUT"""

    async def main() -> None:
        async with ticketing.connect(server.url) as client:
            driver = client._driver
            assert driver is not None
            sock = driver._socket
            assert sock is not None
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)

    run(main)


@pytest.mark.skipif(
    not hasattr(time, "CLOCK_BOOTTIME"), reason="this platform has no CLOCK_BOOTTIME"
)
def test_the_clock_counts_suspended_time() -> None:
    """REQ-TICKET-CLOCK"""
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    now = ticketing.monotonic()
    assert before <= now <= time.clock_gettime(time.CLOCK_BOOTTIME)
