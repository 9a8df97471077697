"""Tickets: expires_at, extending, losing, releasing, handing over, adopting, closing."""

from __future__ import annotations

import pytest
from rig import MS, Rig, S, only
from ticketing import InvalidArgumentError, LostReason
from ticketing._core.tickets import TicketState


def expiry(queued_ns: int, waited_ms: int, lease_ms: int) -> int:
    """protocol.md, section 5: the sum less 0.2 % of it."""
    sum_ns = (waited_ms + lease_ms) * MS
    return queued_ns + sum_ns - sum_ns * 2 // 1000


@pytest.mark.parametrize(
    ("waited_ms", "lease_ms"), [(0, 1), (0, 1000), (48_000, 1000), (7, 30_000), (0, 4_294_967_294)]
)
def test_expires_at(waited_ms: int, lease_ms: int) -> None:
    """REQ-TICKET-EXPIRY: counted from before the request was queued, not from its reply."""
    rig = Rig().ready(keepalive_s=3600)
    queued = rig.now
    call = rig.acquire("k", lease=lease_ms / 1000)
    rig.output()
    rig.at(waited_ms / 1000)
    rig.reply("granted", request_id=call.request.id, token=1, waited_ms=waited_ms)
    assert abs(call.waiter.value.expires_ns - expiry(queued, waited_ms, lease_ms)) <= 1


def test_expires_at_counts_from_this_sending() -> None:
    """REQ-TICKET-EXPIRY: waited_ms begins at the arrival of this sending on this connection."""
    rig = Rig().ready()
    call = rig.acquire("k", lease=10)
    rig.output()
    rig.at(2)
    rig.lose()
    rig.at(0.3)
    rig.until_connecting()
    rig.at(0.5)
    rig.greet()
    queued = rig.now
    rig.welcome()
    rig.output()
    rig.at(0.2)
    rig.reply("granted", request_id=call.request.id, token=1, waited_ms=100)
    assert call.waiter.value.expires_ns == expiry(queued, 100, 10_000)


def test_lost_at_birth() -> None:
    """REQ-TICKET-LATE: a grant that was read too late is no grant."""
    rig = Rig().ready()
    call = rig.acquire("k", lease=1)
    rig.output()
    rig.jump(0.998)
    rig.reply("granted", request_id=call.request.id, token=1, waited_ms=0)
    assert call.waiter.kind == "lost"
    assert rig.core._tickets.held == {}
    assert rig.sent() == []
    call = rig.acquire("k", lease=1)
    rig.output()
    rig.jump(0.997)
    rig.reply("granted", request_id=call.request.id, token=2, waited_ms=0)
    assert call.waiter.value.token == 2


def long_wait(rig: Rig, lease: float = 1, auto: bool | None = None, wait: float | None = None):
    call = rig.acquire("k", lease=lease, auto=auto, wait=wait)
    rig.output()
    rig.at(60)
    rig.output()
    rig.reply("granted", request_id=call.request.id, token=1, waited_ms=60_000)
    return call


def test_after_a_long_wait_an_extend_comes_first() -> None:
    """REQ-TICKET-LONGWAIT: the 0.2 % of it would be more than a tenth of the lease."""
    rig = Rig().ready(keepalive_s=3600)
    call = long_wait(rig)
    queued = rig.now
    assert not call.waiter.done
    name, frame = only(rig.sent())
    assert (name, frame["lease_ms"], frame["token"]) == ("extend", 1000, 1)
    rig.at(0.25)
    rig.reply("extended", request_id=frame["request_id"], lease_ms=1000)
    assert call.waiter.value.expires_ns == expiry(queued, 0, 1000)
    # 49 leases: 0.2 % of 50 leases is just a tenth.
    rig = Rig().ready(keepalive_s=3600)
    call = rig.acquire("k", lease=1)
    rig.output()
    rig.at(49)
    rig.reply("granted", request_id=call.request.id, token=1, waited_ms=49_000)
    assert call.waiter.done


@pytest.mark.parametrize("end", ["not_held", "dropped", "late"])
def test_long_wait_that_ends_lost(end: str) -> None:
    """REQ-TICKET-LONGWAIT REQ-TICKET-LATE"""
    rig = Rig().ready(keepalive_s=3600)
    call = long_wait(rig)
    frame = only(rig.sent())[1]
    if end == "not_held":
        rig.reply("not_held", request_id=frame["request_id"])
    elif end == "dropped":
        rig.reply("dropped", token=1, reason=1)
    else:
        rig.jump(0.999)
        rig.reply("extended", request_id=frame["request_id"], lease_ms=1000)
    assert call.waiter.kind == "lost"


