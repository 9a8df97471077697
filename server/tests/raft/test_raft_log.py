"""The log as a structure: places, conflicts, compaction, and what two logs can agree on."""

from __future__ import annotations

import pytest
from ticketing_server.raft.log import Log
from ticketing_server.raft.messages import BATCH, Entry


def entry(index: int, term: int, size: int = 0) -> Entry:
    return Entry(index, term, BATCH, stamp=index * 10, payload=bytes(size))


def log_of(*terms: int, base: int = 0) -> Log:
    """A log with these terms, compacted to `base`."""
    log = Log(entries=[entry(place, term) for place, term in enumerate(terms, 1)])
    log.compact(base)
    return log


def test_an_empty_log_ends_at_its_base() -> None:
    log = Log(7, 3, 70)
    assert (log.last_index, log.last_term, log.last_stamp) == (7, 3, 70)
    assert (log.term(7), log.stamp(7), log.term(6), log.term(8)) == (3, 70, None, None)


@pytest.mark.parametrize("wrong", [entry(3, 2), entry(5, 2), entry(4, 1)])
def test_entries_follow_each_other_in_index_and_term(wrong: Entry) -> None:
    log = log_of(1, 1, 2)
    with pytest.raises(ValueError, match="doesn't follow"):
        log.append([wrong])


def test_truncation_takes_the_stamp_back_too() -> None:
    log = log_of(1, 1, 2)
    log.truncate(2)
    assert (log.last_index, log.last_term, log.last_stamp) == (1, 1, 10)
    log.append([entry(2, 5)])
    assert log.term(2) == 5


def test_compaction_keeps_term_and_stamp_of_its_base() -> None:
    log = log_of(1, 1, 2, 3, base=3)
    assert (log.base_index, log.term(3), log.stamp(3), log.term(2)) == (3, 2, 30, None)
    assert [kept.index for kept in log.slice(4)] == [4]
    log.compact(2)
    assert log.base_index == 3
    for refused in (
        lambda: log.compact(9), lambda: log.slice(3), lambda: log.truncate(3)
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"compact|truncate"):
            refused()


def test_a_slice_has_one_entry_at_least_and_then_what_fits() -> None:
    log = Log(entries=[entry(1, 1, 68), entry(2, 1, 68), entry(3, 1, 68)])
    assert len(log.slice(1, limit_bytes=1)) == 1
    assert len(log.slice(1, limit_bytes=200)) == 2
    assert len(log.slice(1, limit_bytes=299)) == 2
    assert len(log.slice(2, last=2, limit_bytes=999)) == 1
    assert log.slice(4) == log.slice(4, limit_bytes=999) == log.slice(3, last=2) == ()


@pytest.mark.parametrize(
    ("sent", "conflict"),
    [([], None), ([(2, 1)], None), ([(3, 2), (4, 2)], 4), ([(2, 2)], 2), ([(1, 1), (2, 1)], None)],
)
def test_only_what_differs_is_a_conflict(sent: list[tuple[int, int]], conflict: int | None) -> None:
    assert log_of(1, 1, 2, base=1).first_conflict([entry(*one) for one in sent]) == conflict


@pytest.mark.parametrize(
    ("index", "term", "place"),
    [(7, 3, 3), (7, 4, 5), (2, 9, 2), (7, 6, 7), (7, 1, 3), (9, 9, 7), (5, 0, 2), (1, 0, 1)],
)
def test_back_off_skips_whole_terms(index: int, term: int, place: int) -> None:
    log = log_of(1, 1, 1, 4, 4, 5, 6, base=2)
    assert log.last_at_most(index, term) == place


def test_recent_is_by_term_first() -> None:
    log = log_of(1, 1, 2)
    assert log.is_as_recent(3, 2)
    assert log.is_as_recent(1, 3)
    assert not log.is_as_recent(9, 1)
    assert not log.is_as_recent(2, 2)
