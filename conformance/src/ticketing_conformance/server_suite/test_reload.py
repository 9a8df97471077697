"""Rotation of secrets: SIGHUP reads the file again, and live connections stay."""

from __future__ import annotations

import signal
import time

from ticketing_conformance.server_suite.conftest import Connect, StartServer
from ticketing_conformance.server_suite.marks import requirement
from ticketing_conformance.server_suite.raw import RECEIVE_S
from ticketing_conformance.server_suite.servers import StartedServer

OLD, NEW = b"the-old-secret-of-all", b"the-new-secret-of-all"


def accepts(connect: Connect, server: StartedServer, secret: bytes) -> bool:
    client = connect(server, secret=secret, hello=False)
    client.send_hello()
    name = client.take().name
    client.close()
    return name == "welcome"


def reload(connect: Connect, server: StartedServer, text: str, then: bytes, answer: bool) -> None:
    """Writes the file, sends SIGHUP, and waits until `then` is accepted, or no longer is."""
    (server.folder / "secrets").write_text(text)
    server.signal(signal.SIGHUP)
    deadline = time.monotonic() + RECEIVE_S
    while accepts(connect, server, then) != answer:
        assert time.monotonic() < deadline, server.log()
        time.sleep(0.1)


@requirement("REQ-HELLO-SECRETS")
def test_secrets_rotate_without_a_restart(
    connect: Connect, own_server: StartServer, key: bytes
) -> None:
    server = own_server(secret_file=f"old {OLD.decode()}\n")
    client = connect(server, secret=OLD)
    token = client.hold(key)
    assert not accepts(connect, server, NEW)
    reload(connect, server, f"new {NEW.decode()}\nold {OLD.decode()}\n", NEW, True)
    assert accepts(connect, server, OLD)
    reload(connect, server, f"new {NEW.decode()}\n", OLD, False)
    assert accepts(connect, server, NEW)
    client.expect("released", client.release(key, token))


def test_a_file_that_is_wrong_changes_nothing(
    connect: Connect, own_server: StartServer, key: bytes
) -> None:
    server = own_server(secret_file=f"old {OLD.decode()}\n")
    (server.folder / "secrets").write_bytes(b"old no\0body\n")
    server.signal(signal.SIGHUP)
    time.sleep(1)
    assert accepts(connect, server, OLD)
