"""The engine of memory mode, bytes in and bytes out, on a manual clock."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

from engine_driver import (
    FIRST_TOKEN,
    FOREVER,
    MS,
    SECOND,
    SPEC,
    Driver,
    Peered,
    error,
    names,
    only,
)
from ticketing_server import constants_gen as c
from ticketing_server.engine import KeyInfo, TicketInfo, WaiterInfo
from ticketing_server.limits import Limits
from ticketing_server.standalone import first_token
from ticketing_spec.codec import encode

VECTORS = Path(__file__).parents[2] / "spec" / "vectors"


# Time


def test_lease_is_over_at_its_deadline() -> None:
    """REQ-LEASE-OVER, REQ-TIME-NEVEREARLY, REQ-TIME-EXACT, REQ-GRANT-LEASESTART."""
    for lease_ms in (1, 67, 68, 1000, 86_400_000):
        driver = Driver(Limits(keepalive_s=3600))
        holder, waiter = driver.connect(1), driver.connect(2)
        driver.now += 12_345_678
        token = driver.hold(holder, lease_ms=lease_ms)
        due = driver.now + lease_ms * MS
        driver.acquire(waiter, lease_ms=5)
        driver.engine.pause(waiter.number, driver.now)
        driver.engine.resume(waiter.number, driver.now)
        while driver.deadline is not None and driver.deadline < due:
            driver.now = max(driver.now, driver.deadline)
            for peered in (holder, waiter):
                driver.put(peered, b"P\0\x08" + bytes(8))
            driver.turn()
        driver.now = due - 1
        driver.turn()
        assert {name for name, _ in waiter.take() + holder.take()} <= {"ping"}
        assert driver.deadline == due
        driver.turn(1)
        assert only(holder) == ("dropped", {"token": token, "reason": c.DROP_LEASE_OVER})
        name, fields = only(waiter)
        assert (name, fields["waited_ms"], fields["token"]) == ("granted", lease_ms, token + 1)
        assert driver.deadline == due + 5 * MS


def test_wait_is_over_at_its_deadline() -> None:
    """REQ-ACQUIRE-WAITEND."""
    driver = Driver()
    holder, waiter = driver.connect(1), driver.connect(2)
    driver.hold(holder)
    number = driver.acquire(waiter, wait_ms=70)
    due = driver.now + 70 * MS
    driver.run_until(due - 1)
    assert not waiter.frames
    driver.run_until(due)
    assert only(waiter) == ("timed_out", {"request_id": number})


def test_what_is_due_precedes_what_was_read() -> None:
    """REQ-TIME-DUE, REQ-TIME-ORDER: lease over, then wait over, then the turn's requests."""
    driver = Driver()
    holder, waiter, late = driver.connect(1), driver.connect(2), driver.connect(3)
    token = driver.hold(holder, lease_ms=50)
    first = driver.acquire(waiter, wait_ms=50)
    driver.now += 50 * MS
    driver.request(holder, "release", token=token, key=b"k")
    second = driver.request(late, "acquire", wait_ms=0, lease_ms=9, key=b"k")
    driver.turn()
    assert names(holder) == ["dropped", "not_held"]
    name, fields = only(waiter)
    assert (name, fields["request_id"], fields["waited_ms"]) == ("granted", first, 50)
    assert only(late) == ("timed_out", {"request_id": second})


def test_grant_and_time_out_exclude_each_other() -> None:
    """REQ-GRANT-ONCE: whichever is first, the key is with somebody who knows, or free."""
    for wait_ms, expected in ((49, "timed_out"), (50, "granted"), (51, "granted")):
        driver = Driver()
        holder, waiter = driver.connect(1), driver.connect(2)
        driver.hold(holder, lease_ms=50)
        driver.acquire(waiter, wait_ms=wait_ms, lease_ms=10_000)
        driver.turn(60 * MS)
        assert names(waiter) == [expected]
        assert driver.engine.table.tickets == (expected == "granted")
        assert not driver.engine.table.waiting


