"""Golden transcripts: made from the script alone, kept, compared, noticed when they are stale."""

import hashlib
from pathlib import Path

import pytest
from ticketing_conformance import golden
from ticketing_conformance.golden import Transcript, digest_of, make_transcript, read_transcript
from ticketing_conformance.identity import difference
from ticketing_conformance.script import ScriptError, load_cases, parse_cases
from ticketing_conformance.streams import read_stream
from ticketing_conformance.tests_of import CASES_DIR
from ticketing_spec.codec import mac

OPEN = 'open client_id=1 seed=r:01*16 label="x" detach=1 as=c'
SCENARIO = f"""
case some
  about x
  peer listen as=p
  {OPEN}
  peer serve p as=k
  acquire key="a" as=t detach=1
  peer expect k acquire request_id=1 wait_ms=0 lease_ms=5 key="a"
  peer send k granted token=7 waited_ms=0
  peer reset k
  peer serve p as=l
  peer expect l release request_id=2 token=7 key="a"
"""


def scenario(text):
    (case,) = parse_cases(text, "identity", Path("x.case"))
    return case


def test_streams_follow_from_the_script():
    made = make_transcript(scenario(SCENARIO))
    first, second = (read_stream("client", stream) for stream in made.up)
    assert [name for name, _ in first] == ["hello", "acquire"]
    assert [name for name, _ in second] == ["hello", "release"]
    assert (first[0][1]["connection"], second[0][1]["connection"]) == (1, 2)
    assert first[0][1]["client_nonce"] != second[0][1]["client_nonce"]
    down = read_stream("server", made.down[0])
    assert [name for name, _ in down] == ["greeting", "welcome", "granted"]
    assert down[2][1] == {"request_id": 1, "token": 7, "waited_ms": 0}


def test_macs_are_right():
    made = make_transcript(scenario(SCENARIO))
    (_, hello), _ = read_stream("client", made.up[0])
    given = hello.pop("mac")
    assert mac(golden.the_spec(), b"conformance-secret", made.down[0][:26], hello) == given


def test_the_digest_separates_connections():
    assert digest_of((b"ab", b"c")) != digest_of((b"a", b"bc"))
    total = hashlib.sha256(b"\0\0\0\0\0\0\0\x02ab\0\0\0\0\0\0\0\x01c").hexdigest()
    assert digest_of((b"ab", b"c")) == total


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("wait_ms=0 ", ""),
        ("lease_ms=5", "lease_ms=0"),
        ("lease_ms=5", "lease_ms={t.lease}"),
        (" seed=r:01*16", ""),
        ("release request_id=2", "release request_id=2 more=1"),
    ],
)
def test_a_script_that_leaves_bytes_open_is_refused(old, new):
    with pytest.raises(ScriptError, match=r"x\.case:\d+: the golden transcript is left open"):
        make_transcript(scenario(SCENARIO.replace(old, new)))


def test_stale_transcripts_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(golden, "GOLDEN_DIR", tmp_path)
    case = scenario(SCENARIO)
    changes = golden.stale_transcripts([case])
    assert list(changes) == [tmp_path / "some.txt"]
    for path, text in changes.items():
        path.write_text(text)
    assert golden.stale_transcripts([case]) == {}
    assert read_transcript(case) == make_transcript(case)
    changed = scenario(SCENARIO.replace("token=7", "token=8"))
    assert list(golden.stale_transcripts([changed])) == [tmp_path / "some.txt"]
    assert golden.stale_transcripts([]) == {tmp_path / "some.txt": None}


def test_the_kept_transcripts_are_those_of_now():
    cases = [
        c for path in sorted((CASES_DIR / "identity").glob("*.case")) for c in load_cases(path)
    ]
    assert golden.stale_transcripts(cases) == {}


@pytest.mark.parametrize(
    ("up", "down", "why"),
    [
        ((b"abc",), (b"xyz",), ""),
        ((b"abc", b""), (b"xyz", b""), "2 connections were made, expected 1"),
        ((b"abd",), (b"xyz",), "sent on connection 1 differs from byte 2"),
        ((b"ab",), (b"xyz",), "its end instead of 63"),
        ((b"abcd",), (b"xyz",), "64 instead of its end"),
        ((b"abc",), (b"xy",), "received on connection 1"),
    ],
)
def test_differences_are_told(up, down, why):
    told = difference(Transcript("s", (b"abc",), (b"xyz",)), up, down)
    assert (why in told) if why else told == ""
