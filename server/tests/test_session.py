"""A version 4 session alone: handshake and framing at every split."""

from __future__ import annotations

from typing import Any

import pytest
from engine_driver import SECRET, SPEC, Named
from ticketing_server import constants_gen as c
from ticketing_server.auth import Secrets
from ticketing_server.session import Authority, Closing, Received, Session
from ticketing_server.wire import Command
from ticketing_spec.codec import decode, encode, mac

ENTROPY = bytes(range(32))
AUTHORITY = Authority(Secrets([Named("test", SECRET)]), 5)


def hello(session: Session, secret: bytes = SECRET) -> bytes:
    fields: dict[str, Any] = {
        "version": 4,
        "client_id": 7,
        "connection": 3,
        "client_nonce": bytes(16),
        "label": b"label",
    }
    fields["mac"] = mac(SPEC, secret, session.greeting, fields)
    return encode(SPEC, "client", "hello", fields)


def requests() -> bytes:
    fields = {"wait_ms": 1, "lease_ms": 2}
    return b"".join(
        (
            encode(SPEC, "client", "acquire", {"request_id": 1, "key": b"one", **fields}),
            encode(SPEC, "client", "acquire", {"request_id": 2, "key": b"two", **fields}),
            encode(SPEC, "client", "ping", {"echo": 9}),
            encode(
                SPEC, "client", "acquire_set", {**fields, "request_id": 3, "keys": [b"a", b"b"]}
            ),
            encode(SPEC, "client", "release", {"request_id": 4, "token": 5, "key": b"x" * 128}),
        )
    )


def plain(received: list[Command] | Received) -> list[Command]:
    """The commands of a buffer in which nothing was wrong."""
    if isinstance(received, Received):
        assert received.closing is None
        return list(received.commands)
    return received


def test_every_split_of_handshake_and_requests_is_the_same() -> None:
    """REQ-FRAME-SPLIT: also where requests follow the hello at once."""
    whole = Session(ENTROPY)
    data = hello(whole) + requests()
    welcome = whole.handshake(data, AUTHORITY)
    assert welcome is not None
    assert (welcome.client_id, welcome.number, welcome.label) == (b"\0" * 7 + b"\7", 3, b"label")
    assert welcome.secret == "test"
    out: list[bytes] = []
    expected = plain(whole.receive(b"", out))
    assert len(expected) == 4
    assert [decode(SPEC, "server", frame) for frame in out] == [("ping", {"echo": 9})]
    for at in range(1, len(data)):
        session = Session(ENTROPY)
        commands: list[Command] = []
        pongs: list[bytes] = []
        welcomed = None
        for part in (data[:at], data[at:]):
            if welcomed is None:
                welcomed = session.handshake(part, AUTHORITY)
                if welcomed is not None:
                    commands += plain(session.receive(b"", pongs))
            else:
                commands += plain(session.receive(part, pongs))
        assert welcomed == welcome
        assert (commands, pongs) == (expected, out)


def test_wrong_mac_is_a_delayed_closing() -> None:
    session = Session(ENTROPY)
    with pytest.raises(Closing) as caught:
        session.handshake(hello(session, b"wrong"), AUTHORITY)
    assert caught.value.code == c.ERROR_AUTH_FAILED
    assert 100 <= caught.value.delay_ms <= 300
    name, fields = decode(SPEC, "server", session.last_words(caught.value))
    assert (name, fields["code"], fields["request_id"]) == ("error", c.ERROR_AUTH_FAILED, 0)


def test_a_mac_is_good_for_its_own_greeting_only() -> None:
    """REQ-HELLO-MAC: a recorded hello does not open another connection."""
    recorded = hello(Session(ENTROPY))
    with pytest.raises(Closing):
        Session(bytes(32)).handshake(recorded, AUTHORITY)


def test_what_stands_before_a_bad_frame_is_received() -> None:
    session = Session(ENTROPY)
    session.handshake(hello(session), AUTHORITY)
    received = session.receive(requests() + b"\0", [])
    assert isinstance(received, Received)
    assert len(received.commands) == 4
    assert received.closing is not None
    assert received.closing.code == c.ERROR_BAD_FRAME


def test_farewell_is_l_without_a_leader() -> None:
    session = Session(ENTROPY)
    assert decode(SPEC, "server", session.farewell()) == ("leader", {"leader": b""})
    assert session.refused(b"frame") == b"frame"
    assert session.render([b"a", b"b"]) == b"ab"
