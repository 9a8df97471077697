"""A snapshot as a file: what the Raft core knows of it, and the replica's image.

`make` is what a process beside the server does: the next file out of the last one and the log.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct, error
from zlib import crc32

from ticketing_server.cluster.replica import Replica
from ticketing_server.raft.configuration import CLUSTER_ID_BYTES, Configuration
from ticketing_server.raft.messages import Entry, Snapshot
from ticketing_server.raft.state import changed

MAGIC = b"TKTSNAP\x01"
_META = Struct(f">QQQ{CLUSTER_ID_BYTES}sBB")
_MEMBER = Struct(">BQ")
_LENGTH = Struct(">Q")
_CRC = Struct(">I")


def encode(meta: Snapshot, image: bytes) -> bytes:
    """Return the file; `ValueError` where the cluster has no id, as before its founding."""
    configuration = meta.configuration
    if len(configuration.cluster_id) != CLUSTER_ID_BYTES:
        raise ValueError("a snapshot belongs to a cluster")
    members = configuration.members
    head = _META.pack(
        meta.index, meta.term, meta.stamp, configuration.cluster_id, configuration.slots,
        len(members),
    )  # fmt: skip
    body = b"".join(
        (
            MAGIC,
            head,
            *(_MEMBER.pack(*member) for member in members),
            _LENGTH.pack(len(image)),
            image,
        )
    )
    return body + _CRC.pack(crc32(body))


def decode(data: bytes) -> tuple[Snapshot, bytes]:
    """Return what a file holds; `ValueError` where it isn't whole or isn't one."""
    if data[: len(MAGIC)] != MAGIC:
        raise ValueError("not a snapshot of this version: its first bytes are others")
    if crc32(data[: -_CRC.size]) != int.from_bytes(data[-_CRC.size :], "big"):
        raise ValueError("the snapshot is damaged: its checksum doesn't fit")
    try:
        at = len(MAGIC)
        index, term, stamp, cluster_id, slots, count = _META.unpack_from(data, at)
        at += _META.size
        members = []
        for _ in range(count):
            members.append(_MEMBER.unpack_from(data, at))
            at += _MEMBER.size
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
    except error as problem:
        raise ValueError(f"the snapshot can't be read: {problem}") from None
    if at + length + _CRC.size != len(data):
        raise ValueError(f"the snapshot has {len(data)} bytes, its parts take another number")
    configuration = Configuration(cluster_id, tuple(members), slots)
    return Snapshot(index, term, stamp, configuration), data[at : at + length]


def read(data: bytes) -> tuple[Snapshot, Replica]:
    """Return a file's replica with what the core knows of it; `ValueError` as above."""
    meta, image = decode(data)
    replica = Replica.load(image)
    if (replica.index, replica.stamp) != (meta.index, meta.stamp):
        raise ValueError(f"the snapshot says entry {meta.index}, its table {replica.index}")
    return meta, replica


def make(previous: bytes | None, entries: Iterable[Entry], index: int) -> tuple[bytes, bytes]:
    """Replay the log on the last snapshot; return the file as of `index`, and its checksum.

    `entries` may begin before the snapshot and go on behind `index`; `ValueError` where some
    are missing or can't be read.
    """
    replica = Replica()
    configuration = Configuration()
    if previous is not None:
        meta, replica = read(previous)
        configuration = meta.configuration
    for entry in entries:
        if entry.index > index:
            break
        if entry.index <= replica.index:
            continue
        replica.apply(entry)
        replica.forget_events()
        configuration = changed(configuration, entry)
    if replica.index != index:
        raise ValueError(f"the log reaches entry {replica.index}, the snapshot is of {index}")
    meta = Snapshot(replica.index, replica.term, replica.stamp, configuration)
    return encode(meta, replica.dump()), replica.checksum
