"""What clients believed to hold, and whether those beliefs can all be true.

A history is text, a JSON object per line, written by whoever used tickets. All times in it are
nanoseconds of one machine's clock that goes on while the machine sleeps.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field

FAULTS_SHOWN = 10
TOKEN_FLOOR_SHIFT = 20
"""A new leader's tokens start at unix milliseconds times two to this power."""


@dataclass(frozen=True)
class Holding:
    """A ticket, from when its client had it to when it began to give it back, or had to stop.

    The interval is never longer than what the client believed: what overlaps here did overlap.
    """

    who: str
    keys: tuple[str, ...]
    token: int
    began_ns: int
    ended_ns: int
    lost: str = ""
    """Why the client's server took it away while the client still counted on it."""
    was_released: bool = False
    """The server confirmed its release."""


@dataclass(frozen=True)
class Failure:
    """A call that ended in an error that nobody asked for."""

    who: str
    call: str
    text: str
    at_ns: int


@dataclass
class History:
    """Holdings and failures of any number of clients."""

    holdings: list[Holding] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: History) -> None:
        """Take in what others recorded at the same time."""
        self.holdings += other.holdings
        self.failures += other.failures


def to_line(entry: Holding | Failure) -> str:
    """One line of a history's text."""
    return json.dumps(asdict(entry), separators=(",", ":"))


def parse(text: str) -> History:
    """Read a history; a last line without its end was cut by a crash and does not count."""
    history = History()
    for line in text.splitlines(keepends=True):
        if not line.endswith("\n"):
            break
        entry = json.loads(line)
        if "call" in entry:
            history.failures.append(Failure(**entry))
        else:
            history.holdings.append(Holding(**{**entry, "keys": tuple(entry["keys"])}))
    return history


def faults(history: History) -> list[str]:
    """All that no correct lock service can bring about; empty if the history is in order."""
    found = [*_granted_twice(history.holdings), *_overlaps(history.holdings)]
    found += [
        f"{one.who} lost token {one.token} of {'+'.join(one.keys)} before its time: {one.lost}"
        for one in history.holdings
        if one.lost
    ]
    return found


def summary(found: Sequence[str]) -> str:
    """The first faults, for a message."""
    more = len(found) - FAULTS_SHOWN
    return "; ".join(found[:FAULTS_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _granted_twice(holdings: Iterable[Holding]) -> Iterator[str]:
    seen: dict[int, Holding] = {}
    for one in holdings:
        other = seen.setdefault(one.token, one)
        if other is not one:
            yield f"token {one.token} was granted to {other.who} and to {one.who}"


def _overlaps(holdings: Iterable[Holding]) -> Iterator[str]:
    by_key: dict[str, list[Holding]] = {}
    for one in holdings:
        for key in one.keys:
            by_key.setdefault(key, []).append(one)
    for key, of_key in sorted(by_key.items()):
        of_key.sort(key=lambda one: one.token)
        longest = of_key[0]
        for one in of_key[1:]:
            if one.began_ns < longest.ended_ns:
                overlap_ms = (longest.ended_ns - one.began_ns) / 1e6
                yield (
                    f"{key}: {one.who} had token {one.token} {overlap_ms:.3f} ms before"
                    f" {longest.who} ended token {longest.token}"
                )
            if one.ended_ns > longest.ended_ns:
                longest = one


def order_faults(granted: Sequence[tuple[str, int]]) -> list[str]:
    """Names in the order in which they should have been granted, each with its token."""
    return [
        f"{later} (token {second}) was granted before {earlier} (token {first})"
        for (earlier, first), (later, second) in itertools.pairwise(granted)
        if second <= first
    ]


@dataclass(frozen=True)
class Mark:
    """When something was done to the cluster."""

    at_ns: int
    unix_ms: int


def first_grants_ms(holdings: Sequence[Holding], marks: Sequence[Mark]) -> list[float | None]:
    """For each mark, after how many milliseconds a client had the first ticket of a later leader.

    A ticket of the leader before may still arrive after the mark, so tokens decide: a leader's
    begin at the time of its election. None where no such ticket was granted before the next mark.
    """
    times: list[float | None] = []
    ends = [mark.at_ns for mark in marks[1:]]
    for mark, end_ns in itertools.zip_longest(marks, ends):
        floor = mark.unix_ms << TOKEN_FLOOR_SHIFT
        found = [
            one.began_ns
            for one in holdings
            if one.token >= floor
            and one.began_ns >= mark.at_ns
            and (end_ns is None or one.began_ns < end_ns)
        ]
        times.append((min(found) - mark.at_ns) / 1e6 if found else None)
    return times


def percentile(values: Sequence[float], percent: int) -> float:
    """The smallest value that so many percent of all are not above."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]
