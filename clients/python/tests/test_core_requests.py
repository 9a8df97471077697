"""Requests and how they are settled: ids, arguments, bounds, resending, cancelling, errors."""

from __future__ import annotations

from datetime import timedelta

import pytest
from rig import Rig, S, only
from ticketing import FOREVER, InvalidArgumentError
from ticketing import _constants_gen as c
from ticketing._core.codec import HEADER, encode

FOREVER_MS = c.WAIT_MS_FOREVER


def test_ids_count_over_connections_and_follow_the_checks() -> None:
    """REQ-BYTES-REQUESTID REQ-BYTES-ORDER"""
    rig = Rig().ready()
    one = rig.acquire("a")
    for bad in ({"lease": 0}, {"wait": -1}, {"auto": "no"}):
        with pytest.raises(InvalidArgumentError):
            rig.acquire("b", **bad)
    two = rig.ping()
    rig.lose()
    three = rig.acquire("c", "b")
    assert [call.request.id for call in (one, two, three)] == [1, 2, 3]
    rig.ready()
    assert rig.names() == ["acquire", "ping", "acquire_set"]


def test_acquire_frames() -> None:
    """REQ-ARGS-SET REQ-ARGS-SETOFONE REQ-ARGS-TEXT REQ-URL-PREFIX REQ-ARGS-TRY"""
    rig = Rig(key_prefix="é/".encode()).ready()
    rig.acquire("k", lease=1.5, wait=2)
    rig.acquire(b"\xff", "a", b"a", "b", wait=0)
    rig.acquire("same", b"same")
    rig.acquire("k", wait=FOREVER)
    assert rig.sent() == [
        (
            "acquire",
            {"request_id": 1, "wait_ms": 2000, "lease_ms": 1500, "key": b"\xc3\xa9/k"},
        ),
        (
            "acquire_set",
            {
                "request_id": 2,
                "wait_ms": 0,
                "lease_ms": 10_000,
                "keys": [b"\xc3\xa9/a", b"\xc3\xa9/b", b"\xc3\xa9/\xff"],
            },
        ),
        (
            "acquire",
            {"request_id": 3, "wait_ms": FOREVER_MS, "lease_ms": 10_000, "key": b"\xc3\xa9/same"},
        ),
        (
            "acquire",
            {"request_id": 4, "wait_ms": FOREVER_MS, "lease_ms": 10_000, "key": b"\xc3\xa9/k"},
        ),
    ]
    rig.reply("granted", request_id=2, token=3, waited_ms=0)


@pytest.mark.parametrize(
    ("settings", "how", "wait_ms", "lease_ms", "auto"),
    [
        ({}, {"lease": None}, FOREVER_MS, 30_000, True),
        ({}, {"lease": None, "auto": False}, FOREVER_MS, 30_000, False),
        ({}, {"lease": timedelta(milliseconds=1)}, FOREVER_MS, 1, False),
        ({}, {"lease": 5, "auto": True}, FOREVER_MS, 5000, True),
        ({"lease_ms": 7000}, {"lease": None}, FOREVER_MS, 7000, False),
        ({"lease_ms": 7000, "auto_extend": True}, {"lease": None}, FOREVER_MS, 7000, True),
        ({"wait_ms": 9}, {"wait": None}, 9, 10_000, False),
        ({"wait_ms": 9}, {"wait": FOREVER}, FOREVER_MS, 10_000, False),
    ],
)
def test_defaults(settings: dict, how: dict, wait_ms: int, lease_ms: int, auto: bool) -> None:
    """REQ-DEFAULT-WAIT REQ-DEFAULT-LEASE REQ-DEFAULT-FIXED"""
    rig = Rig(**settings).ready()
    request = rig.acquire("k", **how).request
    assert (request.wait_ms, request.lease_ms, request.auto_extend) == (wait_ms, lease_ms, auto)


def test_a_turn_is_one_write() -> None:
    """REQ-BYTES-ORDER: what the callers of a turn want goes out in one piece, in id order."""
    rig = Rig().ready()
    calls = [rig.acquire(f"k{n}") for n in range(50)]
    data = rig.output()
    assert data == b"".join(call.request.frame for call in calls)
    assert rig.output() == b""


