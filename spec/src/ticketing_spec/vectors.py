"""Golden vectors: frames with their fields, spoilt frames with their layer, hashes with inputs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ticketing_spec import codec
from ticketing_spec.codec import Malformed, Value
from ticketing_spec.model import Frame, Spec, SpecError
from ticketing_spec.samples import (
    FLAGS,
    highest,
    lowest,
    pattern_bytes,
    samples,
    typical_fields,
)
from ticketing_spec.spoil import SPOILERS, decode_any, field_bytes, raw_frame

Fields = dict[str, Value]


@dataclass(frozen=True)
class Vector:
    """`wire` with `fields`, or with `error` and `layer`, or a hash with its `result`."""

    id: str
    what: str
    direction: str
    flags: tuple[str, ...]
    why: str
    wire: bytes | None = None
    fields: Fields = field(default_factory=dict)
    error: str | None = None
    layer: str | None = None
    answer: str | None = None
    result: bytes | None = None

    def stanza(self) -> list[tuple[str, str]]:
        """The lines of the vector, in order, as key and value."""
        head = "hash" if self.result is not None else "frame"
        lines = [("id", self.id), (head, self.what)]
        if self.direction:
            lines.append(("dir", self.direction))
        lines += [("flags", " ".join(self.flags)), ("why", self.why)]
        if self.wire is not None:
            lines.append(("wire", self.wire.hex()))
        if self.error is not None:
            lines += [("error", self.error), ("layer", self.layer or "")]
            if self.answer is not None:
                lines.append(("answer", self.answer))
        lines += [(name, show_value(value)) for name, value in self.fields.items()]
        if self.result is not None:
            lines.append(("result", show_value(self.result)))
        return lines


def show_value(value: Value) -> str:
    """Integers in decimal, bytes as `x:` and hex, keys as such with commas."""
    if isinstance(value, int):
        return str(value)
    if isinstance(value, bytes):
        return f"x:{value.hex()}"
    return ",".join(f"x:{key.hex()}" for key in value)


def files(spec: Spec) -> dict[str, list[Vector]]:
    """Every vector of a spec by the stem of its file."""
    prefix = f"v{spec.version}"
    result = {
        f"{prefix}-preambles": [*preamble_vectors(spec)],
        f"{prefix}-hashes": [*hash_vectors(spec)],
    }
    for direction in ("client", "server"):
        result[f"{prefix}-{direction}"] = [*valid_vectors(spec, direction)]
        result[f"{prefix}-{direction}-malformed"] = [*malformed_vectors(spec, direction)]
    _check_ids(result)
    return result


def _check_ids(vectors: Mapping[str, Iterable[Vector]]) -> None:
    seen: set[str] = set()
    for vector in (v for group in vectors.values() for v in group):
        if vector.id in seen:
            raise SpecError(f"two vectors have the id {vector.id}")
        seen.add(vector.id)


def valid_vectors(spec: Spec, direction: str) -> Iterator[Vector]:
    for frame in spec.frames_of(direction):
        yield from _frame_vectors(spec, frame)


def preamble_vectors(spec: Spec) -> Iterator[Vector]:
    for preamble in spec.preambles:
        yield from _frame_vectors(spec, preamble)
    for direction in ("client", "server"):
        yield from (v for v in _spoilt(spec, direction) if _is_preamble(spec, v.what))


def _frame_vectors(spec: Spec, frame: Frame) -> Iterator[Vector]:
    seen: set[bytes] = set()
    for slug, flag, why, fields in _variants(spec, frame):
        wire = _wire(spec, frame, fields, tolerated=flag == "tolerated")
        if wire in seen:
            continue
        seen.add(wire)
        vector_id = f"v{spec.version}/{frame.direction}/{frame.name}/{slug}"
        yield Vector(vector_id, frame.name, frame.direction, (flag,), why, wire, fields)


def _variants(spec: Spec, frame: Frame) -> Iterator[tuple[str, str, str, Fields]]:
    base = typical_fields(spec, frame)
    yield "typical", "typical", frame.about.rstrip("."), base
    low = {f.name: lowest(spec, f) for f in frame.fields}
    yield "lowest", "lowest", "every field at its lowest or shortest", low
    high = {f.name: highest(spec, f) for f in frame.fields}
    yield "highest", "highest", "every field at its highest or longest", high
    for each in frame.fields:
        for sample in samples(spec, each):
            yield sample.slug, sample.flag, sample.why, {**base, each.name: sample.value}


def _wire(spec: Spec, frame: Frame, fields: Fields, *, tolerated: bool) -> bytes:
    if tolerated:
        body = b"".join(field_bytes(spec, f, fields[f.name]) for f in frame.fields)
        wire = raw_frame(frame, body)
    elif frame.op is None:
        wire = codec.encode_preamble(spec, frame.name, fields)
    else:
        wire = codec.encode(spec, frame.direction, frame.name, fields)
    if frame.op is None:
        decoded = codec.decode_preamble(spec, frame.name, wire)
    else:
        decoded = codec.decode(spec, frame.direction, wire)[1]
    if decoded != fields:
        raise SpecError(f"{frame.name} does not decode to what was encoded: {wire.hex()}")
    return wire


def _is_preamble(spec: Spec, name: str) -> bool:
    return any(p.name == name for p in spec.preambles)


def malformed_vectors(spec: Spec, direction: str) -> Iterator[Vector]:
    return (v for v in _spoilt(spec, direction) if not _is_preamble(spec, v.what))


def _spoilt(spec: Spec, direction: str) -> Iterator[Vector]:
    for case in spec.malformed:
        if case.spoil is None or case.side not in (direction, "both"):
            continue
        name, _, argument = case.spoil.partition(":")
        spoil = SPOILERS[name]
        made = spoil(spec, direction, argument) if argument else spoil(spec, direction)
        found = False
        for frame, slug, wire in made:
            found = True
            _expect_layer(spec, direction, frame, wire, case.layer, case.id)
            vector_id = f"v{spec.version}/{direction}/{frame}/{case.id}/{slug}"
            answer = case.error
            if answer is None and spec.version >= 4 and direction == "client":
                answer = None if case.layer == "stream" else "bad_frame"
            yield Vector(
                vector_id,
                frame,
                direction,
                ("malformed",),
                case.why,
                wire,
                error=case.id,
                layer=case.layer,
                answer=answer,
            )
        if not found and case.side == direction:
            raise SpecError(
                f"{spec.file}: malformed {case.id}: no {direction} frame can be spoilt so"
            )


def _expect_layer(
    spec: Spec, direction: str, frame: str, wire: bytes, layer: str, case: str
) -> None:
    """The toml's word for the layer and the codec's must be the same."""
    try:
        decode_any(spec, direction, frame, wire)
    except Malformed as error:
        if error.layer == layer:
            return
        raise SpecError(
            f"{spec.file}: malformed {case}: layer is {layer!r}, but {frame} {wire.hex()} "
            f"is rejected at {error.layer!r}: {error.why}"
        ) from error
    raise SpecError(f"{spec.file}: malformed {case}: {frame} {wire.hex()} is not rejected")


SECRETS = {
    "empty": b"",
    "one-zero": b"\0",
    "one-byte": b"s",
    "plain": b"correct horse battery staple",
    "utf8": "schlüssel 🎫".encode(),
    "high": bytes(range(0x80, 0xC0)),
    "65-bytes": b"k" * 65,
    "longest": bytes(1 + i % 9 for i in range(1024)),
}


def hash_vectors(spec: Spec) -> Iterator[Vector]:
    prefix = f"v{spec.version}/hash"
    if any(d.name == "client_nonce" for d in spec.digests):
        yield from _version4_hashes(spec, prefix)
    else:
        yield from _version3_hashes(spec, prefix)
    for slug, cluster in (("one", b"c1"), ("bytes", pattern_bytes(16)), ("empty", b"")):
        yield Vector(
            f"{prefix}/fingerprint/{slug}",
            "fingerprint",
            "",
            ("hash",),
            f"a cluster id of {len(cluster)} bytes",
            fields={"cluster_id": cluster},
            result=codec.fingerprint(spec, cluster),
        )
    yield Vector(
        f"{prefix}/fingerprint/standalone",
        "fingerprint_standalone",
        "",
        ("hash",),
        "a standalone server",
        result=codec.fingerprint(spec, None),
    )


def _secret_flags(secret: bytes) -> tuple[str, ...]:
    if secret in (b"", b"\0"):
        return ("hash", "empty-secret")
    return ("hash", "long-secret") if len(secret) > 64 else ("hash",)


def _greeting(spec: Spec, **changes: Value) -> bytes:
    return codec.encode_preamble(
        spec, "greeting", {**typical_fields(spec, spec.preamble("greeting")), **changes}
    )


def _version4_hashes(spec: Spec, prefix: str) -> Iterator[Vector]:
    hello = typical_fields(spec, spec.frame("client", "hello"))
    welcome = typical_fields(spec, spec.frame("server", "welcome"))
    del hello["mac"], welcome["proof"]
    cluster: Fields = {"mode": 1, "slot": 2, "nonce": b"\xff" * 16}
    cases: list[tuple[str, str, bytes, bytes, Fields, Fields]] = [
        (f"secret-{slug}", f"secret: {slug}", secret, _greeting(spec), {}, {})
        for slug, secret in SECRETS.items()
    ]
    plain = SECRETS["plain"]
    cases += [
        ("cluster", "a leader in a cluster", plain, _greeting(spec, **cluster), {},
         {"role": 1, "keepalive_s": 1, "fingerprint": codec.fingerprint(spec, b"c1"),
          "leader": b"node-1.example.com:5225"}),
        ("versions", "other version bytes in the greeting change both", plain,
         _greeting(spec, min_version=1, max_version=9), {}, {}),
        ("lowest", "everything at its lowest", plain, _greeting(spec, nonce=bytes(16)),
         {"version": 0, "client_id": 0, "connection": 0, "client_nonce": bytes(16), "label": b"!"},
         {"keepalive_s": 1, "leader": b""}),
        ("highest", "everything at its highest", plain, _greeting(spec, nonce=b"\xff" * 16),
         {"version": 255, "client_id": 2**64 - 1, "connection": 2**32 - 1,
          "client_nonce": b"\xff" * 16, "label": b"~" * 64},
         {"role": 3, "keepalive_s": 3600, "fingerprint": b"\xff" * 32, "leader": b"~" * 260}),
    ]  # fmt: skip
    for slug, why, secret, greeting, changed_hello, changed_welcome in cases:
        inputs = {**hello, **changed_hello}
        yield Vector(
            f"{prefix}/client_mac/{slug}",
            "client_mac",
            "",
            _secret_flags(secret),
            why,
            fields={"secret": secret, "greeting": greeting, **inputs},
            result=codec.mac(spec, secret, greeting, inputs),
        )
        nonce = inputs["client_nonce"]
        assert isinstance(nonce, bytes)
        outputs = {**welcome, **changed_welcome}
        yield Vector(
            f"{prefix}/proof/{slug}",
            "proof",
            "",
            _secret_flags(secret),
            why,
            fields={"secret": secret, "greeting": greeting, "client_nonce": nonce, **outputs},
            result=codec.proof(spec, secret, greeting, nonce, outputs),
        )
    for slug, seed in (
        ("zeros", bytes(16)),
        ("pattern", pattern_bytes(16)),
        ("ones", b"\xff" * 16),
    ):
        for number in (1, 2, 256, 2**32 - 1):
            yield Vector(
                f"{prefix}/client_nonce/{slug}-{number}",
                "client_nonce",
                "",
                ("hash",),
                f"hello number {number} of a client whose seed is {slug}",
                fields={"seed": seed, "connection": number},
                result=codec.client_nonce(spec, seed, number),
            )


def _version3_hashes(spec: Spec, prefix: str) -> Iterator[Vector]:
    standalone = codec.fingerprint(spec, None)
    cases = [
        (f"secret-{slug}", f"secret: {slug}", secret, _greeting(spec), standalone)
        for slug, secret in SECRETS.items()
    ]
    cluster = _greeting(spec, mode=1, slot=2, nonce=b"\xff" * 16)
    fingerprint = codec.fingerprint(spec, b"c1")
    cases.append(("cluster", "slot 2 of a cluster", SECRETS["plain"], cluster, fingerprint))
    for slug, why, secret, greeting, print_ in cases:
        yield Vector(
            f"{prefix}/client_mac/{slug}",
            "client_mac",
            "",
            _secret_flags(secret),
            why,
            fields={"secret": secret, "greeting": greeting, "fingerprint": print_},
            result=codec.mac(spec, secret, greeting, {"fingerprint": print_}),
        )


def to_text(vectors: Iterable[Vector], header: str) -> str:
    """The stanza form; vectors/README.md has its grammar."""
    blocks = [f"# {header}"]
    blocks += ["\n".join(f"{k}: {v}".rstrip() for k, v in v.stanza()) for v in vectors]
    return "\n\n".join(blocks) + "\n"


def to_json(spec: Spec, vectors: Iterable[Vector], header: str) -> str:
    """The same as JSON: every value is a text, since numbers there lose bits over 2^53."""
    listed = list(vectors)
    used = {flag for v in listed for flag in v.flags}
    document = {
        "generated": header,
        "version": spec.version,
        "flags": {name: about for name, about in FLAGS.items() if name in used},
        "vectors": [_json_vector(v) for v in listed],
    }
    return json.dumps(document, indent=1, ensure_ascii=True) + "\n"


def _json_vector(vector: Vector) -> dict[str, object]:
    head: dict[str, object] = {}
    names = set(vector.fields) | {"result"}
    for key, value in vector.stanza():
        if key not in names:
            head[key] = value.split() if key == "flags" else value
    if vector.error is None:
        head["fields"] = {
            name: [f"x:{k.hex()}" for k in value] if isinstance(value, list) else show_value(value)
            for name, value in vector.fields.items()
        }
    if vector.result is not None:
        head["result"] = show_value(vector.result)
    return head
