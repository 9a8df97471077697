"""The judge of histories finds what it has to, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ticketing_conformance.cluster.history import (
    Failure,
    History,
    Holding,
    Mark,
    faults,
    first_grants_ms,
    order_faults,
    parse,
    percentile,
    summary,
    to_line,
)

A = Holding("a", ("k",), 1, 100, 200)
B = Holding("b", ("k",), 2, 200, 300)


def of(*holdings: Holding) -> History:
    return History(holdings=list(holdings))


def test_one_after_the_other_is_in_order() -> None:
    assert faults(of(B, A)) == []


def test_other_keys_may_overlap() -> None:
    assert faults(of(A, replace(B, keys=("l",), began_ns=150))) == []


def test_an_overlap_of_a_nanosecond() -> None:
    (found,) = faults(of(A, replace(B, began_ns=199)))
    assert "k: b had token 2" in found


def test_an_overlap_with_one_long_before() -> None:
    long = replace(A, ended_ns=1000)
    between = replace(B, began_ns=1000, ended_ns=1100)
    late = Holding("c", ("k",), 3, 900, 950)
    assert len(faults(of(long, between, late))) == 1


def test_tokens_against_the_order_of_time() -> None:
    assert len(faults(of(replace(A, token=5), B))) == 1


def test_a_set_overlaps_on_each_of_its_keys() -> None:
    found = faults(of(replace(A, keys=("k", "l")), replace(B, keys=("k", "l"), began_ns=150)))
    assert len(found) == 2


def test_a_token_for_two() -> None:
    (found,) = faults(of(A, replace(B, token=1, keys=("l",))))
    assert found == "token 1 was granted to a and to b"


def test_a_ticket_taken_away() -> None:
    (found,) = faults(of(replace(A, lost="not_held")))
    assert "a lost token 1 of k before its time: not_held" in found


def test_text_and_back() -> None:
    failure = Failure("c", "acquire", "no answer", 7)
    text = "".join(f"{to_line(entry)}\n" for entry in (A, failure, B))
    history = parse(text)
    assert history.holdings == [A, B]
    assert history.failures == [failure]


def test_a_line_that_was_cut_does_not_count() -> None:
    text = f"{to_line(A)}\n{to_line(B)}"
    assert parse(text).holdings == [A]
    assert parse(text[:-3]).holdings == [A]


def test_orders() -> None:
    assert order_faults([("a", 1), ("b", 3), ("c", 9)]) == []
    assert order_faults([("a", 1), ("b", 9), ("c", 3)]) == [
        "c (token 3) was granted before b (token 9)"
    ]


def test_first_grants_of_later_leaders() -> None:
    marks = [Mark(1_000_000, 50), Mark(9_000_000, 60)]
    floor = 50 << 20
    holdings = [
        Holding("late", ("k",), floor - 1, 1_100_000, 0),
        Holding("new", ("k",), floor + 1, 3_000_000, 0),
        Holding("newer", ("k",), floor + 2, 4_000_000, 0),
    ]
    assert first_grants_ms(holdings, marks) == [2.0, None]


@pytest.mark.parametrize(("percent", "expected"), [(50, 2.0), (95, 4.0), (100, 4.0), (1, 1.0)])
def test_percentiles(percent: int, expected: float) -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], percent) == expected


def test_a_summary_is_short() -> None:
    assert summary(["x"] * 12).endswith("; and 2 more")
    assert summary(["x"]) == "x"