def test_replies_settle_exactly_once() -> None:
    """REQ-RESEND-ONCE REQ-ERROR-KINDS"""
    rig = Rig().ready()
    tried, waited, full = rig.acquire(wait=0), rig.acquire(wait=5), rig.acquire()
    rig.output()
    rig.reply("timed_out", request_id=tried.request.id)
    rig.reply("timed_out", request_id=waited.request.id)
    rig.reply("overloaded", request_id=full.request.id)
    assert tried.waiter.kind == "held"
    assert isinstance(tried.waiter.error, TimeoutError)
    assert waited.waiter.kind == "timeout"
    assert full.waiter.kind == "overloaded"
    assert rig.kinds() == ["connected", "timed_out"]


def test_try_extend_and_ping_are_bounded_in_all() -> None:
    """REQ-BOUND-REPLY: over reconnects too, and connected or not."""
    rig = Rig(reply_timeout_ms=10_000).ready()
    ticket = rig.hold("h", lease=60)
    calls = [rig.acquire(wait=0), rig.ping(), rig.extend(ticket)]
    rig.output()
    rig.at(4)
    rig.reply("dropped", token=1, reason=1)
    rig.lose()
    rig.until_connecting()
    rig.greet()
    rig.welcome()
    assert rig.names() == ["acquire", "ping", "extend"]
    rig.until(1_000 * S + 9_999_000_000)
    assert not any(call.waiter.done for call in calls)
    rig.at(0.001)
    assert [call.waiter.kind for call in calls] == ["connection"] * 3
    assert all(isinstance(call.waiter.error, TimeoutError) for call in calls)
    # REQ-BOUND-CANCEL: only the acquire has something to undo.
    assert rig.names()[-1:] == ["cancel"]


def test_a_wait_is_ended_one_second_late_when_connected() -> None:
    """REQ-BOUND-WAIT"""
    rig = Rig().ready(keepalive_s=60)
    call = rig.acquire(wait=5)
    rig.output()
    rig.at(5.999)
    assert not call.waiter.done
    rig.at(0.001)
    assert call.waiter.kind == "timeout"
    (name, cancel) = only(rig.sent())
    assert (name, cancel["acquire_id"], cancel["key"]) == ("cancel", call.request.id, b"k")


def test_a_wait_is_ended_at_its_deadline_when_not_connected() -> None:
    """REQ-BOUND-WAIT"""
    rig = Rig().ready(keepalive_s=60)
    call = rig.acquire(wait=5)
    rig.output()
    rig.at(3)
    rig.lose()
    rig.at(1.999)
    assert not call.waiter.done
    rig.at(0.001)
    assert call.waiter.kind == "timeout"
    rig.lose() if rig.core._link.state.value == "connecting" else None
    rig.ready()
    assert rig.names() == ["cancel"]  # The acquire is not sent again, its cancel is.


def test_a_wait_that_is_over_ends_when_the_connection_does() -> None:
    """REQ-BOUND-WAIT"""
    rig = Rig().ready(keepalive_s=60)
    call = rig.acquire(wait=5)
    rig.output()
    rig.at(5.5)
    assert not call.waiter.done
    rig.lose()
    assert call.waiter.kind == "timeout"


def test_given_up_before_it_was_written_is_never_sent() -> None:
    """REQ-BOUND-UNSENT REQ-BYTES-NOREUSE REQ-STOP-CLEAN"""
    rig = Rig().ready()
    call, ping = rig.acquire("a"), rig.ping()
    call.abandon()
    ping.abandon()
    assert rig.sent() == []
    assert rig.acquire("b").request.id == 3
    assert not call.waiter.done
    rig.lose()
    offline = rig.acquire("c")
    offline.abandon()
    rig.ready()
    assert [frame["key"] for _, frame in rig.sent()] == [b"b"]


def test_given_up_after_it_was_written_is_cancelled() -> None:
    """REQ-BOUND-CANCEL REQ-BOUND-GIVENUP REQ-STOP-CLEAN: a late reply has no effect."""
    for late in ("granted", "timed_out", "overloaded", None):
        rig = Rig().ready()
        call = rig.acquire("b", "a")
        rig.output()
        call.abandon()
        cancel = only(rig.sent())
        assert cancel == ("cancel", {"request_id": 2, "acquire_id": 1, "key": b"a"})
        if late == "granted":
            rig.reply("granted", request_id=1, token=5, waited_ms=0)
        elif late is not None:
            rig.reply(late, request_id=1)
        rig.reply("cancelled", request_id=2)
        assert not rig.disconnects
        assert not call.waiter.done
        assert rig.core._requests.unanswered == {}
        assert rig.core._tickets.held == {}


