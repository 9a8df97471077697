"""The worked examples of PROTOCOL.md, computed by the codec."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ticketing_spec import codec
from ticketing_spec.codec import Value
from ticketing_spec.model import Spec
from ticketing_spec.show import render, rows

SECRET = b"correct horse battery staple"
SEED = bytes(range(16))
SERVER_NONCE = bytes(range(0xA0, 0xB0))
CLIENT_ID = 0x0123456789ABCDEF
TOKEN = 1_832_000_000_000 << 20
Fields = dict[str, Value]


def example(spec: Spec, name: str) -> list[str]:
    return EXAMPLES[name](spec)


def _block(text: str) -> list[str]:
    return ["```", *text.rstrip("\n").split("\n"), "```"]


def _shown(spec: Spec, direction: str, wire: bytes) -> list[str]:
    return _block(render(rows(spec, direction, wire)))


def greeting_wire(spec: Spec) -> bytes:
    fields: Fields = {"min_version": 4, "max_version": 4, "mode": 0, "slot": 255}
    return codec.encode_preamble(spec, "greeting", {**fields, "nonce": SERVER_NONCE})


def hello_fields(spec: Spec) -> Fields:
    fields: Fields = {
        "version": 4,
        "client_id": CLIENT_ID,
        "connection": 1,
        "client_nonce": codec.client_nonce(spec, SEED, 1),
        "label": b"web-1:4711;python/0.1.0",
    }
    return {**fields, "mac": codec.mac(spec, SECRET, greeting_wire(spec), fields)}


def welcome_fields(spec: Spec) -> Fields:
    fields: Fields = {"role": 0, "keepalive_s": 5, "fingerprint": bytes(32), "leader": b""}
    nonce = codec.client_nonce(spec, SEED, 1)
    return {**fields, "proof": codec.proof(spec, SECRET, greeting_wire(spec), nonce, fields)}


def _inputs(spec: Spec) -> list[str]:
    return _block(
        f"secret     {SECRET.decode()!r}\nseed       {SEED.hex()}\nclient id  0x{CLIENT_ID:016x}"
    )


def _greeting(spec: Spec) -> list[str]:
    return _shown(spec, "server", greeting_wire(spec))


def _nonce(spec: Spec) -> list[str]:
    data = spec.context("nonce_context") + SEED + (1).to_bytes(8, "big")
    return _block(
        f"data          {data.hex()}\nclient_nonce  {codec.client_nonce(spec, SEED, 1).hex()}"
    )


def _hashed(spec: Spec, name: str, inputs: dict[str, bytes]) -> list[str]:
    parts = []
    for part in spec.digest_of(name).parts:
        kind, _, detail = part.partition(":")
        data = spec.context(detail) if kind == "context" else inputs[kind]
        parts.append((detail if kind == "context" else kind, data))
    width = max(len(label) for label, _ in parts)
    lines = []
    for label, data in parts:
        for start in range(0, max(len(data), 1), 26):
            lines.append(f"{label.ljust(width)}  {data[start : start + 26].hex()}".rstrip())
            label = ""
    return _block("\n".join(lines))


def _frame_inputs(spec: Spec, direction: str, name: str, fields: Fields) -> dict[str, bytes]:
    frame = spec.frame(direction, name)
    wire = codec.encode(spec, direction, name, fields)[3:]
    return {
        f"{name}.{f.name}": wire[at:] if f.is_tail else wire[at : at + (f.size or 0)]
        for at, f in frame.offsets()
    }


def _mac(spec: Spec) -> list[str]:
    inputs = _frame_inputs(spec, "client", "hello", hello_fields(spec))
    return _hashed(spec, "client_mac", {"greeting": greeting_wire(spec), **inputs})


def _hello(spec: Spec) -> list[str]:
    return _shown(spec, "client", codec.encode(spec, "client", "hello", hello_fields(spec)))


def _proof(spec: Spec) -> list[str]:
    inputs = _frame_inputs(spec, "server", "welcome", welcome_fields(spec))
    nonce = codec.client_nonce(spec, SEED, 1)
    inputs |= {"greeting": greeting_wire(spec), "hello.client_nonce": nonce}
    return _hashed(spec, "proof", inputs)


def _welcome(spec: Spec) -> list[str]:
    return _shown(spec, "server", codec.encode(spec, "server", "welcome", welcome_fields(spec)))


def _session(direction: str, name: str, fields: Fields, spec: Spec) -> list[str]:
    return _shown(spec, direction, codec.encode(spec, direction, name, fields))


def _greeting3(spec: Spec) -> bytes:
    fields: Fields = {"version": 3, "mode": 0, "slot": 255, "nonce": SERVER_NONCE}
    return codec.encode_preamble(spec, "greeting", fields)


def _answer3(spec: Spec) -> list[str]:
    greeting, fingerprint = _greeting3(spec), codec.fingerprint(spec, None)
    answer = codec.mac(spec, SECRET, greeting, {"fingerprint": fingerprint})
    return _block(
        f"greeting     {greeting.hex()}\nfingerprint  {fingerprint.hex()}\n"
        f"answer       {answer.hex()}\nverdict      01"
    )


EXAMPLES: dict[str, Callable[[Spec], list[str]]] = {
    "inputs": _inputs,
    "greeting": _greeting,
    "nonce": _nonce,
    "mac": _mac,
    "hello": _hello,
    "proof": _proof,
    "welcome": _welcome,
    "acquire": partial(
        _session,
        "client",
        "acquire",
        {"request_id": 1, "wait_ms": 10_000, "lease_ms": 30_000, "key": b"orders/42"},
    ),
    "granted": partial(
        _session, "server", "granted", {"request_id": 1, "token": TOKEN, "waited_ms": 1234}
    ),
    "release": partial(
        _session, "client", "release", {"request_id": 2, "token": TOKEN, "key": b"orders/42"}
    ),
    "released": partial(_session, "server", "released", {"request_id": 2}),
    "answer": _answer3,
}
