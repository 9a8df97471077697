"""`check` finds each way in which a spec can be wrong, and says where and what is taken."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ticketing_spec.check import (
    check_file,
    reference_problems,
    schema_problems,
    semantic_problems,
)
from ticketing_spec.model import SPEC_DIR, build_spec, read_toml

DATA, RAW = read_toml(SPEC_DIR / "ticketing.toml")
Raw = dict[str, Any]


def problems(change: Callable[[Raw], None]) -> list[str]:
    raw = copy.deepcopy(RAW)
    change(raw)
    for find in (schema_problems, reference_problems):
        found = list(find(raw))
        if found:
            return found
    return list(semantic_problems(build_spec("ticketing.toml", DATA, raw)))


@pytest.mark.parametrize("name", ["ticketing.toml", "version3.toml", "frozen/v4.toml"])
def test_the_spec_itself_is_sound(name: str) -> None:
    assert check_file(SPEC_DIR / name) == []


def frame(raw: Raw, direction: str, name: str) -> Raw:
    return next(f for f in raw["frame"] if (f["direction"], f["name"]) == (direction, name))


def field(raw: Raw, direction: str, name: str, wanted: str) -> Raw:
    return next(f for f in frame(raw, direction, name)["fields"] if f["name"] == wanted)


def named(raw: Raw, table: str, name: str) -> Raw:
    return next(e for e in raw[table] if name in (e.get("name"), e.get("id")))


SCHEMA_CASES: list[tuple[Callable[[Raw], Any], str]] = [
    (lambda r: r.pop("frame"), "the file: lacks frame; takes protocol, "),
    (lambda r: r.update(frames=[]), "the file: has frames; takes only "),
    (lambda r: frame(r, "client", "acquire").update(op="a"),
     'frame client acquire, op: is "a"; takes a text that matches ^[A-Z]$'),
    (lambda r: field(r, "client", "acquire", "wait_ms").update(type="u24"),
     'frame client acquire, fields wait_ms, type: is "u24"; takes one of u8, u16'),
    (lambda r: field(r, "client", "acquire", "wait_ms").update(origin="clock"),
     'fields wait_ms, origin: is "clock"; takes one of caller, constant'),
    (lambda r: named(r, "error", "bad_frame").update(code=0),
     "error bad_frame, code: is 0; takes 1 or more"),
    (lambda r: named(r, "error", "bad_frame").update(code=256),
     "error bad_frame, code: is 256; takes 255 or less"),
    (lambda r: named(r, "error", "bad_frame").update(closes="yes"),
     'error bad_frame, closes: is "yes"; takes boolean'),
    (lambda r: named(r, "limit", "key_bytes_max").update(value=-1),
     "value: is -1; takes 0 or more"),
    (lambda r: r["requirement"][0].update(id="REQ-FRAME"),
     'requirement REQ-FRAME, id: is "REQ-FRAME"; takes a text that matches'),
    (lambda r: r["requirement"][0].update(text="no sentence"), "takes a text that matches"),
    (lambda r: r["protocol"].update(header=["op:u8"]),
     'protocol, header: is ["op:u8"]; takes ["op'),
]  # fmt: skip

REFERENCE_CASES: list[tuple[Callable[[Raw], Any], str]] = [
    (lambda r: field(r, "client", "acquire", "lease_ms").update(min="lease_mn"),
     "client acquire, field lease_ms: min is 'lease_mn'; takes a number or the name of a limit"),
    (lambda r: r["preamble"][0]["fields"][0].update(const="magic"),
     "server greeting, field magic: const is 'magic'; takes the name of a context"),
    (lambda r: field(r, "client", "hello", "mac").pop("size"),
     "client hello, field mac: type bytes has no size"),
]  # fmt: skip

SEMANTIC_CASES: list[tuple[Callable[[Raw], Any], str]] = [
    (lambda r: frame(r, "client", "release").update(op="A"),
     "client op A stands 2 times; takes one"),
    (lambda r: frame(r, "client", "release").update(name="acquire"),
     "client frame acquire stands 2"),
    (lambda r: r["requirement"].append(r["requirement"][0]),
     "requirement REQ-FRAME-HEADER stands 2"),
    (lambda r: named(r, "error", "forbidden").update(code=1), "error code 1 stands 2 times"),
    (lambda r: named(r, "timer", "drain_timeout_ms").update(name="drain_timeout"),
     "timer drain_timeout: the name lacks its unit 'ms'; takes one with _ms"),
    (lambda r: named(r, "limit", "key_bytes_min").update(value=200),
     "key_bytes_min is 200, above its maximum 128"),
    (lambda r: frame(r, "client", "acquire")["fields"].reverse(),
     "client acquire, field key: the tail is not the last field"),
    (lambda r: field(r, "server", "welcome", "keepalive_s").update(min=5000),
     "server welcome, field keepalive_s: min 5000 is above max 3600"),
    (lambda r: field(r, "server", "welcome", "keepalive_s").update(max=65536),
     "max 65536 does not fit into u16"),
    (lambda r: field(r, "server", "welcome", "role").update(enum="rolle"),
     "enum is 'rolle'; takes one of drop, error, mode, role"),
    (lambda r: field(r, "server", "welcome", "role").update(type="u16"), "has type u16; takes u8"),
    (lambda r: r["preamble"][0]["fields"][0].update(size=7), "size is 7; takes 6 as its const"),
    (lambda r: field(r, "client", "acquire", "key").update(refusal="bad_key"),
     "refusal is 'bad_key'; takes the name of an error"),
    (lambda r: field(r, "client", "hello", "label").update(forbidden="20"),
     "forbidden bytes stand at a label; takes a key or keys"),
    (lambda r: frame(r, "client", "ping").pop("replies"), "client ping: has no replies"),
    (lambda r: frame(r, "server", "ping").update(replies=["ping"]), "server ping: has replies"),
    (lambda r: frame(r, "client", "ping").update(replies=["pong"]),
     "client ping: reply 'pong' is no server frame; takes cancelled, "),
    (lambda r: named(r, "limit", "key_bytes_max").update(value=240),
     "client acquire: may have 259 bytes; a frame with one key takes 255 at most"),
    (lambda r: named(r, "limit", "set_keys_max").update(value=600),
     "client acquire_set: its body may have 77417 bytes; takes 65535 at most"),
    (lambda r: r["preamble"][0]["fields"].append(field(r, "client", "acquire", "key")),
     "preamble greeting has a tail key; takes fixed fields"),
    (lambda r: r["requirement"][0].update(text="It works. It does. Really well indeed."),
     "requirement REQ-FRAME-HEADER: has several sentences"),
    (lambda r: r["requirement"][0].update(text="It is so."), "takes a whole sentence"),
    (lambda r: r["requirement"][0].update(text="A peer should send whole frames only."),
     "a MUST says 'should'"),
    (lambda r: named(r, "malformed", "zero-lease").update(error="bad"),
     "malformed zero-lease: error is 'bad'; takes the name of an error"),
    (lambda r: named(r, "malformed", "zero-lease").update(spoil="lease_none"),
     "malformed zero-lease: spoil is 'lease_none'; takes one of truncate, "),
    (lambda r: named(r, "malformed", "second-hello").update(spoil="op"),
     "malformed second-hello: a case of layer state has a spoil"),
    (lambda r: named(r, "digest", "proof")["parts"].append("context:nothing"),
     "digest proof: 'context:nothing' names no context"),
    (lambda r: named(r, "digest", "proof")["parts"].append("welcome.colour"),
     "digest proof: 'welcome.colour' names no field; takes frame.field"),
    (lambda r: named(r, "digest", "proof").pop("key"),
     "digest proof: HMAC-SHA-256 has keyed=False"),
    (lambda r: named(r, "machine", "ticket")["transitions"][0].update(to="kept"),
     "machine ticket: 'kept' is no state; takes held, ended"),
    (lambda r: named(r, "machine", "ticket")["states"].append({"name": "limbo", "about": "no way"}),
     "machine ticket: state limbo is never reached from held"),
    (lambda r: named(r, "machine", "ticket")["transitions"].append(
        named(r, "machine", "ticket")["transitions"][0]),
     "machine ticket, transition held on acquire of the same owner stands 2 times"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"), SCHEMA_CASES + REFERENCE_CASES + SEMANTIC_CASES,
    ids=[re.sub(r"\W+", "-", m)[:50] for _, m in SCHEMA_CASES + REFERENCE_CASES + SEMANTIC_CASES],
)  # fmt: skip
def test_a_mistake_is_named(change: Callable[[Raw], None], message: str) -> None:
    found = problems(change)
    assert [p for p in found if message in p], found


def test_a_file_that_is_no_toml_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text("limit = [")
    assert check_file(path)[0].startswith("broken.toml: is not toml: ")
    assert check_file(tmp_path / "none.toml") == [
        "none.toml: can't be read: No such file or directory"
    ]


def test_a_wrong_layer_is_found_by_the_generator(tmp_path: Path) -> None:
    """The layer that the toml claims and the one that the codec rejects at are compared."""
    from ticketing_spec import vectors
    from ticketing_spec.model import SpecError, read_spec

    text = (SPEC_DIR / "ticketing.toml").read_text()
    path = tmp_path / "ticketing.toml"
    path.write_text(text.replace('"empty-key", side = "client", layer = "frame"',
                                 '"empty-key", side = "client", layer = "body"'))  # fmt: skip
    with pytest.raises(SpecError, match="malformed empty-key: layer is 'body', but acquire"):
        vectors.files(read_spec(path))
