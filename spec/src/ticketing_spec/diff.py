"""`diff` and `freeze`: released bytes never change.

`frozen/v4.toml` is a copy of `ticketing.toml`. While its `frozen` is false a difference is only
reported; once it is true every difference that peers could notice on the wire is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ticketing_spec.model import SPEC_DIR, SpecError, read_toml

FROZEN = SPEC_DIR / "frozen" / "v4.toml"

# What peers of this version rely on. Since an unknown op, role or code ends a connection, adding
# one is as breaking as changing one: it takes a new version.
WIRE_TABLES = ("limit", "context", "error", "enum", "preamble", "digest", "frame")
FREE_TABLES = ("default", "timer", "requirement", "malformed", "metric", "machine")
PROSE = frozenset({"about", "when", "unit", "origin", "why"})


@dataclass(frozen=True)
class Change:
    """One difference, where it is, and whether a peer of the frozen version would notice."""

    place: str
    what: str
    breaking: bool


def changes(frozen: Mapping[str, Any], present: Mapping[str, Any]) -> Iterator[Change]:
    """Every difference between two spec files, as read from toml."""
    yield from _values("protocol", frozen["protocol"], present["protocol"], breaking=True)
    for table in WIRE_TABLES:
        yield from _tables(table, frozen.get(table, []), present.get(table, []), breaking=True)
    for table in FREE_TABLES:
        yield from _tables(table, frozen.get(table, []), present.get(table, []), breaking=False)


def _label(entry: Mapping[str, Any]) -> str:
    name = entry.get("name") or entry.get("id")
    if name is None:
        return f"{entry.get('from')} on {entry.get('on')}"
    return f"{entry['direction']} {name}" if "direction" in entry else str(name)


def _tables(place: str, old: list[Any], new: list[Any], *, breaking: bool) -> Iterator[Change]:
    before = {_label(e): e for e in old}
    after = {_label(e): e for e in new}
    for label in before:
        if label not in after:
            yield Change(f"{place} {label}", "is gone", breaking)
        else:
            yield from _values(f"{place} {label}", before[label], after[label], breaking=breaking)
    for label in after:
        if label not in before:
            yield Change(f"{place} {label}", "is new", breaking)
    common = [label for label in before if label in after]
    if place.endswith("field") and common != [label for label in after if label in before]:
        order = f"{', '.join(common)} to {', '.join(x for x in after if x in before)}"
        yield Change(place, f"order went from {order}", breaking)


def _values(
    place: str, old: Mapping[str, Any], new: Mapping[str, Any], *, breaking: bool
) -> Iterator[Change]:
    for name in dict.fromkeys([*old, *new]):
        before, after = old.get(name), new.get(name)
        if before == after:
            continue
        if name in ("fields", "values", "states", "transitions"):
            inner = f"{place}, {name.removesuffix('s')}"
            yield from _tables(inner, before or [], after or [], breaking=breaking)
        else:
            what = f"went from {before!r} to {after!r}"
            yield Change(f"{place}, {name}", what, breaking and name not in PROSE)


def report(present_path: Path, frozen_path: Path = FROZEN) -> tuple[list[str], bool]:
    """The lines that `diff` prints, and whether the edit is acceptable."""
    _, frozen = read_toml(frozen_path)
    _, present = read_toml(present_path)
    if "frozen" not in frozen:
        raise SpecError(f"{frozen_path.name}: lacks frozen; takes true or false")
    listed = list(changes(frozen, present))
    lines = [f"{'BREAKING' if c.breaking else 'harmless'}  {c.place}: {c.what}" for c in listed]
    breaking = sum(c.breaking for c in listed)
    if not listed:
        return [f"{present_path.name} is as in frozen/{frozen_path.name}"], True
    if not frozen["frozen"]:
        lines.append(f"{len(listed)} changes, {breaking} breaking; not yet frozen, so all is well")
        return lines, True
    if breaking:
        lines.append(f"{breaking} changes break released bytes; they take a new version")
    return lines, not breaking


def freeze(present_path: Path, frozen_path: Path = FROZEN, *, released: bool) -> None:
    """Write the copy; with `released` it is final, and a final copy is never written again."""
    if frozen_path.exists() and read_toml(frozen_path)[1].get("frozen"):
        raise SpecError(f"{frozen_path.name} is released and stays as it is")
    text = present_path.read_text()
    note = "released: a breaking edit is refused" if released else "not released yet"
    head = (
        f"# A copy of {present_path.name}, {note}. Written by `python -m ticketing_spec freeze`.\n"
    )
    frozen_path.parent.mkdir(parents=True, exist_ok=True)
    frozen_path.write_text(f"{head}\nfrozen = {str(released).lower()}\n\n{text}")
