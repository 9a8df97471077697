"""Terms of the lock table: what each begins with, and what that costs; the model has the rules."""

from __future__ import annotations

from struct import pack

import pytest
from table_pair import read_replies
from test_lock_table import COST_RATIO_MAX, FOREVER, MS, least_cpu
from ticketing_server.deadlines import NEVER
from ticketing_server.limits import TOKEN_FLOOR_END, Limits, Term
from ticketing_server.lock_table import (
    CONNECT_COMMAND,
    DISCONNECT_COMMAND,
    LOOKS_PER_DEPARTURE,
    LOOKS_PER_SLICE,
    LockTable,
)
from ticketing_server.queues import Link
from ticketing_server.wire import ACQUIRE, EXTEND, RELEASE, Command

GRACE = 5_000 * MS
REATTACH = Limits().reattach_grace_ms * MS
DEPARTURES_PER_SLICE = 964
T0 = 1 << 50


class Terms:
    """A table, its present term, and a clock."""

    def __init__(self, first_token: int = 1) -> None:
        self.table = LockTable(first_token)
        self.now = T0
        self.begin()

    def begin(self, **fields: int) -> None:
        number = self.table.term + 1
        self.table.begin_term(Term(number, Limits(), **fields), self.now)

    def connect(self, client: int, *, leaves: bool = False) -> Link:
        number = len(self.table.connections)
        link = Link(self.table.term, number, client.to_bytes(8, "big"), leaves=leaves)
        self.apply(link, CONNECT_COMMAND)
        return link

    def apply(self, link: Link | None = None, *commands: Command) -> list[tuple[object, ...]]:
        """Apply, at the present time; return what the link was answered since the last time."""
        self.table.apply(self.now, [(link, commands)] if link else [])
        return self.replies(link) if link else []

    def replies(self, link: Link) -> list[tuple[object, ...]]:
        data = b"".join(link.out)
        link.out.clear()
        return read_replies(data)

    def at(self, now: int) -> None:
        self.now = now
        self.apply()


def acquire(number: int, key: bytes, *, wait_ms: int = FOREVER, lease_ms: int = 9_000) -> Command:
    return (ACQUIRE, number.to_bytes(8, "big"), pack(">II", wait_ms, lease_ms), key)


def extend(number: int, token: int, lease_ms: int, key: bytes) -> Command:
    tail = pack(">I", lease_ms) + key
    return (EXTEND, number.to_bytes(8, "big"), token.to_bytes(8, "big"), tail)


# Limits


def test_a_shorter_max_lease_refuses_nothing_that_was_taken_before() -> None:
    """REQ-ACQUIRE-MAXLEASE: who sends an acquire again learns that it holds or waits."""
    terms = Terms()
    old = terms.connect(1)
    [(_, _, token, _)] = terms.apply(old, acquire(1, b"k", lease_ms=60_000))
    assert terms.apply(old, acquire(2, b"k", lease_ms=60_000)) == []
    number = terms.table.term + 1
    terms.table.begin_term(Term(number, Limits(max_lease_ms=10_000)), terms.now)
    new = terms.connect(1)
    assert terms.apply(new, acquire(1, b"k", lease_ms=60_000)) == [("A", 1, token, 0)]
    assert terms.apply(new, acquire(2, b"k", lease_ms=60_000)) == []
    assert terms.apply(new, acquire(3, b"k", lease_ms=60_000))[0][0] == "E"
    terms.now += 1_000 * MS
    release = (RELEASE, (4).to_bytes(8, "big"), token.to_bytes(8, "big"), b"k")
    assert terms.apply(new, release) == [("R", 4), ("A", 2, token + 1, 1_000)]


# Leases and their floor


@pytest.mark.parametrize("lease_ms", [1, 40, 4_999, 5_000, 5_001, 9_000])
def test_a_lease_ends_at_its_own_end_or_the_floor(lease_ms: int) -> None:
    """Whichever is later, for tickets of both terms, and to the nanosecond."""
    terms = Terms()
    terms.now += 2 * GRACE
    terms.apply(terms.connect(1), acquire(1, b"old", lease_ms=lease_ms))
    old = terms.now + lease_ms * MS
    terms.now += MS // 2
    terms.begin()
    floor = terms.now + GRACE
    link = terms.connect(1)
    terms.now += 20 * MS
    terms.apply(link, acquire(2, b"new", lease_ms=lease_ms))
    new = terms.now + lease_ms * MS
    assert terms.table.tickets == 2
    ends = {b"old": max(old, floor), b"new": max(new, floor)}
    for now in sorted({end - early for end in ends.values() for early in (0, 1)}):
        terms.at(now)
        for key, end in ends.items():
            assert (terms.table.ticket_of(key) is not None) == (now < end)
    assert [reply[:2] for reply in terms.replies(link)] == [("D", 1), ("D", 2)]


