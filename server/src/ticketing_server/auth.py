"""Greeting, mac and proof of version 4, and the secrets that they are checked against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hmac import compare_digest, digest

from ticketing_server import constants_gen as c
from ticketing_server.engine import NamedSecret

NONCE_BYTES = 16
FINGERPRINT_STANDALONE = bytes(32)


def greeting(mode: int, slot: int, nonce: bytes) -> bytes:
    """Return the 26 bytes that the server speaks first."""
    versions = bytes((c.PROTOCOL_VERSION, c.PROTOCOL_VERSION))
    return c.GREETING_MAGIC + versions + bytes((mode, slot)) + nonce


def client_mac(secret: bytes, greeting: bytes, covered: bytes) -> bytes:
    """Return the mac of a hello; `covered` is version, ids, client nonce and label."""
    return digest(secret, c.MAC_CONTEXT_CLIENT + greeting + covered, "sha256")


def proof(
    secret: bytes, greeting: bytes, client_nonce: bytes, fields: bytes, leader: bytes
) -> bytes:
    """Return the proof of a welcome; `fields` is role, keepalive_s and fingerprint."""
    message = c.MAC_CONTEXT_SERVER + greeting + client_nonce + fields + leader
    return digest(secret, message, "sha256")


class Secrets:
    """The secrets that are good now, at least one: none configured means the empty one."""

    def __init__(self, secrets: Sequence[NamedSecret]) -> None:
        self._secrets = [(secret.name, secret.value) for secret in secrets] or [("", b"")]

    def match(self, given: bytes, expected: Callable[[bytes], bytes]) -> tuple[str, bytes] | None:
        """Return name and value of the secret whose `expected` mac is the given one.

        All are compared, and each in constant time, so time does not tell which one is near.
        """
        found = None
        for name, value in self._secrets:
            if compare_digest(given, expected(value)):
                found = (name, value)
        return found


def refusal_delay_ms(entropy: bytes) -> int:
    """Return how long a wrong mac waits for its answer, drawn from two random bytes."""
    spread = c.AUTH_FAILED_DELAY_MS_MAX - c.AUTH_FAILED_DELAY_MS_MIN
    return c.AUTH_FAILED_DELAY_MS_MIN + int.from_bytes(entropy[:2], "big") * spread // 0xFFFF
