"""Servers for other people's tests, the fixtures, and what a running server logs and counts."""

from __future__ import annotations

import gc
import json
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from plain_client import PlainClient
from prometheus_client.parser import text_string_to_metric_families
from ticketing_server import constants_gen as c
from ticketing_server.log import BURST_LINES
from ticketing_server.serve import BindError
from ticketing_server.settings_load import SettingsError
from ticketing_server.testing import ServerProcess, ServerThread, make_certificates

SECRET = "0123456789abcdef0123456789abcdef"
WAIT_S = 30.0

pytest_plugins = ["pytester"]


def metric(server: ServerThread, name: str, **labels: str) -> float | None:
    """The value of one sample of /metrics."""
    with urlopen(f"{server.http_url}/metrics", timeout=WAIT_S) as answer:
        text = answer.read().decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name and sample.labels == labels:
                return sample.value
    return None


def eventually(holds: Callable[[], object], what: str) -> None:
    """Wait until something is true, for as long as a loaded machine may need."""
    give_up_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < give_up_s, what
        time.sleep(0.01)


class TestThread:
    def test_serves_and_leaves_nothing(self) -> None:
        before = set(threading.enumerate())
        with ServerThread(SECRET) as server, PlainClient(server.address, SECRET) as client:
            assert server.url == "ticketing://{}:{}".format(*server.address)
            client.hold(b"key")
            assert server.counters().tickets == 1
        assert {t for t in threading.enumerate() if t.name == "ticketing-server"} <= before
        with pytest.raises(OSError, match="refused"):
            PlainClient(server.address)

    def test_several_at_once_share_nothing(self) -> None:
        with ServerThread() as first, ServerThread() as second:
            for server in (first, second):
                with PlainClient(server.address) as client:
                    client.hold(b"one key")

    def test_errors_come_out_of_start(self) -> None:
        with pytest.raises(SettingsError, match="--max-lease: got '5'"):
            ServerThread(max_lease="5").start()
        with pytest.raises(TypeError, match="no such setting: max_leases"):
            ServerThread(max_leases="5s")
        with (
            ServerThread() as server,
            pytest.raises(BindError, match="already in use"),
        ):
            ServerThread(listen="{}:{}".format(*server.address)).start()

    def test_version_3_has_its_own_address(self) -> None:
        with ServerThread(listen_v3="127.0.0.1:0") as server:
            assert server.v3_address[1] not in (0, server.address[1])

    def test_a_unix_socket(self, tmp_path: Path) -> None:
        path = tmp_path / "socket"
        with ServerThread(listen=f"unix:{path}") as server, PlainClient(str(path)) as client:
            assert server.url == f"ticketing+unix://{path}"
            client.ping()

    def test_stop_drains(self) -> None:
        server = ServerThread()
        server.start()
        client = PlainClient(server.address)
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        assert client.read_frame() == (c.REPLY_LEADER, b"")
        client.close()
        stopping.join(WAIT_S)
        assert not stopping.is_alive()
        server.stop()


class TestProcess:
    def test_a_start_that_fails_shows_the_log(self) -> None:
        server = ServerProcess(keepalive="5")
        with pytest.raises(RuntimeError, match=r"it ended with 2:\n.*--keepalive: got '5'"):
            server.start()
        server.stop()

    def test_the_environment_of_the_tests_is_not_its_own(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TICKETING_MAX_LEASE", "nonsense")
        with ServerProcess() as server, PlainClient(server.address) as client:
            client.ping()


class TestFixtures:
    def test_are_found_by_pytest(self, pytester: pytest.Pytester) -> None:
        pytester.makepyfile(
            """
            import socket

            def test_one(ticketing_server):
                with socket.create_connection(ticketing_server.address) as s:
                    assert s.recv(6) == b"TICKET"

            def test_two(start_ticketing_server):
                first, second = start_ticketing_server(), start_ticketing_server(max_lease="1s")
                assert first.address != second.address

            def test_three(ticketing_cluster):
                assert ticketing_cluster.leader() in (0, 1, 2)
            """
        )
        pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=3)


