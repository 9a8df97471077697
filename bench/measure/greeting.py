"""Asks a node who leads: the handshake of protocol version 4, and no request."""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import struct

GREETING_BYTES = 26
LABEL = b"bench;python/1"
LEADER = 1
FOLLOWER = 2


def leader_named_by(host: str, port: int, secret: bytes) -> str:
    """The leader's HOST:PORT as this node has it; "" where it knows none or does not answer."""
    try:
        with socket.create_connection((host, port), timeout=2.0) as connection:
            role, leader = _shake_hands(connection, secret)
    except (OSError, EOFError):
        return ""
    return leader if role in (LEADER, FOLLOWER) else ""


def _shake_hands(connection: socket.socket, secret: bytes) -> tuple[int, str]:
    with connection.makefile("rb") as stream:
        greeting = _exactly(stream.read(GREETING_BYTES), GREETING_BYTES)
        fixed = struct.pack(">BQI16s", 4, int.from_bytes(os.urandom(8)), 1, os.urandom(16))
        mac = hmac.digest(secret, b"TICKETING/CLIENT" + greeting + fixed + LABEL, hashlib.sha256)
        body = fixed + mac + LABEL
        connection.sendall(struct.pack(">cH", b"H", len(body)) + body)
        op, length = struct.unpack(">cH", _exactly(stream.read(3), 3))
        welcome = _exactly(stream.read(length), length)
    if op != b"W":
        raise OSError(f"refused: {welcome[9:].decode('ascii', 'replace')}")
    return welcome[0], welcome[67:].decode("ascii", "replace")


def _exactly(data: bytes, length: int) -> bytes:
    if len(data) < length:
        raise EOFError
    return data
