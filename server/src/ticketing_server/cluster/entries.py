"""What the log's entries carry, and the bytes they are: encoded once, the same on every node.

A BATCH is one turn: **runs** of (connection number, kind, body) in the order in which they were
read; an empty one (a TICK) only lets time pass. A NOOP begins a term with what holds in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct, error
from typing import NamedTuple

from ticketing_server import constants_gen as c
from ticketing_server import lock_table, wire
from ticketing_server.limits import Limits, Term
from ticketing_server.lock_table import CONNECT_COMMAND, DISCONNECT_COMMAND, FORCE_RELEASE, Run
from ticketing_server.queues import Link
from ticketing_server.wire import Command

REQUESTS_MAX = 4096
"""How many requests one entry takes, …"""
BYTES_MAX = 256 * 1024
"""… and how many bytes of them; one read more may go over that."""
TICK = b""
"""The batch in which nobody says anything."""

FRAMES = 0
"""Frames of version 4 as they were received; pings among them are no requests."""
CONNECT = 1
"""Client id, and whether its waiters leave when it ends."""
DETACH = 2
"""The connection is over."""
COMMANDS = 3
"""Requests of version 3 under ids of their own: see `encode_commands`."""
FORCED = 4
"""An operator's release: token, then key. It comes from no connection."""

OPERATOR = bytes(8)
"""Client id under which an operator's releases are applied."""
_RUN = Struct(">QBI")
_CONNECT = Struct(">8s?")
_HEAD = Struct(">BH8s8s")
_NOOP = Struct(">B7Q")
_U64_MAX = (1 << 64) - 1
RUN_BYTES = _RUN.size
"""What a run takes beside its body."""
TABLE_VERSION = 1
"""The newest version of the table that this code applies, …"""
TABLE_VERSIONS = (1, TABLE_VERSION)
"""… and the oldest with it: each node offers both in its hello."""


class TurnRun(NamedTuple):
    """One run of a turn: what the log gets, and what was parsed of it."""

    link: Link
    kind: int
    body: bytes
    commands: list[Command]


class Noop(NamedTuple):
    """What a term begins with."""

    term: Term
    table_version: int


# Runs


def encode(runs: Iterable[TurnRun]) -> bytes:
    """Return the payload of a BATCH."""
    parts = []
    for link, kind, body, _ in runs:
        parts.append(_RUN.pack(link.number, kind, len(body)))
        parts.append(body)
    return b"".join(parts)


def connect(link: Link) -> TurnRun:
    """Return the run that begins a connection."""
    return TurnRun(link, CONNECT, _CONNECT.pack(link.client, link.leaves), [CONNECT_COMMAND])


def detach(link: Link) -> TurnRun:
    """Return the run that ends a connection."""
    return TurnRun(link, DETACH, b"", [DISCONNECT_COMMAND])


def force_release(token: bytes, key: bytes) -> TurnRun:
    """Return the run of an operator's release."""
    link = Link(0, 0, OPERATOR)
    return TurnRun(link, FORCED, token + key, [(FORCE_RELEASE, b"", token, key)])


def frames(link: Link, received: bytes, commands: list[Command]) -> TurnRun:
    """Return the run of whole frames as they were received."""
    return TurnRun(link, FRAMES, received, commands)


def commands_of_version_3(link: Link, commands: list[Command]) -> TurnRun:
    """Return the run of requests that are rewritten."""
    return TurnRun(link, COMMANDS, encode_commands(commands), commands)


def cut(run: TurnRun, requests: int) -> tuple[TurnRun, TurnRun]:
    """Cut a run behind so many requests (fewer than it has)."""
    head, tail = run.commands[:requests], run.commands[requests:]
    if run.kind == COMMANDS:
        return (
            commands_of_version_3(run.link, head),
            commands_of_version_3(run.link, tail),
        )
    at = 0
    body = run.body
    while requests:
        requests -= body[at] != c.OP_PING
        at += wire.HEADER_BYTES + (body[at + 1] << 8 | body[at + 2])
    return frames(run.link, body[:at], head), frames(run.link, body[at:], tail)


