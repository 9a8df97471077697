"""TLS and mutual TLS: the same bytes inside, and strangers kept outside."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import ssl
import time
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from ticketing_conformance.certificates import certificates
from ticketing_conformance.server_suite.conftest import Connect, StartServer
from ticketing_conformance.server_suite.marks import requirement
from ticketing_conformance.server_suite.raw import RECEIVE_S, WAIT_FOREVER, Target
from ticketing_conformance.server_suite.servers import StartedServer

PATHS = certificates()
TLS_FLAGS = ("--tls-cert", str(PATHS["cert"]), "--tls-key", str(PATHS["key"]))


@pytest.fixture
def tls_server(shared_server: StartServer) -> StartedServer:
    return shared_server(*TLS_FLAGS)


@pytest.fixture
def mutual_server(shared_server: StartServer) -> StartedServer:
    return shared_server(*TLS_FLAGS, "--tls-client-ca", str(PATHS["ca"]))


def trusting(authority: str = "ca", certificate: str = "") -> ssl.SSLContext:
    """A client's context that trusts this authority, and shows this certificate if any."""
    context = ssl.create_default_context(cafile=str(PATHS[authority]))
    if certificate:
        context.load_cert_chain(PATHS[f"{certificate}_cert"], PATHS[f"{certificate}_key"])
    return context


def over(server: StartedServer, context: ssl.SSLContext) -> Target:
    return replace(server.tcp, tls=context)


@requirement("REQ-HELLO-WELCOME")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_the_same_bytes_inside_tls(
    connect: Connect,
    tls_server: StartedServer,
    keys: list[bytes],
    version: ssl.TLSVersion,
) -> None:
    context = trusting()
    context.minimum_version = context.maximum_version = version
    holder = connect(tls_server, target=over(tls_server, context))
    waiter = connect(tls_server, target=over(tls_server, context))
    token = holder.hold(*keys)
    waiting = waiter.acquire(keys[3], wait_ms=WAIT_FOREVER)
    waiter.settle()
    holder.expect("released", holder.release(keys[0], token))
    waiter.expect("granted", waiting)


def test_tls_older_than_1_2_is_refused(connect: Connect, tls_server: StartedServer) -> None:
    context = trusting()
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    with warnings.catch_warnings():
        # Python warns of a version that a test of its refusal has to name.
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        connect(tls_server, target=over(tls_server, context))
    connect(tls_server, target=over(tls_server, trusting())).settle()


def test_plain_bytes_on_its_port_hurt_nobody(connect: Connect, tls_server: StartedServer) -> None:
    client = connect(tls_server, target=over(tls_server, trusting()))
    for data in (b"GET / HTTP/1.1\r\n\r\n", b"H\x00\x41" + bytes(65), bytes(2000)):
        with socket.create_connection((tls_server.tcp.host, tls_server.tcp.port)) as stranger:
            stranger.settimeout(RECEIVE_S)
            stranger.sendall(data)
            received = b""
            with contextlib.suppress(ConnectionResetError):
                while more := stranger.recv(4096):
                    received += more
            assert b"TICKET" not in received
    client.settle()


@pytest.mark.slow
def test_a_stranger_that_never_begins_tls_is_closed(tls_server: StartedServer) -> None:
    with socket.create_connection((tls_server.tcp.host, tls_server.tcp.port)) as stranger:
        stranger.settimeout(2 * RECEIVE_S)
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b""


@pytest.mark.parametrize("shown", ["", "client_other", "client_expired"])
def test_mutual_tls_keeps_out_whom_the_authority_did_not_sign(
    connect: Connect, mutual_server: StartedServer, shown: str
) -> None:
    # In TLS 1.3 the refusal is only seen at the first read, so the greeting is waited for.
    with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
        connect(mutual_server, target=over(mutual_server, trusting(certificate=shown)))
    test_mutual_tls_lets_in_whom_the_authority_signed(connect, mutual_server)


def test_mutual_tls_lets_in_whom_the_authority_signed(
    connect: Connect, mutual_server: StartedServer
) -> None:
    connect(mutual_server, target=over(mutual_server, trusting(certificate="client"))).settle()


def test_a_new_certificate_is_taken_and_connections_stay(
    connect: Connect, own_server: StartServer, tmp_path: Path
) -> None:
    cert, key = tmp_path / "server.pem", tmp_path / "server.key"
    shutil.copy(PATHS["cert"], cert)
    shutil.copy(PATHS["key"], key)
    server = own_server("--tls-cert", str(cert), "--tls-key", str(key))
    client = connect(server, target=over(server, trusting()))
    shutil.copy(PATHS["other_key"], key)
    shutil.copy(PATHS["other_cert"], cert)
    server.signal(signal.SIGHUP)
    deadline = time.monotonic() + RECEIVE_S
    while True:
        client.ping()
        try:
            connect(server, target=over(server, trusting("other_ca"))).settle()
            break
        except ssl.SSLError:
            assert time.monotonic() < deadline, server.log()
            time.sleep(0.1)
    client.settle()