def test_long_wait_over_a_reconnect_and_cancelled() -> None:
    """REQ-TICKET-LONGWAIT REQ-RESEND-ALL REQ-STOP-READ"""
    rig = Rig().ready(keepalive_s=3600)
    call = long_wait(rig)
    first = rig.output()
    rig.lose()
    rig.ready()
    assert rig.output() == first
    call.abandon()
    assert rig.names() == ["release"]
    rig.reply("extended", request_id=2, lease_ms=1000)  # It was on its way.
    assert not rig.disconnects
    assert not call.waiter.done


def test_long_wait_and_the_callers_deadline() -> None:
    """REQ-BOUND-WAIT: also while the extend is unanswered."""
    rig = Rig().ready(keepalive_s=3600)
    call = long_wait(rig, wait=61)
    rig.output()
    rig.at(2)
    assert call.waiter.kind == "timeout"
    assert rig.names() == ["release"]


def test_renewal_each_third() -> None:
    """REQ-DEFAULT-LEASE REQ-LOST-ONEEXTEND REQ-TICKET-EXTENDED"""
    rig = Rig().ready(keepalive_s=3600)
    ticket = rig.hold("k", lease=30, auto=True)
    for _ in range(5):
        rig.at(9.999)
        assert rig.sent() == []
        rig.at(0.001)
        queued = rig.now
        name, frame = only(rig.sent())
        assert (name, frame["lease_ms"]) == ("extend", 30_000)
        rig.reply("extended", request_id=frame["request_id"], lease_ms=30_000)
        assert ticket.expires_ns == expiry(queued, 0, 30_000)
    assert ticket.state is TicketState.HELD
    assert rig.kinds().count("extended") == 5


def test_failed_renewal_is_tried_again_until_the_end() -> None:
    """REQ-LOST-RETRY REQ-LOST-EXPIRED: a new request 1 s after each failure."""
    rig = Rig(reply_timeout_ms=2000).ready(keepalive_s=3600)
    ticket = rig.hold("k", lease=30, auto=True)
    ids = []
    began = rig.now
    while ticket.state is TicketState.HELD:
        rig.until(rig.core.next_deadline_ns() or 0)
        ids += [(frame["request_id"], rig.now - began) for _, frame in rig.sent()]
    assert ticket.lost_reason is LostReason.EXPIRED
    assert rig.now == ticket.expires_ns
    times = [when / S for _, when in ids]
    assert times == [10, 13, 16, 19, 22, 25, 28]
    assert len({request_id for request_id, _ in ids}) == len(ids)


def test_fixed_leases_are_not_extended() -> None:
    """REQ-DEFAULT-FIXED REQ-LOST-EXPIRED"""
    rig = Rig().ready(keepalive_s=3600)
    ticket = rig.hold("k", lease=30)
    rig.at(29.939)
    assert rig.sent() == []
    assert ticket.state is TicketState.HELD
    rig.at(0.001)
    assert ticket.state is TicketState.LOST
    assert rig.kinds()[-1] == "lost"


def test_extend_moves_expires_at_only_forward() -> None:
    """REQ-TICKET-EXTENDED"""
    rig = Rig().ready(keepalive_s=3600)
    ticket = rig.hold("k", lease=10)
    before = ticket.expires_ns
    call = rig.extend(ticket, 2)
    queued, frame = rig.now, only(rig.sent())[1]
    assert frame["lease_ms"] == 2000
    rig.reply("extended", request_id=frame["request_id"], lease_ms=2000)
    assert call.waiter.value is None
    assert ticket.expires_ns == before
    call = rig.extend(ticket, 60)
    queued = rig.now
    rig.output()
    rig.at(1)
    rig.reply("extended", request_id=call.request.id, lease_ms=60_000)
    assert ticket.expires_ns == expiry(queued, 0, 60_000)


