"""Version 3: the session alone at every split, and on the engine's lock table."""

from __future__ import annotations

import hashlib
import hmac
import random
import struct
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ticketing_server import constants_gen as c
from ticketing_server import lock_table, wire
from ticketing_server.auth import Secrets
from ticketing_server.engine import Peer
from ticketing_server.limits import Limits
from ticketing_server.session import Authority, Closing, Session
from ticketing_server.session_v3 import FINGERPRINT_STANDALONE, SessionV3
from ticketing_server.standalone import StandaloneEngine
from ticketing_spec import load_spec
from ticketing_spec.codec import decode, encode, fingerprint, mac

SPEC = load_spec()
SPEC_V3 = load_spec("version3")
SECRET = b"a secret for tests"
ENTROPY = bytes(range(32))
SECOND = 1_000_000_000


@dataclass(frozen=True)
class Named:
    name: str
    value: bytes


def authority(*secrets: bytes) -> Authority:
    return Authority(Secrets([Named(f"s{n}", value) for n, value in enumerate(secrets)]), 5)


def answer(session: SessionV3, secret: bytes = SECRET) -> bytes:
    return mac(SPEC_V3, secret, session.greeting, {"fingerprint": fingerprint(SPEC_V3, None)})


def accepted(entropy: bytes = ENTROPY) -> SessionV3:
    """A session after its handshake, whose verdict was rendered."""
    session = SessionV3(entropy)
    welcome = session.handshake(answer(session), authority(SECRET))
    assert welcome is not None
    assert session.render([welcome.frame]) == b"\x01"
    return session


def request(name: str, **fields: Any) -> bytes:
    return encode(SPEC_V3, "client", name, fields)


def replies(data: bytes) -> list[tuple[str, dict[str, Any]]]:
    """The frames in what a session rendered."""
    found = []
    while data:
        end = 3 + int.from_bytes(data[1:3], "big")
        found.append(decode(SPEC_V3, "server", data[:end]))
        data = data[end:]
    return found


def raw(op: bytes, body: bytes) -> bytes:
    return op + struct.pack(">H", len(body)) + body


# The handshake


def test_greeting() -> None:
    greeting = SessionV3(ENTROPY).greeting
    assert greeting == b"TCKCLI3\0\x00\x03\x00\xff" + ENTROPY[:16]


def test_the_answer_is_what_protocol_md_says() -> None:
    """Spelled out by hand, beside the spec's codec."""
    session = SessionV3(ENTROPY)
    single = hashlib.sha256(b"ticketing/single/v3").digest()
    message = b"TCK/CLIENT/AUTH3" + b"\x00\x03\x00" + single + b"\xff" + ENTROPY[:16]
    expected = hmac.new(SECRET, message, "sha256").digest()
    assert single == FINGERPRINT_STANDALONE
    assert answer(session) == expected
    assert session.handshake(expected, authority(SECRET)) is not None


@pytest.mark.parametrize("split", range(33))
def test_a_right_answer_at_every_split(split: int) -> None:
    session = SessionV3(ENTROPY)
    data = answer(session) + request("acquire", request_id=1, wait_s=0, lease_s=9, key=b"k")
    first = session.handshake(data[:split], authority(SECRET))
    welcome = first or session.handshake(data[split:], authority(SECRET))
    assert welcome is not None
    assert (welcome.number, welcome.label, welcome.frame) == (0, b"", b"\x01")
    assert welcome.client_id == ENTROPY[16:24]
    rest = data[split:] if first else b""
    assert len(session.receive(rest, []).commands) == 1


def test_a_wrong_answer_is_rejected_later() -> None:
    session = SessionV3(ENTROPY)
    with pytest.raises(Closing) as caught:
        session.handshake(bytes(32), authority(SECRET))
    assert caught.value.code == c.ERROR_AUTH_FAILED
    assert 100 <= caught.value.delay_ms <= 300
    assert session.last_words(caught.value) == b"\x00"


def test_every_other_close_is_bare() -> None:
    session = accepted()
    for code in set(range(1, 12)) - {c.ERROR_AUTH_FAILED}:
        assert session.last_words(Closing(code, "text")) == b""
    assert session.refused(wire.error(c.ERROR_BAD_FRAME, "text")) == b""


@pytest.mark.parametrize("secret", [b"new", b"old"])
def test_several_secrets(secret: bytes) -> None:
    session = SessionV3(ENTROPY)
    welcome = session.handshake(answer(session, secret), authority(b"new", b"old"))
    assert welcome is not None
    assert welcome.secret == {b"new": "s0", b"old": "s1"}[secret]


