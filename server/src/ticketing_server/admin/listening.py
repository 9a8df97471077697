"""The gRPC side of administration: ports, TLS, and calls handed to `AdminService`.

The only module of the server that imports gRPC, and itself imported only with --admin-listen.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from ticketing_server.addresses import Address
from ticketing_server.admin import admin_pb2 as pb
from ticketing_server.admin.guard import Guard
from ticketing_server.admin.host import Host
from ticketing_server.admin.service import AdminService, Refusal
from ticketing_server.listener import is_abandoned
from ticketing_server.secret_file import Secret
from ticketing_server.settings import Settings, TlsFiles
from ticketing_server.tls import TlsReloader

if TYPE_CHECKING:
    _Context = grpc.aio.ServicerContext[Any, Any]
    _Handler = grpc.RpcMethodHandler[Any, Any]

SERVICE = pb.DESCRIPTOR.services_by_name["Admin"]
CALLS_MAX = 64
_READY_INTERVAL_S = 0.5
_STOP_S = 1.0
_OPTIONS = (
    # Else a second server on the same port would take half of the calls.
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", 64 * 1024),
    ("grpc.max_concurrent_streams", 16),
    ("grpc.max_connection_idle_ms", 300_000),
)


class AdminServer:
    """Listens where the settings say. All calls are made on its event loop."""

    def __init__(self, settings: Settings, host: Host) -> None:
        """Load what TLS needs (TlsError where that fails); nothing is bound yet."""
        self.addresses: tuple[Address, ...] = ()
        self.tls = AdminTls(settings.admin_tls) if settings.admin_tls is not None else None
        self._settings = settings
        self._host = host
        self._guard = Guard(settings.admin_secrets)
        self._health = health.aio.HealthServicer()
        self._server: grpc.aio.Server | None = None
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen everywhere, or raise OSError, naming the address, and listen nowhere."""
        gate = _Gate(self._guard, self._host)
        server = grpc.aio.server(
            interceptors=(gate,), options=_OPTIONS, maximum_concurrent_rpcs=CALLS_MAX
        )
        server.add_generic_rpc_handlers((_handlers(AdminService(self._host), self._guard),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (SERVICE.full_name, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
        await self._say_ready(self._host.is_ready())
        self._server = server
        self.addresses = tuple(self._bind(server, a) for a in self._settings.admin_listen)
        await server.start()
        self._watching = asyncio.get_running_loop().create_task(self._watch_readiness())

    async def stop(self) -> None:
        """Let calls end for a second, then close everything."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        if self._server is not None:
            await self._server.stop(_STOP_S)

    @property
    def expires_unix_s(self) -> dict[str, float]:
        """When certificates end, by what they are for."""
        return self.tls.expires_unix_s if self.tls is not None else {}

    def replace_secrets(self, secrets: Iterable[Secret]) -> None:
        """Take these for calls from now on."""
        self._guard.replace(tuple(secrets))

    def reload_tls(self) -> None:
        """Load the files of TLS again, where there are any; on TlsError the old ones stay."""
        if self.tls is not None:
            self.tls.reload()

    def _bind(self, server: grpc.aio.Server, address: Address) -> Address:
        # gRPC says not why it can't, and takes a Unix socket's path from a server that lives.
        try:
            _try_bind(address)
        except OSError as error:
            text = f"--admin-listen {address}: {error.strerror}"
            raise OSError(error.errno, text) from error
        try:
            if address.is_unix:
                return _bind_unix(server, address)
            if self.tls is not None:
                port = server.add_secure_port(str(address), self.tls.credentials())
            else:
                port = server.add_insecure_port(str(address))
        except RuntimeError as error:
            raise OSError(0, f"--admin-listen {address}: gRPC can't listen there") from error
        return Address(address.host, port)

    async def _watch_readiness(self) -> None:
        said = self._host.is_ready()
        while True:
            await asyncio.sleep(_READY_INTERVAL_S)
            ready = self._host.is_ready()
            if ready != said:
                said = ready
                await self._say_ready(ready)

    async def _say_ready(self, ready: bool) -> None:
        statuses = health_pb2.HealthCheckResponse
        for name in ("", SERVICE.full_name):
            await self._health.set(name, statuses.SERVING if ready else statuses.NOT_SERVING)


class AdminTls:
    """Certificates that gRPC asks for at each handshake."""

    def __init__(self, files: TlsFiles) -> None:
        """Load `files`; TlsError where that fails."""
        self._files = files
        self._reloader = TlsReloader(files)
        self._present = self._read()

    @property
    def expires_unix_s(self) -> dict[str, float]:
        """When certificates end, by what they are for."""
        names = {"server": "admin", "client_ca": "admin_client_ca"}
        return {names[use]: end for use, end in self._reloader.expires_unix_s.items()}

    def changed(self) -> bool:
        """Whether a file is another one than at the last load, whether or not that succeeded."""
        return self._reloader.changed()

    def reload(self) -> None:
        """Load the files again; on TlsError the old ones stay."""
        self._reloader.reload()
        self._present = self._read()

    def credentials(self) -> grpc.ServerCredentials:
        """What a port takes."""
        return grpc.dynamic_ssl_server_credentials(
            self._present,
            lambda: self._present,
            require_client_authentication=self._files.client_ca is not None,
        )

    def _read(self) -> grpc.ServerCertificateConfiguration:
        files = self._files
        authorities = files.client_ca.read_bytes() if files.client_ca is not None else None
        pair = (files.key.read_bytes(), files.cert.read_bytes())
        return grpc.ssl_server_certificate_configuration([pair], authorities)


class _Gate(grpc.aio.ServerInterceptor):
    """Turns away what the guard refuses, whichever service it is for."""

    def __init__(self, guard: Guard, host: Host) -> None:
        self._guard = guard
        self._host = host

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        """Pass a call on, or answer it with a refusal."""
        details = handler_call_details
        text = self._guard.refusal(details.method, details.invocation_metadata)
        if not text:
            return await continuation(details)

        async def refuse(request: object, context: _Context) -> None:
            fields = {"call": details.method, "peer": _peer(context)}
            loop = asyncio.get_running_loop()
            self._host.log.event(loop.time(), "warning", "admin_denied", fields)
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, text)

        return grpc.unary_unary_rpc_method_handler(refuse)


def _handlers(service: AdminService, guard: Guard) -> grpc.GenericRpcHandler:
    """The methods of the proto file, each a method of the service in snake case."""
    made = {
        method.name: _handler(method, getattr(service, snake_case(method.name)), guard)
        for method in SERVICE.methods
    }
    return grpc.method_handlers_generic_handler(SERVICE.full_name, made)


def snake_case(name: str) -> str:
    """`ForceRelease` as `force_release`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _handler(method: MethodDescriptor, call: Callable[[Any, str], Any], guard: Guard) -> _Handler:
    async def answer(request: object, context: _Context) -> object:
        try:
            return await call(request, _caller(guard, context))
        except Refusal as refusal:
            return await context.abort(grpc.StatusCode[refusal.code], str(refusal))

    async def stream(request: object, context: _Context) -> AsyncIterator[object]:
        try:
            async for response in call(request, _caller(guard, context)):
                yield response
        except Refusal as refusal:
            await context.abort(grpc.StatusCode[refusal.code], str(refusal))

    make, behavior = (
        (grpc.unary_stream_rpc_method_handler, stream)
        if method.server_streaming
        else (grpc.unary_unary_rpc_method_handler, answer)
    )
    return make(
        behavior,
        request_deserializer=GetMessageClass(method.input_type).FromString,
        response_serializer=GetMessageClass(method.output_type).SerializeToString,
    )


def _caller(guard: Guard, context: _Context) -> str:
    name = guard.caller(context.invocation_metadata() or (), context.auth_context())
    return f"{name}@{_peer(context)}" if name else _peer(context)


def _peer(context: _Context) -> str:
    """`unix:` or host and port, without the family that gRPC puts before it."""
    return re.sub(r"^ipv[46]:", "", context.peer()).replace("%5B", "[").replace("%5D", "]")


def _try_bind(address: Address) -> None:
    """Raise the OSError with which gRPC would fail to listen."""
    if address.is_unix:
        if os.path.exists(address.path) and not is_abandoned(address.path):
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        return
    infos = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, kind, protocol, _, where = infos[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(where)


def _bind_unix(server: grpc.aio.Server, address: Address) -> Address:
    """Listen where only this user may connect, as no TLS asks who it is."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(address.path)
    before = os.umask(0o177)
    try:
        server.add_insecure_port(str(address))
    finally:
        os.umask(before)
    return address