def test_leases_that_the_floor_ends_together_end_in_the_order_of_their_tokens() -> None:
    terms = Terms()
    link = terms.connect(1)
    leases = (70, 1, 3_000, 2, 500)
    terms.apply(link, *(acquire(n, b"%d" % n, lease_ms=ms) for n, ms in enumerate(leases, 1)))
    terms.begin()
    link = terms.connect(1)
    assert terms.table.wake_at() == terms.now + GRACE
    terms.at(terms.now + GRACE)
    assert [reply[1] for reply in terms.replies(link)] == [1, 2, 3, 4, 5]
    assert terms.table.wake_at() == NEVER


def test_the_floor_never_falls() -> None:
    """A leader with a shorter grace takes nothing back that an extend has told."""
    terms = Terms()
    link = terms.connect(1)
    [(_, _, token, _)] = terms.apply(link, acquire(1, b"k", lease_ms=1_000))
    assert isinstance(token, int)
    assert terms.apply(link, extend(2, token, 1, b"k")) == [("X", 2, 5_000)]
    terms.now += 1_000 * MS
    terms.begin(failover_grace_ms=0)
    link = terms.connect(1)
    terms.at(T0 + GRACE - 1)
    assert terms.table.tickets == 1
    terms.at(T0 + GRACE)
    assert terms.replies(link) == [("D", token, 1)]


def test_a_term_does_not_end_what_was_due() -> None:
    """A lease that is over as the term begins: its holder may have been without a leader."""
    terms = Terms()
    link = terms.connect(1)
    terms.at(T0 + 2 * GRACE)
    [(_, _, token, _)] = terms.apply(link, acquire(1, b"k", lease_ms=1_000))
    terms.now += 60_000 * MS
    terms.begin()
    link = terms.connect(1)
    assert isinstance(token, int)
    assert terms.apply(link, extend(2, token, 10_000, b"k")) == [("X", 2, 10_000)]


# Tokens


@pytest.mark.parametrize(
    ("floor", "token"),
    [(0, 2), (1, 2), (2, 2), (3, 3), (5_000, 5_000), (TOKEN_FLOOR_END - 1, TOKEN_FLOOR_END - 1),
     (TOKEN_FLOOR_END, 2), ((1 << 64) + 5, 2)],
)  # fmt: skip
def test_the_next_token_is_no_lower_than_the_floor(floor: int, token: int) -> None:
    terms = Terms()
    terms.apply(terms.connect(1), acquire(1, b"a"))
    terms.begin(token_floor=floor)
    assert terms.table.next_token == token
    assert terms.apply(terms.connect(1), acquire(2, b"b")) == [("A", 2, token, 0)]
    assert terms.table.results()["acquire", "granted"] == 2
    assert terms.table.results()["release", "released"] == 0


def test_tokens_rise_to_the_last_there_is() -> None:
    """A table near it ignores every floor; the last token is given, and none after it."""
    last = (1 << 64) - 1
    terms = Terms(last - 1_500)
    link = terms.connect(1)
    for number in range(last - 1_500, last + 1):
        if number == last - 700:
            terms.begin(token_floor=TOKEN_FLOOR_END - 1)
            link = terms.connect(1)
        release = (RELEASE, bytes(8), number.to_bytes(8, "big"), b"k")
        assert terms.apply(link, acquire(number, b"k"), release)[0] == ("A", number, number, 0)
    assert terms.table.next_token == 1 << 64
    with pytest.raises(OverflowError):
        terms.apply(link, acquire(1, b"k"))


# Waiters