def test_no_secret_is_the_empty_one() -> None:
    session = SessionV3(ENTROPY)
    assert session.handshake(answer(session, b""), authority()) is not None


# Requests become commands


def word(wait_s: int, lease_s: int) -> bytes:
    return struct.pack(">II", wait_s * 1000, lease_s * 1000)


def test_commands() -> None:
    data = (
        request("acquire", request_id=7, wait_s=255, lease_s=250, key=b"k")
        + request("acquire_set", request_id=8, wait_s=0, lease_s=1, keys=[b"a", b"b"])
        + request("release", request_id=9, token=5, key=b"k")
        + request("release_set", request_id=10, token=2**64 - 1, keys=[b"a", b"b"])
    )
    out: list[bytes] = []
    received = accepted().receive(data, out)
    ids = [command[1] for command in received.commands]
    assert received.commands == [
        (wire.ACQUIRE, ids[0], word(255, 250), b"k"),
        (wire.ACQUIRE_SET, ids[1], word(0, 1), (b"a", b"b")),
        (lock_table.RELEASE_KEYS, ids[2], (5).to_bytes(8, "big"), (b"k",)),
        (lock_table.RELEASE_KEYS, ids[3], b"\xff" * 8, (b"a", b"b")),
    ]
    assert len(set(ids)) == 4
    assert received.closing is None
    assert out == []


def test_an_id_that_comes_twice_is_two_owners() -> None:
    session = accepted()
    data = request("acquire", request_id=1, wait_s=9, lease_s=9, key=b"k")
    (first,) = session.receive(data, []).commands
    (second,) = session.receive(data, []).commands
    assert first[1] != second[1]
    frames = [wire.TIMED_OUT, second[1], wire.GRANTED, first[1], bytes(8), bytes(4)]
    assert [name for name, _ in replies(session.render(frames))] == ["timed_out", "granted"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 400), max_size=8))
def test_requests_at_every_split(cuts: list[int]) -> None:
    data = b"".join(
        request("acquire", request_id=n, wait_s=n, lease_s=n, key=b"k" * n)
        + request("release_set", request_id=n, token=n, keys=[b"a" * n, b"b"])
        for n in range(1, 6)
    )
    whole = accepted().receive(data, []).commands
    session, pieces = accepted(), []
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    for start, end in pairwise(edges):
        pieces += session.receive(data[start:end], []).commands
    assert pieces == list(whole)


REFUSED = {
    "lease 0": (raw(b"A", struct.pack(">QBB", 1, 0, 0) + b"k"), 2),
    "lease 251": (raw(b"A", struct.pack(">QBB", 1, 0, 251) + b"k"), 2),
    "lease of a set": (raw(b"S", struct.pack(">QBB", 1, 0, 0) + b"\x02\x01a\x01b"), 2),
    "space": (raw(b"A", struct.pack(">QBB", 1, 0, 9) + b"a b"), 1),
    "line end": (raw(b"R", struct.pack(">QQ", 1, 1) + b"a\n"), 1),
    "return": (raw(b"R", struct.pack(">QQ", 1, 1) + b"\ra"), 1),
    "space in a set": (raw(b"S", struct.pack(">QBB", 1, 0, 9) + b"\x02\x01a\x02b "), 5),
    "one key": (raw(b"G", struct.pack(">QQ", 1, 1) + b"\x01\x04abcd"), 5),
    "no key": (raw(b"S", struct.pack(">QBB", 1, 0, 9) + b"\x11" + b"\x01a" * 17), 5),
    "unsorted": (raw(b"G", struct.pack(">QQ", 1, 1) + b"\x02\x01b\x01a"), 5),
    "doubled": (raw(b"S", struct.pack(">QBB", 1, 0, 9) + b"\x02\x01a\x01a"), 5),
    "empty key": (raw(b"S", struct.pack(">QBB", 1, 0, 9) + b"\x02\x00\x02ab"), 5),
    "long key": (raw(b"S", struct.pack(">QBB", 1, 0, 9) + b"\x02\x01a\x81" + b"b" * 129), 5),
    "token 0": (raw(b"R", struct.pack(">QQ", 1, 0) + b"k"), 7),
    "token 0 of a set": (raw(b"G", struct.pack(">QQ", 1, 0) + b"\x02\x01a\x01b"), 7),
}


