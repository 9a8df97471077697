"""Macs, proofs and secrets."""

from __future__ import annotations

from pathlib import Path

from engine_driver import Named
from ticketing_server import auth, wire

VECTORS = Path(__file__).parents[2] / "spec" / "vectors" / "v4-hashes.vec"


def value(text: str) -> bytes:
    assert text.startswith("x:")
    return bytes.fromhex(text[2:])


def cases(kind: str) -> list[dict[str, str]]:
    stanzas = VECTORS.read_text().split("\n\n")
    found = [
        dict(line.split(": ", 1) for line in stanza.splitlines() if ": " in line)
        for stanza in stanzas
    ]
    found = [case for case in found if case.get("hash") == kind]
    assert found
    return found


def test_client_macs_are_the_vectors() -> None:
    for case in cases("client_mac"):
        hello = wire.Hello(
            int(case["version"]),
            int(case["client_id"]).to_bytes(8, "big"),
            int(case["connection"]),
            value(case["client_nonce"]),
            b"",
            value(case["label"]),
        )
        mac = auth.client_mac(value(case["secret"]), value(case["greeting"]), hello.covered())
        assert mac == value(case["result"]), case["id"]


def test_proofs_are_the_vectors() -> None:
    for case in cases("proof"):
        fields = wire.welcome_fields(
            int(case["role"]), int(case["keepalive_s"]), value(case["fingerprint"])
        )
        proof = auth.proof(
            value(case["secret"]),
            value(case["greeting"]),
            value(case["client_nonce"]),
            fields,
            value(case["leader"]),
        )
        assert proof == value(case["result"]), case["id"]


def test_greeting_is_26_bytes() -> None:
    assert auth.greeting(1, 3, bytes(16)) == b"TICKET\x04\x04\x01\x03" + bytes(16)


def test_every_secret_is_compared() -> None:
    """So the time does not tell which secret was near."""
    asked: list[bytes] = []

    def expected(secret: bytes) -> bytes:
        asked.append(secret)
        return secret * 4

    secrets = auth.Secrets([Named("a", b"first"), Named("b", b"other"), Named("c", b"third")])
    assert secrets.match(b"first" * 4, expected) == ("a", b"first")
    assert asked == [b"first", b"other", b"third"]
    assert secrets.match(b"wrong" * 4, expected) is None
    assert auth.Secrets(()).match(b"", lambda secret: secret) == ("", b"")


def test_refusal_delay_covers_its_range() -> None:
    """REQ-HELLO-DELAY."""
    assert auth.refusal_delay_ms(b"\0\0") == 100
    assert auth.refusal_delay_ms(b"\xff\xff") == 300
    assert {auth.refusal_delay_ms(bytes((high, 0))) for high in range(256)} <= set(range(100, 301))
