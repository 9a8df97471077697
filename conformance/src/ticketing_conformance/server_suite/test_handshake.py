"""The handshake of version 4: greeting, hello, welcome, and every way to be refused."""

from __future__ import annotations

import secrets
import time
from typing import Any

import pytest
from ticketing_spec.codec import digest

from ticketing_conformance.server_suite.codes import (
    AUTH_FAILED,
    BAD_FRAME,
    BAD_VERSION,
    HANDSHAKE_TIMEOUT,
    LATE_MS,
)
from ticketing_conformance.server_suite.conftest import Connect, StartServer
from ticketing_conformance.server_suite.marks import requirement
from ticketing_conformance.server_suite.raw import (
    LABEL,
    SPEC,
    RawClient,
    acquire_bytes,
)


@requirement("REQ-GREETING-FIRST", "REQ-GREETING-VALUES")
def test_the_greeting_comes_first_and_names_the_versions(connect: Connect) -> None:
    greeting = connect(hello=False).greeting
    assert greeting[:6] == b"TICKET"
    low, high = greeting[6], greeting[7]
    assert low <= 4 <= high
    mode, slot = greeting[8], greeting[9]
    assert (mode, slot == 255) in {(0, True), (1, False)}


@requirement("REQ-GREETING-NONCE")
def test_every_greeting_has_a_nonce_of_its_own(connect: Connect) -> None:
    greetings = [connect(hello=False).greeting for _ in range(8)]
    assert len({greeting[:10] for greeting in greetings}) == 1
    assert len({greeting[10:] for greeting in greetings}) == 8


@requirement("REQ-HELLO-WELCOME", "REQ-HELLO-FINGERPRINT")
def test_a_right_hello_is_welcomed_with_a_proof(connect: Connect) -> None:
    client = connect(hello=False)
    welcome = client.hello()
    if client.greeting[8] == 0:
        assert welcome["role"] == 0
        assert welcome["leader"] == b""
        assert welcome["fingerprint"] == bytes(32)
    assert 1 <= welcome["keepalive_s"] <= 3600
    client.expect_quiet()


@requirement("REQ-FRAME-SPLIT", "REQ-HELLO-WELCOME")
def test_a_hello_may_come_byte_by_byte(connect: Connect) -> None:
    client = connect(hello=False)
    for byte in hello_bytes(client):
        client.send_bytes(bytes([byte]))
    assert client.take().name == "welcome"


@requirement("REQ-HELLO-LABEL")
@pytest.mark.parametrize("label", [b"x", b"~" * 64, b"!host:1;python/0.1.0"])
def test_labels_at_their_bounds(connect: Connect, label: bytes) -> None:
    connect(label=label).settle()


@requirement("REQ-HELLO-LABEL")
@pytest.mark.parametrize("bad", [0x00, 0x0A, 0x1F, 0x20, 0x7F, 0x80, 0xFF])
def test_a_label_takes_printable_ascii_without_space(connect: Connect, bad: int) -> None:
    client = connect(hello=False)
    client.send_bytes(hello_bytes(client, label=bytes([bad]) + LABEL[1:]))
    client.expect_refusal(BAD_FRAME)


@requirement("REQ-HELLO-MAC", "REQ-HELLO-DELAY")
def test_a_wrong_secret_is_refused_after_a_pause(connect: Connect) -> None:
    client = connect(hello=False)
    client.secret += b"!"
    started = time.monotonic()
    client.send_hello()
    client.expect_refusal(AUTH_FAILED)
    took_ms = (time.monotonic() - started) * 1000
    assert 100 <= took_ms <= 300 + LATE_MS


@requirement("REQ-HELLO-DELAY")
def test_a_wrong_secret_delays_nobody_else(connect: Connect) -> None:
    wrong = connect(hello=False)
    wrong.secret += b"!"
    wrong.send_hello()
    # Forty round trips one after another: were each to wait for the pause, this takes seconds.
    other = connect()
    for _ in range(40):
        other.ping()
    wrong.expect_refusal(AUTH_FAILED)


@requirement("REQ-HELLO-MAC")
@pytest.mark.parametrize("field", ["client_id", "connection", "client_nonce", "label", "mac"])
def test_the_mac_covers_every_field_of_the_hello(connect: Connect, field: str) -> None:
    client = connect(hello=False)
    fields = client.hello_fields()
    value = fields[field]
    fields[field] = value ^ 1 if isinstance(value, int) else bytes([value[0] ^ 1]) + value[1:]
    client.send("hello", **fields)
    client.expect_refusal(AUTH_FAILED)


@requirement("REQ-HELLO-MAC")
@pytest.mark.parametrize("offset", [6, 7, 8, 9, 10, 25])
def test_the_mac_covers_the_greeting(connect: Connect, offset: int) -> None:
    """A peer that was shown another greeting, with other versions above all, gets nowhere."""
    client = connect(hello=False)
    shown = bytearray(client.greeting)
    shown[offset] ^= 1
    client.greeting = bytes(shown)
    client.send_hello()
    client.expect_refusal(AUTH_FAILED)


@requirement("REQ-HELLO-MAC", "REQ-GREETING-NONCE")
def test_a_hello_of_another_connection_is_worthless(connect: Connect) -> None:
    overheard = connect()
    replayed = connect(hello=False)
    replayed.send("hello", **overheard.hello_fields())
    replayed.expect_refusal(AUTH_FAILED)


