"""A server with administration on this event loop, and raw calls to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message_factory import GetMessageClass
from ticketing_server.admin import admin_pb2 as pb
from ticketing_server.log import EventLog
from ticketing_server.serve import Service
from ticketing_server.settings_load import gather, load

SERVICE = pb.DESCRIPTOR.services_by_name["Admin"]
PATIENCE_S = 60.0


class Serving:
    """A running `Service`, and what it logged."""

    def __init__(self, service: Service, lines: list[str]) -> None:
        self.service = service
        self.lines = lines

    def target(self, *, unix: bool = False) -> str:
        return next(str(a) for a in self.service.admin_addresses if a.is_unix == unix)

    @property
    def client_address(self) -> tuple[str, int]:
        address = self.service.addresses[0]
        return address.host, address.port


@asynccontextmanager
async def serving(env: dict[str, str] | None = None, **settings: str) -> AsyncIterator[Serving]:
    given = {"listen": "127.0.0.1:0", "http-listen": "off", "admin-listen": "127.0.0.1:0"}
    given |= {name.replace("_", "-"): text for name, text in settings.items()}
    lines: list[str] = []
    service = Service(
        load(gather({name: [text] for name, text in given.items()}, env or {})),
        EventLog(lines.append),
    )
    await service.start()
    try:
        yield Serving(service, lines)
    finally:
        await service.stop()


class Caller:
    """Calls by the names of the proto file."""

    def __init__(self, channel: grpc.aio.Channel, secret: str = "") -> None:
        self.channel = channel
        self._metadata = (("authorization", f"Bearer {secret}"),) if secret else ()

    async def call(self, name: str, **fields: Any) -> Any:
        method = SERVICE.methods_by_name[name]
        request, response = map(GetMessageClass, (method.input_type, method.output_type))
        make = self.channel.unary_stream if method.server_streaming else self.channel.unary_unary
        call = make(
            f"/{SERVICE.full_name}/{name}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        made = call(request(**fields), metadata=self._metadata, timeout=PATIENCE_S)
        if method.server_streaming:
            return [answer async for answer in made]
        return await made

    async def refusal(self, name: str, **fields: Any) -> tuple[str, str]:
        """Code and text with which a call is refused."""
        try:
            await self.call(name, **fields)
        except grpc.aio.AioRpcError as error:
            return error.code().name, error.details() or ""
        raise AssertionError(f"{name} was not refused")


@asynccontextmanager
async def calling(
    target: str, secret: str = "", credentials: grpc.ChannelCredentials | None = None
) -> AsyncIterator[Caller]:
    if credentials is None:
        channel = grpc.aio.insecure_channel(target)
    else:
        channel = grpc.aio.secure_channel(target, credentials)
    async with channel:
        yield Caller(channel, secret)
