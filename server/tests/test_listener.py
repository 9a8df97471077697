"""The shell on real sockets, on uvloop and on asyncio's own loop."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import uvloop
from ticketing_server import constants_gen as c
from ticketing_server.addresses import Address
from ticketing_server.engine import Event
from ticketing_server.limits import Limits
from ticketing_server.listener import Server, clock_ns
from ticketing_server.secret_file import Secret
from ticketing_server.settings import Settings
from ticketing_spec import load_spec
from ticketing_spec.codec import client_nonce, decode, encode, mac

SPEC = load_spec()
LOCAL = (Address("127.0.0.1", 0),)
PATIENCE_S = 60.0
"""How long a test waits for what has to come; a loaded machine may need a while."""

Body = Callable[[], Coroutine[Any, Any, None]]
RUNNERS: dict[str, Callable[[Coroutine[Any, Any, None]], None]] = {
    "asyncio": asyncio.run,
    "uvloop": uvloop.run,
}


@pytest.fixture(params=sorted(RUNNERS))
def run(request: pytest.FixtureRequest) -> Callable[[Awaitable[None]], None]:
    """Run a coroutine on one of the loops, bounded in time."""

    def run(body: Awaitable[None]) -> None:
        async def bounded() -> None:
            await asyncio.wait_for(body, 3 * PATIENCE_S)

        RUNNERS[request.param](bounded())

    return run


class Serving:
    """A server for the time of a `with`, and the events that it told."""

    def __init__(self, settings: Settings | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.events: list[Event] = []
        self.server = Server(
            settings or Settings(listen=LOCAL), tls=tls, on_event=self.events.append
        )

    async def __aenter__(self) -> Serving:
        await self.server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.stop()

    @property
    def port(self) -> int:
        return self.server.addresses[0].port


@dataclass
class Client:
    """A raw client of version 4."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    greeting: bytes = b""

    async def frame(self) -> tuple[str, dict[str, Any]]:
        head = await asyncio.wait_for(self.reader.readexactly(3), PATIENCE_S)
        body = await self.reader.readexactly(head[1] << 8 | head[2])
        return decode(SPEC, "server", head + body)

    async def hello(self, client: int = 1, secret: bytes = b"") -> tuple[str, dict[str, Any]]:
        self.greeting = await asyncio.wait_for(self.reader.readexactly(26), PATIENCE_S)
        fields = {
            "version": 4,
            "client_id": client,
            "connection": 1,
            "client_nonce": client_nonce(SPEC, bytes(16), 1),
            "label": b"test;python/1",
        }
        fields["mac"] = mac(SPEC, secret, self.greeting, fields)
        self.writer.write(encode(SPEC, "client", "hello", fields))
        return await self.frame()

    async def ask(self, name: str, **fields: Any) -> tuple[str, dict[str, Any]]:
        self.writer.write(encode(SPEC, "client", name, fields))
        return await self.frame()

    async def lock(self, key: bytes = b"k", lease_ms: int = 30_000) -> int:
        name, fields = await self.ask(
            "acquire", request_id=1, wait_ms=0, lease_ms=lease_ms, key=key
        )
        assert name == "granted"
        return int(fields["token"])

    async def rest(self) -> bytes:
        return await asyncio.wait_for(self.reader.read(), PATIENCE_S)


async def connect(serving: Serving, client: int = 1, **options: Any) -> Client:
    """Connect by TCP and be welcomed."""
    connected = Client(*await asyncio.open_connection("127.0.0.1", serving.port, **options))
    assert (await connected.hello(client))[0] == "welcome"
    return connected


def test_clients_are_read_only_while_the_engine_takes_more(
    run: Callable[[Awaitable[None]], None],
) -> None:
    async def body() -> None:
        reads = True
        serving = Serving()
        serving.server = Server(Settings(listen=LOCAL), after_turn=lambda: reads)
        async with serving:
            first = await connect(serving, 1)
            second = await connect(serving, 2)
            reads = False
            assert await first.ask("ping", echo=1) == ("ping", {"echo": 1})
            second.writer.write(encode(SPEC, "client", "ping", {"echo": 2}))
            waiting = asyncio.ensure_future(second.frame())
            third = Client(*await asyncio.open_connection("127.0.0.1", serving.port))
            assert len(await asyncio.wait_for(third.reader.readexactly(26), PATIENCE_S)) == 26
            await asyncio.sleep(0.1)
            assert not waiting.done()
            assert serving.server.engine.counters().received_bytes < 300
            reads = True
            serving.server.begin_turn()
            assert await waiting == ("ping", {"echo": 2})
            assert await first.ask("ping", echo=3) == ("ping", {"echo": 3})

    run(body())


