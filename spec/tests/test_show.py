"""The annotated view explains every byte, of broken frames too."""

from __future__ import annotations

import pytest
from ticketing_spec import load_spec, show
from ticketing_spec.__main__ import main
from ticketing_spec.model import SPEC_DIR, Spec, SpecError
from ticketing_spec.vectors import Vector, malformed_vectors, valid_vectors

SPECS = [load_spec(), load_spec("version3")]


def listed(spec: Spec) -> list[Vector]:
    made = [v for d in ("client", "server") for v in valid_vectors(spec, d)]
    return made + [v for d in ("client", "server") for v in malformed_vectors(spec, d)]


@pytest.mark.parametrize("spec", SPECS, ids=["v4", "v3"])
def test_no_byte_is_left_out_and_broken_ones_are_named(spec: Spec) -> None:
    for vector in listed(spec):
        rows = list(show.rows(spec, vector.direction, vector.wire or b""))
        complaints = [r for r in rows if r.field == "!"]
        shown = b"".join(r.data for r in rows if r.field != "!")
        assert bool(complaints) == (vector.error is not None), vector.id
        if vector.error is None:
            assert shown == vector.wire
            offset = 0
            for row in rows:
                assert row.offset == offset
                offset += len(row.data)
        else:
            # In a stream, what follows a frame is the beginning of another one.
            layer = "frame" if vector.error == "one-more" else vector.layer
            assert f"malformed at layer {layer}" in complaints[0].value, vector.id


def test_the_view_of_an_acquire() -> None:
    wire = bytes.fromhex("41001200000000000000010000000000007530610a")
    assert show.show(SPECS[0], wire.hex(), "client") == (
        "offset  hex                                              field         value\n"
        "     0  41                                               op            A acquire\n"
        "     1  00 12                                            length        18\n"
        "     3  00 00 00 00 00 00 00 01                          request_id    1\n"
        "    11  00 00 00 00                                      wait_ms       0 ms, a try\n"
        "    15  00 00 75 30                                      lease_ms      30000 ms\n"
        '    19  61 0a                                            key           "a\\x0a"\n'
    )


def test_a_stream_with_a_greeting(capsys: pytest.CaptureFixture[str]) -> None:
    stream = b"TICKET\x04\x04\x00\xff" + bytes(16) + b"T\0\x08" + bytes(8)
    assert main(["show", stream.hex()]) == 0
    out = capsys.readouterr().out
    assert "as sent by the server" in out
    assert "as sent by the client" not in out
    assert "    26  54  " in out
    assert "T timed_out" in out


def test_hex_that_neither_sends_is_shown_as_both(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "ff00"]) == 0
    out = capsys.readouterr().out
    assert out.count("malformed at layer frame: op 0xff is not one that a") == 2


def test_names_and_what_is_no_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "ping"]) == 0
    assert capsys.readouterr().out.count("ping, sent by the ") == 2
    assert main(["show", "ping", "--from", "server"]) == 0
    assert capsys.readouterr().out.count("ping, sent by the ") == 1
    assert main(["show", "moved", "--version", "3"]) == 0
    assert main(["show", "moved"]) == 2
    assert "'moved' is neither hex nor a frame; frames are acquire, " in capsys.readouterr().err
    with pytest.raises(SpecError, match="there are no bytes"):
        show.show(SPECS[0], "", None)


def test_an_example_of_each_frame_is_committed() -> None:
    stems = {p.stem for p in (SPEC_DIR / "vectors" / "annotated").glob("*.txt")}
    assert stems == {stem for spec in SPECS for stem in show.examples(spec)}
