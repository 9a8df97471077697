"""Messages between nodes as bytes: length, CRC, kind, body. Big-endian throughout.

A frame is `length:u32 crc:u32 kind:u8 body`; the length counts kind and body, the CRC covers them.
Sender and receiver are not in it: the connection proved both.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from ticketing_server.cluster.messages import Found
from ticketing_server.raft.configuration import CLUSTER_ID_BYTES, Configuration
from ticketing_server.raft.messages import (
    Append,
    AppendReply,
    Entry,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    Message,
    Snapshot,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)

PeerMessage = Message | Found

HELLO = 1
PROOF = 2
REFUSED = 3
PING = 4
IDENTITY = 5
APPEND = 16
APPEND_REPLY = 17
HEARTBEAT = 18
HEARTBEAT_REPLY = 19
VOTE_REQUEST = 20
VOTE_REPLY = 21
TIMEOUT_NOW = 22
FOUND = 23
SNAPSHOT = 24
"""Begin of a snapshot file: the message that it comes with, and how long the file is."""
CHUNK = 25
"""The next bytes of the file."""

FRAME_BYTES_MAX = 8 * 1024 * 1024
"""Above it a peer's length is taken for damage; an append is far smaller."""
HANDSHAKE_FRAME_BYTES_MAX = 1_024
"""The same for who has proved nothing yet."""

_HEAD = Struct(">IIB")
_LENGTH_AND_CRC = Struct(">II")
_APPEND = Struct(">QQQQQI")
_ENTRY = Struct(">QBQI")
_FOUND_ENTRY = Struct(">QQBQ")
_APPEND_REPLY = Struct(">QBQQQQ")
_HEARTBEAT = Struct(">QQQ")
_HEARTBEAT_REPLY = Struct(">QQ")
_VOTE_REQUEST = Struct(">QBQQB")
_VOTE_REPLY = Struct(">QQBB")
_TERM = Struct(">Q")
_SNAPSHOT = Struct(">QQQ")
_SNAPSHOT_META = Struct(">QQQBBB")
_MEMBER = Struct(">BQ")


class BadFrame(Exception):
    """What a peer sent is no frame: the connection is closed, and nothing of it is used."""


class Frame(NamedTuple):
    """One frame whose CRC was right."""

    kind: int
    body: bytes


class Incoming(NamedTuple):
    """The begin of a snapshot: `message` counts once `size` bytes of file have come."""

    message: InstallSnapshot
    size: int


def frame(kind: int, *parts: bytes) -> bytes:
    """Return a whole frame of these parts."""
    checked = kind.to_bytes(1, "big")
    crc = crc32(checked)
    length = 1
    for part in parts:
        crc = crc32(part, crc)
        length += len(part)
    if length > FRAME_BYTES_MAX:
        raise ValueError(f"a frame of {length} bytes, at most {FRAME_BYTES_MAX} are taken")
    return b"".join((_HEAD.pack(length, crc, kind), *parts))


class FrameReader:
    """Cuts a stream of bytes into frames. `bytes_max` bounds what one frame may claim."""

    def __init__(self, bytes_max: int = HANDSHAKE_FRAME_BYTES_MAX) -> None:
        """Begin with nothing read."""
        self.bytes_max = bytes_max
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that `data` completes; `BadFrame` ends the stream.

        One after the other, so that `bytes_max` may rise between two of them.
        """
        rest = self._rest
        if rest:
            rest += data
            if len(rest) < _LENGTH_AND_CRC.size or len(rest) < self._end(rest, 0):
                return
            data = bytes(rest)
            rest.clear()
        at, size = 0, len(data)
        while size - at >= _LENGTH_AND_CRC.size and (end := self._end(data, at)) <= size:
            checked = data[at + _LENGTH_AND_CRC.size : end]
            if crc32(checked) != _LENGTH_AND_CRC.unpack_from(data, at)[1]:
                raise BadFrame("the CRC of a frame is wrong")
            yield Frame(checked[0], checked[1:])
            at = end
        rest += data[at:]

    def _end(self, data: bytes | bytearray, at: int) -> int:
        """Where the frame that begins at `at` ends."""
        length = _LENGTH_AND_CRC.unpack_from(data, at)[0]
        if not 1 <= length <= self.bytes_max:
            raise BadFrame(f"a frame of {length} bytes, taken are 1 to {self.bytes_max}")
        return at + _LENGTH_AND_CRC.size + int(length)


# Encoding


def encode(message: PeerMessage) -> bytes:
    """Return the frame of a message; a snapshot's file follows it in chunks of its own."""
    return _ENCODERS[type(message)](message)


