"""Which requirements of the spec have a case, and where the others are shown.

`requirements.txt` has a line `REQ-…: where` for each MUST that no case names. In a run of all
suites a MUST with neither is a failure, and so is a line for a requirement that a case does name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ticketing_spec import load_spec

from ticketing_conformance.adapters import HARNESS_DIR, ROOT_DIR
from ticketing_conformance.streams import the_spec

ELSEWHERE_FILE = HARNESS_DIR / "requirements.txt"
_LINE = re.compile(r"(REQ-[A-Z0-9]+-[A-Z0-9]+):\s+(\S.*)")


class BadRequirementLine(ValueError):
    """A line that can't be used; the text begins with file and line."""


@dataclass(frozen=True)
class Requirement:
    """One requirement of the spec."""

    id: str
    side: str
    level: str
    text: str


def spec_requirements() -> list[Requirement]:
    """The requirements of both protocol versions."""
    return [
        Requirement(entry["id"], entry["side"], entry["level"], entry["text"])
        for spec in (the_spec(), load_spec("version3"))
        for entry in spec.raw["requirement"]
    ]


def parse_elsewhere(text: str, name: str) -> dict[str, str]:
    """Where requirements without a case are shown. Raises BadRequirementLine."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None or match[1] in found:
            raise BadRequirementLine(f"{name}:{number}: no new line `REQ-…: where`: {line!r}")
        found[match[1]] = match[2]
    return found


def load_elsewhere(path: Path = ELSEWHERE_FILE) -> dict[str, str]:
    """The lines of requirements.txt; none if there is no such file."""
    if not path.exists():
        return {}
    return parse_elsewhere(path.read_text(encoding="utf-8"), path.name)


def coverage_faults(
    requirements: Iterable[Requirement], named: set[str], elsewhere: Mapping[str, str]
) -> list[str]:
    """What is wrong, given the requirements that the cases of all suites name."""
    known = {requirement.id: requirement for requirement in requirements}
    faults = [
        f"requirements.txt: {name} is no requirement of the spec"
        for name in elsewhere
        if name not in known
    ]
    faults += [
        f"requirements.txt: {name}: there is no {where}"
        for name, where in elsewhere.items()
        if "::" in where and not _is_test(where)
    ]
    faults += [f"requirements.txt: stale: {name} has a case" for name in elsewhere if name in named]
    faults += [
        f"{requirement.id} is a MUST, and neither a case nor requirements.txt names it"
        for requirement in known.values()
        if requirement.level == "MUST"
        and requirement.id not in named
        and requirement.id not in elsewhere
    ]
    return faults


def _is_test(where: str) -> bool:
    path, _, name = where.partition("::")
    source = ROOT_DIR / path
    return source.is_file() and f"def {name}(" in source.read_text(encoding="utf-8")
