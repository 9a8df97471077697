"""Talking to adapters: what breaks the protocol is noticed, whatever it is."""

import sys
from pathlib import Path

import pytest
from ticketing_conformance.adapter import Adapter, AdapterBroken
from ticketing_conformance.adapters import BadEntry, Language, load_languages, parse_languages
from ticketing_conformance.streams import the_spec

FAKE = Path(__file__).with_name("fake_adapter.py")


@pytest.fixture
def start():
    started = []

    def start(mode):
        environment = {"DIGEST": the_spec().digest}
        started.append(Adapter([sys.executable, str(FAKE), mode], FAKE.parent, environment))
        return started[-1]

    yield start
    for adapter in started:
        adapter.kill()


def language(mode, **changes):
    entry = {
        "name": "fake",
        "language": "Fake",
        "probe": ("{python}", "--version"),
        "build": (),
        "command": ("{python}", str(FAKE), mode),
        "features": frozenset({"sync"}),
        "hint": "no hint",
        "environment": {"DIGEST": the_spec().digest},
        "tasks": {},
    }
    return Language(**{**entry, **changes})


def test_a_conversation(start):
    adapter = start("good")
    assert adapter.hello().language == "fake"
    assert adapter.ask("ping").fields == {"echo": 5}
    assert adapter.ask("release").text() == "err kind='lost'"
    assert adapter.ask("extend").text() == "fail text='oops'"
    assert adapter.stop() == 0


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("number", "bad answer to request"),
        ("garbage", "bad answer to ping"),
        ("dead", "ended during ping.*last words"),
    ],
)
def test_a_broken_adapter_is_killed(start, mode, why):
    adapter = start(mode)
    adapter.hello()
    with pytest.raises(AdapterBroken, match=why):
        adapter.ask("ping")
    assert not adapter.alive


def test_an_adapter_that_hangs_is_killed(start):
    adapter = start("hang")
    adapter.hello()
    with pytest.raises(AdapterBroken, match="within"):
        adapter.ask("ping", seconds=0.2)
    assert not adapter.alive


def test_the_exit_code_is_told(start):
    adapter = start("exit")
    adapter.hello()
    assert adapter.stop() == 3


def test_an_adapter_that_knows_every_verb_is_refused():
    with pytest.raises(AdapterBroken, match="unknown verb"):
        language("probe").start()


def test_a_wrong_digest_is_refused():
    with pytest.raises(AdapterBroken, match="spec 0000000000000000"):
        language("digest").start()


def test_other_features_are_refused():
    with pytest.raises(AdapterBroken, match="fork more, and lacks nothing"):
        language("features").start()
    with pytest.raises(AdapterBroken, match="nothing more, and lacks tls"):
        language("good", features=frozenset({"sync", "tls"})).start()


def test_a_missing_toolchain_is_told_with_its_hint():
    missing = language("good", probe=("/no/such/compiler",), hint="get it there")
    assert "get it there" in missing.missing_toolchain()
    failing = language("good", probe=("{python}", "-c", "raise SystemExit('too old')"))
    assert "too old" in failing.missing_toolchain()
    assert language("good").missing_toolchain() == ""


def test_a_failed_build_tells_its_output():
    failing = language("good", build=(("{python}", "-c", "raise SystemExit('no linker')"),))
    assert "no linker" in failing.build_adapter()
    assert language("good", build=(("{python}", "--version"),)).build_adapter() == ""


def test_features_of_one_api():
    some = language("good", features=frozenset({"async", "sync", "async:cancel", "fork"}))
    assert some.apis == ["async", "sync"]
    assert some.can(frozenset({"cancel", "fork"}), "async") == set()
    assert some.can(frozenset({"cancel", "tls"}), "sync") == {"cancel", "tls"}


ENTRY = """
[x]
language = "X"
probe = ["x"]
command = ["x"]
features = ["sync"]
hint = "h"
"""


def test_entries_are_checked():
    assert parse_languages(ENTRY)["x"].language == "X"
    for bad in (
        ENTRY.replace('hint = "h"', ""),
        ENTRY + "more = 1\n",
        ENTRY.replace('["sync"]', '["tls"]'),
        ENTRY.replace('probe = ["x"]', 'probe = "x"'),
        ENTRY + 'build = ["make"]\n',
    ):
        with pytest.raises(BadEntry, match="x"):
            parse_languages(bad)


def test_the_real_entries_are_right():
    assert "python" in load_languages()