def decode(payload: bytes, term: int, known: dict[int, Link]) -> list[Run]:
    """Return what a BATCH says, as the table takes it; `ValueError` where it can't be read.

    `known` are the term's connections as of the entry before; of others only CONNECT is heard.
    """
    runs: list[Run] = []
    begun: dict[int, Link] = {}
    at = 0
    try:
        while at < len(payload):
            number, kind, length = _RUN.unpack_from(payload, at)
            at += _RUN.size
            body = payload[at : at + length]
            if len(body) != length:
                raise ValueError(f"a run of {length} bytes ends behind the entry")
            at += length
            if kind == CONNECT:
                client, leaves = _CONNECT.unpack(body)
                begun[number] = Link(term, number, client, leaves=leaves)
            link = begun.get(number) or known.get(number)
            if kind == FORCED:
                link = Link(term, number, OPERATOR)
            if link is not None:
                runs.append((link, _read(kind, body)))
    except error as problem:
        raise ValueError(f"a run can't be read: {problem}") from None
    return runs


def _read(kind: int, body: bytes) -> list[Command]:
    if kind == FRAMES:
        uniform = wire.split_uniform(body)
        if uniform is not None:
            return uniform
        commands, used, bad = wire.split(body, [])
        if bad is not None or used != len(body):
            raise ValueError(f"frames of a run can't be read from byte {used} on")
        return commands
    if kind == COMMANDS:
        return decode_commands(body)
    if kind == CONNECT:
        return [CONNECT_COMMAND]
    if kind == DETACH:
        return [DISCONNECT_COMMAND]
    if kind == FORCED:
        return [(FORCE_RELEASE, b"", body[:8], body[8:])]
    raise ValueError(f"kind {kind} of a run is unknown")


# Requests of version 3


def encode_commands(commands: Iterable[Command]) -> bytes:
    """Return requests of version 3 as frames.

    An acquire is a frame of version 4. A release has an op that no client may send, and names all
    keys of its ticket, as a set does: count, then each with its length.
    """
    parts = []
    for op, request_id, word, tail in commands:
        if isinstance(tail, tuple):
            keys = b"".join(bytes((len(key),)) + key for key in tail)
            tail = bytes((len(tail),)) + keys
        parts.append(_HEAD.pack(op, 16 + len(tail), request_id, word))
        parts.append(tail)
    return b"".join(parts)


def decode_commands(body: bytes) -> list[Command]:
    """Return the requests that `encode_commands` was given."""
    commands: list[Command] = []
    at = 0
    while at < len(body):
        op, length, request_id, word = _HEAD.unpack_from(body, at)
        end = at + wire.HEADER_BYTES + length
        tail = body[at + _HEAD.size : end]
        at = end
        if op == wire.ACQUIRE:
            commands.append((op, request_id, word, tail))
        elif op in (wire.ACQUIRE_SET, lock_table.RELEASE_KEYS):
            commands.append((op, request_id, word, _read_keys(tail)))
        else:
            raise ValueError(f"op {op} in a run of version 3")
    if at != len(body):
        raise ValueError("a request of version 3 ends behind its run")
    return commands


def _read_keys(tail: bytes) -> tuple[bytes, ...]:
    keys = []
    at = 1
    for _ in range(tail[0]):
        end = at + 1 + tail[at]
        keys.append(tail[at + 1 : end])
        at = end
    return tuple(keys)


# NOOP


def encode_noop(
    limits: Limits, failover_grace_ms: int, token_floor: int, version: int = TABLE_VERSION
) -> bytes:
    """Return the payload of a NOOP: all that the table reads of its leader's settings."""
    return _NOOP.pack(
        version,
        failover_grace_ms,
        limits.waiters_per_key,
        limits.waiters,
        limits.held_keys,
        limits.max_lease_ms,
        limits.reattach_grace_ms,
        min(max(token_floor, 0), _U64_MAX),
    )


def decode_noop(payload: bytes, number: int) -> Noop:
    """Return what the NOOP of this term says; `ValueError` where it can't be read."""
    if len(payload) != _NOOP.size:
        raise ValueError(f"a NOOP has {len(payload)} bytes, takes {_NOOP.size}")
    version, grace_ms, per_key, waiters, held_keys, lease_ms, reattach_ms, floor = _NOOP.unpack(
        payload
    )
    limits = Limits(
        waiters_per_key=per_key,
        waiters=waiters,
        held_keys=held_keys,
        max_lease_ms=lease_ms,
        reattach_grace_ms=reattach_ms,
    )
    return Noop(Term(number, limits, grace_ms, floor), version)
