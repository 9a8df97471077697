"""Connecting, the handshake, rounds and back-off, silence: on a scripted transport."""

from __future__ import annotations

import itertools

import pytest
from rig import LEADER, MS, SETTINGS, A, B, C, Rig, S, only
from ticketing import _constants_gen as c
from ticketing._core import handshake
from ticketing._core.rounds import Backoff
from ticketing._core.urls import Endpoint

THREE = {"endpoints": (A, B, C)}


def test_hello_is_derived_and_counted() -> None:
    """REQ-BYTES-SOURCE REQ-BYTES-NONCE REQ-HELLO-MAC: the same settings give the same bytes."""
    rig = Rig(secret=b"s3", connect_for_ms=60_000).open()
    for n in (1, 2, 3):
        rig.until_connecting()
        rig.greet()
        name, hello = only(rig.sent())
        nonce = handshake.client_nonce(SETTINGS.seed, n)
        mac = handshake.client_mac(b"s3", rig._greeting, 4, 42, n, nonce, b"test;python/0")
        assert name == "hello"
        assert hello == {
            "version": 4,
            "client_id": 42,
            "connection": n,
            "client_nonce": nonce,
            "mac": mac,
            "label": b"test;python/0",
        }
        rig.lose()


def test_nothing_is_sent_before_the_proof() -> None:
    """REQ-CONN-PROOF REQ-CONN-ROLE"""
    rig = Rig(connect_for_ms=60_000).open()
    call = rig.acquire("k")
    rig.greet()
    assert rig.names() == ["hello"]
    rig = Rig(connect_for_ms=60_000).open()
    call = rig.acquire("k")
    rig.greet()
    rig.welcome(secret=b"another")
    assert rig.names() == []
    assert call.waiter.kind == "closed"
    rig = Rig().open()
    call = rig.acquire("k")
    rig.greet()
    rig.welcome()
    assert rig.names() == ["acquire"]


def test_greeting_and_welcome_byte_by_byte() -> None:
    """REQ-FRAME-SPLIT"""
    rig = Rig().open()
    whole = c.GREETING_MAGIC + bytes([4, 4, 0, 255]) + bytes(16)
    for at in range(len(whole)):
        rig.feed(whole[at : at + 1])
    assert rig.names() == ["hello"]


def test_opening_fails_after_one_round_naming_each() -> None:
    """REQ-CONNECT-NEVER"""
    rig = Rig(**THREE).open()
    for _ in range(3):
        rig.lose("connection refused")
    assert rig.connects == [A, B, C]
    assert rig.opened.kind == "connection"
    text = str(rig.opened.error)
    assert all(str(endpoint) in text for endpoint in (A, B, C))
    assert text.count("connection refused") == 3
    assert rig.core.next_deadline_ns() is None
    rig.at(60)
    assert rig.connects == [A, B, C]


def test_connect_for_repeats_rounds() -> None:
    """REQ-CONNECT-FOR"""
    rig = Rig(connect_for_ms=3000).open()
    began = rig.now
    while not rig.opened.done:
        rig.lose("refused")
        if not rig.opened.done:
            rig.until(rig.core.next_deadline_ns())
    assert rig.opened.kind == "connection"
    assert 1.4 * S < rig.now - began <= 3 * S
    assert len(rig.connects) >= 5


@pytest.mark.parametrize(("settings", "seconds"), [({}, 3.0), (THREE, 1.0)])
def test_connect_and_greeting_are_bounded(settings: dict, seconds: float) -> None:
    """REQ-CONNECT-TIMEOUT REQ-HOSTILE-SLOW: also when the greeting drips in."""
    rig = Rig(**settings).open()
    rig.at(seconds - 0.001)
    rig.feed(c.GREETING_MAGIC[:3])
    assert not rig.disconnects
    rig.at(0.001)
    assert rig.disconnects == [1]


def test_handshake_is_bounded() -> None:
    """REQ-CONNECT-TIMEOUT"""
    rig = Rig().open()
    rig.at(2)
    rig.greet()
    rig.at(4.999)
    assert not rig.opened.done
    rig.at(0.001)
    assert rig.opened.kind == "connection"
    assert "5000 ms" in str(rig.opened.error)


def test_back_off_doubles_to_a_second_and_spreads() -> None:
    """REQ-CONNECT-BACKOFF"""
    expected = [0, 50, 100, 200, 400, 800, 1000, 1000, 1000]
    seen: list[set[int]] = [set() for _ in expected]
    for seed in range(50):
        backoff = Backoff(bytes([seed]))
        for at, base in enumerate(expected):
            delay = backoff.next_delay_ns()
            assert base * 0.5 * MS <= delay <= base * 1.5 * MS
            seen[at].add(delay)
    assert all(len(delays) > 40 for delays in seen[1:])


