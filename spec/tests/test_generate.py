"""Generation: everything committed is fresh, CI refuses what is stale, nothing is half written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ticketing_spec import generate, load_spec, vectors
from ticketing_spec.__main__ import main
from ticketing_spec.model import SpecError

DIGESTS = {load_spec().digest, load_spec("version3").digest}


def test_what_is_committed_is_fresh() -> None:
    """`python -m ticketing_spec generate` and a commit make this pass."""
    said: list[str] = []
    assert generate.generate(said.append, check_only=True), said


def test_every_file_begins_with_generator_and_digest() -> None:
    for name, text in generate.outputs().items():
        first = text.split("\n", 1)[0]
        if name.endswith(".json"):
            members = json.loads(text)
            assert next(iter(members)) == "generated"
            first = members["generated"]
        assert "enerated by ticketing_spec from spec/" in first, name
        assert any(digest in first for digest in DIGESTS), name


def test_stale_files_are_rewritten_at_home_and_refused_in_ci(tmp_path: Path) -> None:
    said: list[str] = []
    assert not generate.generate(said.append, check_only=True, root=tmp_path)
    assert len(said) == len(generate.outputs())
    assert list(tmp_path.iterdir()) == []
    assert generate.generate(said.append, check_only=False, root=tmp_path)
    name = "spec/vectors/v4-client.vec"
    (tmp_path / name).write_text("edited by hand")
    said.clear()
    assert not generate.generate(said.append, check_only=True, root=tmp_path)
    assert said == [f"stale: {name}"]
    said.clear()
    assert generate.generate(said.append, check_only=False, root=tmp_path)
    assert said == [f"wrote {name}"]
    assert generate.generate(said.append, check_only=True, root=tmp_path)


def test_ci_makes_the_command_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generate, "outputs", lambda: {"spec/nothing_gen.txt": "new"})
    monkeypatch.setenv("CI", "1")
    assert main(["generate"]) == 1
    printed = capsys.readouterr()
    assert "stale: spec/nothing_gen.txt" in printed.out
    assert "run: python -m ticketing_spec generate" in printed.err
    assert not (generate.REPOSITORY / "spec" / "nothing_gen.txt").exists()


def test_a_generator_that_fails_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> str:
        raise SpecError("half way")

    monkeypatch.setattr(vectors, "to_json", fail)
    with pytest.raises(SpecError, match="half way"):
        generate.generate(print, check_only=False, root=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        generate.replace(path, "new")
    assert [p.name for p in tmp_path.iterdir()] == ["file.txt"]
    assert path.read_text() == "old"