def test_one_extend_at_a_time() -> None:
    """REQ-LOST-ONEEXTEND REQ-BYTES-ORDER"""
    rig = Rig().ready(keepalive_s=3600)
    ticket = rig.hold("k")
    one, two, three = rig.extend(ticket, 11), rig.extend(ticket, 12), rig.extend(ticket, 13)
    two.abandon()
    assert [f["lease_ms"] for _, f in rig.sent()] == [11_000]
    rig.reply("extended", request_id=one.request.id, lease_ms=11_000)
    assert [f["lease_ms"] for _, f in rig.sent()] == [13_000]
    rig.reply("extended", request_id=three.request.id, lease_ms=13_000)
    assert one.waiter.value is None
    assert three.waiter.value is None
    assert not two.waiter.done
    with pytest.raises(InvalidArgumentError):
        rig.extend(ticket, 0)


def test_not_held_to_an_extend_is_loss() -> None:
    """REQ-LOST-NOTHELD REQ-LOST-EXTEND REQ-SCOPE-DROPPED REQ-LOST-ONCE"""
    rig = Rig().ready()
    ticket = rig.hold("k")
    ticket.listeners.append("listener")
    call, waits = rig.extend(ticket), rig.extend(ticket)
    rig.output()
    rig.reply("not_held", request_id=call.request.id)
    assert call.waiter.kind == "lost"
    assert waits.waiter.kind == "lost"
    assert rig.ended == [ticket]
    assert rig.extend(ticket).waiter.kind == "lost"
    assert rig.release(ticket).kind == "lost"
    rig.at(20)
    assert rig.kinds().count("lost") == 1
    assert rig.ended == [ticket]
    assert "release" not in rig.names()


@pytest.mark.parametrize(
    ("code", "reason"),
    [(1, LostReason.LEASE_OVER), (2, LostReason.OPERATOR), (3, LostReason.OTHER_CLIENT)],
)
def test_dropped(code: int, reason: LostReason) -> None:
    """REQ-LOST-DROP REQ-SCOPE-DROPPED: release sends nothing and reports the loss."""
    rig = Rig().ready()
    ticket = rig.hold("k")
    extend = rig.extend(ticket)
    rig.output()
    rig.reply("dropped", token=7, reason=code)
    assert ticket.lost_reason is reason
    assert extend.waiter.kind == "lost"
    release = rig.release(ticket)
    assert release.kind == "lost"
    assert release.error.reason is reason
    assert rig.sent() == []
    # What is still on its way means nothing any more.
    rig.reply("extended", request_id=extend.request.id, lease_ms=1)
    rig.reply("dropped", token=7, reason=1)
    assert not rig.disconnects
    assert rig.kinds().count("lost") == 1


def test_release_after_expires_at_is_sent() -> None:
    """REQ-SCOPE-EXPIRED REQ-BOUND-LATE: and reports lost whatever follows."""
    rig = Rig().ready(keepalive_s=3600)
    ticket = rig.hold("k", lease=2)
    rig.jump(3)
    release = rig.release(ticket)
    name, frame = only(rig.sent())
    assert (name, frame["token"]) == ("release", 7)
    assert not release.done
    rig.reply("released", request_id=frame["request_id"])
    assert release.kind == "lost"
    assert rig.release(ticket).kind == "lost"
    assert rig.sent() == []


def test_drop_after_expires_at_stops_the_release() -> None:
    """REQ-SCOPE-DROPPED"""
    rig = Rig().ready(keepalive_s=3600)
    ticket = rig.hold("k", lease=2)
    rig.at(3)
    rig.reply("dropped", token=7, reason=1)
    assert rig.release(ticket).kind == "lost"
    assert rig.sent() == []


def test_release_once() -> None:
    """REQ-SCOPE-IDEMPOTENT REQ-LOST-ONCE REQ-EVENT-HOOK"""
    rig = Rig().ready()
    ticket = rig.hold("k")
    rig.at(1.5)
    one, two = rig.release(ticket), rig.release(ticket)
    assert rig.sent() == [("release", {"request_id": 2, "token": 7, "key": b"k"})]
    rig.reply("dropped", token=7, reason=1)  # never lost after release was called
    rig.reply("released", request_id=2)
    assert one.value is None
    assert two.value is None
    assert rig.release(ticket).value is None
    assert rig.sent() == []
    assert rig.extend(ticket).waiter.kind == "not_held"
    assert rig.kinds() == ["connected", "granted", "released"]
    assert rig.events[-1].held == pytest.approx(1.5)