@pytest.mark.parametrize(("data", "code"), REFUSED.values(), ids=REFUSED.keys())
def test_refusals(data: bytes, code: int) -> None:
    session = accepted()
    out: list[bytes] = []
    received = session.receive(data + data, out)
    assert (received.commands, received.closing) == ([], None)
    expected = ("error", {"request_id": 1, "code": code})
    assert replies(session.render(out)) == [expected, expected]


BROKEN = {
    "unknown op": b"X\x00\x0b",
    "op of version 4": b"P\x00\x08",
    "no key": b"A\x00\x0a",
    "long key": b"A\x00\x8b",
    "huge": b"A\xff\xff",
    "release of no key": b"R\x00\x10",
    "short set": b"S\x00\x0e",
    "long set": b"G\x08\x22",
    "id 0": raw(b"A", struct.pack(">QBB", 0, 0, 9) + b"k"),
    "id 0 and bad lease": raw(b"A", struct.pack(">QBB", 0, 0, 0) + b"k"),
    "left over": raw(b"S", struct.pack(">QBB", 1, 0, 9) + b"\x02\x01a\x01b!"),
    "past the end": raw(b"S", struct.pack(">QBB", 1, 0, 9) + b"\x02\x01a\x05b"),
    "count past the end": raw(b"S", struct.pack(">QBB", 1, 0, 9) + b"\x09\x01a\x01b"),
    "broken and bad lease": raw(b"S", struct.pack(">QBB", 1, 0, 0) + b"\x02\x01a\x05b"),
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN.keys())
def test_broken_frames_close(data: bytes) -> None:
    session = accepted()
    good = request("acquire", request_id=1, wait_s=0, lease_s=9, key=b"k")
    received = session.receive(good + data + good, [])
    assert len(received.commands) == 1
    assert received.closing is not None
    assert session.last_words(received.closing) == b""


def test_random_bytes_never_do_more_than_close() -> None:
    source = random.Random(3)
    for _ in range(2000):
        data = source.choice(b"ASRG").to_bytes() + source.randbytes(source.randint(0, 60))
        accepted().receive(data, [])


def test_nothing_is_buffered_past_a_header_that_is_wrong() -> None:
    session = accepted()
    for byte in b"A\xff":
        assert session.receive(bytes([byte]), []).closing is None
    assert session.receive(b"\xff", []).closing is not None


# Replies


def test_replies_are_translated() -> None:
    session = accepted()
    data = b"".join(
        request("acquire", request_id=n, wait_s=0, lease_s=9, key=b"k") for n in range(1, 5)
    )
    data += request("acquire_set", request_id=5, wait_s=0, lease_s=9, keys=[b"a", b"b"])
    data += request("release", request_id=6, token=1, key=b"k")
    data += request("release_set", request_id=7, token=1, keys=[b"a", b"b"])
    data += request("release", request_id=8, token=1, key=b"k")
    data += request("release", request_id=9, token=1, key=b"k")
    ids = [command[1] for command in session.receive(data, []).commands]
    token, waited = (77).to_bytes(8, "big"), bytes(4)
    frames = [
        *(wire.GRANTED, ids[0], token, waited),
        *(wire.TIMED_OUT, ids[1]),
        *(wire.OVERLOADED, ids[2]),
        wire.error(c.ERROR_LEASE_TOO_LONG, "over max_lease", ids[3]),
        *(wire.DROPPED, token, b"\x01"),
        *(wire.GRANTED, ids[4], token, waited),
        *(wire.RELEASED, ids[5]),
        *(wire.RELEASED, ids[6]),
        *(wire.NOT_HELD, ids[7]),
        *(wire.OTHER_KEYS, ids[8]),
    ]
    assert replies(session.render(frames)) == [
        ("granted", {"request_id": 1, "token": 77}),
        ("timed_out", {"request_id": 2}),
        ("overloaded", {"request_id": 3}),
        ("error", {"request_id": 4, "code": 2}),
        ("granted_set", {"request_id": 5, "token": 77}),
        ("released", {"request_id": 6}),
        ("released_set", {"request_id": 7}),
        ("not_held", {"request_id": 8}),
        ("error", {"request_id": 9, "code": 6}),
    ]


def test_a_drain_refuses_what_is_left_unanswered() -> None:
    session = accepted()
    data = request("acquire", request_id=1, wait_s=9, lease_s=9, key=b"k") + request(
        "acquire", request_id=2, wait_s=9, lease_s=9, key=b"k"
    )
    first, _ = session.receive(data, []).commands
    assert session.farewell() == b""
    assert replies(session.render([wire.TIMED_OUT, first[1]])) == [
        ("timed_out", {"request_id": 1}),
        ("error", {"request_id": 2, "code": 3}),
    ]
    assert session.render([]) == b""


