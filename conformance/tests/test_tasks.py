"""The tasks of adapters.toml: what runs, what is left out, what the last line says."""

from __future__ import annotations

import sys

import pytest
from ticketing_conformance import tasks
from ticketing_conformance.adapters import BadEntry, Language, parse_languages

ENTRY = """
[{name}]
language = "{name}"
probe = {probe}
command = ["true"]
features = ["async"]
hint = "install {name}"
[{name}.tasks]
tests = {tests}
"""


def languages(*entries: tuple[str, str, str]) -> dict[str, Language]:
    text = "".join(ENTRY.format(name=name, probe=probe, tests=run) for name, probe, run in entries)
    return parse_languages(text)


@pytest.mark.parametrize(
    ("commands", "passes"),
    [
        ("[]", True),
        ('[["true"], ["true"]]', True),
        ('[["true"], ["false"]]', False),
        ('[["false"], ["true"]]', False),
        ('[["no-such-program-at-all"]]', False),
    ],
)
def test_a_task_passes_if_none_of_its_commands_fails(commands: str, passes: bool) -> None:
    (language,) = languages(("one", '["true"]', commands)).values()
    assert tasks.run_task(language, "tests") is passes
    assert tasks.run_task(language, "lint")


def test_the_last_line_names_what_is_missing_and_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = languages(("there", '["true"]', '[["true"]]'), ("absent", '["false"]', "[]"))
    monkeypatch.setattr(tasks, "load_languages", lambda: found)
    monkeypatch.setattr("sys.argv", ["tasks", "tests"])
    assert tasks.main() == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("tests: done for there; not done for: absent:")
    assert "install absent" in last


def test_a_failed_task_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = languages(("broken", '["true"]', '[["false"]]'))
    monkeypatch.setattr(tasks, "load_languages", lambda: found)
    monkeypatch.setattr("sys.argv", ["tasks", "tests"])
    assert tasks.main() == 1
    assert "failed for broken" in capsys.readouterr().out


def test_an_unknown_task_is_refused() -> None:
    with pytest.raises(BadEntry, match="takes tests, lint, packages"):
        parse_languages(ENTRY.format(name="one", probe='["true"]', tests="[]") + "deploy = []\n")


def test_the_environment_may_name_the_interpreter():
    text = ENTRY.format(name="one", probe='["true"]', tests="[]")
    text = text.replace("hint =", 'environment = { SERVER = "{python} -m x" }\nhint =')
    assert parse_languages(text)["one"].environment == {"SERVER": f"{sys.executable} -m x"}