def test_release_of_a_set_names_the_first_key() -> None:
    """REQ-BYTES-FIRSTKEY"""
    rig = Rig(key_prefix=b"p/").ready()
    ticket = rig.hold("b", b"\xff", "a")
    assert ticket.shown_keys == ("a", "b", b"\xff")
    rig.extend(ticket)
    rig.release(ticket)
    assert [f["key"] for _, f in rig.sent()] == [b"p/a", b"p/a"]


def test_not_held_to_the_first_release_is_loss() -> None:
    """REQ-RESEND-RELEASED"""
    rig = Rig().ready()
    ticket = rig.hold("k")
    release = rig.release(ticket)
    rig.output()
    rig.reply("not_held", request_id=2)
    assert release.kind == "lost"


@pytest.mark.parametrize("written", [True, False])
def test_not_held_to_a_repeated_release(written: bool) -> None:
    """REQ-RESEND-RELEASED: released, if an earlier sending handed bytes to a socket."""
    rig = Rig().ready()
    ticket = rig.hold("k")
    release = rig.release(ticket)
    if written:
        rig.output()
    rig.lose()
    rig.ready()
    assert rig.names() == ["release"]
    rig.reply("not_held", request_id=2)
    if written:
        assert release.value is None
    else:
        assert release.kind == "lost"


@pytest.mark.parametrize(("lease", "bound"), [(10, 9.98), (0.5, 1.0)])
def test_release_is_bounded(lease: float, bound: float) -> None:
    """REQ-BOUND-RELEASE REQ-BOUND-LATE REQ-RESEND-ALWAYS"""
    rig = Rig().ready(keepalive_s=3600)
    ticket = rig.hold("k", lease=lease)
    release = rig.release(ticket)
    rig.output()
    rig.at(bound - 0.001)
    assert not release.done
    rig.at(0.001)
    assert release.kind == "lost"
    assert rig.release(ticket).kind == "lost"
    rig.lose()
    rig.ready()
    assert rig.names() == ["release"]  # until it is answered
    rig.reply("not_held", request_id=2)
    assert rig.release(ticket).kind == "lost"
    rig.lose()
    rig.ready()
    assert rig.sent() == []


def test_release_offline_is_sent_later() -> None:
    """REQ-SCOPE-UNTIED"""
    rig = Rig().ready()
    ticket = rig.hold("k")
    rig.lose()
    release = rig.release(ticket)
    rig.ready()
    assert rig.names() == ["release"]
    rig.reply("released", request_id=2)
    assert release.value is None


def test_release_while_an_extend_is_unanswered() -> None:
    """REQ-BYTES-ORDER"""
    rig = Rig().ready()
    ticket = rig.hold("k")
    extend, deferred = rig.extend(ticket), rig.extend(ticket)
    release = rig.release(ticket)
    assert rig.names() == ["extend", "release"]
    assert deferred.waiter.kind == "not_held"
    rig.reply("extended", request_id=extend.request.id, lease_ms=10_000)
    assert extend.waiter.value is None
    rig.reply("released", request_id=3)
    assert release.value is None


def test_hand_over_and_adopt() -> None:
    """REQ-HANDOVER-FORM REQ-HANDOVER-ENDS REQ-HANDOVER-ADOPT"""
    rig = Rig(key_prefix=b"p/").ready(keepalive_s=3600)
    ticket = rig.hold("a b%\u00e9~", "z", lease=30, auto=True)
    reference = rig.hand_over(ticket).value
    assert reference == "7:p%2Fa%20b%25%C3%A9~"
    assert rig.release(ticket).value is None
    assert rig.extend(ticket).waiter.kind == "not_held"
    assert rig.hand_over(ticket).kind == "not_held"
    rig.at(40)
    assert rig.sent() == []
    rig.reply("dropped", token=7, reason=1)
    assert "lost" not in rig.kinds()

    other = Rig(key_prefix=b"q/").ready()
    call = other.adopt(reference, lease=5)
    queued = other.now
    assert other.sent() == [
        (
            "extend",
            {"request_id": 1, "token": 7, "lease_ms": 5000, "key": "p/a b%é~".encode()},
        )
    ]
    other.at(1)
    other.reply("extended", request_id=1, lease_ms=9000)
    adopted = call.waiter.value
    assert adopted.shown_keys == ("p/a b%é~",)
    assert adopted.expires_ns == expiry(queued, 0, 9000)
    other.release(adopted)
    assert other.sent()[0][1]["key"] == "p/a b%é~".encode()


