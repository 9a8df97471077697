"""Transports, restarts and failures: both clients against real sockets."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import ticketing
from conftest import LONG
from scripted import ScriptedServer, read_frame, welcome
from test_asyncio import run
from ticketing import TlsOptions
from ticketing._core.codec import encode
from ticketing_server.testing import Certificates, ServerProcess, ServerThread, make_certificates


async def use(url: str, **options: object) -> None:
    """Both APIs, one ticket each."""
    async with (
        ticketing.connect(url, **options) as client,  # type: ignore[arg-type]
        client.acquire("k", wait_timeout=LONG),
    ):
        pass
    await asyncio.to_thread(use_sync, url, **options)


def use_sync(url: str, **options: object) -> None:
    with (
        ticketing.sync.connect(url, **options) as client,  # type: ignore[arg-type]
        client.acquire("k", wait_timeout=LONG),
    ):
        pass


def fails(url: str, error: type[ticketing.TicketingError], **options: object) -> str:
    """Both APIs fail to open in time; returns what the error says."""
    texts = []

    async def opening() -> None:
        with pytest.raises(error) as failure:
            await ticketing.connect(url, **options)  # type: ignore[arg-type]
        texts.append(str(failure.value))

    began = time.monotonic()
    run(opening)
    with pytest.raises(error) as failure:
        ticketing.sync.connect(url, **options)  # type: ignore[arg-type]
    texts.append(str(failure.value))
    assert time.monotonic() - began < LONG
    assert texts[0] == texts[1]
    return texts[0]


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")
def test_ipv6() -> None:
    """REQ-URL-FORMS"""
    with ServerThread(listen="[::1]:0") as server:
        assert "[::1]" in server.url
        run(use, server.url)


def test_unix_socket(tmp_path: Path) -> None:
    """REQ-URL-FORMS"""
    path = tmp_path / "t s.sock"
    with ServerThread(listen=f"unix:{path}"):
        run(use, f"ticketing+unix://{str(path).replace(' ', '%20')}")
    assert "no such socket" in fails(
        f"ticketing+unix://{tmp_path}/none", ticketing.ConnectionFailedError
    )


def test_names_are_resolved() -> None:
    """REQ-URL-RESOLVE"""
    with ServerThread() as server:
        run(use, f"ticketing://localhost:{server.address[1]}")


def test_several_endpoints() -> None:
    """REQ-CONNECT-ORDER"""
    with ServerThread() as server:
        run(use, f"ticketing://127.0.0.1:{free_port()},127.0.0.1:{server.address[1]}")


def free_port() -> int:
    """A port on which nobody listens at the moment."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def tls_server(certificates: Certificates) -> Iterator[ServerThread]:
    with ServerThread(
        tls_cert=str(certificates.server_cert), tls_key=str(certificates.server_key)
    ) as running:
        yield running


def test_tls_with_a_private_authority(tls_server: ServerThread, certificates: Certificates) -> None:
    url = f"ticketings://localhost:{tls_server.address[1]}"
    run(use_tls, url, TlsOptions(ca_file=certificates.ca))
    run(use_tls, url, ssl.create_default_context(cafile=certificates.ca))
    by_address = f"ticketings://127.0.0.1:{tls_server.address[1]}"
    run(use_tls, by_address, TlsOptions(ca_file=certificates.ca, server_name="localhost"))


async def use_tls(url: str, tls: TlsOptions | ssl.SSLContext) -> None:
    await use(url, tls=tls)


def test_tls_that_is_not_trusted(
    tls_server: ServerThread, certificates: Certificates, tmp_path: Path
) -> None:
    """The error says which file to name, and is there within seconds."""
    url = f"ticketings://localhost:{tls_server.address[1]}"
    failed = ticketing.ConnectionFailedError
    assert "ca_file" in fails(url, failed)
    other = make_certificates(tmp_path)
    assert "not trusted" in fails(url, failed, tls=TlsOptions(ca_file=other.ca))
    wrong_name = TlsOptions(ca_file=certificates.ca, server_name="example.org")
    assert "not trusted" in fails(url, failed, tls=wrong_name)