@requirement("REQ-HELLO-VERSION")
@pytest.mark.parametrize("version", [0, 1, 3, 5, 255])
def test_a_version_out_of_range_is_refused_before_the_mac(connect: Connect, version: int) -> None:
    client = connect(hello=False)
    client.send_bytes(hello_bytes(client, version=version, mac=secrets.token_bytes(32)))
    client.expect_refusal(BAD_VERSION)


REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("acquire", {"request_id": 1, "wait_ms": 0, "lease_ms": 1, "key": b"k"}),
    ("acquire_set", {"request_id": 1, "wait_ms": 0, "lease_ms": 1, "keys": [b"a", b"b"]}),
    ("release", {"request_id": 1, "token": 1, "key": b"k"}),
    ("extend", {"request_id": 1, "token": 1, "lease_ms": 1, "key": b"k"}),
    ("cancel", {"request_id": 1, "acquire_id": 1, "key": b"k"}),
    ("ping", {"echo": 1}),
]


@requirement("REQ-HELLO-FIRST")
@pytest.mark.parametrize(("name", "fields"), REQUESTS, ids=[name for name, _ in REQUESTS])
def test_before_the_welcome_only_a_hello_is_legal(
    connect: Connect, name: str, fields: dict[str, Any]
) -> None:
    client = connect(hello=False)
    client.send(name, **fields)
    client.expect_refusal(BAD_FRAME)


@requirement("REQ-HELLO-TEXTS")
def test_texts_before_the_welcome_are_constants(connect: Connect) -> None:
    """They tell nothing that a stranger sent back to it, nor anything that the server knows."""
    texts = set()
    for key in (b"first", b"a second key"):
        client = connect(hello=False)
        client.send_bytes(acquire_bytes(77, key))
        texts.add(client.expect_refusal(BAD_FRAME)["text"])
    assert len(texts) == 1


@requirement("REQ-HELLO-SECOND")
def test_a_second_hello_is_a_bad_frame(connect: Connect) -> None:
    client = connect()
    client.send_hello()
    client.expect_refusal(BAD_FRAME)


@requirement("REQ-HELLO-TIMEOUT", "REQ-TIME-NEVEREARLY")
@pytest.mark.slow
def test_five_seconds_without_a_hello_end_the_connection(connect: Connect) -> None:
    """Whether nothing of it came or a part."""
    started = time.monotonic()
    clients = [connect(hello=False) for _ in range(4)]
    for client, sent in zip(clients, (0, 1, 3, 40), strict=True):
        client.send_bytes(hello_bytes(client)[:sent])
    for client in clients:
        client.expect_refusal(HANDSHAKE_TIMEOUT)
        assert 5_000 <= (time.monotonic() - started) * 1000 <= 5_000 + LATE_MS


@requirement("REQ-HELLO-SECRETS")
def test_several_secrets_each_get_their_own_proof(
    connect: Connect, own_server: StartServer
) -> None:
    server = own_server(secret_file="new fresh-secret-of-2026\nold the-secret-before-it\n")
    for secret in (b"fresh-secret-of-2026", b"the-secret-before-it"):
        connect(server, secret=secret).settle()
    stranger = connect(server, secret=b"a secret of nobody", hello=False)
    stranger.send_hello()
    stranger.expect_refusal(AUTH_FAILED)


@requirement("REQ-HELLO-SECRETS")
def test_a_secret_file_may_hold_a_bare_secret(connect: Connect, own_server: StartServer) -> None:
    server = own_server(secret_file="only-one-bare-secret\n")
    connect(server, secret=b"only-one-bare-secret").settle()


@requirement("REQ-HELLO-EMPTY")
def test_an_empty_secret_is_an_empty_key(connect: Connect, own_server: StartServer) -> None:
    server = own_server(secret=b"")
    connect(server).settle()
    # HMAC pads its key with zeros, so one zero byte is the same key.
    connect(server, secret=b"\x00").settle()
    stranger = connect(server, secret=b"guess", hello=False)
    stranger.send_hello()
    stranger.expect_refusal(AUTH_FAILED)


@requirement("REQ-FRAME-HEADER")
def test_connection_number_and_client_id_at_their_bounds(connect: Connect) -> None:
    for client_id, connection in ((0, 1), (2**64 - 1, 2**32 - 1), (2**53 + 1, 2**31)):
        connect(client_id=client_id, connection=connection).settle()


def hello_bytes(client: RawClient, **changed: Any) -> bytes:
    """The hello of this connection as bytes, with the right mac over what was changed in it."""
    fields = client.hello_fields()
    covered = {
        "version": bytes([changed.get("version", 4)]),
        "client_id": fields["client_id"].to_bytes(8, "big"),
        "connection": fields["connection"].to_bytes(4, "big"),
        "client_nonce": fields["client_nonce"],
        "label": changed.get("label", fields["label"]),
    }
    inputs = {"greeting": client.greeting}
    inputs |= {f"hello.{name}": value for name, value in covered.items()}
    covered["mac"] = changed.get("mac", digest(SPEC, "client_mac", inputs, client.secret))
    order = ("version", "client_id", "connection", "client_nonce", "mac", "label")
    body = b"".join(covered[name] for name in order)
    return b"H" + len(body).to_bytes(2, "big") + body