def test_hand_over_waits_for_an_extend() -> None:
    """REQ-HANDOVER-ENDS"""
    rig = Rig().ready(keepalive_s=3600)
    ticket = rig.hold("k", lease=30, auto=True)
    rig.at(10)
    extend = only(rig.sent())[1]
    handed = rig.hand_over(ticket)
    assert not handed.done
    assert rig.extend(ticket).waiter.kind == "not_held"
    rig.reply("extended", request_id=extend["request_id"], lease_ms=30_000)
    assert handed.value == "7:k"
    rig.at(60)
    assert rig.sent() == []


def test_hand_over_of_a_lost_or_kept_ticket() -> None:
    """REQ-HANDOVER-ENDS REQ-STOP-CLEAN"""
    rig = Rig().ready(keepalive_s=3600)
    ticket = rig.hold("k", lease=30)
    extend = rig.extend(ticket)
    rig.output()
    handed = rig.hand_over(ticket)
    rig.core.stop_hand_over(ticket, handed, rig.now)
    rig.reply("extended", request_id=extend.request.id, lease_ms=30_000)
    assert ticket.state is TicketState.HELD
    extend = rig.extend(ticket)
    rig.output()
    handed = rig.hand_over(ticket)
    rig.reply("not_held", request_id=extend.request.id)
    assert handed.kind == "lost"


def test_hand_over_whose_caller_never_saw_the_reference() -> None:
    """REQ-STOP-CLEAN: cancelled in the moment of the result, the ticket comes back."""
    rig = Rig().ready(keepalive_s=3600)
    ticket = rig.hold("k", lease=30, auto=True)
    handed = rig.hand_over(ticket)
    assert handed.value == "7:k"
    rig.core.stop_hand_over(ticket, handed, rig.now)
    assert ticket.state is TicketState.HELD
    rig.at(0)
    assert rig.names() == ["extend"]
    rig.release(ticket)
    assert rig.names() == ["release"]


def test_adopt_without_a_lease_renews() -> None:
    """REQ-HANDOVER-LEASE"""
    rig = Rig().ready(keepalive_s=3600)
    call = rig.adopt("9:k", lease=None)
    assert only(rig.sent())[1]["lease_ms"] == 30_000
    rig.reply("extended", request_id=1, lease_ms=30_000)
    assert call.waiter.value.auto_extend
    rig.at(10)
    assert rig.names() == ["extend"]


def test_adopt_what_is_gone() -> None:
    """REQ-HANDOVER-ADOPT REQ-BOUND-REPLY"""
    rig = Rig().ready(keepalive_s=3600)
    call, silent = rig.adopt("9:k"), rig.adopt("8:k")
    rig.output()
    rig.reply("not_held", request_id=1)
    assert call.waiter.kind == "not_held"
    rig.at(10)
    assert silent.waiter.kind == "connection"
    rig.reply("extended", request_id=2, lease_ms=1000)
    assert rig.core._tickets.held == {}


@pytest.mark.parametrize(
    "reference",
    [
        *("", "k", "0:k", "1:", "-1:k", "1:a b", "1:%4", "1:%zz", "18446744073709551616:k"),
        *("\u0661:k", "1:" + "a" * 129, None, b"1:k"),
    ],
)
def test_bad_references(reference: str) -> None:
    """REQ-HANDOVER-FORM"""
    rig = Rig().ready()
    with pytest.raises(InvalidArgumentError, match="reference"):
        rig.adopt(reference)
    assert rig.sent() == []