def test_a_held_back_waiter_keeps_its_place_and_is_passed_when_it_is_detached() -> None:
    terms = Terms()
    first, second = terms.connect(1), terms.connect(2)
    terms.apply(first, acquire(1, b"k", lease_ms=1))
    terms.apply(second, acquire(1, b"k"), acquire(2, b"j", lease_ms=1))
    terms.begin()
    began = terms.now
    third = terms.connect(3)
    terms.apply(third, acquire(1, b"k"), acquire(2, b"k", wait_ms=0))
    assert terms.replies(third) == []
    terms.at(began + GRACE - 1)
    assert (terms.table.attached, terms.table.held_back, terms.table.detached) == (1, 1, 0)
    assert terms.replies(third) == []
    terms.at(began + GRACE)
    assert (terms.table.attached, terms.table.held_back, terms.table.detached) == (0, 0, 1)
    assert terms.replies(third) == [("A", 1, 3, GRACE // MS)]
    terms.at(began + GRACE + REATTACH - 1)
    assert terms.table.detached == 1
    terms.at(began + GRACE + REATTACH)
    assert terms.table.detached == 0


def test_one_that_comes_back_is_granted_before_those_behind_it() -> None:
    terms = Terms()
    terms.apply(terms.connect(1), acquire(1, b"k"))
    terms.apply(terms.connect(2), acquire(1, b"k"))
    terms.begin()
    third = terms.connect(3)
    terms.apply(third, acquire(1, b"k"))
    terms.apply(third, (RELEASE, bytes(8), (1).to_bytes(8, "big"), b"k"))
    assert terms.table.ticket_of(b"k") is None
    second = terms.connect(2)
    assert terms.apply(second, acquire(1, b"k")) == [("A", 1, 2, 0)]


def test_the_grace_of_one_detached_before_the_term_runs_on() -> None:
    terms = Terms()
    terms.apply(terms.connect(1), acquire(1, b"k", lease_ms=3_600_000))
    gone = terms.connect(2)
    terms.apply(gone, acquire(1, b"k"))
    terms.apply(gone, DISCONNECT_COMMAND)
    terms.now += REATTACH - 1
    terms.begin()
    terms.apply()
    assert (terms.table.held_back, terms.table.detached) == (0, 1)
    terms.at(terms.now + 1)
    assert terms.table.detached == 0


def test_a_second_term_holds_back_until_its_own_grace_is_over() -> None:
    terms = Terms()
    terms.apply(terms.connect(1), acquire(1, b"k", lease_ms=3_600_000))
    terms.apply(terms.connect(2), acquire(1, b"k"))
    for _ in range(3):
        terms.now += GRACE - 1
        terms.begin()
        terms.apply()
    terms.at(terms.now + GRACE - 1)
    assert terms.table.held_back == 1
    terms.at(terms.now + 1)
    assert terms.table.detached == 1


def test_terms_rise() -> None:
    terms = Terms()
    with pytest.raises(ValueError, match="term 1 after term 1"):
        terms.table.begin_term(Term(1, Limits()), terms.now)


# Costs


def crowd(waiters: int, *, leaves: bool = False) -> Terms:
    """A term at whose end this many wait, each for a key that another has a ticket of."""
    terms = Terms()
    link, other = terms.connect(1), terms.connect(2, leaves=leaves)
    keys = [b"%d" % number for number in range(waiters)]
    terms.apply(link, *(acquire(n, key, lease_ms=3_600_000) for n, key in enumerate(keys, 1)))
    terms.apply(other, *(acquire(n, key) for n, key in enumerate(keys, 1)))
    assert (terms.table.tickets, terms.table.attached) == (waiters, waiters)
    return terms


def test_a_term_begins_at_the_same_cost_however_many_wait_and_hold() -> None:
    def cost(waiters: int) -> float:
        terms = crowd(waiters)

        def work() -> None:
            for _ in range(100):
                terms.begin()

        cpu = least_cpu(work)
        assert terms.table.held_back == waiters
        return cpu

    assert cost(100_000) < COST_RATIO_MAX * cost(10)


@pytest.mark.parametrize("leaves", [False, True])
def test_departures_are_a_slice_in_each_turn(leaves: bool) -> None:
    """Of the same size, and no turn costs more however many are still to come."""
    assert LOOKS_PER_SLICE // (1 + LOOKS_PER_DEPARTURE) == DEPARTURES_PER_SLICE - 1

    def cost(waiters: int) -> float:
        terms = crowd(waiters, leaves=leaves)
        terms.begin()
        if not leaves:
            while terms.table.wake_at() <= terms.now:
                terms.apply()
            assert terms.table.held_back == waiters
            terms.now += GRACE

        def work() -> None:
            before = terms.table.held_back
            assert terms.table.wake_at() <= terms.now
            terms.apply()
            assert before - terms.table.held_back == DEPARTURES_PER_SLICE

        cpu = least_cpu(work, 5)
        while terms.table.wake_at() <= terms.now:
            terms.apply()
        assert terms.table.held_back == 0
        assert terms.table.detached == (0 if leaves else waiters)
        return cpu

    assert cost(50_000) < COST_RATIO_MAX * cost(5_000)


def test_a_look_at_waiters_that_stay_is_cheaper_than_departures() -> None:
    """Version 4 waiters, none of which leaves at once: 40,000 are looked at in few turns."""
    terms = crowd(40_000)
    terms.begin()
    turns = 0
    while terms.table.wake_at() <= terms.now:
        terms.apply()
        turns += 1
    assert turns == -(-40_000 // LOOKS_PER_SLICE)
    assert terms.table.held_back == 40_000