class TestLogOfARunningServer:
    def test_what_an_operator_acts_on_and_no_secret(self) -> None:
        with ServerThread(SECRET) as server:
            with PlainClient(server.address, hello=False) as stranger:
                assert stranger.say_hello("wrong-wrong-wrong", "stranger", 9)[0] == c.REPLY_ERROR
            with PlainClient(server.address, SECRET, label="holder;go/1") as client:
                client.hold(b"short lease\n", lease_ms=1)
                assert client.read_frame()[0] == c.REPLY_DROPPED
            eventually(lambda: len(server.log_lines) >= 2, "two events were to be logged")
            failed, over = server.log_lines[:2]
            assert re.search(r" warning auth_failed .*peer=127\.0\.0\.1:\d+", failed)
            assert re.search(r" warning lease_over .*keys?=short\\x20lease\\x0a", over)
            assert "holder;go/1" in over
            assert not any(s in line for s in (SECRET, "wrong-wrong") for line in server.log_lines)

    def test_a_flood_of_wrong_secrets_is_a_few_lines(self) -> None:
        with ServerThread(SECRET, log_format="json") as server:
            strangers = [PlainClient(server.address, hello=False) for _ in range(100)]
            for stranger in strangers:
                stranger.send(c.OP_HELLO, bytes([4]) + bytes(60) + b"x")
            for stranger in strangers:
                assert stranger.read_frame()[0] == c.REPLY_ERROR
                stranger.close()
            with PlainClient(server.address, SECRET) as client:
                client.ping()
            assert server.counters().handshake_failures == {"auth_failed": 100}
            assert BURST_LINES <= len(server.log_lines) < 80
            assert all(json.loads(line)["event"] for line in server.log_lines)

    def test_refused_http_is_logged(self) -> None:
        with ServerThread() as server:
            request = Request(f"{server.http_url}/status", headers={"Host": "evil.example"})
            with pytest.raises(HTTPError, match="421"):
                urlopen(request, timeout=WAIT_S)
            (line,) = server.log_lines
            assert " warning http_foreign_host path=/status host=evil.example" in line


class TestMetricsOfARunningServer:
    def test_count_what_happened(self) -> None:
        with (
            ServerThread(max_lease="1h") as server,
            PlainClient(server.address, label="a;go/1") as client,
        ):
            client.hold(b"key")
            client.acquire(b"key")
            assert client.read_frame()[0] == c.REPLY_TIMED_OUT
            go = {"protocol": "4", "transport": "tcp", "language": "go"}
            assert metric(server, "ticketing_connections", **go) == 1
            assert metric(server, "ticketing_tickets") == 1
            requests = "ticketing_requests_total"
            assert metric(server, requests, op="acquire", result="granted") == 1
            assert metric(server, requests, op="acquire", result="timed_out") == 1
            assert metric(server, "ticketing_grants_total", path="immediate") == 1
            assert metric(server, "ticketing_limit", resource="lease_seconds") == 3_600
            received = metric(server, "ticketing_received_bytes_total")
            assert received is not None
            assert received > 100

    def test_tls_shows_when_certificates_end(self, tmp_path: Path) -> None:
        made = make_certificates(tmp_path)
        with ServerThread(tls_cert=str(made.server_cert), tls_key=str(made.server_key)) as server:
            name = "ticketing_certificate_expiry_timestamp_seconds"
            assert metric(server, name, use="server") == pytest.approx(
                time.time() + 30 * 86_400, abs=3_600
            )

    def test_loop_lag_is_seen(self) -> None:
        with ServerThread() as server:
            eventually(
                lambda: (
                    server.call(lambda service: time.sleep(0.6))
                    or (metric(server, "ticketing_loop_lag_seconds") or 0) > 0.05
                ),
                "a blocked event loop was to show",
            )

    def test_looking_does_not_keep_the_server_alive(self) -> None:
        with ServerThread() as server:
            metric(server, "ticketing_tickets")
        gc.collect()
        assert not any(t.name == "ticketing-server" for t in threading.enumerate())