def test_tls_mixed_up(tls_server: ServerThread, certificates: Certificates) -> None:
    failed = ticketing.ConnectionFailedError
    assert "ticketings://" in fails(f"ticketing://localhost:{tls_server.address[1]}", failed)
    with ServerThread() as plain:
        url = f"ticketings://localhost:{plain.address[1]}"
        assert "TLS" in fails(url, failed, tls=TlsOptions(ca_file=certificates.ca))


def test_expired_certificate(tmp_path: Path) -> None:
    expired = make_certificates(tmp_path, valid_for=timedelta(days=-1))
    with ServerThread(tls_cert=str(expired.server_cert), tls_key=str(expired.server_key)) as server:
        url = f"ticketings://localhost:{server.address[1]}"
        text = fails(url, ticketing.ConnectionFailedError, tls=TlsOptions(ca_file=expired.ca))
        assert "expired" in text


def test_mutual_tls(certificates: Certificates, tmp_path: Path) -> None:
    with ServerThread(
        tls_cert=str(certificates.server_cert),
        tls_key=str(certificates.server_key),
        tls_client_ca=str(certificates.ca),
    ) as server:
        url = f"ticketings://localhost:{server.address[1]}"
        mine = TlsOptions(certificates.ca, certificates.client_cert, certificates.client_key)
        run(use_tls, url, mine)
        failed = ticketing.ConnectionFailedError
        assert "certificate" in fails(url, failed, tls=TlsOptions(ca_file=certificates.ca))
        other = make_certificates(tmp_path)
        theirs = TlsOptions(certificates.ca, other.client_cert, other.client_key)
        assert "certificate" in fails(url, failed, tls=theirs)


def test_no_server() -> None:
    """REQ-CONNECT-NEVER: an error within seconds that says what to do."""
    port = free_port()
    text = fails(f"ticketing://127.0.0.1:{port}", ticketing.ConnectionFailedError)
    assert f"127.0.0.1:{port}: connection refused" in text
    assert "is a server running there?" in text


def test_name_that_does_not_resolve() -> None:
    text = fails("ticketing://no-such-host.invalid:1", ticketing.ConnectionFailedError)
    assert "'no-such-host.invalid' does not resolve" in text
    assert "check the URL" in text


def test_wrong_secret() -> None:
    """REQ-CONNECT-AUTH"""
    with ServerThread("the right secret of it") as server:
        run(use_secret, server.url)
        text = fails(server.url, ticketing.AuthError, secret="the wrong secret")
        assert "TICKETING_SECRET" in text
        assert "the wrong secret" not in text


async def use_secret(url: str) -> None:
    await use(url, secret=b"the right secret of it")


def test_impostor() -> None:
    """REQ-CONN-PROOF: it learns no key."""
    heard = []

    def script(connection: socket.socket) -> None:
        welcome(connection, secret=b"a guess")
        heard.append(connection.recv(100))

    with ScriptedServer(script) as server:
        text = fails(server.url, ticketing.AuthError, secret="the real one")
        assert "prove" in text
    assert heard == [b"", b""]


def test_named_leader_that_cannot_be_reached() -> None:
    """REQ-CONNECT-ADVERTISE"""
    leader = f"127.0.0.1:{free_port()}"

    def script(connection: socket.socket) -> None:
        welcome(connection, role=2, leader=leader.encode())
        connection.recv(1)

    with ScriptedServer(script) as server:
        text = fails(server.url, ticketing.ConnectionFailedError)
    assert leader in text
    assert "--advertise" in text


def test_silent_server() -> None:
    """REQ-CONNECT-TIMEOUT REQ-HOSTILE-SLOW"""
    with ScriptedServer(lambda connection: connection.recv(1) and None) as server:
        assert "3000 ms" in fails(server.url, ticketing.ConnectionFailedError)


