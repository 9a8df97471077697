"""The dissector is asked about captured streams, and what it reads otherwise is a fault."""

import pytest
from ticketing_conformance import wireshark
from ticketing_conformance.golden import GOLDEN_DIR
from ticketing_conformance.results import Result, StreamText
from ticketing_conformance.wireshark import WiresharkMissing, captured_of, disagreements


def result(name, up, down):
    streams = [StreamText("p", 1, "up", up, None), StreamText("p", 1, "down", down, None)]
    return Result(f"identity/{name}", "identity", "x-sync", "passed", captured=streams)


@pytest.fixture(scope="module")
def golden():
    """The first connection of every golden transcript."""
    results = []
    for path in sorted(GOLDEN_DIR.glob("*.txt")):
        lines = [line.partition(": ") for line in path.read_text().splitlines()]
        up, down = (next(text for way, _, text in lines if way == name) for name in ("up", "down"))
        results.append(result(path.stem, up, down))
    return captured_of(results)


def dissected(streams, folder):
    try:
        return disagreements(streams, folder)
    except WiresharkMissing as error:
        pytest.skip(str(error))


def test_golden_streams_are_dissected(golden, tmp_path):
    assert len(golden) > 15
    assert dissected(golden, tmp_path) == []


def test_a_dissector_that_reads_otherwise_is_noticed(golden, tmp_path, monkeypatch):
    text = wireshark.DISSECTOR.read_text()
    assert 'name = "acquire",' in text
    wrong = tmp_path / "wrong.lua"
    wrong.write_text(text.replace('name = "acquire",', 'name = "require",'))
    monkeypatch.setattr(wireshark, "DISSECTOR", wrong)
    faults = dissected(golden, tmp_path)
    assert faults
    assert "A require" in faults[0]


def test_streams_that_the_codec_can_not_read_are_left_out():
    assert captured_of([result("half", "48", "")]) == []
    assert captured_of([]) == []


def test_a_machine_without_tshark_is_told_how_to_get_it(golden, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(WiresharkMissing, match="apt install tshark"):
        disagreements(golden, tmp_path)