def test_cancelled_after_the_grant_was_read_is_released() -> None:
    """REQ-STOP-READ"""
    rig = Rig().ready()
    call = rig.acquire("a")
    rig.output()
    rig.reply("granted", request_id=1, token=5, waited_ms=0)
    call.abandon()
    assert rig.sent() == [("release", {"request_id": 2, "token": 5, "key": b"a"})]
    rig.reply("released", request_id=2)
    assert rig.core._requests.unanswered == {}


def test_everything_unanswered_is_sent_again_in_id_order() -> None:
    """REQ-RESEND-ALL REQ-RESEND-ALWAYS REQ-RESEND-CHECK"""
    rig = Rig().ready()
    fixed = rig.hold("f", token=9)
    renewed = rig.hold("r", token=4, lease=30, auto=True)
    gone = rig.hold("g", token=6)
    waiting, ping = rig.acquire("w"), rig.ping()
    given_up = rig.acquire("u")
    rig.release(gone)
    first = rig.output()
    given_up.abandon()
    rig.output()
    answered = rig.acquire("x", wait=0)
    rig.output()
    rig.reply("timed_out", request_id=answered.request.id)
    rig.lose()
    while_away = rig.acquire("y")
    rig.ready()
    frames = rig.sent()
    assert [(name, f.get("request_id", f.get("echo"))) for name, f in frames] == [
        ("acquire", waiting.request.id),
        ("ping", ping.request.id),
        ("release", gone.release_request.id),
        ("cancel", 8),
        ("acquire", while_away.request.id),
        ("extend", 11),  # in token order
        ("extend", 12),
    ]
    assert [frames[5][1]["token"], frames[6][1]["token"]] == [4, 9]
    assert frames[5][1]["lease_ms"] == 30_000  # it is auto-extended
    assert frames[6][1]["lease_ms"] == 1  # changes nothing, tells what is left
    assert waiting.request.frame in first
    assert fixed.token != renewed.token


def test_resent_bytes_are_the_same() -> None:
    """REQ-RESEND-ALL: byte for byte, over any number of connections."""
    rig = Rig().ready()
    rig.acquire("w", wait=60)
    rig.acquire("a", "b")
    rig.ping()
    first = rig.output()
    for _ in range(5):
        rig.lose()
        rig.ready()
        assert rig.output() == first


def test_pending_extend_is_sent_again_and_not_doubled() -> None:
    """REQ-RESEND-CHECK: no further extend for a ticket with one unanswered."""
    rig = Rig().ready()
    ticket = rig.hold("h")
    call = rig.extend(ticket)
    first = rig.output()
    rig.lose()
    rig.ready()
    assert rig.output() == first
    rig.reply("extended", request_id=call.request.id, lease_ms=10_000)
    assert call.waiter.value is None


def test_learns_what_ended_while_it_was_away() -> None:
    """REQ-RESEND-CHECK REQ-LOST-NOTHELD"""
    rig = Rig().ready()
    ticket = rig.hold("h")
    rig.lose()
    rig.ready()
    name, frame = only(rig.sent())
    assert (name, frame["lease_ms"]) == ("extend", 1)
    before = ticket.expires_ns
    rig.reply("extended", request_id=frame["request_id"], lease_ms=4000)
    assert ticket.expires_ns == before  # it never goes back
    rig.lose()
    rig.ready()
    name, frame = only(rig.sent())
    rig.reply("not_held", request_id=frame["request_id"])
    assert ticket.lost_reason.value == "not_held"
    assert rig.ended == []
    assert "lost" in rig.kinds()


def test_bad_frame_with_an_id_settles_that_request() -> None:
    """REQ-ERROR-REQUEST"""
    rig = Rig().ready()
    bad, good = rig.acquire("a"), rig.acquire("b")
    rig.output()
    rig.error(c.ERROR_BAD_FRAME, bad.request.id, b"lease_ms \x01")
    assert bad.waiter.kind == "protocol"
    assert "lease_ms ?" in str(bad.waiter.error)
    assert not good.waiter.done
    rig.ready()
    assert [f["key"] for _, f in rig.sent()] == [b"b"]


def test_bad_frame_without_an_id_settles_all() -> None:
    """REQ-ERROR-CONNECTION"""
    rig = Rig().ready()
    held = rig.hold("h")
    calls = [rig.acquire("a"), rig.ping()]
    released = rig.release(held)
    rig.output()
    rig.error(c.ERROR_BAD_FRAME)
    assert [call.waiter.kind for call in calls] == ["protocol", "protocol"]
    assert released.kind == "protocol"
    rig.ready()
    assert rig.sent() == []