def test_waited_and_left_are_rounded_down() -> None:
    """REQ-TIME-ROUND, REQ-EXTEND-LEFT."""
    driver = Driver()
    holder, waiter = driver.connect(1), driver.connect(2)
    token = driver.hold(holder)
    driver.acquire(waiter)
    driver.now += 1_999_999
    driver.request(holder, "extend", token=token, lease_ms=1, key=b"k")
    driver.request(holder, "release", token=token, key=b"k")
    driver.turn()
    extended, released = holder.take()
    assert extended[1]["lease_ms"] == 29_998
    assert released[0] == "released"
    assert only(waiter)[1]["waited_ms"] == 1


# Detach


def test_detached_waiter_is_passed_over_and_comes_back() -> None:
    """REQ-DETACH-PASSED, REQ-DETACH-PLACE, REQ-DETACH-ATTACH, REQ-DETACH-ALONE."""
    driver = Driver()
    holder, first, second = (driver.connect(client) for client in (1, 2, 3))
    token = driver.hold(holder)
    number = driver.acquire(first)
    driver.acquire(second)
    driver.engine.close(first.number)
    driver.request(holder, "release", token=token, key=b"k")
    driver.turn()
    token = only(second)[1]["token"]
    back = driver.connect(2, 2)
    driver.acquire(back, request_id=number)
    assert not back.frames
    driver.request(second, "release", token=token, key=b"k")
    driver.turn(1500_000)
    name, fields = only(back)
    assert (name, fields["request_id"], fields["waited_ms"]) == ("granted", number, 1)


def test_detached_waiter_leaves_after_its_grace_or_wait() -> None:
    """REQ-DETACH-GONE, REQ-DETACH-WAITEND."""
    driver = Driver(Limits(reattach_grace_ms=100))
    holder, first, second = (driver.connect(client) for client in (1, 2, 3))
    driver.hold(holder)
    driver.acquire(first)
    driver.acquire(second, wait_ms=60)
    driver.engine.close(first.number)
    driver.engine.close(second.number)
    driver.turn()
    began = driver.now
    driver.run_until(began + 60 * MS - 1)
    assert driver.engine.table.detached == 2
    driver.run_until(began + 60 * MS)
    assert driver.engine.table.detached == 1
    driver.run_until(began + 100 * MS)
    assert driver.engine.table.detached == 0
    assert driver.engine.counters().tickets == 1


def test_grant_that_was_never_read_is_answered_again() -> None:
    """REQ-DETACH-UNREAD, REQ-ACQUIRE-HELD, REQ-ACQUIRE-KEEPLEASE, REQ-DETACH-TICKETS."""
    driver = Driver()
    client = driver.connect(1, 1)
    number = driver.acquire(client, lease_ms=10_000)
    token = only(client)[1]["token"]
    driver.engine.close(client.number)
    driver.turn(SECOND)
    back = driver.connect(1, 2)
    driver.acquire(back, lease_ms=1, request_id=number)
    assert only(back)[1] == {"request_id": number, "token": token, "waited_ms": 0}
    (ticket,) = driver.engine.inspect("tickets", None, 5)
    assert ticket.left_ns == 9 * SECOND  # type: ignore[union-attr]
    driver.acquire(back, lease_ms=60_000, request_id=number)
    (ticket,) = driver.engine.inspect("tickets", None, 5)
    assert ticket.left_ns == 60 * SECOND  # type: ignore[union-attr]


def test_end_of_input_answers_what_was_read_and_detaches() -> None:
    driver = Driver()
    holder, client, other = driver.connect(1), driver.connect(2), driver.connect(3)
    token = driver.hold(holder)
    driver.request(client, "acquire", wait_ms=FOREVER, lease_ms=9, key=b"k")
    driver.request(client, "acquire", wait_ms=0, lease_ms=9, key=b"free")
    driver.engine.eof(client.number)
    driver.request(holder, "release", token=token, key=b"k")
    driver.turn()
    assert (names(client), client.close) == (["granted"], "linger")
    assert driver.acquire(other)
    assert names(other) == ["granted"]


# Tickets


