"""Each scenario prints what its file says; `raft_scenario.py --rewrite` writes it anew."""

from __future__ import annotations

from pathlib import Path

import pytest
from raft_scenario import SCENARIOS, rewritten


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.txt")), ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    expected = path.read_text(encoding="utf-8")
    assert rewritten(expected) == expected


def test_there_are_scenarios_and_each_says_something() -> None:
    paths = list(SCENARIOS.glob("*.txt"))
    assert len(paths) >= 12
    for path in paths:
        lines = path.read_text(encoding="utf-8").splitlines()
        assert any(line.startswith("    ") for line in lines), path.name