def test_only_a_useful_connection_resets_the_back_off() -> None:
    """REQ-CONNECT-RESET"""
    for useful in ("answered", "lived", "neither"):
        rig = Rig().ready(keepalive_s=60)
        for _ in range(6):
            rig.lose()
            rig.at(2)
            rig.greet()
            rig.welcome(keepalive_s=60)
        assert len(rig.connects) == 7
        call = rig.acquire(wait=0)
        rig.output()
        if useful == "answered":
            rig.reply("timed_out", request_id=call.request.id)
        rig.at(5 if useful == "lived" else 0.1)
        rig.lose()
        waits = len(rig.connects) == 7
        assert waits == (useful == "neither"), useful


def test_order_after_a_loss() -> None:
    """REQ-CONNECT-ORDER: the leader named last, then the list, the one just lost at its end."""
    rig = Rig(**THREE).open()
    rig.lose("refused")
    rig.greet()
    rig.welcome()
    assert rig.connects == [A, B]
    rig.lose()
    rig.until_connecting()
    rig.lose("refused")
    rig.lose("refused")
    assert rig.connects[2:5] == [A, C, B]
    rig = Rig(**THREE).open()
    rig.greet()
    rig.welcome(role=1, leader=str(LEADER).encode())
    rig.lose()
    rig.until_connecting()
    rig.connects = [rig.connects[1]]
    for _ in range(3):
        rig.lose("refused")
    assert rig.connects == [LEADER, B, C, A]


def test_role_2_goes_to_the_named_leader_once_per_round() -> None:
    """REQ-CONN-FOLLOWER REQ-CONNECT-ADVERTISE"""
    rig = Rig(endpoints=(A, B)).open()
    rig.greet()
    rig.welcome(role=2, leader=str(LEADER).encode())
    assert rig.connects == [A, LEADER]
    rig.lose("connection refused")
    rig.greet()
    rig.welcome(role=2, leader=str(LEADER).encode())
    assert rig.connects == [A, LEADER, B]
    text = str(rig.opened.error)
    assert rig.opened.kind == "connection"
    assert "10.0.0.9:7000: connection refused" in text
    assert "--advertise" in text


def test_role_2_with_a_leader_that_serves() -> None:
    """REQ-CONN-FOLLOWER"""
    rig = Rig().open()
    call = rig.acquire("k")
    rig.greet()
    rig.welcome(role=2, leader=b"[::1]:99")
    assert rig.connects == [A, Endpoint("::1", 99)]
    assert not call.waiter.done
    rig.greet()
    rig.welcome(role=1, leader=b"[::1]:99")
    assert rig.opened.value is None
    assert rig.names() == ["acquire"]


def test_role_3_waits_a_second_for_a_leader() -> None:
    """REQ-CONN-NOLEADER"""
    rig = Rig(endpoints=(A, B)).open()
    rig.greet()
    rig.welcome(role=3)
    rig.at(0.999)
    assert rig.connects == [A]
    rig.at(0.001)
    assert rig.connects == [A, B]
    rig.greet()
    rig.welcome(role=3)
    rig.reply("leader", leader=b"10.0.0.1:5225")
    assert rig.connects == [A, B, A]  # it said that it knows no leader; now it leads
    rig.greet()
    rig.welcome(role=1, leader=b"10.0.0.1:5225")
    assert rig.opened.value is None


def test_nodes_that_name_each_other_end_the_round() -> None:
    """REQ-CONN-FOLLOWER REQ-HOSTILE-CLOSE"""
    rig = Rig(endpoints=(A, B)).open()
    for _ in range(20):
        if rig.opened.done:
            break
        here = rig.connects[-1]
        rig.greet()
        rig.welcome(role=3)
        rig.reply("leader", leader=str(B if here == A else A).encode())
    assert rig.opened.kind == "connection"


@pytest.mark.parametrize("leader", [b"10.0.0.1:5225", b"10.0.0.9:7000", b""])
def test_leader_frame_reconnects_as_after_a_loss(leader: bytes) -> None:
    """REQ-CONN-LEADER: idle or not, and also where it names the same address."""
    rig = Rig(endpoints=(A, B)).ready()
    ticket = rig.hold("k")
    rig.reply("leader", leader=leader)
    assert rig.disconnects == [1]
    assert rig.connects[1:] == [{b"": B, b"10.0.0.1:5225": A}.get(leader, LEADER)]
    assert ticket.token in rig.core._tickets.held


def test_what_an_earlier_connection_says_does_not_count() -> None:
    """REQ-CONN-STALE"""
    rig = Rig().ready()
    call = rig.acquire("k")
    rig.output()
    old = rig.serial
    rig.lose()
    rig.ready()
    reply = b"A\0\x14" + call.request.id.to_bytes(8, "big") + (9).to_bytes(8, "big") + bytes(4)
    rig.core.receive(old, reply, rig.now)
    rig.run()
    assert not call.waiter.done
    rig.core.disconnected(old, "late", rig.now)
    rig.run()
    assert rig.names() == ["acquire"]
    rig.feed(reply)
    assert call.waiter.value.token == 9


def test_no_common_version() -> None:
    """REQ-CONN-VERSION: it closes without a hello and says so."""
    rig = Rig(endpoints=(A, B)).open()
    rig.greet(low=5, high=9)
    assert rig.output() == b""
    assert rig.connects == [A, B]
    rig.greet(low=1, high=3)
    assert "no common version" in str(rig.opened.error)
    assert "5 to 9" in str(rig.opened.error)


