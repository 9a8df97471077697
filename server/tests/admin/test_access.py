"""Who may call over real channels: secrets, TLS and client certificates; health, reflection."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from admin_client import PATIENCE_S, SERVICE, Caller, Serving, calling, serving
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from ticketing_server.settings_load import ADMIN_SECRET_ENV
from ticketing_server.testing import Certificates, make_certificates
from ticketing_server.tls import TlsError

SECRET = "a-secret-of-administration"
Body = Callable[[Serving], Coroutine[Any, Any, None]]


def run(body: Body, env: dict[str, str] | None = None, **settings: str) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(3 * PATIENCE_S), serving(env, **settings) as server:
            await body(server)

    asyncio.run(bounded())


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def tls(certificates: Certificates, *, clients: bool = False) -> dict[str, str]:
    """Settings that serve administration with these certificates."""
    settings = {
        "admin_tls_cert": str(certificates.server_cert),
        "admin_tls_key": str(certificates.server_key),
    }
    return settings | ({"admin_tls_client_ca": str(certificates.ca)} if clients else {})


def credentials(certificates: Certificates, *, with_own: bool = False) -> grpc.ChannelCredentials:
    key, cert = (
        (certificates.client_key.read_bytes(), certificates.client_cert.read_bytes())
        if with_own
        else (None, None)
    )
    return grpc.ssl_channel_credentials(certificates.ca.read_bytes(), key, cert)


async def health(channel: grpc.aio.Channel, service: str = "") -> int:
    stub = health_pb2_grpc.HealthStub(channel)
    request = health_pb2.HealthCheckRequest(service=service)
    return int((await stub.Check(request, timeout=PATIENCE_S)).status)


@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_a_secret_is_taken_and_no_other(transport: str, tmp_path: Path) -> None:
    async def body(server: Serving) -> None:
        target = server.target(unix=transport == "unix")
        async with calling(target, SECRET) as caller:
            await caller.call("Status")
        async with calling(target) as caller:
            code, text = await caller.refusal("Status")
            assert code == "UNAUTHENTICATED"
            assert "try: --secret-file FILE" in text
            # Calls that stream are refused alike, and none of them is begun.
            assert (await caller.refusal("TakeSnapshot"))[0] == "UNAUTHENTICATED"
            assert (await caller.refusal("Drain"))[0] == "UNAUTHENTICATED"
        async with calling(target, "another-secret-of-it") as caller:
            code, text = await caller.refusal("Status")
            assert code == "UNAUTHENTICATED"
            assert "not one of this server's secrets" in text
        assert not server.service.stop_asked.is_set()
        log = "".join(server.lines)
        assert "warning admin_denied call=/ticketing.admin.v1.Admin/Status peer=" in log
        assert SECRET not in log
        assert "another-secret" not in log

    listen = f"unix:{tmp_path / 'admin'}" if transport == "unix" else "127.0.0.1:0"
    run(body, {ADMIN_SECRET_ENV: SECRET}, admin_listen=listen)


def test_a_secret_over_tls_is_named_in_the_log(certificates: Certificates, tmp_path: Path) -> None:
    path = tmp_path / "secrets"
    path.write_text(f"ops {SECRET}\n")

    async def body(server: Serving) -> None:
        async with calling(server.target(), SECRET, credentials(certificates)) as caller:
            await caller.call("Drain")
        assert "admin_call call=drain caller=ops@127.0.0.1:" in "".join(server.lines)
        async with calling(server.target(), "", credentials(certificates)) as caller:
            assert (await caller.refusal("Status"))[0] == "UNAUTHENTICATED"
        async with calling(server.target(), SECRET) as caller:
            assert (await caller.refusal("Status"))[0] == "UNAVAILABLE"

    run(body, admin_secret_file=str(path), **tls(certificates))


def test_a_client_certificate_is_asked_for(certificates: Certificates, tmp_path: Path) -> None:
    strangers = make_certificates(tmp_path)

    async def body(server: Serving) -> None:
        target = server.target()
        async with calling(target, "", credentials(certificates, with_own=True)) as caller:
            await caller.call("Drain")
        assert "admin_call call=drain caller=client@127.0.0.1:" in "".join(server.lines)
        async with calling(target, "", credentials(certificates)) as caller:
            assert (await caller.refusal("Status"))[0] == "UNAVAILABLE"
        foreign = grpc.ssl_channel_credentials(
            certificates.ca.read_bytes(),
            strangers.client_key.read_bytes(),
            strangers.client_cert.read_bytes(),
        )
        async with calling(target, "", foreign) as caller:
            assert (await caller.refusal("Status"))[0] == "UNAVAILABLE"

    run(body, **tls(certificates, clients=True))


@pytest.mark.parametrize("by_signal", [True, False])
def test_a_reload_takes_new_secrets_and_certificates(
    certificates: Certificates, tmp_path: Path, by_signal: bool
) -> None:
    secrets = tmp_path / "secrets"
    secrets.write_text(SECRET)
    mine = Path(tmp_path, "mine")
    mine.mkdir()
    first = make_certificates(mine)

    async def body(server: Serving) -> None:
        async with calling(server.target(), SECRET, credentials(first)) as caller:
            await caller.call("Status")
        expires = server.service.state.certificate_expiry_unix_s
        assert set(expires) == {"admin"}
        secrets.write_text("another-secret-of-it")
        for old, new in (
            (first.server_cert, certificates.server_cert),
            (first.server_key, certificates.server_key),
        ):
            os.replace(copy(new, tmp_path), old)
        new_credentials = credentials(certificates)
        if by_signal:
            server.service.reload()
        else:
            async with asyncio.timeout(PATIENCE_S):
                while "reloaded what=admin" not in "".join(server.lines):
                    await asyncio.sleep(0.05)
        async with calling(server.target(), "another-secret-of-it", new_credentials) as caller:
            await caller.call("Status")
        async with calling(server.target(), SECRET, new_credentials) as caller:
            assert (await caller.refusal("Status"))[0] == "UNAUTHENTICATED"
        secrets.write_text("short")
        server.service.reload()
        assert "reload_failed what=admin" in server.lines[-1]
        async with calling(server.target(), "another-secret-of-it", new_credentials) as caller:
            await caller.call("Status")

    run(body, admin_secret_file=str(secrets), **tls(first))


def copy(path: Path, folder: Path) -> Path:
    to = folder / f"new-{path.name}"
    to.write_bytes(path.read_bytes())
    return to


def test_files_of_tls_that_are_none_are_refused_by_their_own_names(tmp_path: Path) -> None:
    path = tmp_path / "nothing.pem"
    path.write_text("nothing")

    async def body(server: Serving) -> None:
        raise AssertionError("it started")

    with pytest.raises(TlsError, match=r"^--admin-tls-cert: got .*which holds no certificate$"):
        run(body, admin_tls_cert=str(path), admin_tls_key=str(path))


def test_health_needs_no_secret_and_tells_of_a_drain() -> None:
    async def body(server: Serving) -> None:
        serving_status = health_pb2.HealthCheckResponse.SERVING
        async with calling(server.target()) as caller:
            for service in ("", SERVICE.full_name):
                assert await health(caller.channel, service) == serving_status
            watch = health_pb2_grpc.HealthStub(caller.channel).Watch(
                health_pb2.HealthCheckRequest(), timeout=PATIENCE_S
            )
            with pytest.raises(grpc.aio.AioRpcError, match="UNAUTHENTICATED"):
                await watch.read()
            await server.service.drain()
            async with asyncio.timeout(PATIENCE_S):
                while await health(caller.channel) == serving_status:
                    await asyncio.sleep(0.05)
            assert await health(caller.channel) == health_pb2.HealthCheckResponse.NOT_SERVING

    run(body, {ADMIN_SECRET_ENV: SECRET})


def test_reflection_shows_the_service() -> None:
    async def services(caller: Caller, secret: str) -> set[str]:
        stub = reflection_pb2_grpc.ServerReflectionStub(caller.channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        call = stub.ServerReflectionInfo(
            iter([request]),
            timeout=PATIENCE_S,
            metadata=(("authorization", f"Bearer {secret}"),),
        )
        return {
            service.name
            async for answer in call
            for service in answer.list_services_response.service
        }

    async def body(server: Serving) -> None:
        async with calling(server.target()) as caller:
            assert await services(caller, SECRET) == {
                "ticketing.admin.v1.Admin",
                "grpc.health.v1.Health",
                "grpc.reflection.v1alpha.ServerReflection",
            }
            with pytest.raises(grpc.aio.AioRpcError, match="UNAUTHENTICATED"):
                await services(caller, "another-secret-of-it")

    run(body, {ADMIN_SECRET_ENV: SECRET})


def test_a_request_over_64_kib_is_not_read() -> None:
    async def body(server: Serving) -> None:
        async with calling(server.target()) as caller:
            code, _ = await caller.refusal("ForceRelease", key=bytes(100_000), token=1)
            assert code == "RESOURCE_EXHAUSTED"

    run(body)


def test_grpc_stays_out_of_processes_that_the_server_starts() -> None:
    """Else one in some hundreds of them ends with SIGSEGV before it begins, under uvloop."""
    program = (
        "import os, sys, ticketing_server.admin as admin;"
        "assert 'grpc' not in sys.modules;"
        "print(os.environ['GRPC_ENABLE_FORK_SUPPORT'], os.environ['GRPC_VERBOSITY'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["0", "NONE"]