def test_release_by_anyone_tells_the_tickets_client() -> None:
    """REQ-RELEASE-ANYONE, REQ-RELEASE-TELLS, REQ-RELEASE-NOTHELD, REQ-RELEASE-OLD."""
    driver = Driver()
    holder, other = driver.connect(1), driver.connect(2)
    token = driver.hold(holder)
    number = driver.request(other, "release", token=token - 1, key=b"k")
    driver.turn()
    assert only(other) == ("not_held", {"request_id": number})
    driver.request(other, "release", token=token, key=b"k")
    driver.turn()
    assert names(other) == ["released"]
    assert only(holder) == ("dropped", {"token": token, "reason": c.DROP_OTHER_CLIENT})
    assert driver.hold(other) == token + 1
    driver.request(holder, "release", token=token, key=b"k")
    driver.turn()
    assert names(holder) == ["not_held"]
    assert driver.engine.counters().tickets == 1


def test_extend_moves_the_ticket_and_never_shortens_it() -> None:
    """REQ-EXTEND-MOVES, REQ-EXTEND-NEVERSHORT, REQ-EXTEND-LATER, REQ-DROP-CONNECTION."""
    driver = Driver(Limits(keepalive_s=600))
    owner, adopter = driver.connect(1), driver.connect(2)
    token = driver.hold(owner, lease_ms=10_000)
    driver.request(adopter, "extend", token=token, lease_ms=1, key=b"k")
    driver.turn()
    assert only(adopter)[1]["lease_ms"] == 10_000
    driver.request(adopter, "extend", token=token, lease_ms=20_000, key=b"k")
    driver.turn(SECOND)
    assert only(adopter)[1]["lease_ms"] == 20_000
    driver.run_until(driver.now + 20 * SECOND - 1)
    assert not adopter.frames
    driver.run_until(driver.now + 1)
    assert only(adopter) == ("dropped", {"token": token, "reason": c.DROP_LEASE_OVER})
    assert not owner.frames
    driver.request(adopter, "extend", token=token, lease_ms=1, key=b"k")
    driver.turn()
    assert names(adopter) == ["not_held"]


def test_drop_goes_to_the_connection_that_the_client_has_now() -> None:
    """REQ-DROP-CONNECTION."""
    driver = Driver()
    old = driver.connect(1, 1)
    token = driver.hold(old, lease_ms=2000)
    new = driver.connect(1, 2)
    assert error(old)[0] == c.ERROR_TAKEN_OVER
    driver.turn(2 * SECOND)
    assert only(new) == ("dropped", {"token": token, "reason": c.DROP_LEASE_OVER})


def test_cancel_of_waiter_holder_and_nothing() -> None:
    """REQ-CANCEL-WAITER, REQ-CANCEL-HOLDER, REQ-CANCEL-NOTHING, REQ-CANCEL-OWNER."""
    driver = Driver()
    holder, waiter = driver.connect(1), driver.connect(2)
    held = driver.acquire(holder)
    holder.take()
    waiting = driver.acquire(waiter)
    for peered, acquire_id in ((waiter, held), (holder, waiting), (waiter, waiting)):
        number = driver.request(peered, "cancel", acquire_id=acquire_id, key=b"k")
        driver.turn()
        assert only(peered) == ("cancelled", {"request_id": number})
        assert driver.engine.table.tickets == 1
    assert not driver.engine.table.waiting
    driver.acquire(waiter)
    driver.request(holder, "cancel", acquire_id=held, key=b"k")
    driver.turn()
    assert (names(holder), names(waiter)) == (["cancelled"], ["granted"])


def test_release_is_answered_before_the_grant_that_it_causes() -> None:
    """REQ-ORDER-HANDON, REQ-GRANT-SAMESTEP."""
    driver = Driver()
    client = driver.connect()
    token = driver.hold(client)
    driver.acquire(client)
    driver.request(client, "release", token=token, key=b"k")
    driver.turn()
    assert names(client) == ["released", "granted"]


def test_operator_releases_by_key_and_token() -> None:
    """REQ-DROP-OPERATOR."""
    driver = Driver()
    holder, waiter = driver.connect(1), driver.connect(2)
    token = driver.hold(holder)
    driver.acquire(waiter)
    assert not driver.engine.force_release(b"k", token + 1)
    assert not driver.engine.force_release(b"k", -1)
    assert not driver.engine.force_release(b"other", token)
    assert driver.engine.force_release(b"k", token)
    driver.turn()
    assert only(holder) == ("dropped", {"token": token, "reason": c.DROP_OPERATOR})
    assert names(waiter) == ["granted"]
    (event,) = [event for event in driver.engine.take_events() if event.name == "force_released"]
    assert event.fields["keys"] == (b"k",)
    assert event.fields["label"] == "test:1;python/0.1.0"