def test_a_halted_server_says_nothing_more(run: Callable[[Awaitable[None]], None]) -> None:
    async def body() -> None:
        async with Serving() as serving:
            client = await connect(serving)
            client.writer.write(encode(SPEC, "client", "ping", {"echo": 1}))
            serving.server.halt()
            with suppress(ConnectionResetError):
                assert await client.rest() == b""
            with pytest.raises(OSError, match=r"refused|Connect call failed"):
                await asyncio.open_connection("127.0.0.1", serving.port)

    run(body())


def test_clock_is_monotonic_nanoseconds() -> None:
    before = clock_ns()
    assert clock_ns() >= before
    assert before > 1_000_000


def test_locks_over_tcp_and_unix(run: Callable[[Awaitable[None]], None], tmp_path: Path) -> None:
    async def body() -> None:
        path = str(tmp_path / "socket")
        addresses = (*LOCAL, Address("::1", 0), Address(path=path))
        async with Serving(Settings(listen=addresses)) as serving:
            assert [address.is_unix for address in serving.server.addresses] == [False, False, True]
            tcp = await connect(serving)
            unix = Client(*await asyncio.open_unix_connection(path))
            await unix.hello(2)
            token = await tcp.lock()
            waiting = asyncio.ensure_future(
                unix.ask("acquire", request_id=1, wait_ms=50_000, lease_ms=9, key=b"k")
            )
            await unix.writer.drain()
            assert (await tcp.ask("ping", echo=1))[0] == "ping"
            assert (await tcp.ask("release", request_id=2, token=token, key=b"k"))[0] == "released"
            assert (await waiting)[1]["token"] > token
            transports = serving.server.engine.counters().connections
            assert transports == {(4, "tcp", "python"): 1, (4, "unix", "python"): 1}
        assert not os.path.exists(path)

    run(body())