def test_server_that_drips() -> None:
    """REQ-FRAME-SPLIT: byte by byte it is the same server."""

    def script(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        welcome(connection)
        while True:
            frame = read_frame(connection)
            request_id = int.from_bytes(frame[3:11], "big")
            name = "granted" if frame[:1] == b"A" else "released"
            fields = {"request_id": request_id}
            if name == "granted":
                fields |= {"token": request_id, "waited_ms": 0}
            for byte in encode("server", name, fields):
                connection.sendall(bytes([byte]))

    with ScriptedServer(script) as server:
        run(use, server.url)


def test_server_killed_and_restarted_under_a_hundred_waiters(tmp_path: Path) -> None:
    """REQ-RESEND-ALL REQ-RESEND-ONCE: each of them settles exactly once."""
    settled: list[int] = []

    async def waiter(client: ticketing.Client, number: int) -> None:
        ticket = await client.acquire("k", lease=60)
        settled.append(number)
        await ticket.release()

    async def main() -> None:
        port = free_port()
        with ServerProcess(listen=f"127.0.0.1:{port}") as first:
            async with (
                ticketing.connect(first.url) as holder,
                ticketing.connect(first.url) as client,
            ):
                held = await holder.acquire("k", lease=60)
                waiters = [asyncio.create_task(waiter(client, n)) for n in range(100)]
                await client.ping()
                first.kill()
                await asyncio.sleep(0)
                assert settled == []
                with ServerProcess(listen=f"127.0.0.1:{port}"):
                    await asyncio.gather(*waiters)
                    # The server of this ticket is gone; the new one does not know it.
                    assert await held.wait_lost() is ticketing.LostReason.NOT_HELD
                    async with client.acquire("k", wait_timeout=LONG):
                        pass

    run(main)
    assert sorted(settled) == list(range(100))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
def test_fork_is_a_construction() -> None:
    """REQ-FORK-NEW REQ-FORK-SOCKET REQ-FORK-TICKETS: the parent notices nothing."""
    with ServerProcess() as server:
        client = ticketing.sync.connect(server.url, name="forked")
        ticket = client.acquire("parent's")
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read_end)
            os.write(write_end, in_the_child(client, ticket).encode())
            os._exit(0)
        os.close(write_end)
        with os.fdopen(read_end) as told:
            assert told.read() == "closed closed new 1 held ok"
        assert os.waitpid(child, 0)[1] == 0
        ticket.extend()
        assert client.try_acquire("parent's") is None
        ticket.release()
        client.close()


def in_the_child(client: ticketing.sync.Client, ticket: ticketing.sync.Ticket) -> str:
    """What a child sees of its parent's client and ticket."""
    said = []
    parents_id = client._runner.driver.core.settings.client_id
    for call in (ticket.release, ticket.extend):
        try:
            call()
            said.append("done")
        except ticketing.TicketingError as error:
            said.append(error.kind)
    try:
        mine = client.acquire("child's", wait_timeout=LONG)
        core = client._runner.driver.core
        said.append("new" if core.settings.client_id != parents_id else "old")
        said.append(str(core._link._hellos))
        said.append("free" if client.try_acquire("parent's") else "held")
        mine.release()
        client.close()
        said.append("ok")
    except BaseException as error:
        said.append(repr(error))
    return " ".join(said)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
def test_fork_with_the_asyncio_client() -> None:
    """REQ-FORK-NEW REQ-FORK-SOCKET REQ-FORK-TICKETS"""

    async def in_child(client: ticketing.Client, ticket: ticketing.Ticket) -> str:
        said = []
        try:
            await ticket.release()
        except ticketing.ClosedError:
            said.append("closed")
        async with client.acquire("child's"):
            said.append("held" if await client.try_acquire("parent's") is None else "free")
        await client.close()
        return " ".join(said)

    async def main() -> None:
        async with (
            ticketing.connect(server.url) as client,
            client.acquire("parent's") as ticket,
        ):
            read_end, write_end = os.pipe()
            child = os.fork()
            if child == 0:
                asyncio.events._set_running_loop(None)
                try:
                    told = asyncio.new_event_loop().run_until_complete(in_child(client, ticket))
                    os.write(write_end, told.encode())
                finally:
                    os._exit(0)
            os.close(write_end)
            with os.fdopen(read_end) as pipe:
                assert await asyncio.to_thread(pipe.read) == "closed held"
            os.waitpid(child, 0)
            await ticket.extend()

    with ServerProcess() as server:
        run(main)
