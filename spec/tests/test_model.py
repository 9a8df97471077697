"""The model: what follows from a file, and how its absence is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from ticketing_spec import SpecError, load_spec
from ticketing_spec.__main__ import main

SPEC = load_spec()


def test_sizes_follow_from_the_fields() -> None:
    want = {
        ("client", "hello"): (62, 125),
        ("client", "acquire"): (17, 144),
        ("client", "acquire_set"): (21, 2081),
        ("client", "release"): (17, 144),
        ("client", "extend"): (21, 148),
        ("client", "cancel"): (17, 144),
        ("server", "welcome"): (67, 327),
        ("server", "granted"): (20, 20),
        ("server", "leader"): (0, 260),
        ("server", "error"): (9, 137),
    }
    for (direction, name), size in want.items():
        assert SPEC.frame(direction, name).body_bytes == size
    assert SPEC.preamble("greeting").fixed_bytes == 26
    assert load_spec("version3").preamble("greeting").fixed_bytes == 28
    tails = [f.tail for f in SPEC.frames_of("client") if f.tail and f.tail.type == "keys"]
    assert len(tails) == 1


def test_names_that_there_are_not() -> None:
    with pytest.raises(SpecError, match="no spec is named 'v9'; there are: ticketing, version3"):
        load_spec("v9")
    with pytest.raises(KeyError, match="no client frame is named 'grab'; there are: hello, "):
        SPEC.frame("client", "grab")
    with pytest.raises(KeyError, match="no preamble is named 'bye'"):
        SPEC.preamble("bye")
    with pytest.raises(KeyError, match="has no constant named 'x'"):
        SPEC.constant("x")
    with pytest.raises(KeyError, match="has no context named 'x'"):
        SPEC.context("x")


def test_the_spec_covers_what_it_has_to() -> None:
    assert len({r.area for r in SPEC.requirements}) > 30
    assert {m.name for m in SPEC.machines} >= {"server_connection", "waiter", "ticket"}
    assert [e.code for e in SPEC.errors] == list(range(1, 12))
    assert SPEC.enum("error").name_of(7) == "taken_over"
    assert SPEC.enum("role").name_of(9) is None


def test_the_command_line_checks(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["check"]) == 0
    assert capsys.readouterr().out == "ticketing.toml, version3.toml: sound\n"
    broken = tmp_path / "broken.toml"
    broken.write_text("[protocol]\n")
    assert main(["check", str(broken)]) == 1
    assert "broken.toml: the file: lacks limit, context" in capsys.readouterr().err
