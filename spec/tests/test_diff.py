"""`diff` reports while the copy is open, and refuses breaking edits once it is released."""

from __future__ import annotations

from pathlib import Path

import pytest
from ticketing_spec.__main__ import main
from ticketing_spec.model import SPEC_DIR

TEXT = (SPEC_DIR / "ticketing.toml").read_text()
ACQUIRE_WAIT = '{ name = "wait_ms", type = "u32", unit = "ms"'
BREAKING = {
    "a field's type": ACQUIRE_WAIT + "|" + '{ name = "wait_ms", type = "u16", unit = "ms"',
    "an op": 'op = "X"\nname = "extend"|op = "Y"\nname = "extend"',
    "a limit": '"key_bytes_max", value = 128|"key_bytes_max", value = 120',
    "an error's code": "code = 11|code = 12",
    "an error that closes": "closes = false, retry = \"none\"|closes = true, retry = \"none\"",
    "a hashed text": "TICKETING/NONCE|TICKETING/nonce",
    "a hash": '"seed:16", "connection:u64"|"connection:u64", "seed:16"',
    "a new value of a closed set": '{ value = 3, name = "other_client"|{ value = 4, name = "x", '
    'about = "new" },\n  { value = 3, name = "other_client"',
    "a name": 'name = "waited_ms"|name = "wait_ms"',
}  # fmt: skip
HARMLESS = {
    "a sentence": 'about = "Asks for a key."|about = "Asks for one key."',
    "a timer": '"drain_timeout_ms", value = 10000|"drain_timeout_ms", value = 9000',
    "a rule": "REQ-FRAME-BATCH|REQ-FRAME-MANY",
}


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    present, frozen = tmp_path / "ticketing.toml", tmp_path / "v4.toml"
    present.write_text(TEXT)
    return present, frozen


def run(command: str, files: tuple[Path, Path], *options: str) -> int:
    present, frozen = files
    return main([command, "--spec", str(present), "--frozen", str(frozen), *options])


def edit(path: Path, change: str) -> None:
    old, new = change.split("|")
    assert old in TEXT
    path.write_text(TEXT.replace(old, new, 1))


@pytest.mark.parametrize("change", BREAKING.values(), ids=BREAKING)
def test_a_breaking_edit(
    files: tuple[Path, Path], change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("freeze", files) == 0
    edit(files[0], change)
    assert run("diff", files) == 0
    assert "breaking; not yet frozen, so all is well" in capsys.readouterr().out
    files[0].write_text(TEXT)
    assert run("freeze", files, "--released") == 0
    edit(files[0], change)
    assert run("diff", files) == 1
    out = capsys.readouterr().out
    assert "BREAKING" in out
    assert "break released bytes; they take a new version" in out


@pytest.mark.parametrize("change", HARMLESS.values(), ids=HARMLESS)
def test_a_harmless_edit(
    files: tuple[Path, Path], change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("freeze", files, "--released") == 0
    edit(files[0], change)
    assert run("diff", files) == 0
    out = capsys.readouterr().out
    assert "harmless" in out
    assert "BREAKING" not in out


def test_fields_that_change_places(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("freeze", files, "--released") == 0
    lines = TEXT.split("\n")
    at = next(i for i, line in enumerate(lines) if line.lstrip().startswith(ACQUIRE_WAIT))
    lines[at], lines[at + 1] = lines[at + 1], lines[at]
    files[0].write_text("\n".join(lines))
    assert run("diff", files) == 1
    assert "order went from request_id, wait_ms, lease_ms" in capsys.readouterr().out


def test_no_change_and_no_second_release(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("freeze", files) == 0
    assert run("freeze", files, "--released") == 0
    assert run("diff", files) == 0
    assert "ticketing.toml is as in frozen/v4.toml" in capsys.readouterr().out
    assert run("freeze", files) == 2
    assert "v4.toml is released and stays as it is" in capsys.readouterr().err


def test_a_copy_that_says_nothing_of_its_state(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    files[1].write_text(TEXT)
    assert run("diff", files) == 2
    assert "v4.toml: lacks frozen; takes true or false" in capsys.readouterr().err


def test_the_copy_in_the_repository_takes_the_present_spec() -> None:
    assert main(["diff"]) == 0