@pytest.mark.parametrize(
    ("code", "kind"),
    [(c.ERROR_LEASE_TOO_LONG, "invalid_argument"), (c.ERROR_FORBIDDEN, "auth")],
)
def test_errors_of_one_request(code: int, kind: str) -> None:
    """REQ-ERROR-TABLE: the connection goes on."""
    rig = Rig().ready()
    ticket = rig.hold("h")
    calls = [rig.acquire("a").waiter, rig.extend(ticket).waiter]
    rig.output()
    for request_id in (2, 3):
        rig.error(code, request_id, b"at most 1 h")
    calls.append(rig.release(ticket))
    rig.output()
    rig.error(code, 4, b"at most 1 h")
    assert [waiter.kind for waiter in calls] == [kind] * 3
    assert "at most 1 h" in str(calls[0].error)
    assert not rig.disconnects


def test_not_serving_sends_again_elsewhere() -> None:
    """REQ-ERROR-NOTSERVING: its caller sees nothing of it."""
    rig = Rig(endpoints=Rig().core.settings.endpoints * 1).ready()
    call = rig.acquire("a", wait=30)
    rig.output()
    rig.error(c.ERROR_NOT_SERVING, call.request.id)
    assert rig.disconnects == [1]
    assert not call.waiter.done
    rig.ready()
    assert rig.names() == ["acquire"]
    rig.reply("granted", request_id=1, token=1, waited_ms=0)
    assert call.waiter.value.token == 1


@pytest.mark.parametrize(
    "code", [c.ERROR_SLOW_READER, c.ERROR_IDLE_TIMEOUT, c.ERROR_TOO_MANY_CONNECTIONS]
)
def test_connection_errors_reconnect(code: int) -> None:
    """REQ-ERROR-TABLE"""
    rig = Rig().ready()
    call = rig.acquire("a")
    rig.output()
    rig.error(code)
    rig.ready()
    assert rig.names() == ["acquire"]
    assert not call.waiter.done


def test_taken_over_ends_the_client() -> None:
    """REQ-SHUT-TAKENOVER"""
    rig = Rig().ready()
    ticket, call = rig.hold("h"), rig.acquire("a")
    rig.output()
    rig.error(c.ERROR_TAKEN_OVER, text=b"by 127.0.0.1")
    assert call.waiter.kind == "closed"
    assert ticket.lost_reason.value == "taken_over"
    assert rig.release(ticket).kind == "lost"
    assert rig.core.is_closed
    rig.at(100)
    assert len(rig.connects) == 1
    assert rig.core.next_deadline_ns() is None


def hostile() -> dict[str, bytes]:
    """Bytes after the welcome that no server sends, with request 1 an acquire that was sent."""
    granted = encode("server", "granted", {"request_id": 1, "token": 3, "waited_ms": 0})
    return {
        "garbage": b"\xff\xfe\xfd",
        "http": b"HTTP/1.1 400 Bad Request\r\n",
        "unknown op": b"Z\0\0",
        "too long": HEADER.pack(c.REPLY_LEADER, 261),
        "second reply": granted + granted,
        "never sent": encode("server", "timed_out", {"request_id": 99}),
        "wrong kind": encode("server", "released", {"request_id": 1}),
        "pong without ping": encode("server", "ping", {"echo": 0}),
        "second welcome": HEADER.pack(c.REPLY_WELCOME, 67) + bytes(67),
        "unknown code": HEADER.pack(c.REPLY_ERROR, 9) + bytes(8) + b"\x63",
        "request code without request": HEADER.pack(c.REPLY_ERROR, 9) + bytes(8) + b"\x02",
        "connection code with request": HEADER.pack(c.REPLY_ERROR, 9) + bytes(7) + b"\1\x08",
        "unknown reason": HEADER.pack(c.REPLY_DROPPED, 9) + bytes(7) + b"\1\x09",
        "no address": HEADER.pack(c.REPLY_LEADER, 3) + b"\0:9",
        "token 0": HEADER.pack(c.REPLY_GRANTED, 20) + bytes(7) + b"\1" + bytes(12),
    }


@pytest.mark.parametrize("what", sorted(hostile()))
@pytest.mark.parametrize("cut", [False, True], ids=["whole", "bytewise"])
def test_hostile_bytes_close_the_connection(what: str, cut: bool) -> None:
    """REQ-HOSTILE-CLOSE REQ-HOSTILE-REPLY REQ-HOSTILE-KIND: and the round goes on."""
    rig = Rig().ready()
    call = rig.acquire("a")
    rig.output()
    data = hostile()[what]
    serial = rig.serial
    for at in range(0, len(data), 1 if cut else len(data)):
        rig.core.receive(serial, data[at : at + 1] if cut else data, rig.now)
        rig.run()
    assert rig.disconnects == [serial]
    rig.ready()
    if what == "second reply":
        assert call.waiter.value.token == 3
        assert rig.names() == ["extend"]
    else:
        assert not call.waiter.done
        assert rig.names() == ["acquire"]