def test_keys_are_compared_byte_by_byte() -> None:
    driver = Driver()
    client = driver.connect()
    keys = (b"a", b"a\0", b"a b", b"a\n", b"A", bytes(range(128)), b"\xff" * 128)
    tokens = [driver.hold(client, key) for key in keys]
    assert len(set(tokens)) == len(keys)
    infos = driver.engine.inspect("keys", None, 10)
    assert [info.key for info in infos] == sorted(keys)  # type: ignore[union-attr]


def test_tokens_rise_over_a_restart() -> None:
    """REQ-ACQUIRE-TOKEN: as long as the wall clock does not go back."""
    assert first_token(1_764_000_000_000) == 1_764_000_000_000 << 20
    assert first_token(1_764_000_000_001) - first_token(1_764_000_000_000) == 1 << 20
    driver = Driver()
    client = driver.connect()
    tokens = [driver.hold(client, b"%d" % number) for number in range(3000)]
    assert tokens == list(range(FIRST_TOKEN, FIRST_TOKEN + 3000))


# Limits


def test_limits_answer_overloaded() -> None:
    """REQ-ACQUIRE-HELDLIMIT, REQ-ACQUIRE-QUEUELIMIT: nothing is queued, others go on."""
    driver = Driver(Limits(held_keys=3, waiters_per_key=2, waiters=3))
    client = driver.connect()
    driver.hold(client, [b"a", b"b"])
    driver.acquire(client, [b"c", b"d"])
    assert names(client) == ["overloaded"]
    driver.hold(client, b"c")
    driver.acquire(client, b"d")
    assert names(client) == ["overloaded"]
    for key, expected in (
        (b"a", []),
        (b"a", []),
        (b"a", ["overloaded"]),
        (b"b", []),
        (b"c", ["overloaded"]),
    ):
        driver.acquire(client, key)
        assert names(client) == expected
    assert driver.engine.table.attached == 3
    resources = [
        event.fields["resource"]
        for event in driver.engine.take_events()
        if event.name == "limit_reached"
    ]
    assert resources == ["held_keys", "held_keys", "waiters_per_key", "waiters"]


def test_lease_bounds() -> None:
    """REQ-ACQUIRE-MAXLEASE, REQ-ACQUIRE-LEASE, REQ-EXTEND-MAXLEASE, REQ-EXTEND-LEASE."""
    driver = Driver(Limits(max_lease_ms=1000))
    client = driver.connect()
    number = driver.acquire(client, lease_ms=1001)
    name, fields = only(client)
    assert (name, fields["request_id"], fields["code"]) == ("error", number, 2)
    assert fields["text"] == b"lease_ms: got 1001, takes 1 to 1000 (max_lease)"
    token = driver.hold(client, lease_ms=1000)
    driver.request(client, "extend", token=token, lease_ms=4_294_967_294, key=b"k")
    driver.turn()
    assert only(client)[1]["code"] == c.ERROR_LEASE_TOO_LONG
    assert driver.engine.counters().errors == {c.ERROR_LEASE_TOO_LONG: 2}
    for lease in (bytes(4), b"\xff" * 4):
        client = driver.connect(int(lease[0]) + 7)
        good = encode(SPEC, "client", "acquire",
                      {"request_id": 8, "wait_ms": 0, "lease_ms": 1, "key": b"z"})  # fmt: skip
        bad = good[:15] + lease + good[19:]
        driver.feed(client, good.replace(b"z", b"y") + bad + good)
        (granted, _), (name, fields) = client.take()
        assert (granted, name, fields["request_id"], fields["code"]) == ("granted", "error", 8, 1)
        assert fields["text"].startswith(b"lease_ms: got ")
        assert client.close == "linger"
        assert driver.engine.table.ticket_of(b"z") is None
        driver.turn(2 * MS)


