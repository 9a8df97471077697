"""The README's example is the file, and the file runs as printed."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import ticketing
import ticketing.sync
from ticketing_server.testing import ServerThread

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")


def test_the_example_is_the_file() -> None:
    printed = re.search(r"<!-- example: (\S+) -->\n```python\n(.*?)```", README, re.DOTALL)
    assert printed is not None
    assert printed[2] == (ROOT / printed[1]).read_text("utf-8")


@pytest.mark.parametrize("example", ["quickstart.py", "first_lock.py"])
def test_the_example_runs(example: str, server: ServerThread) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / example)],
        env={**os.environ, "TICKETING_URL": server.url},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert re.fullmatch(r"I hold orders/42 with token \d+\n", done.stdout)
    assert done.stderr == ""


def test_options_and_errors_are_all_in_the_readme() -> None:
    for option in inspect.signature(ticketing.connect).parameters:
        assert f"`{option}`" in README, option
    for name in ticketing.__all__:
        if name.endswith("Error") and name != "TicketingError":
            assert f"`{name}`" in README, name


def test_both_apis_have_the_same_names_and_arguments() -> None:
    """What differs: waiting with a bound is an argument where there is no asyncio.timeout."""
    pairs = [(ticketing.Client, ticketing.sync.Client), (ticketing.Ticket, ticketing.sync.Ticket)]
    for one, other in pairs:
        names = {name for name in dir(one) if not name.startswith("_")}
        assert names == {name for name in dir(other) if not name.startswith("_")}
        for name in names - {"wait_lost"}:
            if callable(getattr(one, name)):
                assert list(inspect.signature(getattr(one, name)).parameters) == list(
                    inspect.signature(getattr(other, name)).parameters
                )
    assert inspect.signature(ticketing.connect).parameters.keys() == (
        inspect.signature(ticketing.sync.connect).parameters.keys()
    )


def test_every_public_name_is_documented() -> None:
    modules = [ticketing, ticketing.sync, ticketing.errors, ticketing.events]
    for module in modules:
        for name, value in vars(module).items():
            if name.startswith("_") or not getattr(value, "__module__", "").startswith("ticketing"):
                continue
            if inspect.isclass(value) or inspect.isfunction(value):
                assert value.__doc__, name
            if inspect.isclass(value) and not name.endswith("Like"):
                for member, what in vars(value).items():
                    if not member.startswith("_") and (
                        inspect.isfunction(what) or isinstance(what, property)
                    ):
                        assert what.__doc__, f"{name}.{member}"
