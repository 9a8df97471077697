"""The generator against the real server: every reply verified, and nothing left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from generator import report, run
from ticketing_server.testing import ServerProcess, ServerThread

SECRET = "a secret of the bench's own"


@pytest.fixture
def process() -> Iterator[ServerProcess]:
    with ServerProcess() as server:
        yield server


def where(server: ServerProcess) -> tuple[str | int, ...]:
    assert server.process is not None
    return ("--port", server.address[1], "--server-pid", server.process.pid, "--json")


@pytest.mark.parametrize(
    ("arguments", "pairs"),
    [
        (("--connections", 5, "--in-flight", 16, "--requests", 4000), 2000),
        (("--connections", 5, "--in-flight", 1, "--requests", 400), 200),
        (("--connections", 3, "--in-flight", 9, "--key-bytes", "8-128", "--requests", 2000), 1000),
        (("--connections", 2, "--in-flight", 8, "--distinct-keys", "--requests", 2000), 1000),
        (("--connections", 2, "--in-flight", 8, "--lease-spread", 999, "--requests", 2000), 1000),
        (("--hold", 500, "--connections", 4, "--in-flight", 4, "--requests", 400), 700),
        (("--job", "hold", "--hold", 3000), 3000),
        (("--job", "contended", "--keys", 4, "--connections", 5, "--requests", 2000), 1000),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_every_reply_is_right_and_nothing_stays(
    loadgen: Path,
    start_ticketing_server: Callable[..., ServerThread],
    arguments: tuple[str | int, ...],
    pairs: int,
) -> None:
    server = start_ticketing_server(SECRET)
    connect = ("--port", server.address[1], "--secret", SECRET, "--json")
    verified = report(run(loadgen, *connect, *arguments))["verified"]
    assert set(verified.values()) == {pairs}
    counters = server.counters()
    assert counters.requests["acquire", "granted"] == pairs
    assert counters.requests["release", "released"] == pairs
    assert (counters.tickets, counters.waiters_attached, counters.waiters_detached) == (0, 0, 0)


def test_a_unix_socket_is_served_alike(
    loadgen: Path, start_ticketing_server: Callable[..., ServerThread], tmp_path: Path
) -> None:
    path = tmp_path / "socket"
    start_ticketing_server(listen=f"unix:{path}")
    figures = report(run(loadgen, "--unix", path, "--requests", 1000, "--json"))
    assert figures["verified"]["released"] == 500


def test_a_million_distinct_keys_leave_memory_where_it_was(
    loadgen: Path, process: ServerProcess
) -> None:
    few = ("--connections", 1, "--in-flight", 64)
    before = report(run(loadgen, *where(process), *few, "--requests", 100_000))
    after = report(run(loadgen, *where(process), *few, "--distinct-keys", "--requests", 2_000_000))
    assert after["verified"]["released"] == 1_000_000
    before_kib = before["server_rss_kib"]["emptied"]
    assert after["server_rss_kib"]["emptied"] <= 1.1 * before_kib