def test_restart_grace_queues_and_then_grants_in_order() -> None:
    """REQ-ACQUIRE-RESTART."""
    driver = Driver(Limits(restart_grace_ms=1000))
    began = driver.now
    first, second = driver.connect(1), driver.connect(2)
    driver.acquire(first, wait_ms=0)
    assert names(first) == ["timed_out"]
    driver.acquire(second, b"a", lease_ms=10)
    driver.acquire(first, b"b")
    driver.acquire(first, [b"a", b"b"])
    driver.configure(Limits(restart_grace_ms=9000))
    driver.run_until(began + SECOND - 1)
    assert not first.frames + second.frames
    driver.run_until(began + SECOND)
    assert (names(first), names(second)) == (["granted"], ["granted"])
    assert driver.hold(first, b"c")


def test_a_wait_that_ends_with_the_restart_grace_is_over() -> None:
    """REQ-TIME-ORDER: at the same time leases, then waits, then graces."""
    driver = Driver(Limits(restart_grace_ms=100))
    client = driver.connect()
    driver.acquire(client, wait_ms=100)
    driver.turn(100 * MS)
    assert names(client) == ["timed_out"]


# Connections


def test_silence_closes_after_three_keepalives() -> None:
    """REQ-SILENCE-CLOSE, REQ-SILENCE-UNREAD, REQ-SILENCE-PING."""
    driver = Driver(Limits(keepalive_s=2))
    quiet, pinging, unread = (driver.connect(client) for client in (1, 2, 3))
    began = driver.now
    driver.engine.pause(unread.number, driver.now)
    driver.now += 5 * SECOND
    driver.feed(pinging, encode(SPEC, "client", "ping", {"echo": 7}))
    assert only(pinging) == ("ping", {"echo": 7})
    driver.run_until(began + 6 * SECOND - 1)
    assert quiet.close == "no"
    driver.run_until(began + 6 * SECOND)
    assert error(quiet) == (
        c.ERROR_IDLE_TIMEOUT,
        "nothing received for 6 s; ping each 2 s",
    )
    driver.run_until(began + 11 * SECOND - 1)
    assert (pinging.close, unread.close) == ("no", "no")
    driver.engine.resume(unread.number, driver.now)
    driver.run_until(began + 11 * SECOND)
    assert error(pinging)[0] == c.ERROR_IDLE_TIMEOUT
    driver.run_until(began + 17 * SECOND - 2)
    assert unread.close == "no"
    driver.run_until(began + 17 * SECOND)
    assert error(unread)[0] == c.ERROR_IDLE_TIMEOUT


def test_slow_reader_is_given_up() -> None:
    """REQ-PRESSURE-SLOW: its waiters detach, its tickets stay."""
    driver = Driver()
    slow = driver.connect()
    driver.hold(slow)
    began = driver.now
    driver.engine.pause(slow.number, driver.now)
    driver.run_until(began + 30 * SECOND - 1)
    assert slow.close == "no"
    driver.run_until(began + 30 * SECOND)
    assert slow.close == "now"
    assert driver.engine.counters().connections_closed == {"slow_reader": 1}


def test_drain_sends_everyone_away() -> None:
    """REQ-LEAD-DRAIN, REQ-LEAD-UNREAD, REQ-ORDER-LAST."""
    driver = Driver()
    client, stranger = driver.connect(), driver.open()
    driver.request(client, "acquire", wait_ms=0, lease_ms=9, key=b"k")
    driver.engine.drain(driver.now)
    driver.request(client, "acquire", wait_ms=0, lease_ms=9, key=b"late")
    driver.turn()
    (granted, _), last = client.take()
    assert (granted, last, client.close) == ("granted", ("leader", {"leader": b""}), "linger")
    assert error(stranger)[0] == c.ERROR_NOT_SERVING
    late = driver.open()
    assert error(late)[0] == c.ERROR_NOT_SERVING
    assert driver.engine.table.ticket_of(b"late") is None
    assert driver.engine.counters().draining


