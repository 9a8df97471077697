"""The codec and the hashes against the golden vectors. Missing files fail; nothing is skipped."""

from __future__ import annotations

from pathlib import Path

import pytest
from ticketing import _constants_gen as c
from ticketing._core import handshake
from ticketing._core.codec import Malformed, ReplyReader, decode, encode

VECTORS = Path(__file__).parents[3] / "spec" / "vectors"
META = {"id", "frame", "dir", "flags", "why", "wire", "error", "layer", "answer", "hash", "result"}
INTEGERS = {
    *("version", "client_id", "connection", "request_id", "wait_ms", "lease_ms", "token"),
    *("acquire_id", "echo", "role", "keepalive_s", "waited_ms", "reason", "code"),
}


def stanzas(name: str) -> list[dict[str, str]]:
    """The stanzas of a file; FileNotFoundError where it is missing."""
    found = []
    for part in (VECTORS / name).read_text("utf-8").split("\n\n")[1:]:
        pairs = (line.partition(":") for line in part.strip("\n").split("\n"))
        found.append({key: value.removeprefix(" ") for key, _, value in pairs})
    return found


def value(field: str, text: str) -> int | bytes | list[bytes]:
    """A field's value as the codec takes it."""
    if field in INTEGERS:
        return int(text)
    if field == "keys":
        return [bytes.fromhex(part.removeprefix("x:")) for part in text.split(",")]
    return bytes.fromhex(text.removeprefix("x:"))


def fields_of(stanza: dict[str, str]) -> dict[str, int | bytes | list[bytes]]:
    return {key: value(key, text) for key, text in stanza.items() if key not in META}


def test_files_are_there() -> None:
    names = {path.name for path in VECTORS.glob("v4-*.vec")}
    assert names == {
        f"v4-{name}.vec"
        for name in (
            *("client", "client-malformed", "hashes", "preambles", "server", "server-malformed"),
        )
    }


@pytest.mark.parametrize("direction", ["client", "server"])
def test_frames(direction: str) -> None:
    """REQ-FRAME-BYTES: each frame encodes to its bytes, and decodes to its fields."""
    seen = stanzas(f"v4-{direction}.vec")
    assert len(seen) > 100
    for stanza in seen:
        wire, fields = bytes.fromhex(stanza["wire"]), fields_of(stanza)
        assert decode(direction, wire) == (stanza["frame"], fields), stanza["id"]
        if "tolerated" not in stanza["flags"].split():
            assert encode(direction, stanza["frame"], fields) == wire, stanza["id"]


@pytest.mark.parametrize("direction", ["client", "server"])
def test_malformed_frames(direction: str) -> None:
    """REQ-FRAME-OP REQ-FRAME-LENGTH: what no correct peer sends is refused, at the right layer."""
    seen = stanzas(f"v4-{direction}-malformed.vec")
    assert len(seen) > 100
    for stanza in seen:
        with pytest.raises(Malformed) as refusal:
            decode(direction, bytes.fromhex(stanza["wire"]))
        assert refusal.value.layer == stanza["layer"], stanza["id"]


def test_reader_takes_every_server_frame_at_every_split() -> None:
    """REQ-FRAME-SPLIT: whole, byte by byte and in one batch, the reader sees the same."""
    seen = stanzas("v4-server.vec")
    batch = b"".join(bytes.fromhex(s["wire"]) for s in seen)
    whole = list(ReplyReader().feed(batch))
    assert [reply[0] for reply in whole] == [bytes.fromhex(s["wire"])[0] for s in seen]
    for reply, stanza in zip(whole, seen, strict=True):
        assert list(reply[1:]) == list(fields_of(stanza).values()), stanza["id"]
    reader = ReplyReader()
    single = [reply for at in range(len(batch)) for reply in reader.feed(batch[at : at + 1])]
    assert single == whole
    assert reader.buffered_bytes == 0


def test_reader_refuses_illegal_headers_before_the_body() -> None:
    """REQ-FRAME-LENGTH: the header alone is enough, so a body is never waited for."""
    headers = [s for s in stanzas("v4-server-malformed.vec") if s["layer"] == "frame"]
    assert headers
    for stanza in headers:
        with pytest.raises(Malformed):
            list(ReplyReader().feed(bytes.fromhex(stanza["wire"])[:3]))


def test_greetings() -> None:
    """Right greetings are read, spoilt ones are refused."""
    for stanza in stanzas("v4-preambles.vec"):
        wire = bytes.fromhex(stanza["wire"])
        if stanza["frame"] != "greeting":
            continue
        if "error" not in stanza:
            greeting = handshake.parse_greeting(wire)
            assert greeting.raw == wire
            assert greeting.min_version == int(stanza["min_version"])
            assert greeting.max_version == int(stanza["max_version"])
            assert (greeting.mode, greeting.slot) == (int(stanza["mode"]), int(stanza["slot"]))
        elif len(wire) == c.GREETING_BYTES and stanza["layer"] != "stream":
            greeting = None
            with pytest.raises(Malformed):
                greeting = handshake.parse_greeting(wire)
            assert greeting is None, stanza["id"]


def test_hashes() -> None:
    """REQ-HELLO-MAC REQ-CONN-PROOF REQ-BYTES-NONCE: over given secrets, greetings and seeds."""
    seen = set()
    for stanza in stanzas("v4-hashes.vec"):
        given = {
            key: value(key, text)
            for key, text in stanza.items()
            if key not in META and key != "hash"
        }
        seen.add(stanza["hash"])
        expected = bytes.fromhex(stanza["result"].removeprefix("x:"))
        if stanza["hash"] == "client_mac":
            given["nonce"] = given.pop("client_nonce")
            result = handshake.client_mac(**given)  # type: ignore[arg-type]
        elif stanza["hash"] == "proof":
            given["nonce"] = given.pop("client_nonce")
            result = handshake.server_proof(**given)  # type: ignore[arg-type]
        elif stanza["hash"] == "client_nonce":
            result = handshake.client_nonce(**given)  # type: ignore[arg-type]
        else:
            continue  # A client only compares the fingerprint that it is told.
        assert result == expected, stanza["id"]
    assert {"client_mac", "proof", "client_nonce"} <= seen
