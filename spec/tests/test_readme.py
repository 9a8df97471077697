"""The example of the README runs, and the commands that it names are there."""

from __future__ import annotations

import re

import pytest
from ticketing_spec.__main__ import main
from ticketing_spec.model import SPEC_DIR

README = (SPEC_DIR / "README.md").read_text()


def test_the_example_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    scope: dict[str, object] = {}
    exec(example, scope)
    assert scope["wire"][:1] == b"R"


def test_every_command_of_the_readme_is_known() -> None:
    named = set(re.findall(r"python -m ticketing_spec (\w+)", README))
    assert named == {"check", "diff", "freeze", "generate", "show"}
    for command in named:
        with pytest.raises(SystemExit) as end:
            main([command, "--help"])
        assert end.value.code == 0