def test_close_writes_in_one_go_by_acquire_id() -> None:
    """REQ-SHUT-ORDER REQ-SHUT-PENDING"""
    rig = Rig().ready()
    first = rig.acquire("w1")
    held = rig.hold("h1", token=50)
    second = rig.acquire("w2", "w0")
    adopted = rig.adopt("40:x")
    rig.output()
    rig.reply("extended", request_id=adopted.request.id, lease_ms=10_000)
    later = rig.hold("h2", token=30)
    released, given_up = rig.hold("h3", token=20), rig.acquire("w3")
    rig.output()
    release = rig.release(released)
    given_up.abandon()
    pending = rig.output()
    assert pending
    unsent, ping = rig.acquire("w4"), rig.ping()
    closed = rig.close()
    frames = rig.sent()
    assert [(name, f.get("acquire_id", f.get("token"))) for name, f in frames] == [
        ("cancel", first.request.id),
        ("release", 50),
        ("cancel", second.request.id),
        ("release", 40),
        ("release", 30),
    ]
    assert frames[2][1]["key"] == b"w0"
    ids = [f["request_id"] for _, f in frames]
    assert ids == list(range(ids[0], ids[0] + 5))
    for call in (first, second, unsent, ping):
        assert call.waiter.kind == "closed"
    assert not closed.done
    for request_id in sorted(rig.core._requests.unanswered):
        request = rig.core._requests.unanswered.get(request_id)
        if request is None:
            continue
        if request.op == ord("R"):
            rig.reply("released", request_id=request_id)
        elif request.op == ord("C"):
            rig.reply("cancelled", request_id=request_id)
    assert closed.value is None
    assert release.value is None
    assert rig.disconnects == [1]
    assert rig.core.next_deadline_ns() is None
    for ticket in (held, later):
        assert rig.release(ticket).value is None
        assert rig.extend(ticket).waiter.kind == "not_held"


def test_close_is_bounded() -> None:
    """REQ-SHUT-BOUND REQ-SHUT-AFTER"""
    rig = Rig().ready()
    rig.hold("h")
    one, two = rig.close(), rig.close()
    assert rig.names() == ["release"]
    rig.at(0.999)
    assert not one.done
    rig.at(0.001)
    assert one.value is None
    assert two.value is None
    assert rig.close().value is None
    from ticketing import ClosedError

    for call in (rig.acquire, rig.ping, lambda: rig.adopt("1:k")):
        with pytest.raises(ClosedError):
            call()


def test_close_without_releasing() -> None:
    """REQ-SHUT-OPTION"""
    rig = Rig(release_on_close=False).ready()
    ticket, call = rig.hold("h"), rig.acquire("w")
    rig.output()
    assert rig.close().value is None
    assert rig.sent() == []
    assert call.waiter.kind == "closed"
    assert rig.release(ticket).kind == "closed"
    assert "lost" not in rig.kinds()


def test_close_offline_does_not_connect() -> None:
    """REQ-SHUT-OFFLINE"""
    rig = Rig().ready()
    ticket = rig.hold("h")
    rig.release(rig.hold("i", token=8))
    rig.lose()
    seen = len(rig.connects)
    assert rig.close().value is None
    rig.at(10)
    assert len(rig.connects) == seen
    assert rig.release(ticket).kind == "closed"


def test_close_while_the_connection_goes() -> None:
    """REQ-SHUT-BOUND REQ-SHUT-OFFLINE"""
    rig = Rig().ready()
    rig.hold("h")
    closed = rig.close()
    rig.output()
    rig.lose()
    assert closed.value is None
    rig.at(10)
    assert len(rig.connects) == 1


def test_close_while_opening() -> None:
    """REQ-SHUT-ENDS"""
    rig = Rig(connect_for_ms=60_000).open()
    call = rig.acquire("k")
    assert rig.close().value is None
    assert rig.opened.kind == "closed"
    assert call.waiter.kind == "closed"
    assert rig.disconnects == [1]
    assert rig.core.next_deadline_ns() is None


def test_lost_beliefs_never_outlive_the_lease() -> None:
    """Stalls of every length at every stage: what a client believes ends before the lease does."""
    lease_ms = 1000
    for before_ms in range(0, 1500, 60):
        for after_ms in range(0, 1500, 60):
            rig = Rig().ready(keepalive_s=3600)
            call = rig.acquire("k", lease=1)
            rig.output()
            begin = rig.now  # The earliest moment at which the server can have granted.
            rig.jump(before_ms / 1000)
            rig.reply("granted", request_id=1, token=1, waited_ms=0)
            if not isinstance(call.waiter.outcomes[0], Exception):
                ticket = call.waiter.value
                rig.jump(after_ms / 1000)
                rig.core.on_time(rig.now)
                rig.run()
                if ticket.state is TicketState.HELD:
                    assert rig.now < begin + lease_ms * MS
                assert ticket.expires_ns < begin + lease_ms * MS