def test_reply_to_an_acquire_whose_cancel_was_answered() -> None:
    """REQ-HOSTILE-REPLY"""
    rig = Rig().ready()
    call = rig.acquire("a")
    rig.output()
    call.abandon()
    rig.output()
    rig.reply("cancelled", request_id=2)
    rig.reply("granted", request_id=1, token=1, waited_ms=0)
    assert rig.disconnects == [1]


def test_reply_to_what_was_not_yet_written() -> None:
    """REQ-HOSTILE-REPLY"""
    rig = Rig().ready()
    call = rig.acquire("a")
    rig.reply("granted", request_id=1, token=1, waited_ms=0)
    assert rig.disconnects == [1]
    assert not call.waiter.done


@pytest.mark.parametrize(
    ("greeting", "welcome"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n......", None),
        (b"\x15\x03\x01\x00\x02\x02\x16" + bytes(20), None),
        (c.GREETING_MAGIC + bytes([4, 4, 2, 255]) + bytes(16), None),
        (None, {"role": 9}),
        (None, {"keepalive_s": 0}),
        (None, {"keepalive_s": 3601}),
        (None, {"role": 2}),
        (None, {"role": 2, "leader": b"no port"}),
    ],
)
def test_hostile_handshakes(greeting: bytes | None, welcome: dict | None) -> None:
    """REQ-HOSTILE-CLOSE"""
    from ticketing._core import handshake

    rig = Rig().open()
    if greeting is not None:
        rig.feed(greeting)
    else:
        rig.greet()
        fields = {"role": 0, "keepalive_s": 5, "leader": b""} | (welcome or {})
        nonce = only(rig.sent())[1]["client_nonce"]
        proof = handshake.server_proof(b"", rig._greeting, nonce, *_told(fields))
        body = bytes([fields["role"]]) + fields["keepalive_s"].to_bytes(2, "big")
        body += bytes(32) + proof + fields["leader"]
        rig.feed(HEADER.pack(c.REPLY_WELCOME, len(body)) + body)
    assert rig.disconnects == [1]
    assert rig.opened.kind == "connection"


def _told(fields: dict) -> tuple:
    return fields["role"], fields["keepalive_s"], bytes(32), fields["leader"]


def test_a_client_buffers_at_most_one_frame() -> None:
    """REQ-HOSTILE-MEMORY"""
    rig = Rig().ready()
    longest = HEADER.pack(c.REPLY_LEADER, 260) + b"x" * 259
    for at in range(len(longest)):
        rig.feed(longest[at : at + 1])
    assert rig.core._link._reader.buffered_bytes == len(longest)
    rig.feed(b"\xff" * 100_000)
    assert rig.core._link._reader.buffered_bytes == 0


def test_unknown_drops_are_ignored() -> None:
    """REQ-LOST-UNKNOWN"""
    rig = Rig().ready()
    rig.reply("dropped", token=12345, reason=1)
    assert not rig.disconnects


def test_long_waits_and_own_keys_are_warned_about() -> None:
    """REQ-EVENT-LONGWAIT REQ-EVENT-OWNKEY"""
    rig = Rig().ready(keepalive_s=60)
    rig.hold("mine", lease=60)
    assert rig.warnings() == []
    rig.acquire("other", wait=0)
    rig.acquire("mine", "other", wait=30)
    assert len(rig.warnings()) == 1
    assert "holds itself" in rig.warnings()[0]
    rig.output()
    rig.at(9.9)
    assert len(rig.warnings()) == 1
    rig.at(0.2)
    assert len(rig.warnings()) == 2
    assert "10 s" in rig.warnings()[1]
    rig.at(15)
    assert len(rig.warnings()) == 2


def test_deadlines_of_settled_requests_do_not_pile_up() -> None:
    """A million pairs must not leave a million entries behind."""
    rig = Rig().ready()
    for n in range(2000):
        ticket = rig.hold("k", token=n + 1, lease=30)
        rig.release(ticket)
        _, frame = only(rig.sent())
        rig.reply("released", request_id=frame["request_id"])
    assert len(rig.core._deadlines._heap) < 600
    assert rig.core._requests.unanswered == {}