def test_fingerprint_pin() -> None:
    """REQ-CONN-FINGERPRINT"""
    rig = Rig(fingerprint=b"\1" * 32).open()
    rig.greet()
    rig.welcome(fingerprint=b"\2" * 32)
    assert rig.opened.kind == "auth"
    rig = Rig(fingerprint=b"\1" * 32).open()
    rig.greet()
    rig.welcome(fingerprint=b"\1" * 32)
    assert rig.opened.value is None


@pytest.mark.parametrize("code", sorted(c.ERRORS))
def test_errors_before_the_proof_only_rule_out_the_endpoint(code: int) -> None:
    """REQ-CONNECT-UNPROVEN: whoever sends them may be an impostor; taken_over too."""
    rig = Rig(endpoints=(A, B)).open()
    rig.greet()
    rig.error(code, text=b"no")
    assert rig.connects == [A, B]
    rig.greet()
    rig.welcome()
    assert rig.opened.value is None


def test_auth_errors_fail_what_is_unanswered() -> None:
    """REQ-CONNECT-AUTH: and the next call starts a new round."""
    rig = Rig(endpoints=(A, B)).ready()
    held = rig.hold("h")
    calls = [rig.acquire("k"), rig.ping()]
    released = rig.release(held)
    rig.lose()
    rig.until_connecting()
    rig.greet()
    rig.error(c.ERROR_AUTH_FAILED, text=b"wrong mac")
    rig.lose("refused")
    assert [call.waiter.kind for call in calls] == ["auth", "auth"]
    assert released.kind == "auth"
    assert "TICKETING_SECRET" in str(released.error)
    seen = len(rig.connects)
    rig.at(60)
    assert len(rig.connects) == seen
    later = rig.acquire("k")
    assert len(rig.connects) == seen + 1
    rig.greet()
    rig.welcome()
    assert rig.names() == ["acquire"]
    assert not later.waiter.done


def test_a_wrong_secret_fails_opening_with_auth() -> None:
    rig = Rig(connect_for_ms=60_000).open()
    rig.greet()
    rig.welcome(secret=b"other")
    assert rig.opened.kind == "auth"


def test_auth_error_with_a_welcome_in_the_round_goes_on() -> None:
    """REQ-CONNECT-AUTH: only a round without any welcome fails with auth."""
    rig = Rig(endpoints=(A, B)).open()
    rig.greet()
    rig.error(c.ERROR_AUTH_FAILED)
    rig.greet()
    rig.welcome(role=3)
    rig.at(1)
    assert rig.opened.kind == "connection"


def test_ping_after_silence_in_either_direction() -> None:
    """REQ-ALIVE-PING REQ-ALIVE-ONEPING"""
    rig = Rig().ready(keepalive_s=2)
    rig.at(1.999)
    assert rig.sent() == []
    rig.at(0.001)
    assert rig.sent() == [("ping", {"echo": 0})]
    rig.at(1.9)
    assert rig.sent() == []  # one at most
    rig.reply("ping", echo=0)
    # Received all the time, nothing sent:
    for _ in range(4):
        rig.at(0.5)
        rig.reply("dropped", token=999, reason=1)
    assert rig.names() == ["ping"]


def test_a_silent_connection_is_dead() -> None:
    """REQ-ALIVE-DEAD: and its ping is not sent again."""
    rig = Rig().ready(keepalive_s=2)
    rig.at(5.999)
    assert rig.names() == ["ping"]
    assert not rig.disconnects
    rig.at(0.001)
    assert rig.disconnects == [1]
    rig.ready(keepalive_s=2)
    assert rig.sent() == []


def test_pings_also_while_requests_are_written() -> None:
    """REQ-ALIVE-PING: writing alone is not enough; and the public ping has its id as echo."""
    rig = Rig().ready(keepalive_s=2)
    ping = rig.ping()
    assert rig.sent() == [("ping", {"echo": ping.request.id})]
    rig.at(2)
    assert rig.sent() == [("ping", {"echo": 0})]
    rig.reply("ping", echo=ping.request.id)
    assert ping.waiter.value is None
    rig.reply("ping", echo=0)
    assert not rig.disconnects


def test_loss_and_return_are_events() -> None:
    """REQ-EVENT-HOOK"""
    rig = Rig().ready()
    rig.lose("cable cut")
    rig.ready()
    assert rig.kinds() == ["connected", "disconnected", "connected"]
    assert rig.events[1].reason == "cable cut"
    assert rig.events[0].address == "10.0.0.1:5225"


def test_deadlines_never_lie_in_the_past_after_time_was_given() -> None:
    """A shell that sleeps until the next deadline never spins."""
    rig = Rig().ready()
    rig.hold("a", auto=True)
    rig.acquire("b", wait=3)
    for _ in itertools.repeat(None, 300):
        rig.at(0.1)
        rig.output()
        due = rig.core.next_deadline_ns()
        assert due is None or due > rig.now
