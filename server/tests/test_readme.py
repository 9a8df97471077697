"""The README against the code: its settings table is written from settings.py, its metrics checked.

A run without CI in the environment rewrites a stale table; with CI it fails.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import pytest
from ticketing_server.cluster_driver import ClusterDriver
from ticketing_server.engine import Counters, Histogram
from ticketing_server.limits import Limits
from ticketing_server.metrics import EngineCollector, ShellState
from ticketing_server.settings import SETTINGS
from ticketing_server.settings_load import gather, load

README = Path(__file__).resolve().parent.parent / "README.md"
BEGIN = "<!-- settings: written from settings.py by tests/test_readme.py -->\n"
END = "<!-- settings end -->\n"


def settings_table() -> str:
    """The table of all settings in Markdown."""
    rows = ["| flag | variable | default | takes | what |", "| --- | --- | --- | --- | --- |"]
    for setting in SETTINGS:
        default = f"`{setting.default}`" if setting.default else "–"
        cells = (f"`{setting.flag}`", f"`{setting.env}`", default, setting.takes, setting.about)
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def test_the_settings_table_is_that_of_the_code() -> None:
    text = README.read_text()
    before, rest = text.split(BEGIN)
    shown, after = rest.split(END)
    expected = f"\n{settings_table()}\n"
    if shown != expected and "CI" not in os.environ:
        README.write_text(before + BEGIN + expected + END + after)
        shown = README.read_text().split(BEGIN)[1].split(END)[0]
    assert shown == expected, "run this test without CI set, and commit what it writes"


def test_every_metric_is_in_the_readme_and_no_other(tmp_path: Path) -> None:
    counters = Counters(hold=Histogram((1,), [0, 0]), wait={"granted": Histogram((1,), [0, 0])})
    state = ShellState("0", "python", Limits(), certificate_expiry_unix_s={"server": 0.0})
    settings = load(gather({"data-dir": [str(tmp_path)]}, {}))
    state.driver = ClusterDriver(settings, lambda *event: None, lambda code, reason: None)
    made = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in EngineCollector(lambda: counters, state).collect()
    }
    table = README.read_text().split("| metric | labels | what |")[1].split("\n\n")[0]
    assert set(re.findall(r"`(ticketing_\w+)`", table)) == made


def test_the_dependencies_are_those_of_the_package() -> None:
    project = tomllib.loads(README.with_name("pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    listed = [*project["dependencies"], *extras["fast"], *extras["admin"]]
    names = {re.split(r"[<>=;\[]", entry)[0] for entry in listed}
    table = README.read_text().split("## Dependencies")[1].split("\n\n")[1]
    assert set(re.findall(r"^\| ([a-z][\w-]*) \| \d", table, re.MULTILINE)) == names


def test_the_example_for_tests_runs(capsys: pytest.CaptureFixture[str]) -> None:
    code = README.read_text().split("```python\n")[1].split("```")[0]
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out.startswith("ticketing://127.0.0.1:")
