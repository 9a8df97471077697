"""The bytes of the write-ahead log: records chained by CRC, in groups on sector boundaries.

A **group** is what one write and one sync put down. It begins on a sector boundary with a header
that has a CRC of its own. Each group is synced before the next is written, so a header that is
valid proves that everything below it was on disk. No byte is ever written over with another.

    header   magic 8 | log id u64 | segment u64 | group u64 | last index u64 | offset u32 |
             previous end u32 | chain u32 | length u32 | segment's bytes u32 | CRC of these u32
    record   type u8 | length of the rest u32 | … | chain u32
    padding  zeros to the next sector boundary
    closing  magic 8 | log id u64 | segment u64 | CRC of these u32

What a file system loses is to be seen too. A header says how long its segment's file is, and the
index of the last entry before it, which may be in segments that are dropped. The **closing** has
the last sector of a segment; it is written when the first group of the next segment is synced and
before that group counts, so a segment that has one is never the last one.

The **chain** is a CRC that runs on from record to record, over groups and segments; a header
repeats its value, and where the group before ended: within the same segment, or in the segment
before. The log id is drawn with the directory and told to nobody, so neither a segment from
elsewhere nor a client's bytes in a payload can pass for a group.

Numbers are big-endian.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from ticketing_server.raft.configuration import CLUSTER_ID_BYTES, Configuration
from ticketing_server.raft.messages import Entry, HardState, Snapshot
from ticketing_server.raft.saves import Save

SECTOR = 4096
"""Groups begin at multiples of this. It suits disks with sectors of 512 bytes too."""

MAGIC = b"TKTWAL\x00\x01"
_CLOSING_MAGIC = b"TKTEND\x00\x01"

ENTRY = 1
"""One place of the log; it and all behind it are replaced."""
HARD_STATE = 2
MARK = 3
"""The snapshot that a file of this directory holds."""
INSTALL = 4
"""As `MARK`, and all entries before it are void: a leader sent the snapshot in their place."""

_HEADER = Struct(">8sQQQQIIIII")
_HEADER_CRC = Struct(">I")
HEADER_BYTES = _HEADER.size + _HEADER_CRC.size
_CLOSING = Struct(">8sQQ")
_ENTRY = Struct(">BIQQQB")
_HARD_STATE = Struct(">BIQBQ")
_MARK = Struct(">BIQQQQIBBB")
_MEMBER = Struct(">BQ")
_FRAME = Struct(">BI")
_CHAIN = Struct(">I")

_ENTRY_REST = _ENTRY.size - _FRAME.size
ENTRY_OVERHEAD = _ENTRY.size + _CHAIN.size
HARD_STATE_BYTES = _HARD_STATE.size + _CHAIN.size
MARK_BYTES = _MARK.size + CLUSTER_ID_BYTES + 255 * _MEMBER.size + _CHAIN.size
"""The largest mark."""


class Header(NamedTuple):
    """The beginning of a group."""

    log_id: int
    segment: int
    group: int
    """Counted over all segments."""
    last_index: int
    """Of the log before it."""
    offset: int
    """Where in its segment it begins."""
    previous_end: int
    """Where the last record of the group before ended, in this segment or the one before."""
    chain: int
    """The chain's value before the first record."""
    length: int
    """Bytes of records."""
    segment_bytes: int
    """Of the segment's whole file."""

    @property
    def begin(self) -> int:
        """Where the first record is."""
        return self.offset + HEADER_BYTES

    @property
    def end(self) -> int:
        """Where the last record ends, if all are there."""
        return self.offset + HEADER_BYTES + self.length


class Mark(NamedTuple):
    """A snapshot and how its file is recognised."""

    snapshot: Snapshot
    file_bytes: int
    file_crc: int

    @property
    def name(self) -> str:
        """Name of its file."""
        return f"{SNAPSHOT_PREFIX}{self.snapshot.index:020d}-{self.file_crc:08x}"


SNAPSHOT_PREFIX = "snapshot-"

Record = Entry | HardState | tuple[int, Mark]
"""A mark comes with its type, `MARK` or `INSTALL`."""


