"""HTTP: pages, who may see them, and that no peer of it costs more than its bound."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from ticketing_server import http
from ticketing_server.engine import (
    Counters,
    Histogram,
    TicketInfo,
    WaiterInfo,
)
from ticketing_server.http import HttpServer, Request, Response, Site, host_names
from ticketing_server.limits import Limits
from ticketing_server.metrics import MetricsPage, ShellState
from ticketing_server.status import ITEMS_MAX, StatusPage

TOKEN = "0123456789abcdef"
EVIL = "<script>alert(1)</script>"


class FewLocks:
    """As much of an engine as pages read."""

    def __init__(self) -> None:
        self.tickets = [
            TicketInfo(
                token=2**64 - 1,
                keys=(b"a b\n", EVIL.encode()),
                owner=2**63,
                client=1,
                connection=None,
                label=EVIL,
                peer="127.0.0.1:1",
                held_ns=1_500_000_000,
                left_ns=2_000_000_000,
            )
        ]
        self.waiters = [
            WaiterInfo(1, (b"a b\n",), 7, "attached", 3, "w;go/1", "p", 10**9, None),
            WaiterInfo(2, (b"a b\n",), 8, "detached", None, "v;rust/1", "p", 10**9, 5 * 10**9),
        ]

    def counters(self) -> Counters:
        return Counters(
            requests={("acquire", "granted"): 5, ("acquire", "timed_out"): 2},
            errors={3: 4},
            grants_immediate=3,
            grants_handoff=2,
            tickets_ended={"released": 4, "lease_over": 1},
            tickets=1,
            held_keys=2,
            waiters_attached=1,
            waiters_detached=1,
            longest_queue=2,
            oldest_waiter_age_ns=10**9,
            wait={"granted": Histogram((1_000_000, 10**9), [1, 2, 3], 7 * 10**9)},
            hold=Histogram((1_000_000,), [4, 1], 10**9),
            connections={(4, "tcp", "go"): 2, (4, "tls", "go"): 1, (3, "tcp", "other"): 1},
            handshakes=1,
            connections_closed={"eof": 9},
            handshake_failures={"auth_failed": 4},
            received_bytes=100,
            sent_bytes=200,
        )

    def overview(self, limit: int) -> tuple[list[TicketInfo], list[WaiterInfo]]:
        return self.tickets[:limit], self.waiters[:limit]


class ManualClock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Pages:
    """A site over `FewLocks`, with what it reported."""

    def __init__(self, token: str = "", names: tuple[str, ...] = ()) -> None:
        self.engine = FewLocks()
        self.clock = ManualClock()
        self.state = ShellState("0.1.0", "python", Limits(connections=77), loop_lag_s=0.25)
        self.denied: list[str] = []
        self.site = Site(
            metrics=MetricsPage(self.engine.counters, self.state),
            status=StatusPage(
                self.engine,  # type: ignore[arg-type]
                self.engine.counters,
                self.state,
                self.clock,
            ).render,
            state=self.state,
            token=token,
            host_names=host_names(names),
            denied=lambda reason, request: self.denied.append(reason),
        )

    def get(
        self, path: str, *, method: str = "GET", local: bool = True, **headers: str
    ) -> Response:
        named = {"host": "127.0.0.1:5228", **headers}
        return self.site.respond(Request(method, path, named, local))


class TestHost:
    @pytest.mark.parametrize(
        "host",
        ["localhost", "LOCALHOST:5228", "127.0.0.1", "127.0.0.1:1", "[::1]:5228", "10.0.0.9:1"],
    )
    def test_own_names_and_plain_addresses(self, host: str) -> None:
        assert Pages().get("/healthz", host=host).status == 200

    @pytest.mark.parametrize(
        "host", ["evil.example", "evil.example:5228", "127.0.0.1.evil.example", "", "a:b:c"]
    )
    @pytest.mark.parametrize("path", ["/", "/status", "/metrics", "/healthz", "/nothing"])
    def test_foreign_ones_are_refused_everywhere(self, host: str, path: str) -> None:
        pages = Pages()
        answer = pages.get(path, host=host)
        assert answer.status == 421
        assert pages.denied == ["foreign_host"]

    def test_configured_names(self) -> None:
        assert Pages(names=("locks.example.com",)).get("/", host="Locks.Example.com:80").status == (
            200
        )

    def test_a_foreign_name_is_escaped_in_the_answer(self) -> None:
        body = Pages().get("/", host=f"x{EVIL}\x1b").body
        assert b"\x1b" not in body


class TestPages:
    def test_probes(self) -> None:
        pages = Pages()
        assert pages.get("/healthz").status == 200
        assert pages.get("/readyz").status == 200
        pages.state.draining = True
        assert pages.get("/healthz").status == 200
        assert pages.get("/readyz").status == 503

    def test_what_is_not_there(self) -> None:
        assert Pages().get("/admin").status == 404
        assert Pages().get("/../etc/passwd").status == 404

    @pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE"])
    def test_nothing_can_be_changed(self, method: str) -> None:
        answer = Pages().get("/status", method=method)
        assert answer.status == 405
        assert ("Allow", "GET, HEAD") in answer.headers

    def test_a_query_is_ignored(self) -> None:
        assert Pages().get("/status?x=1").status == 200

    def test_the_dashboard_brings_everything_along(self) -> None:
        answer = Pages().get("/")
        assert answer.content_type == "text/html; charset=utf-8"
        for outside in (b"http://", b"https://", b"//cdn", b"@import", b"url("):
            assert outside not in answer.body.replace(b"http://www.w3.org/2000/svg", b"")
        for markup in (b"innerHTML", b"outerHTML", b"insertAdjacent", b"document.write", b"eval"):
            assert markup not in answer.body
        policy = dict(answer.headers)["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy


class TestStatus:
    def test_beyond_loopback_without_a_token_it_is_refused(self) -> None:
        answer = Pages().get("/status", local=False)
        assert answer.status == 403
        assert b"--http-token-file" in answer.body

    def test_beyond_loopback_it_needs_the_token(self) -> None:
        pages = Pages(token=TOKEN)
        assert pages.get("/status", local=False, authorization=f"Bearer {TOKEN}").status == 200
        assert pages.get("/status", local=False, authorization=f"bearer {TOKEN}").status == 200
        for wrong in (f"Bearer {TOKEN}x", "Bearer", f"Basic {TOKEN}", TOKEN, "Bearer \xff", ""):
            assert pages.get("/status", local=False, authorization=wrong).status == 401
        assert pages.denied == ["unauthorized"] * 6

    def test_other_pages_do_not_need_it(self) -> None:
        pages = Pages(token=TOKEN)
        for path in ("/", "/metrics", "/healthz", "/readyz"):
            assert pages.get(path, local=False).status == 200

    def test_what_it_shows(self) -> None:
        shown = json.loads(Pages().get("/status").body)
        assert shown["tickets"] == 1
        assert shown["waiters"] == 2
        assert shown["connections_by_language"] == {"go": 3, "other": 1}
        assert shown["all_listed"] is True
        (ticket,) = shown["tickets_listed"]
        assert ticket["token"] == "18446744073709551615"
        assert ticket["keys"][0] == "a\\x20b\\x0a"
        assert (ticket["held_s"], ticket["left_s"], ticket["connected"]) == (1.5, 2.0, False)
        assert [w["state"] for w in shown["waiters_listed"]] == ["attached", "detached"]
        assert [w["left_s"] for w in shown["waiters_listed"]] == [None, 5.0]

    def test_a_full_table_is_cut_and_says_so(self) -> None:
        pages = Pages()
        pages.engine.waiters *= ITEMS_MAX
        shown = json.loads(pages.get("/status").body)
        assert len(shown["waiters_listed"]) == ITEMS_MAX
        pages.engine.tickets.clear()
        assert json.loads(pages.get("/status").body)["all_listed"] is False


def samples(pages: Pages) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample of /metrics by name and sorted labels."""
    text = pages.get("/metrics", accept="text/plain").body.decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class TestMetrics:
    def test_values(self) -> None:
        found = samples(Pages())
        expected = {
            ("ticketing_build_info", (("engine", "python"), ("version", "0.1.0"))): 1,
            ("ticketing_requests_total", (("op", "acquire"), ("result", "granted"))): 5,
            ("ticketing_errors_total", (("code", "auth_failed"),)): 4,
            ("ticketing_grants_total", (("path", "immediate"),)): 3,
            ("ticketing_grants_total", (("path", "handoff"),)): 2,
            ("ticketing_tickets_ended_total", (("reason", "lease_over"),)): 1,
            ("ticketing_tickets", ()): 1,
            ("ticketing_held_keys", ()): 2,
            ("ticketing_waiters", (("state", "attached"),)): 1,
            ("ticketing_waiters", (("state", "detached"),)): 1,
            ("ticketing_longest_queue_waiters", ()): 2,
            ("ticketing_oldest_waiter_age_seconds", ()): 1,
            ("ticketing_wait_seconds_bucket", (("le", "0.001"), ("result", "granted"))): 1,
            ("ticketing_wait_seconds_bucket", (("le", "1.0"), ("result", "granted"))): 3,
            ("ticketing_wait_seconds_bucket", (("le", "+Inf"), ("result", "granted"))): 6,
            ("ticketing_wait_seconds_count", (("result", "granted"),)): 6,
            ("ticketing_wait_seconds_sum", (("result", "granted"),)): 7,
            ("ticketing_hold_seconds_count", ()): 5,
            (
                "ticketing_connections",
                (("language", "go"), ("protocol", "4"), ("transport", "tls")),
            ): 1,
            ("ticketing_handshakes", ()): 1,
            ("ticketing_connections_closed_total", (("reason", "eof"),)): 9,
            ("ticketing_handshake_failures_total", (("reason", "auth_failed"),)): 4,
            ("ticketing_limit", (("resource", "connections"),)): 77,
            ("ticketing_limit", (("resource", "lease_seconds"),)): 86_400,
            ("ticketing_received_bytes_total", ()): 100,
            ("ticketing_sent_bytes_total", ()): 200,
            ("ticketing_loop_lag_seconds", ()): 0.25,
            ("ticketing_draining", ()): 0,
        }
        assert {name: found.get(name) for name in expected} == expected

    def test_the_process_is_there_and_certificates_only_with_tls(self) -> None:
        pages = Pages()
        names = {name for name, _ in samples(pages)}
        assert "process_resident_memory_bytes" in names
        assert "ticketing_certificate_expiry_timestamp_seconds" not in names
        pages.state.certificate_expiry_unix_s = {"server": 1_900_000_000.0}
        labels = (("use", "server"),)
        name = "ticketing_certificate_expiry_timestamp_seconds"
        assert samples(pages)[name, labels] == 1_900_000_000

    def test_no_key_label_or_token_is_a_label(self) -> None:
        body = Pages().get("/metrics").body
        for secret in (EVIL.encode(), b"18446744073709551615", b"w;go", b"127.0.0.1"):
            assert secret not in body

    def test_open_metrics_where_it_is_asked_for(self) -> None:
        answer = Pages().get("/metrics", accept="application/openmetrics-text; version=1.0.0")
        assert answer.content_type.startswith("application/openmetrics-text")
        assert answer.body.endswith(b"# EOF\n")


