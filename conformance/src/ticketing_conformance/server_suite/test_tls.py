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

from ticketing_conformance.server_suite.certificates import Authority, Pair
from ticketing_conformance.server_suite.conftest import Connect, StartServer
from ticketing_conformance.server_suite.marks import requirement
from ticketing_conformance.server_suite.raw import RECEIVE_S, WAIT_FOREVER, Target
from ticketing_conformance.server_suite.servers import StartedServer


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "authority")


@pytest.fixture
def tls_server(own_server: StartServer, authority: Authority) -> StartedServer:
    pair = authority.issue("server")
    return own_server("--tls-cert", str(pair.cert), "--tls-key", str(pair.key))


def trusting(authority: Authority, pair: Pair | None = None) -> ssl.SSLContext:
    """A client's context that trusts this authority, and shows this certificate if any."""
    context = ssl.create_default_context(cafile=str(authority.cert))
    if pair is not None:
        context.load_cert_chain(pair.cert, pair.key)
    return context


def over(server: StartedServer, context: ssl.SSLContext) -> Target:
    return replace(server.tcp, tls=context)


@requirement("REQ-HELLO-WELCOME")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_the_same_bytes_inside_tls(
    connect: Connect,
    tls_server: StartedServer,
    authority: Authority,
    keys: list[bytes],
    version: ssl.TLSVersion,
) -> None:
    context = trusting(authority)
    context.minimum_version = context.maximum_version = version
    holder = connect(tls_server, target=over(tls_server, context))
    waiter = connect(tls_server, target=over(tls_server, context))
    token = holder.hold(*keys)
    waiting = waiter.acquire(keys[3], wait_ms=WAIT_FOREVER)
    waiter.settle()
    holder.expect("released", holder.release(keys[0], token))
    waiter.expect("granted", waiting)


def test_tls_older_than_1_2_is_refused(
    connect: Connect, tls_server: StartedServer, authority: Authority
) -> None:
    context = trusting(authority)
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    with warnings.catch_warnings():
        # Python warns of a version that a test of its refusal has to name.
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        connect(tls_server, target=over(tls_server, context))
    connect(tls_server, target=over(tls_server, trusting(authority))).settle()


def test_plain_bytes_on_the_tls_port_hurt_nobody(
    connect: Connect, tls_server: StartedServer, authority: Authority
) -> None:
    client = connect(tls_server, target=over(tls_server, trusting(authority)))
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


@pytest.mark.parametrize("shown", ["none", "of another authority", "expired", "right"])
def test_mutual_tls_lets_in_only_whom_the_authority_signed(
    connect: Connect,
    own_server: StartServer,
    authority: Authority,
    tmp_path: Path,
    shown: str,
) -> None:
    pair = authority.issue("server")
    server = own_server(
        *("--tls-cert", str(pair.cert), "--tls-key", str(pair.key)),
        *("--tls-client-ca", str(authority.cert)),
    )
    certificates = {
        "none": None,
        "of another authority": Authority(tmp_path, "stranger").issue("client-of-stranger"),
        "expired": authority.issue("expired-client", valid_days=-1),
        "right": authority.issue("client"),
    }
    target = over(server, trusting(authority, certificates[shown]))
    if shown == "right":
        connect(server, target=target).settle()
        return
    # In TLS 1.3 the refusal is only seen at the first read, so the greeting is waited for.
    with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
        connect(server, target=target)
    connect(server, target=over(server, trusting(authority, certificates["right"]))).settle()


def test_a_new_certificate_is_taken_and_connections_stay(
    connect: Connect, own_server: StartServer, authority: Authority, tmp_path: Path
) -> None:
    pair = authority.issue("server")
    server = own_server("--tls-cert", str(pair.cert), "--tls-key", str(pair.key))
    client = connect(server, target=over(server, trusting(authority)))
    successor = Authority(tmp_path, "successor")
    fresh = successor.issue("fresh")
    shutil.copy(fresh.key, pair.key)
    shutil.copy(fresh.cert, pair.cert)
    server.signal(signal.SIGHUP)
    context = trusting(successor)
    deadline = time.monotonic() + RECEIVE_S
    while True:
        client.ping()
        try:
            connect(server, target=over(server, context)).settle()
            break
        except ssl.SSLError:
            assert time.monotonic() < deadline, server.log()
            time.sleep(0.1)
    client.settle()