# On the engine


class Bench:
    """An engine with a manual clock, and what it said to each connection."""

    def __init__(self, **limits: int) -> None:
        self.engine = StandaloneEngine(1000, {3: SessionV3, 4: Session})
        self.now_ns = 5 * SECOND
        self.engine.configure(replace(Limits(), **limits), [Named("s", SECRET)], self.now_ns)
        self.said: dict[int, bytes] = {}
        self.closed: dict[int, str] = {}
        self.deadline: int | None = None

    def turn(self, *fed: tuple[int, bytes]) -> None:
        for connection, data in fed:
            self.engine.feed(connection, data, self.now_ns)
        outputs, self.deadline = self.engine.end_turn(self.now_ns)
        for output in outputs:
            self.said[output.connection] = self.said.get(output.connection, b"") + output.data
            if output.close != "no":
                self.closed[output.connection] = output.close

    def advance(self, milliseconds: int) -> None:
        self.now_ns += milliseconds * 1_000_000
        self.turn()

    def take(self, connection: int) -> bytes:
        return self.said.pop(connection, b"")

    def replies(self, connection: int) -> list[tuple[str, dict[str, Any]]]:
        return replies(self.take(connection))

    def open_v3(self, connection: int) -> None:
        entropy = connection.to_bytes(2, "big") * 16
        self.engine.open(connection, Peer("tcp", "127.0.0.1:9", 3), entropy, self.now_ns)
        self.turn()
        greeting = self.take(connection)
        fields = {"fingerprint": fingerprint(SPEC_V3, None)}
        self.turn((connection, mac(SPEC_V3, SECRET, greeting, fields)))
        assert self.take(connection) == b"\x01"

    def open_v4(self, connection: int) -> None:
        entropy = connection.to_bytes(2, "big") * 16
        self.engine.open(connection, Peer("tcp", "127.0.0.1:9", 4), entropy, self.now_ns)
        self.turn()
        greeting = self.take(connection)
        hello: dict[str, Any] = {
            "version": 4,
            "client_id": connection,
            "connection": 1,
            "client_nonce": bytes(16),
            "label": b"t;python/1",
        }
        hello["mac"] = mac(SPEC, SECRET, greeting, hello)
        self.turn((connection, encode(SPEC, "client", "hello", hello)))
        self.take(connection)

    def acquire(
        self, connection: int, request_id: int, *keys: bytes, wait_s: int = 9, lease_s: int = 60
    ) -> None:
        fields = {"request_id": request_id, "wait_s": wait_s, "lease_s": lease_s}
        if len(keys) == 1:
            self.turn((connection, request("acquire", **fields, key=keys[0])))
        else:
            self.turn((connection, request("acquire_set", **fields, keys=list(keys))))

    def token(self, connection: int) -> int:
        ((name, fields),) = self.replies(connection)
        assert name in ("granted", "granted_set")
        token: int = fields["token"]
        return token


def test_a_lease_over_tells_nobody_and_hands_on_exactly() -> None:
    bench = Bench()
    for connection in (1, 2):
        bench.open_v3(connection)
        bench.acquire(connection, 1, b"k", wait_s=255, lease_s=7)
    bench.token(1)
    assert bench.deadline is not None
    assert bench.deadline <= bench.now_ns + 7 * SECOND
    bench.advance(6_999)
    assert bench.replies(2) == []
    bench.advance(1)
    bench.token(2)
    assert bench.take(1) == b""


def test_a_wait_ends_exactly() -> None:
    bench = Bench()
    bench.open_v3(1)
    bench.acquire(1, 1, b"k")
    bench.token(1)
    bench.acquire(1, 2, b"k", wait_s=3)
    bench.advance(2_999)
    assert bench.replies(1) == []
    bench.advance(1)
    assert bench.replies(1) == [("timed_out", {"request_id": 2})]


def test_waiters_leave_and_tickets_stay_when_the_connection_ends() -> None:
    bench = Bench()
    for connection in (1, 2, 3):
        bench.open_v3(connection)
        bench.acquire(connection, 1, b"k", wait_s=255, lease_s=60)
    token = bench.token(1)
    bench.engine.close(2)
    bench.turn()
    assert bench.engine.counters().waiters_detached == 0
    bench.engine.close(1)
    bench.turn()
    assert bench.replies(3) == []
    bench.turn((3, request("release", request_id=2, token=token, key=b"k")))
    assert [name for name, _ in bench.replies(3)] == ["released", "granted"]