def test_nothing_is_done_after_the_last_word() -> None:
    """REQ-CLOSING-STOP, REQ-CLOSING-BADFRAME: what stands before the bad frame is done."""
    driver = Driver()
    client = driver.connect()
    acquire = {"wait_ms": 0, "lease_ms": 9000}
    before = encode(SPEC, "client", "acquire", {"request_id": 1, "key": b"a", **acquire})
    after = encode(SPEC, "client", "acquire", {"request_id": 2, "key": b"b", **acquire})
    driver.put(client, before + b"Z\0\x01\0" + after)
    driver.feed(client, after)
    (granted, _), (name, fields) = client.take()
    assert (granted, name, fields["code"], fields["request_id"]) == ("granted", "error", 1, 0)
    assert fields["text"] == b"op: got 0x5A, takes H A S R X C P"
    driver.feed(client, after)
    driver.engine.close(client.number)
    driver.turn()
    assert driver.engine.table.tickets == 1
    assert driver.engine.counters().connections == {}


def test_malformed_vectors_close_and_name_the_field() -> None:
    """REQ-CLOSING-TEXT: each malformed frame of a client, as the spec lists them."""
    seen = 0
    for stanza in (VECTORS / "v4-client-malformed.vec").read_text().split("\n\n"):
        case = dict(line.split(": ", 1) for line in stanza.splitlines() if ": " in line)
        if "wire" not in case:
            continue
        seen += 1
        driver = Driver()
        is_hello = case["frame"] == "hello" and "unknown" not in case["error"]
        peered = driver.open() if is_hello else driver.connect(9)
        driver.feed(peered, bytes.fromhex(case["wire"]))
        if case["error"] == "truncated":
            assert (peered.frames, peered.close) == ([], "no"), case
        elif case["error"] == "one-more":
            # One byte more is the beginning of the next frame.
            assert case["wire"].endswith("ff")
            assert (peered.close == "no") == is_hello, "a wrong mac is answered later"
        else:
            assert peered.close == "linger", case
            code, text = error(peered)
            assert code == c.ERROR_BAD_FRAME, (case, text)
            assert ": " in text
    assert seen > 400


def test_every_split_gives_the_same_replies() -> None:
    """REQ-FRAME-SPLIT: bytes are a stream, whatever the reads are."""

    def script(driver: Driver, peered: Peered) -> bytes:
        both = {"wait_ms": 0, "lease_ms": 9000}
        token = FIRST_TOKEN
        frames: list[tuple[str, dict[str, Any]]] = [
            ("acquire", {"key": b"a", **both}),
            ("acquire", {"key": b"a", **both}),
            ("acquire_set", {"keys": [b"b", b"c" * 128], **both}),
            ("extend", {"token": token, "lease_ms": 10_000, "key": b"a"}),
            ("release", {"token": token, "key": b"a"}),
            ("cancel", {"acquire_id": 3, "key": b"b"}),
        ]
        data = driver.hello(peered)
        for number, (name, fields) in enumerate(frames, 1):
            data += encode(SPEC, "client", name, {"request_id": number, **fields})
        return data + encode(SPEC, "client", "ping", {"echo": 5})

    driver = Driver()
    peered = driver.open()
    data = script(driver, peered)
    driver.feed(peered, data)
    expected = [frame for frame in peered.take() if frame[0] != "ping"]
    assert len(expected) == 7
    for at in range(1, len(data)):
        driver = Driver()
        peered = driver.open()
        driver.feed(peered, data[:at])
        driver.feed(peered, data[at:])
        assert [frame for frame in peered.take() if frame[0] != "ping"] == expected
    driver = Driver()
    peered = driver.open()
    for byte in data:
        driver.feed(peered, bytes((byte,)))
    assert [frame for frame in peered.take() if frame[0] != "ping"] == expected


def test_crossing_sets_never_deadlock_and_keep_their_order() -> None:
    """REQ-GRANT-DEADLOCK, REQ-GRANT-SET, REQ-GRANT-FIFO: 50 clients, crossing sets of a ring."""
    driver = Driver()
    clients = [driver.connect(number + 1) for number in range(50)]
    keys = [b"%02d" % number for number in range(10)]
    waiting: list[tuple[int, Peered, list[bytes]]] = []
    for number, client in enumerate(clients):
        wanted = sorted({keys[number % 10], keys[(number * 3 + 1) % 10], keys[(number + 1) % 10]})
        waiting.append((driver.acquire(client, wanted), client, wanted))
    order: list[int] = []
    tokens: list[int] = []
    held: list[tuple[int, Peered, list[bytes]]] = []
    while waiting or held:
        for entry in list(waiting):
            number, client, wanted = entry
            for name, fields in client.take():
                if name == "granted":
                    assert not any(set(wanted) & set(others) for _, _, others in held)
                    order.append(number)
                    tokens.append(fields["token"])
                    held.append((fields["token"], client, wanted))
                    waiting.remove(entry)
        assert held, "somebody can always go on"
        token, client, wanted = held.pop(0)
        driver.request(client, "release", token=token, key=wanted[0])
        driver.turn()
    assert len(order) == 50
    assert len(set(tokens)) == 50
    assert driver.engine.table.slots == {}