@asynccontextmanager
async def serving(pages: Pages) -> AsyncIterator[tuple[HttpServer, int]]:
    server = HttpServer(pages.site)
    listener = await asyncio.get_running_loop().create_server(server.connect, "127.0.0.1", 0)
    try:
        yield server, listener.sockets[0].getsockname()[1]
    finally:
        listener.close()
        server.close()
        await listener.wait_closed()


async def _rest(reader: asyncio.StreamReader) -> bytes:
    """What still comes, up to an end or a reset."""
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


async def exchange(port: int, data: bytes) -> bytes:
    """Send bytes, then an end, and return everything that came back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    try:
        return await asyncio.wait_for(_rest(reader), 30)
    finally:
        writer.close()


GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"


OnLoop = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(params=["asyncio", "uvloop"])
def on_loop(request: pytest.FixtureRequest) -> OnLoop:
    """Runs a coroutine on each kind of event loop."""
    if request.param == "asyncio":
        return asyncio.run
    uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed")

    def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(coroutine)

    return run


class TestConnection:
    def test_one_connection_serves_many_requests(self, on_loop: OnLoop) -> None:
        async def run() -> bytes:
            async with serving(Pages()) as (_, port):
                pipelined = (GET + b"\r\n") * 3 + GET + b"Connection: close\r\n\r\n"
                return await exchange(port, pipelined)

        assert on_loop(run()).count(b"HTTP/1.1 200") == 4

    def test_one_byte_at_a_time(self, on_loop: OnLoop) -> None:
        async def run() -> bytes:
            async with serving(Pages()) as (_, port):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                for byte in GET + b"Connection: close\r\n\r\n":
                    writer.write(bytes([byte]))
                    await writer.drain()
                    await asyncio.sleep(0)
                return await asyncio.wait_for(reader.read(), 30)

        assert on_loop(run()).startswith(b"HTTP/1.1 200")

    def test_head_has_the_length_and_no_body(self, on_loop: OnLoop) -> None:
        async def run() -> bytes:
            async with serving(Pages()) as (_, port):
                request = GET.replace(b"GET", b"HEAD") + b"Connection: close\r\n\r\n"
                return await exchange(port, request)

        head, _, body = on_loop(run()).partition(b"\r\n\r\n")
        assert b"Content-Length: 3" in head
        assert body == b""

    def test_who_ends_early_gets_what_was_asked_for(self, on_loop: OnLoop) -> None:
        async def run() -> int:
            async with serving(Pages()) as (_, port):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write((GET + b"\r\n") * int(http.ANSWERS_BURST + 5))
                writer.write_eof()
                answers = (await asyncio.wait_for(_rest(reader), 30)).count(b"HTTP/1.1 200")
                writer.close()
                return answers

        assert on_loop(run()) == http.ANSWERS_BURST + 5

    def test_http_1_0_without_a_host(self, on_loop: OnLoop) -> None:
        async def run() -> bytes:
            async with serving(Pages()) as (_, port):
                return await exchange(port, b"GET /readyz HTTP/1.0\r\n\r\n")

        assert on_loop(run()).startswith(b"HTTP/1.1 200")

    @pytest.mark.parametrize(
        ("data", "status"),
        [
            (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64) + b"\r\n\r\n", b"400"),
            (b"GET /healthz HTTP/1.1\r\n\r\n", b"400"),
            (GET + b"Host: evil.example\r\n\r\n", b"400"),
            (GET + b"X: " + b"y" * 20_000, b"431"),
            (GET + b"Content-Length: 5\r\n\r\nhello", b"413"),
            (GET + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", b"413"),
        ],
        ids=["tls", "no-host", "two-hosts", "long", "body", "chunked"],
    )
    def test_what_is_refused_is_answered_and_closed(
        self, on_loop: OnLoop, data: bytes, status: bytes
    ) -> None:
        async def run() -> bytes:
            async with serving(Pages()) as (_, port):
                return await exchange(port, data)

        assert on_loop(run()).startswith(b"HTTP/1.1 " + status)

    def test_of_too_many_connections_the_oldest_is_closed(self, on_loop: OnLoop) -> None:
        async def run() -> tuple[bytes, bytes]:
            async with serving(Pages()) as (_, port):
                held = [
                    await asyncio.open_connection("127.0.0.1", port)
                    for _ in range(http.CONNECTIONS_MAX)
                ]
                served = await exchange(port, GET + b"Connection: close\r\n\r\n")
                closed = await asyncio.wait_for(_rest(held[0][0]), 30)
                for _, writer in held:
                    writer.close()
                return closed, served

        closed, served = on_loop(run())
        assert closed == b""
        assert served.startswith(b"HTTP/1.1 200")

    def test_a_flood_of_requests_is_answered_at_a_bounded_rate(self, on_loop: OnLoop) -> None:
        async def run() -> tuple[int, float]:
            async with serving(Pages()) as (_, port):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                begun_s = time.monotonic()
                writer.write((GET + b"\r\n") * 59 + GET + b"Connection: close\r\n\r\n")
                answers = (await asyncio.wait_for(reader.read(), 60)).count(b"HTTP/1.1 200")
                writer.close()
                return answers, time.monotonic() - begun_s

        answers, took_s = on_loop(run())
        assert answers == 60
        assert took_s > (60 - http.ANSWERS_BURST) / http.ANSWERS_PER_S * 0.9

    def test_a_silent_connection_is_closed(
        self, on_loop: OnLoop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(http, "REQUEST_TIMEOUT_S", 0.05)

        async def run() -> bytes:
            async with serving(Pages()) as (_, port):
                return await exchange(port, b"GET /healthz HT")

        assert on_loop(run()) == b""

    def test_who_asks_and_never_reads_costs_bounded_memory(
        self, on_loop: OnLoop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(http, "ANSWERS_PER_S", 1e9)

        async def run() -> int:
            pages = Pages()
            async with serving(pages) as (server, port):
                _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                ask = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100
                for _ in range(200):
                    writer.write(ask)
                    await asyncio.sleep(0)
                (connection,) = server._connections
                transport = connection._transport
                assert transport is not None
                assert connection._stalled, "it was to be stopped by the unread answers"
                unsent = transport.get_write_buffer_size()
                writer.transport.abort()
                return unsent

        assert on_loop(run()) < 200_000