def align(offset: int) -> int:
    """Return the next sector boundary."""
    return -(-offset // SECTOR) * SECTOR


def encode_header(header: Header) -> bytes:
    """Return the bytes that begin a group."""
    head = _HEADER.pack(MAGIC, *header)
    return head + _HEADER_CRC.pack(crc32(head))


def decode_header(data: bytes, offset: int, log_id: int, segment: int) -> Header | None:
    """Return the header at an offset of a segment; None where none is whole or it's another's."""
    if not data.startswith(MAGIC, offset) or len(data) < offset + HEADER_BYTES:
        return None
    _, *fields = _HEADER.unpack_from(data, offset)
    header = Header(*fields)
    (crc,) = _HEADER_CRC.unpack_from(data, offset + _HEADER.size)
    if crc != crc32(data[offset : offset + _HEADER.size]):
        return None
    if (header.log_id, header.segment, header.offset) != (log_id, segment, offset):
        return None
    return header


def encode_closing(log_id: int, segment: int) -> bytes:
    """Return the bytes of the last sector of a segment that another one follows."""
    closing = _CLOSING.pack(_CLOSING_MAGIC, log_id, segment)
    return (closing + _HEADER_CRC.pack(crc32(closing))).ljust(SECTOR, b"\0")


def is_closed(data: bytes, log_id: int, segment: int) -> bool:
    """Return whether another segment follows this one."""
    return data[-SECTOR:] == encode_closing(log_id, segment)


class Encoder:
    """Collects the records of one group, continuing the chain."""

    def __init__(self, chain: int) -> None:
        """Continue after the last record written."""
        self.chain = chain
        self.parts: list[bytes] = []
        self.length = 0

    def save(self, save: Save, mark: Mark | None) -> None:
        """Add all of a save: term and vote first, so that no part of it is ahead of them."""
        if save.hard_state is not None:
            self.hard_state(save.hard_state)
        if mark is not None:
            self.mark(INSTALL, mark)
        if save.entries:
            self.entries(save.entries)

    def entries(self, entries: Sequence[Entry]) -> None:
        """Add entries."""
        chain = self.chain
        length = self.length
        put = self.parts.append
        for entry in entries:
            payload = entry.payload
            size = len(payload)
            head = _ENTRY.pack(
                ENTRY, _ENTRY_REST + size, entry.index, entry.term, entry.stamp, entry.kind
            )
            chain = crc32(payload, crc32(head, chain))
            put(head)
            put(payload)
            put(_CHAIN.pack(chain))
            length += ENTRY_OVERHEAD + size
        self.chain = chain
        self.length = length

    def hard_state(self, state: HardState) -> None:
        """Add term and vote."""
        voted = state.vote is not None
        self._put(
            _HARD_STATE.pack(
                HARD_STATE, _HARD_STATE.size - _FRAME.size, state.term, voted, state.vote or 0
            )
        )

    def mark(self, kind: int, mark: Mark) -> None:
        """Add which snapshot holds."""
        held = mark.snapshot
        configuration = held.configuration
        rest = b"".join(
            (configuration.cluster_id, *(_MEMBER.pack(*member) for member in configuration.members))
        )
        head = _MARK.pack(
            kind, _MARK.size - _FRAME.size + len(rest), held.index, held.term, held.stamp,
            mark.file_bytes, mark.file_crc, configuration.slots, len(configuration.cluster_id),
            len(configuration.members),
        )  # fmt: skip
        self._put(head + rest)

    def _put(self, data: bytes) -> None:
        self.chain = crc32(data, self.chain)
        self.parts += (data, _CHAIN.pack(self.chain))
        self.length += len(data) + _CHAIN.size


def encode_group(header: Header, parts: Sequence[bytes]) -> bytes:
    """Return the whole sectors of a group."""
    padding = align(header.end) - header.end
    return b"".join((encode_header(header), *parts, bytes(padding)))


def decode_record(data: memoryview, offset: int, end: int, chain: int) -> (
    tuple[Record, int, int] | None
):  # fmt: skip
    """Return a record, where it ends and the chain after it; None where it's damaged."""
    end = min(end, len(data))
    if offset + _FRAME.size > end:
        return None
    kind, length = _FRAME.unpack_from(data, offset)
    body = offset + _FRAME.size + length
    if body + _CHAIN.size > end:
        return None
    chain = crc32(data[offset:body], chain)
    if _CHAIN.unpack_from(data, body)[0] != chain:
        return None
    record = _decode(kind, data[offset:body])
    return None if record is None else (record, body + _CHAIN.size, chain)


def _decode(kind: int, data: memoryview) -> Record | None:
    if kind == ENTRY and len(data) >= _ENTRY.size:
        _, _, index, term, stamp, entry_kind = _ENTRY.unpack_from(data)
        return Entry(index, term, entry_kind, stamp, bytes(data[_ENTRY.size :]))
    if kind == HARD_STATE and len(data) == _HARD_STATE.size:
        _, _, term, voted, vote = _HARD_STATE.unpack(data)
        return HardState(term, vote if voted else None)
    if kind in (MARK, INSTALL) and len(data) >= _MARK.size:
        return _decode_mark(data)
    return None


def _decode_mark(data: memoryview) -> tuple[int, Mark] | None:
    kind, _, index, term, stamp, size, crc, slots, id_bytes, count = _MARK.unpack_from(data)
    members = _MARK.size + id_bytes
    if len(data) != members + count * _MEMBER.size:
        return None
    configuration = Configuration(
        bytes(data[_MARK.size : members]), tuple(_MEMBER.iter_unpack(data[members:])), slots
    )
    return kind, Mark(Snapshot(index, term, stamp, configuration), size, crc)