def test_counters_add_up() -> None:
    driver = Driver()
    holder, waiter = driver.connect(1), driver.connect(2, label=b"x;go/1")
    token = driver.hold(holder)
    driver.acquire(waiter)
    driver.acquire(waiter, wait_ms=0)
    counters = driver.engine.counters()
    assert (counters.waiters_attached, counters.longest_queue, counters.tickets) == (1, 1, 1)
    driver.now += SECOND
    driver.request(holder, "release", token=token, key=b"k")
    driver.turn()
    counters = driver.engine.counters()
    assert (counters.grants_immediate, counters.grants_handoff) == (1, 1)
    assert counters.requests["acquire", "granted"] == 2
    assert counters.requests["acquire", "timed_out"] == 1
    assert counters.requests["release", "released"] == 1
    assert counters.tickets_ended["released"] == 1
    assert counters.connections == {(4, "tcp", "python"): 1, (4, "tcp", "go"): 1}
    assert sum(counters.wait["granted"].counts) == 1
    assert counters.hold is not None
    assert counters.hold.sum_ns == SECOND
    assert counters.sent_bytes == sum(peered.sent for peered in driver.peers.values())


def test_pages_of_state_join_without_gap() -> None:
    driver = Driver()
    client, other = driver.connect(1), driver.connect(2)
    tokens = [driver.hold(client, b"%d" % number) for number in range(10)]
    tokens.append(driver.hold(client, [b"x", b"y"]))
    for number in range(10):
        driver.acquire(other, b"%d" % number)
    for what, key in (("tickets", "token"), ("waiters", "joined"), ("keys", "key")):
        found: list[Any] = []
        while page := driver.engine.inspect(what, getattr(found[-1], key) if found else None, 4):  # type: ignore[arg-type]
            assert len(page) <= 4
            found += page
        values = [getattr(info, key) for info in found]
        assert all(low < high for low, high in pairwise(values))
        assert len(values) == {"tickets": 11, "waiters": 10, "keys": 12}[what]
    infos = driver.engine.inspect("tickets", None, 100)
    assert [info.token for info in infos] == tokens  # type: ignore[union-attr]


def test_pages_of_one_key_have_what_concerns_it() -> None:
    driver = Driver()
    one, two = driver.connect(client=1), driver.connect(client=2)
    token = driver.hold(one, [b"a", b"b"])
    driver.hold(one, b"other")
    driver.acquire(two, b"b")
    driver.acquire(two, [b"b", b"other"])
    inspect = driver.engine.inspect
    for key in (b"a", b"b"):
        (ticket,) = inspect("tickets", None, 5, key)
        assert isinstance(ticket, TicketInfo)
        assert (ticket.token, ticket.keys) == (token, (b"a", b"b"))
    assert inspect("tickets", token, 5, b"a") == []
    assert [info.keys for info in inspect("waiters", None, 5, b"b")] == [  # type: ignore[union-attr]
        (b"b",),
        (b"b", b"other"),
    ]
    (first, second) = inspect("waiters", None, 5, b"b")
    assert isinstance(first, WaiterInfo)
    assert inspect("waiters", first.joined, 5, b"b") == [second]
    assert inspect("waiters", None, 1, b"b") == [first]
    (key_info,) = inspect("keys", None, 5, b"b")
    assert isinstance(key_info, KeyInfo)
    assert (key_info.token, key_info.attached) == (token, 2)
    assert inspect("keys", b"b", 5, b"b") == []
    for what in ("tickets", "waiters", "keys"):
        assert inspect(what, None, 5, b"nobody's") == []
        assert inspect(what, None, 0, b"b") == []
    assert len(inspect("connections", None, 5, b"b")) == 2