def encode_snapshot(message: InstallSnapshot, size: int) -> bytes:
    """Return the frame that begins a snapshot whose file has `size` bytes."""
    meta = message.snapshot
    members = meta.configuration.members
    cluster_id = meta.configuration.cluster_id
    return frame(
        SNAPSHOT,
        _SNAPSHOT.pack(message.term, message.round, size),
        _SNAPSHOT_META.pack(
            meta.index, meta.term, meta.stamp, len(cluster_id), meta.configuration.slots,
            len(members),
        ),
        cluster_id,
        *(_MEMBER.pack(*member) for member in members),
    )  # fmt: skip


def _append(message: Append) -> bytes:
    parts = [
        _APPEND.pack(
            message.term, message.prev_index, message.prev_term, message.commit, message.round,
            len(message.entries),
        )
    ]  # fmt: skip
    for entry in message.entries:
        parts.append(_ENTRY.pack(entry.term, entry.kind, entry.stamp, len(entry.payload)))
        parts.append(entry.payload)
    return frame(APPEND, *parts)


def _append_reply(m: AppendReply) -> bytes:
    return frame(
        APPEND_REPLY,
        _APPEND_REPLY.pack(m.term, m.accepted, m.index, m.hint_index, m.hint_term, m.round),
    )


def _heartbeat(m: Heartbeat) -> bytes:
    return frame(HEARTBEAT, _HEARTBEAT.pack(m.term, m.commit, m.round))


def _heartbeat_reply(m: HeartbeatReply) -> bytes:
    return frame(HEARTBEAT_REPLY, _HEARTBEAT_REPLY.pack(m.term, m.round))


def _vote_request(m: VoteRequest) -> bytes:
    return frame(
        VOTE_REQUEST,
        _VOTE_REQUEST.pack(m.term, m.pre, m.last_index, m.last_term, m.transfer),
    )


def _vote_reply(m: VoteReply) -> bytes:
    return frame(VOTE_REPLY, _VOTE_REPLY.pack(m.term, m.campaign, m.pre, m.granted))


def _timeout_now(m: TimeoutNow) -> bytes:
    return frame(TIMEOUT_NOW, _TERM.pack(m.term))


def _found(m: Found) -> bytes:
    entry = m.entry
    head = _FOUND_ENTRY.pack(entry.index, entry.term, entry.kind, entry.stamp)
    return frame(FOUND, head, entry.payload)


_ENCODERS: dict[type, Callable[..., bytes]] = {
    Append: _append,
    AppendReply: _append_reply,
    Heartbeat: _heartbeat,
    HeartbeatReply: _heartbeat_reply,
    VoteRequest: _vote_request,
    VoteReply: _vote_reply,
    TimeoutNow: _timeout_now,
    Found: _found,
}


# Decoding


def decode(kind: int, body: bytes, sender: int, to: int) -> PeerMessage | Incoming:
    """Return the message of a frame that `sender` sent; `BadFrame` where it has none."""
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise BadFrame(f"kind {kind} is not known")
    try:
        return decoder(body, sender, to)
    except (struct.error, ValueError, IndexError) as error:
        raise BadFrame(f"a frame of kind {kind} is damaged: {error}") from None


