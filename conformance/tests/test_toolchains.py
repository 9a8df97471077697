"""What `nox -s toolchains` finds missing, and what it says where it can't help."""

from __future__ import annotations

from pathlib import Path

import pytest
from ticketing_conformance import toolchains
from ticketing_conformance.toolchains import TOOLS, Tool, missing, packages_of, run_command

THERE = Tool("shell", "tests", "sh", ("dash",))
ABSENT = Tool("absent", "tests", "no-such-program-at-all", ("absent-one", "absent-two"))


def test_what_is_there_is_not_installed_again() -> None:
    assert missing([THERE, ABSENT]) == [ABSENT]
    assert packages_of([ABSENT]) == ["absent-one", "absent-two"]


def test_a_file_of_the_clone_is_a_probe_too() -> None:
    assert Tool("page", "tests", "README.md").is_there()
    assert not Tool("page", "tests", "no-such-file-at-all").is_there()


def test_every_tool_can_be_brought() -> None:
    for tool in TOOLS:
        assert tool.packages or (tool.command and tool.needs), tool.name


def test_without_root_the_command_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("shutil.which", lambda program: f"/usr/bin/{program}")
    assert not toolchains.install_packages(["redis-server"])
    assert "sudo apt-get install -y -q redis-server" in capsys.readouterr().out


def test_a_command_needs_its_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tool = Tool("thing", "tests", "thing", command=("touch", "made"), needs="touch")
    assert run_command(tool, tmp_path)
    assert (tmp_path / "made").exists()
    lacking = Tool("thing", "tests", "thing", command=("nope",), needs="no-such-program-at-all")
    assert not run_command(lacking, tmp_path)
    assert "no-such-program-at-all, which is missing" in capsys.readouterr().out
