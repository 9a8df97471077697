"""What the harness judges with: vectors, legal bytes, and the parser that Kaitai makes."""

from pathlib import Path

import pytest
from ticketing_conformance.adapter import Answer
from ticketing_conformance.context import Capture, StepFailed
from ticketing_conformance.golden import GOLDEN_DIR
from ticketing_conformance.kaitai import (
    KaitaiBroken,
    KaitaiParser,
    compile_parser,
)
from ticketing_conformance.loose_codec import encode_loose
from ticketing_conformance.report_html import annotate, stream_table
from ticketing_conformance.results import StreamText
from ticketing_conformance.runner import check_captures
from ticketing_conformance.streams import Connection, read_stream, the_spec
from ticketing_conformance.vectors import VectorError, load_checks, parse_vectors
from ticketing_spec.codec import decode, encode
from ticketing_spec.kaitai import ToolMissing
from ticketing_spec.model import SPEC_DIR

ACQUIRE = {"request_id": 1, "wait_ms": 0, "lease_ms": 5, "key": b"k"}
VECTORS = sorted((SPEC_DIR / "vectors").glob("v4-*.vec"))


class SpecAdapter:
    """Answers the codec plane with the spec's codec, and with one mistake where it is told to."""

    def __init__(self, mistake=""):
        self.mistake = mistake

    def ask(self, verb, fields):
        if self.mistake == verb:
            return Answer("ok", {"wire": b"", verb: b""})
        fields = dict(fields)
        direction = fields.pop("dir", "")
        if verb == "encode":
            return Answer(
                "ok", {"wire": encode(the_spec(), direction, fields.pop("frame"), fields)}
            )
        try:
            name, read = decode(the_spec(), direction, fields["wire"])
        except ValueError:
            return Answer("err", {"kind": "malformed"})
        return Answer("ok", {"frame": name, **read})


def codec_checks():
    checks = [check for path in VECTORS for check in load_checks(path)]
    return [c for c in checks if not c.id.endswith(".hash") and "preambles" not in c.id]


def test_the_spec_s_codec_passes_every_vector():
    assert len(VECTORS) == 6
    for check in codec_checks():
        for vector in check.vectors:
            assert check.run(SpecAdapter(), vector) == "", vector.id


@pytest.mark.parametrize("mistake", ["encode", "decode"])
def test_a_wrong_codec_fails_every_vector_of_its_kind(mistake):
    for check in codec_checks():
        way = check.id.rpartition(".")[2]
        if way == mistake or (mistake == "decode" and way == "refuse"):
            for vector in check.vectors:
                assert check.run(SpecAdapter(mistake), vector) != "", vector.id


def test_vectors_of_version_3_are_not_for_clients():
    assert load_checks(SPEC_DIR / "vectors" / "v3-client.vec") == []


@pytest.mark.parametrize("text", ["", "# only a comment\n", "id: a\nid: b\n", "id: a\nnonsense\n"])
def test_files_of_vectors_that_are_refused(text):
    with pytest.raises(VectorError):
        parse_vectors(text, "x.vec")


def connection(up=b"", down=b"", ended=""):
    made = Connection(1)
    made.up.append(up)
    made.down.append(down)
    if ended:
        made.up.end(ended)
    return Capture("x", made)


STREAM = next(
    bytes.fromhex(line.partition(": ")[2])
    for line in (GOLDEN_DIR / "single-key.txt").read_text().splitlines()
    if line.startswith("up: ")
)
HELLO = STREAM[: 3 + int.from_bytes(STREAM[1:3], "big")]


def test_legal_bytes_are_found_legal():
    hello = HELLO
    check_captures([connection(hello + encode(the_spec(), "client", "acquire", ACQUIRE))])
    check_captures([connection(hello + b"A\0", ended="reset")])
    with pytest.raises(StepFailed, match="half a frame"):
        check_captures([connection(hello + b"A\0", ended="eof")])
    with pytest.raises(StepFailed, match="frame 2 of the client is hello"):
        check_captures([connection(hello + hello)])
    with pytest.raises(StepFailed, match="frame 1 of the client is acquire"):
        check_captures([connection(encode(the_spec(), "client", "acquire", ACQUIRE))])
    bad = encode_loose("client", "acquire", {**ACQUIRE, "lease_ms": 0})
    with pytest.raises(StepFailed, match="lease_ms"):
        check_captures([connection(hello + bad)])


def test_the_loose_codec_is_the_codec_where_values_are_right():
    assert encode_loose("client", "acquire", ACQUIRE) == encode(
        the_spec(), "client", "acquire", ACQUIRE
    )
    keys = {"request_id": 1, "wait_ms": 0, "lease_ms": 5, "keys": [b"b", b"a", b"a"]}
    assert encode_loose("client", "acquire_set", keys).endswith(b"\x03\x01b\x01a\x01a")
    assert encode_loose("client", "ping", {"echo": 1}, length=9)[1:3] == b"\0\x09"


def test_annotated_bytes():
    data = encode(the_spec(), "client", "acquire", ACQUIRE)
    ((offset, shown, reading),) = annotate("client", data)
    assert offset == "0"
    assert data.hex(" ") in shown
    assert "15: <code>00000005</code> lease_ms 5" in reading
    other = encode(the_spec(), "client", "acquire", {**ACQUIRE, "lease_ms": 6})
    table = stream_table(StreamText("x", 1, "up", data.hex(), other.hex()))
    assert 'class="differs"' in table
    assert "lease_ms 6" in table
    assert annotate("client", b"\xff\0\x01a")[0][2].startswith("malformed")


@pytest.fixture(scope="module")
def parser(tmp_path_factory):
    try:
        return KaitaiParser(compile_parser(tmp_path_factory.mktemp("kaitai")))
    except ToolMissing as error:
        pytest.skip(str(error))


def test_kaitai_reads_every_golden_stream(parser):
    streams = 0
    for path in sorted(Path(GOLDEN_DIR).glob("*.txt")):
        for line in path.read_text().splitlines():
            way, _, value = line.partition(": ")
            if way in ("up", "down"):
                data = bytes.fromhex(value)
                made = connection(data) if way == "up" else connection(b"", data)
                streams += parser.check([made])
    assert streams > 40


def test_a_disagreement_with_kaitai_is_noticed(parser):
    data = encode(the_spec(), "client", "acquire", ACQUIRE)
    parser.compare("client", data, read_stream("client", data), "here")
    with pytest.raises(KaitaiBroken, match="here"):
        parser.compare("client", data, [("acquire", {**ACQUIRE, "lease_ms": 6})], "here")
    with pytest.raises(KaitaiBroken, match="can't read"):
        parser.compare("client", b"\xff" + data[1:], [], "here")