def _decode_append(body: bytes, sender: int, to: int) -> Append:
    term, previous, previous_term, commit, round_, count = _APPEND.unpack_from(body)
    entries = []
    at = _APPEND.size
    for index in range(previous + 1, previous + 1 + count):
        entry_term, kind, stamp, length = _ENTRY.unpack_from(body, at)
        at += _ENTRY.size
        payload = body[at : at + length]
        at += length
        if at > len(body):
            raise ValueError("an entry is cut short")
        entries.append(Entry(index, entry_term, kind, stamp, payload))
    if at != len(body):
        raise ValueError("there is more in it than its entries")
    return Append(sender, to, term, previous, previous_term, tuple(entries), commit, round_)


def _decode_append_reply(body: bytes, sender: int, to: int) -> AppendReply:
    term, accepted, *rest = _APPEND_REPLY.unpack(body)
    return AppendReply(sender, to, term, bool(accepted), *rest)


def _decode_heartbeat(body: bytes, sender: int, to: int) -> Heartbeat:
    return Heartbeat(sender, to, *_HEARTBEAT.unpack(body))


def _decode_heartbeat_reply(body: bytes, sender: int, to: int) -> HeartbeatReply:
    return HeartbeatReply(sender, to, *_HEARTBEAT_REPLY.unpack(body))


def _decode_vote_request(body: bytes, sender: int, to: int) -> VoteRequest:
    term, pre, last_index, last_term, transfer = _VOTE_REQUEST.unpack(body)
    return VoteRequest(sender, to, term, bool(pre), last_index, last_term, bool(transfer))


def _decode_vote_reply(body: bytes, sender: int, to: int) -> VoteReply:
    term, campaign, pre, granted = _VOTE_REPLY.unpack(body)
    return VoteReply(sender, to, term, campaign, bool(pre), bool(granted))


def _decode_timeout_now(body: bytes, sender: int, to: int) -> TimeoutNow:
    return TimeoutNow(sender, to, *_TERM.unpack(body))


def _decode_found(body: bytes, sender: int, to: int) -> Found:
    index, term, kind, stamp = _FOUND_ENTRY.unpack_from(body)
    return Found(sender, to, Entry(index, term, kind, stamp, body[_FOUND_ENTRY.size :]))


def _decode_snapshot(body: bytes, sender: int, to: int) -> Incoming:
    term, round_, size = _SNAPSHOT.unpack_from(body)
    at = _SNAPSHOT.size
    index, snapshot_term, stamp, id_bytes, slots, count = _SNAPSHOT_META.unpack_from(body, at)
    at += _SNAPSHOT_META.size
    cluster_id = body[at : at + id_bytes]
    if id_bytes not in (0, CLUSTER_ID_BYTES) or len(cluster_id) != id_bytes:
        raise ValueError(f"a cluster id of {id_bytes} bytes")
    members = tuple(_MEMBER.iter_unpack(body[at + id_bytes :]))
    if len(members) != count:
        raise ValueError(f"{len(members)} members instead of {count}")
    configuration = Configuration(cluster_id, members, slots)
    snapshot = Snapshot(index, snapshot_term, stamp, configuration)
    return Incoming(InstallSnapshot(sender, to, term, snapshot, round_), size)


_DECODERS: dict[int, Callable[[bytes, int, int], PeerMessage | Incoming]] = {
    APPEND: _decode_append,
    APPEND_REPLY: _decode_append_reply,
    HEARTBEAT: _decode_heartbeat,
    HEARTBEAT_REPLY: _decode_heartbeat_reply,
    VOTE_REQUEST: _decode_vote_request,
    VOTE_REPLY: _decode_vote_reply,
    TIMEOUT_NOW: _decode_timeout_now,
    FOUND: _decode_found,
    SNAPSHOT: _decode_snapshot,
}