def test_releases_name_all_keys() -> None:
    bench = Bench()
    bench.open_v3(1)
    bench.acquire(1, 1, b"a", b"b")
    token = bench.token(1)
    attempts = [
        request("release", request_id=2, token=token, key=b"a"),
        request("release_set", request_id=3, token=token, keys=[b"a", b"c"]),
        request("release_set", request_id=4, token=token, keys=[b"x", b"y"]),
        request("release_set", request_id=5, token=token + 1, keys=[b"a", b"b"]),
        request("release_set", request_id=6, token=token, keys=[b"a", b"b"]),
        request("release_set", request_id=7, token=token, keys=[b"a", b"b"]),
    ]
    bench.turn(*((1, data) for data in attempts))
    assert bench.replies(1) == [
        *(("error", {"request_id": n, "code": 6}) for n in (2, 3, 4)),
        ("not_held", {"request_id": 5}),
        ("released_set", {"request_id": 6}),
        ("not_held", {"request_id": 7}),
    ]


def test_a_wrong_answer_waits_and_closes() -> None:
    bench = Bench()
    bench.engine.open(1, Peer("tcp", "127.0.0.1:9", 3), ENTROPY, bench.now_ns)
    bench.turn()
    assert len(bench.take(1)) == 28
    bench.turn((1, bytes(32)))
    bench.advance(99)
    assert bench.take(1) == b""
    bench.advance(201)
    assert bench.take(1) == b"\x00"
    assert 1 in bench.closed


def test_the_handshake_timeout_is_a_bare_close() -> None:
    bench = Bench()
    bench.engine.open(1, Peer("tcp", "127.0.0.1:9", 3), ENTROPY, bench.now_ns)
    bench.turn()
    bench.take(1)
    bench.advance(4_999)
    assert 1 not in bench.closed
    bench.advance(1)
    assert 1 in bench.closed
    assert bench.take(1) == b""


def test_silence_closes_nobody() -> None:
    bench = Bench(keepalive_s=1)
    bench.open_v3(1)
    bench.advance(3_600_000)
    assert bench.closed == {}


def test_a_lease_over_max_lease_is_a_bad_lease() -> None:
    bench = Bench(max_lease_ms=10_000)
    bench.open_v3(1)
    bench.acquire(1, 1, b"k", lease_s=11)
    assert bench.replies(1) == [("error", {"request_id": 1, "code": 2})]
    bench.acquire(1, 2, b"k", lease_s=10)
    bench.token(1)


def test_limits_are_shared() -> None:
    bench = Bench(waiters_per_key=1)
    bench.open_v3(1)
    for request_id in (1, 2, 3):
        bench.acquire(1, request_id, b"k")
    assert [name for name, _ in bench.replies(1)] == ["granted", "overloaded"]


def test_a_drain_closes_with_refusals() -> None:
    bench = Bench()
    bench.open_v3(1)
    bench.acquire(1, 1, b"k")
    bench.acquire(1, 2, b"k")
    bench.token(1)
    bench.engine.drain(bench.now_ns)
    bench.turn()
    assert bench.replies(1) == [("error", {"request_id": 2, "code": 3})]
    assert 1 in bench.closed


def test_both_versions_take_turns_in_strict_fifo() -> None:
    bench = Bench()
    for connection in range(1, 21):
        if connection % 2:
            bench.open_v3(connection)
            bench.acquire(connection, 1, b"k", wait_s=255)
        else:
            bench.open_v4(connection)
            fields = {"request_id": 1, "wait_ms": 99_000, "lease_ms": 60_000, "key": b"k"}
            bench.turn((connection, encode(SPEC, "client", "acquire", fields)))
    last = 0
    for connection in range(1, 21):
        said = bench.take(connection)
        assert not bench.said, f"granted beside {connection}: {bench.said}"
        spec = SPEC_V3 if connection % 2 else SPEC
        name, fields = decode(spec, "server", said)
        assert (name, fields["request_id"]) == ("granted", 1)
        token = fields["token"]
        assert isinstance(token, int)
        assert token > last
        last = token
        release = {"request_id": 2, "token": token, "key": b"k"}
        bench.turn((connection, encode(spec, "client", "release", release)))
        assert decode(spec, "server", bench.take(connection)) == ("released", {"request_id": 2})
