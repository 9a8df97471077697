"""Greeting, nonce, mac and proof: how client and server prove that they share a secret."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from struct import Struct

from ticketing import _constants_gen as c
from ticketing._core.codec import Malformed

_GREETING = Struct(">6sBBBB16s")
_HELLO_HEAD = Struct(">BHB")
_IDENTITY = Struct(">QI")


@dataclass(frozen=True, slots=True)
class Greeting:
    """The 26 bytes that a server speaks first."""

    raw: bytes
    min_version: int
    max_version: int
    mode: int
    slot: int

    @property
    def speaks_our_version(self) -> bool:
        """Whether this client and the server have a version in common."""
        return self.min_version <= c.PROTOCOL_VERSION <= self.max_version


def parse_greeting(data: bytes) -> Greeting:
    """Read a whole greeting; raises Malformed. The mode matters only at a common version."""
    magic, low, high, mode, slot, _nonce = _GREETING.unpack(data)
    if magic != c.GREETING_MAGIC:
        raise Malformed("stream", "no greeting of a ticketing server")
    greeting = Greeting(data, low, high, mode, slot)
    if greeting.speaks_our_version and mode not in (c.MODE_STANDALONE, c.MODE_CLUSTER):
        raise Malformed("body", f"mode {mode} is unknown")
    return greeting


def looks_like_greeting(data: bytes) -> bool:
    """Whether these first bytes may still become a greeting."""
    magic = c.GREETING_MAGIC
    return data[: len(magic)] == magic[: len(data)]


def client_nonce(seed: bytes, connection: int) -> bytes:
    """The nonce of the client's n-th hello: derived, so that one seed gives one byte stream."""
    return hashlib.sha256(c.NONCE_CONTEXT + seed + connection.to_bytes(8, "big")).digest()[:16]


def client_mac(
    secret: bytes,
    greeting: bytes,
    version: int,
    client_id: int,
    connection: int,
    nonce: bytes,
    label: bytes,
) -> bytes:
    """What a hello proves itself with."""
    covered = bytes([version]) + _IDENTITY.pack(client_id, connection) + nonce + label
    return hmac.digest(secret, c.MAC_CONTEXT_CLIENT + greeting + covered, "sha256")


def server_proof(
    secret: bytes,
    greeting: bytes,
    nonce: bytes,
    role: int,
    keepalive_s: int,
    fingerprint: bytes,
    leader: bytes,
) -> bytes:
    """What a welcome proves itself with."""
    told = bytes([role]) + keepalive_s.to_bytes(2, "big") + fingerprint + leader
    return hmac.digest(secret, c.MAC_CONTEXT_SERVER + greeting + nonce + told, "sha256")


def same_proof(one: bytes, other: bytes) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(one, other)


def hello_frame(
    secret: bytes, greeting: bytes, client_id: int, connection: int, nonce: bytes, label: bytes
) -> bytes:
    """The whole hello, mac included."""
    mac = client_mac(secret, greeting, c.PROTOCOL_VERSION, client_id, connection, nonce, label)
    head = _HELLO_HEAD.pack(c.OP_HELLO, 61 + len(label), c.PROTOCOL_VERSION)
    return head + _IDENTITY.pack(client_id, connection) + nonce + mac + label
