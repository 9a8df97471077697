"""`expectations/<client>.txt`: which cases are known to fail or to be skipped, and why.

A line is `fail PATTERN: reason` or `skip PATTERN: reason`. A pattern is matched against
`suite/case[parameters]:api` with `*` and `?`; `feature:NAME` as the pattern of a skip stands for
every case that needs the feature. A reason is never empty. A line that nothing needs is stale.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

VERDICTS = ("fail", "skip")
_LINE = re.compile(r"(\S+)\s+(.+?):\s+(\S.*)")


class BadExpectation(ValueError):
    """A line that can't be used; the text begins with file and line."""


@dataclass(frozen=True)
class Entry:
    """One line of an expectations file."""

    where: str
    verdict: str
    pattern: str
    reason: str

    def matches(self, test_id: str, missing: Iterable[str] = ()) -> bool:
        """Whether it speaks of this test, which lacks these features."""
        if self.pattern.startswith("feature:"):
            return self.pattern.removeprefix("feature:") in missing
        return _wildcard(self.pattern, test_id)


def _wildcard(pattern: str, text: str) -> bool:
    # Not fnmatch: brackets are part of the ids and have to mean themselves.
    parts = (".*" if part == "*" else "." if part == "?" else re.escape(part) for part in pattern)
    return re.fullmatch("".join(parts), text) is not None


def parse_expectations(text: str, name: str) -> list[Entry]:
    """The entries of one file. Raises BadExpectation."""
    entries: list[Entry] = []
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        match = _LINE.fullmatch(stripped)
        if match is None or match[1] not in VERDICTS:
            raise BadExpectation(
                f"{name}:{number}: a line is `fail PATTERN: reason` or `skip PATTERN: reason`,"
                f" not {stripped!r}"
            )
        if match[2].startswith("feature:") and match[1] != "skip":
            raise BadExpectation(f"{name}:{number}: feature:… goes with skip, not with fail")
        entries.append(Entry(f"{name}:{number}", match[1], match[2], match[3]))
    return entries


def load_expectations(folder: Path, client: str) -> list[Entry]:
    """The entries for a client; none if there is no file."""
    path = folder / f"{client}.txt"
    if not path.exists():
        return []
    return parse_expectations(path.read_text(encoding="utf-8"), f"{folder.name}/{path.name}")


@dataclass(frozen=True)
class Judged:
    """A result after the expectations were applied."""

    outcome: str
    """passed, failed or skipped."""
    reason: str = ""
    entry: Entry | None = None


def judge(
    outcome: str,
    reason: str,
    test_id: str,
    entries: Sequence[Entry],
    missing: Iterable[str] = (),
) -> Judged:
    """What a raw result counts as.

    An unlisted failure, a listed pass and an undeclared skip are failures; a listed failure counts
    as a pass, and says so.
    """
    missing = list(missing)
    matching = [entry for entry in entries if entry.matches(test_id, missing)]
    by_verdict = {entry.verdict: entry for entry in reversed(matching)}
    failing, skipping = by_verdict.get("fail"), by_verdict.get("skip")
    if outcome == "failed":
        if failing is not None:
            return Judged("passed", f"fails as expected: {failing.reason}", failing)
        return Judged("failed", reason)
    if outcome == "skipped":
        unnamed = [
            feature
            for feature in missing
            if not any(
                entry.verdict == "skip" and entry.matches(test_id, [feature]) for entry in entries
            )
        ]
        if skipping is not None and not unnamed:
            return Judged("skipped", skipping.reason, skipping)
        return Judged("failed", f"skipped without an entry in the expectations: {reason}")
    if failing is not None:
        return Judged("failed", f"passes, but {failing.where} expects a failure: remove the line")
    if skipping is not None:
        return Judged("failed", f"passes, but {skipping.where} expects a skip: remove the line")
    return Judged("passed")


def stale(entries: Sequence[Entry], catalogue: Iterable[tuple[str, Iterable[str]]]) -> list[str]:
    """What is wrong with entries that match nothing; `catalogue` has ids and missing features."""
    tests = [(test_id, list(missing)) for test_id, missing in catalogue]
    return [
        f"{entry.where}: stale: no case matches {entry.pattern}"
        for entry in entries
        if not any(entry.matches(test_id, missing) for test_id, missing in tests)
    ]