def test_locks_over_tls(
    run: Callable[[Awaitable[None]], None],
    tls_pair: tuple[Path, Path],
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body() -> None:
        serve = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        serve.load_cert_chain(*tls_pair)
        trust = ssl.create_default_context(cafile=str(tls_pair[0]))
        async with Serving(tls=serve) as serving:
            client = await connect(serving, ssl=trust, server_hostname="localhost")
            assert await client.lock()
            plain = Client(*await asyncio.open_connection("127.0.0.1", serving.port))
            plain.writer.write(b"P\0\x08" + bytes(8))
            assert b"TICKET" not in await plain.rest()
            client.writer.write(b"\0\0\0")
            name, fields = await client.frame()
            assert (name, fields["code"]) == ("error", c.ERROR_BAD_FRAME)
            assert await client.rest() == b""
            assert "tls_failed" in [event.name for event in serving.events]
            gone = await connect(serving, ssl=trust, server_hostname="localhost")
            gone.writer.close()
            await gone.writer.wait_closed()
            while serving.server.sockets:
                await asyncio.sleep(0.01)

    run(body())
    assert caplog.text == ""


def test_a_lease_ends_at_its_time(run: Callable[[Awaitable[None]], None]) -> None:
    """REQ-LEASE-OVER on the real clock: never early, and soon (within a loaded machine's delay)."""

    async def body() -> None:
        async with Serving() as serving:
            client = await connect(serving)
            for lease_ms in (1, 40, 300):
                began = time.monotonic()
                token = await client.lock(lease_ms=lease_ms)
                assert await client.frame() == (
                    "dropped",
                    {"token": token, "reason": c.DROP_LEASE_OVER},
                )
                took = time.monotonic() - began
                assert lease_ms / 1000 <= took < 10

    run(body())


def test_the_last_frame_survives_unread_bytes(run: Callable[[Awaitable[None]], None]) -> None:
    """REQ-CLOSING-REASON: the reason is read though the server read nothing more."""

    async def body() -> None:
        async with Serving() as serving:
            for _ in range(5):
                client = await connect(serving)
                client.writer.write(b"Z" + bytes(2_000_000))
                with suppress(ConnectionError):
                    await client.writer.drain()
                await asyncio.sleep(0.05)
                name, fields = await client.frame()
                assert (name, fields["code"]) == ("error", c.ERROR_BAD_FRAME)
                assert await client.rest() == b""
                client.writer.close()

    run(body())


def test_a_closed_connection_is_dropped_though_the_peer_stays(
    run: Callable[[Awaitable[None]], None],
) -> None:
    async def body() -> None:
        async with Serving() as serving:
            client = await connect(serving)
            client.writer.write(b"Z\0\0")
            await client.frame()
            began = time.monotonic()
            while serving.server.sockets:
                await asyncio.sleep(0.02)
                assert time.monotonic() - began < PATIENCE_S
            assert time.monotonic() - began > 0.5

    run(body())


def test_half_closed_clients_are_answered(run: Callable[[Awaitable[None]], None]) -> None:
    async def body() -> None:
        async with Serving() as serving:
            client = await connect(serving)
            fields = {"wait_ms": 0, "lease_ms": 9000}
            for number in range(1, 1001):
                client.writer.write(
                    encode(SPEC, "client", "acquire", {"request_id": number, "key": b"k", **fields})
                )
            client.writer.write_eof()
            data = await client.rest()
            assert len(data) == 23 + 999 * 11
            while serving.server.sockets:
                await asyncio.sleep(0.02)

    run(body())


def test_a_million_requests_never_read_cost_bounded_memory(
    run: Callable[[Awaitable[None]], None],
) -> None:
    """REQ-PRESSURE-STOP, REQ-PRESSURE-BOUND, REQ-PRESSURE-OTHERS, and reading goes on later."""

    async def body() -> None:
        limits = Limits(unsent_bytes=1_048_576, keepalive_s=600)
        async with Serving(Settings(listen=LOCAL, limits=limits)) as serving:
            other = await connect(serving, 2)
            greedy = await connect(serving, 1)
            loop = asyncio.get_running_loop()
            sock = greedy.writer.get_extra_info("socket")
            raw = socket.socket(fileno=os.dup(sock.fileno()))
            greedy.writer.transport.pause_reading()  # type: ignore[attr-defined]
            raw.setblocking(False)
            data = encode(SPEC, "client", "ping", {"echo": 5}) * 1_000_000
            sending = asyncio.ensure_future(loop.sock_sendall(raw, data))
            transport = next(iter(serving.server.sockets.values()))
            for transport in serving.server.sockets.values():
                info = serving.server.engine.inspect("connections", transport.number - 1, 1)[0]
                if info.client == 1:  # type: ignore[union-attr]
                    break
            began = time.monotonic()
            while transport.transport.is_reading():
                await asyncio.sleep(0.01)
                assert time.monotonic() - began < PATIENCE_S
            unsent = transport.transport.get_write_buffer_size()
            for _ in range(5):
                assert (await other.ask("ping", echo=9)) == ("ping", {"echo": 9})
            assert transport.transport.get_write_buffer_size() <= unsent
            assert 1_048_576 < unsent < 1_800_000
            assert not sending.done()
            greedy.writer.transport.resume_reading()  # type: ignore[attr-defined]
            left = len(data)
            while left:
                left -= len(await asyncio.wait_for(greedy.reader.read(1 << 20), PATIENCE_S))
            await sending
            assert transport.transport.is_reading()
            raw.close()

    run(body())


def test_drain_and_stop(run: Callable[[Awaitable[None]], None]) -> None:
    """REQ-LEAD-DRAIN: L, then the end; nobody can connect any more."""

    async def body() -> None:
        async with Serving() as serving:
            client = await connect(serving)
            port = serving.port
            draining = asyncio.ensure_future(serving.server.drain())
            assert await client.frame() == ("leader", {"leader": b""})
            assert await client.rest() == b""
            client.writer.close()
            await asyncio.wait_for(draining, PATIENCE_S)
            with pytest.raises(OSError, match=r"."):
                await asyncio.open_connection("127.0.0.1", port)

    run(body())


def test_secrets_can_be_changed(run: Callable[[Awaitable[None]], None]) -> None:
    async def body() -> None:
        settings = Settings(listen=LOCAL, secrets=(Secret("old", b"one"),))
        async with Serving(settings) as serving:
            serving.server.configure(settings.limits, (Secret("new", b"two"),))
            client = Client(*await asyncio.open_connection("127.0.0.1", serving.port))
            assert (await client.hello(secret=b"two"))[0] == "welcome"
            client = Client(*await asyncio.open_connection("127.0.0.1", serving.port))
            began = time.monotonic()
            name, fields = await client.hello(secret=b"one")
            assert (name, fields["code"]) == ("error", c.ERROR_AUTH_FAILED)
            assert time.monotonic() - began >= 0.1

    run(body())


def test_accepting_pauses_without_descriptors_and_goes_on(
    run: Callable[[Awaitable[None]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Exhausted:
        """A listening socket whose first accepts find no free descriptor."""

        def __init__(self, listening: socket.socket) -> None:
            self.listening = listening
            self.failures = 2

        def accept(self) -> tuple[socket.socket, Any]:
            if self.failures:
                self.failures -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            return self.listening.accept()

        def __getattr__(self, name: str) -> Any:
            return getattr(self.listening, name)

    async def body() -> None:
        monkeypatch.setattr("ticketing_server.listener._ACCEPT_PAUSE_S", 0.05)
        async with Serving() as serving:
            present = await connect(serving)
            (listener,) = serving.server._listeners
            exhausted = Exhausted(listener.socket)
            listener.socket = exhausted  # type: ignore[assignment]
            late = await connect(serving, 2)
            assert exhausted.failures == 0
            assert await late.lock()
            assert await present.ask("ping", echo=1) == ("ping", {"echo": 1})
            told = [event for event in serving.events if event.name == "limit_reached"]
            assert [event.fields["resource"] for event in told] == ["files", "files"]

    run(body())


def test_what_cannot_be_bound_is_named(
    run: Callable[[Awaitable[None]], None], tmp_path: Path
) -> None:
    async def body() -> None:
        async with Serving() as serving:
            taken = Settings(listen=(*LOCAL, Address("127.0.0.1", serving.port)))
            other = Server(taken)
            with pytest.raises(OSError, match=f"--listen 127.0.0.1:{serving.port}") as caught:
                await other.start()
            assert caught.value.errno == errno.EADDRINUSE
            path = tmp_path / "file"
            path.write_text("not a socket")
            with pytest.raises(OSError, match="--listen unix:"):
                await Server(replace(taken, listen=(Address(path=str(path)),))).start()
            assert path.read_text() == "not a socket"

    run(body())


def test_an_abandoned_unix_socket_is_replaced_and_a_live_one_is_not(
    run: Callable[[Awaitable[None]], None], tmp_path: Path
) -> None:
    async def body() -> None:
        path = str(tmp_path / "socket")
        abandoned = socket.socket(socket.AF_UNIX)
        abandoned.bind(path)
        abandoned.close()
        settings = Settings(listen=(Address(path=path),))
        async with Serving(settings):
            with pytest.raises(OSError, match="in use"):
                await Server(settings).start()
            client = Client(*await asyncio.open_unix_connection(path))
            assert (await client.hello())[0] == "welcome"

    run(body())


def test_the_path_of_another_server_stays(
    run: Callable[[Awaitable[None]], None], tmp_path: Path
) -> None:
    """Somebody removed the path of the first one, and a second one took it."""

    async def body() -> None:
        path = tmp_path / "socket"
        settings = Settings(listen=(Address(path=str(path)),))
        first, second = Serving(settings), Serving(settings)
        await first.__aenter__()
        path.rename(tmp_path / "moved again")
        await second.__aenter__()
        await first.__aexit__()
        client = Client(*await asyncio.open_unix_connection(str(path)))
        assert (await client.hello())[0] == "welcome"
        await second.__aexit__()
        assert not path.exists()

    run(body())


def test_sockets_have_their_options(run: Callable[[Awaitable[None]], None]) -> None:
    """REQ-SILENCE-USERTIMEOUT."""

    async def body() -> None:
        async with Serving(Settings(listen=LOCAL, limits=Limits(keepalive_s=30))) as serving:
            client = await connect(serving)
            (accepted,) = serving.server.sockets.values()
            sock = accepted.transport.get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 90_000
            client.writer.close()

    run(body())


@pytest.fixture
def tls_pair(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for localhost that signs itself, and its key."""
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    cert_path, key_path = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return cert_path, key_path
