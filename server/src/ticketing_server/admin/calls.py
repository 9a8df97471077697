"""The client of administration: a channel to one server, and errors in words."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc

from ticketing_server.addresses import Address
from ticketing_server.admin import admin_pb2 as pb
from ticketing_server.admin.errors import NO_ANSWER, REFUSED, USAGE, AdminError
from ticketing_server.admin.guard import bearer
from ticketing_server.admin.target import Target
from ticketing_server.log import escape

_SERVICE = pb.DESCRIPTOR.services_by_name["Admin"].full_name
_Response = TypeVar("_Response")
_DETAILS_CHARS_MAX = 300


class Calls:
    """Calls to one server, for one thread. Every failure is an AdminError."""

    def __init__(self, target: Target) -> None:
        """Open a channel; it connects with the first call."""
        self._target = target
        self._metadata = (bearer(target.secret),) if target.secret else ()
        where = str(target.address)
        if target.is_tls:
            options = (("grpc.ssl_target_name_override", target.name),) if target.name else ()
            self._channel = grpc.secure_channel(where, _credentials(target), options)
        else:
            self._channel = grpc.insecure_channel(where)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._channel.close()

    def status(self) -> pb.StatusResponse:
        """Call `Status`."""
        return self._call("Status", pb.StatusRequest(), pb.StatusResponse)

    def list_tickets(self, request: pb.ListTicketsRequest) -> pb.ListTicketsResponse:
        """Call `ListTickets`."""
        return self._call("ListTickets", request, pb.ListTicketsResponse)

    def list_waiters(self, request: pb.ListWaitersRequest) -> pb.ListWaitersResponse:
        """Call `ListWaiters`."""
        return self._call("ListWaiters", request, pb.ListWaitersResponse)

    def force_release(self, key: bytes, token: int) -> pb.ForceReleaseResponse:
        """Call `ForceRelease`."""
        request = pb.ForceReleaseRequest(key=key, token=token)
        return self._call("ForceRelease", request, pb.ForceReleaseResponse)

    def transfer_lead(self, slot: int | None) -> pb.TransferLeadResponse:
        """Call `TransferLead`."""
        request = pb.TransferLeadRequest(slot=slot)
        return self._call("TransferLead", request, pb.TransferLeadResponse)

    def drain(self) -> pb.DrainResponse:
        """Call `Drain`."""
        return self._call("Drain", pb.DrainRequest(), pb.DrainResponse)

    def take_snapshot(self) -> Iterator[pb.TakeSnapshotResponse]:
        """Call `TakeSnapshot`; the answers come as they arrive."""
        call = self._channel.unary_stream(
            f"/{_SERVICE}/TakeSnapshot",
            request_serializer=pb.TakeSnapshotRequest.SerializeToString,
            response_deserializer=pb.TakeSnapshotResponse.FromString,
        )
        try:
            yield from call(
                pb.TakeSnapshotRequest(),
                timeout=self._target.timeout_s,
                metadata=self._metadata,
            )
        except grpc.RpcError as error:
            raise explain(error, self._target) from None

    def _call(self, name: str, request: Any, response: type[_Response]) -> _Response:
        call = self._channel.unary_unary(
            f"/{_SERVICE}/{name}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,  # type: ignore[attr-defined]
        )
        try:
            answer: _Response = call(
                request, timeout=self._target.timeout_s, metadata=self._metadata
            )
        except grpc.RpcError as error:
            raise explain(error, self._target) from None
        return answer


def explain(error: grpc.RpcError, target: Target) -> AdminError:
    """Say in a line why a call failed and what to do."""
    code, text = error.code(), _one_line(error.details() or "")
    if code is grpc.StatusCode.UNAVAILABLE:
        return _unreachable(target, text)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return AdminError(
            f"{target.address} did not answer within {target.timeout_s:g} s; is the server stopped"
            " or busy? try: --timeout 60s",
            NO_ANSWER,
        )
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return AdminError(
            f"{target.address} speaks gRPC and does not know this call; is it another service, or"
            " an older server? try: ticketing-admin status --address HOST:PORT",
            REFUSED,
        )
    return AdminError(text or f"{target.address} answered {code.name}", REFUSED)


def _unreachable(target: Target, details: str) -> AdminError:
    """Tell an address where nothing listens from one that speaks something else."""
    where = target.address
    try:
        _probe(where, target.timeout_s)
    except OSError as error:
        reason = error.strerror or str(error)
        return AdminError(
            f"no server of administration at {where} ({reason}); start the server with"
            f" --admin-listen {where}, or name another with --address",
            NO_ANSWER,
        )
    if target.is_tls:
        return AdminError(
            f"no TLS connection to {where}: check that --tls-ca signed the server's certificate,"
            " that this names the address (else --tls-name), and that the server takes yours"
            f" (--tls-cert, --tls-key); gRPC says: {details}",
            NO_ANSWER,
        )
    return AdminError(
        f"{where} listens, but is not understood: check that it is the server's --admin-listen,"
        f" and add --tls-ca FILE where that speaks TLS; gRPC says: {details}",
        NO_ANSWER,
    )


def _probe(address: Address, timeout_s: float) -> None:
    if address.is_unix:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(timeout_s)
            probe.connect(address.path)
    else:
        socket.create_connection((address.host, address.port), timeout_s).close()


def _credentials(target: Target) -> grpc.ChannelCredentials:
    ca = target.ca
    if ca is None and (system := ssl.get_default_verify_paths().cafile) is not None:
        ca = Path(system)
    return grpc.ssl_channel_credentials(
        root_certificates=_read("--tls-ca", ca),
        private_key=_read("--tls-key", target.key),
        certificate_chain=_read("--tls-cert", target.cert),
    )


def _read(flag: str, path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        data = path.read_bytes()
    except OSError as error:
        raise AdminError(
            f"{flag}: got {str(path)!a}, which can't be read ({error.strerror}); takes a file in"
            " PEM",
            USAGE,
        ) from None
    if b"-----BEGIN" not in data:
        raise AdminError(f"{flag}: got {str(path)!a}, which is not PEM; takes a file in PEM", USAGE)
    return data


def _one_line(text: str) -> str:
    shown = " ".join(escape(word) if not word.isprintable() else word for word in text.split())
    return shown if len(shown) <= _DETAILS_CHARS_MAX else shown[:_DETAILS_CHARS_MAX] + "…"
