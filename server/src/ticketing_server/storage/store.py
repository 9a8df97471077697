"""A node's disk: writes saves so that they survive, and finds them again.

Calls come one at a time; only `read_snapshot`, `stage_snapshot` and `wal_bytes` may run beside
another. After an exception out of `write` or `mark_snapshot` nothing more may be written: what is
on disk is known again only at the next start.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple
from zlib import crc32

from ticketing_server.raft.configuration import CLUSTER_ID_BYTES
from ticketing_server.raft.messages import FOUND, HardState, Snapshot
from ticketing_server.raft.saves import Save
from ticketing_server.raft.state import Restored
from ticketing_server.storage.directory import TEMPORARY, Directory, Refused, put
from ticketing_server.storage.identity import NAME as IDENTITY
from ticketing_server.storage.identity import Identity, read_identity, write_identity
from ticketing_server.storage.records import (
    ENTRY_OVERHEAD,
    HARD_STATE_BYTES,
    HEADER_BYTES,
    MARK,
    MARK_BYTES,
    SECTOR,
    SNAPSHOT_PREFIX,
    Encoder,
    Header,
    Mark,
    align,
    encode_closing,
    encode_group,
)
from ticketing_server.storage.wal import (
    PREFIX,
    REJOIN,
    Position,
    Recovered,
    Torn,
    read_log,
    segment_name,
)

SPARE = "spare"
TORN_PREFIX = "torn-"
KEPT_TORN = 3
"""How many torn tails are kept aside."""

MIB = 1024 * 1024


class Sizes(NamedTuple):
    """Of segments: each is twice the one before, up to the largest."""

    first: int = 4 * MIB
    largest: int = 64 * MIB


DEFAULT_SIZES = Sizes()


class Opened(NamedTuple):
    """What `Store.open` found."""

    store: Store
    restored: Restored
    snapshot_file: bytes | None
    """The file of `restored.snapshot`."""
    identity: Identity


class Store:
    """One directory, opened for writing."""

    def __init__(self, directory: Directory, identity: Identity, sizes: Sizes) -> None:
        """Only `open` calls this."""
        self.directory = directory
        self.identity = identity
        self.notes: list[str] = []
        """What an operator should know of how it was opened."""
        self.is_full = False
        """No room for a next segment: the rest of this one is for votes."""
        self.aside: Callable[[Callable[[], None]], Callable[[], None]] = _at_once
        """Runs the making of a segment, maybe on another thread; returns how to wait for it."""
        self._sizes = sizes
        self._hard_state = HardState()
        self._mark: Mark | None = None
        self._position = Position(0, 0, 0, 0)
        """Where the last group ended."""
        self._last_index = 0
        self._segment = 0
        self._offset = 0
        """Where the next group goes, …"""
        self._capacity = 0
        """… if it fits: bytes of the segment but those of its closing."""
        self._highest: dict[int, int] = {}
        self._spare_bytes = 0
        self._is_preparing = False
        self._wait: Callable[[], None] = _no_wait
        self._is_broken = False

    @classmethod
    def open(
        cls, directory: Directory, entropy: Iterator[int], sizes: Sizes = DEFAULT_SIZES
    ) -> Opened:
        """Read what is there, or make it new; `Refused` where it can't be used.

        `entropy` gives numbers of 64 bits, for a new directory's identity.
        """
        identity = _identify(directory, entropy)
        log = read_log(directory, identity.log_id)
        mark = log.replay.mark
        snapshot_file = None if mark is None else _read_snapshot(directory, mark)
        restored = _restored(directory, log, identity)
        store = cls(directory, identity, sizes)
        store._begin(log)
        store._note_log(_cluster_id(restored.snapshot, [restored]))
        return Opened(store, restored, snapshot_file, store.identity)

    @property
    def snapshot(self) -> Snapshot | None:
        """The snapshot whose file is here."""
        return None if self._mark is None else self._mark.snapshot

    @property
    def wal_bytes(self) -> int:
        """Bytes that the segments take on disk; may be asked from any thread."""
        size = 0
        for name in self.directory.list():
            if name.startswith(PREFIX):
                # It may be dropped meanwhile.
                with suppress(FileNotFoundError):
                    size += self.directory.size(name)
        return size

    def write(self, saves: Sequence[Save], install: bytes | None = None) -> None:
        """Write saves in their order as one group, and sync it.

        `install` is the file of the first one's snapshot; no other may have one.
        """
        mark = None
        if install is not None:
            snapshot = saves[0].snapshot
            if snapshot is None:
                raise ValueError("a snapshot file comes with the save that installs it")
            mark = self.stage_snapshot(snapshot, install)
        if any(save.snapshot is not None for save in saves[mark is not None :]):
            raise ValueError("a save with a snapshot begins a group, and its file comes along")
        need = sum(ENTRY_OVERHEAD + len(entry.payload) for s in saves for entry in s.entries)
        need += HARD_STATE_BYTES * len(saves) + MARK_BYTES * (mark is not None)
        encoder = self._begin_group(need)
        for place, save in enumerate(saves):
            encoder.save(save, mark if place == 0 else None)
        self._finish_group(encoder)
        self._follow(saves, mark)
        self.prepare()

    def stage_snapshot(self, snapshot: Snapshot, file: bytes) -> Mark:
        """Put a snapshot's file down and sync it; it counts once it is marked.

        Where there is no room for it (`is_full`), nothing of it stays.
        """
        mark = Mark(snapshot, len(file), crc32(file))
        try:
            put(self.directory, mark.name, file)
        except OSError:
            self._discard(mark.name + TEMPORARY)
            raise
        return mark

    def mark_snapshot(self, mark: Mark) -> None:
        """Let a staged snapshot count, and remove the one before.

        Where a later one was installed since it was staged, it is removed itself.
        """
        held = self._mark
        if held is not None and held.snapshot.index >= mark.snapshot.index:
            if mark.name != held.name:
                self.directory.unlink(mark.name)
            return
        encoder = self._begin_group(MARK_BYTES)
        encoder.mark(MARK, mark)
        self._finish_group(encoder)
        self._replace_mark(mark)
        self.prepare()

    def put_snapshot(self, snapshot: Snapshot, file: bytes) -> None:
        """Keep this node's own snapshot as of an entry that is on disk."""
        self.mark_snapshot(self.stage_snapshot(snapshot, file))

    def read_snapshot(self, index: int) -> bytes | None:
        """Return the file of the snapshot as of `index`; None if that isn't the newest here."""
        mark = self._mark
        if mark is None or mark.snapshot.index != index:
            return None
        try:
            return self.directory.read(mark.name)
        except FileNotFoundError:
            return None

    def drop_below(self, index: int) -> None:
        """Remove segments that only have entries up to `index` which the snapshot stands for."""
        limit = min(index, self._mark.snapshot.index if self._mark else 0)
        for segment in sorted(self._highest):
            if segment == self._position.segment or self._highest[segment] > limit:
                break
            self.directory.unlink(segment_name(segment))
            del self._highest[segment]

    def note_cluster(self, cluster_id: bytes) -> None:
        """Keep the id of a cluster that was met, so that this node never founds another."""
        self._identify(self.identity._replace(cluster_id=cluster_id))

    def prepare(self) -> None:
        """Make the next segment, where the present one is half full; try again if that failed."""
        if self._offset * 2 >= self._capacity and not self._spare_bytes and not self._is_preparing:
            self._is_preparing = True
            self._wait = self.aside(self._prepare)

    # Beginning

    def _begin(self, log: Recovered) -> None:
        """Clean up behind the last run, make sure of what was read, and seal it with a group."""
        replay = log.replay
        self._hard_state, self._mark = replay.hard_state, replay.mark
        self._position, self._last_index = log.position, replay.last_index
        self._capacity = max(0, log.segment_bytes - SECTOR)
        self._segment, self._offset = log.position.segment, align(log.position.end)
        self._highest = {segment: replay.highest.get(segment, 0) for segment in log.segments}
        for torn in log.torn:
            self._keep_aside(torn)
        self._clean(log.surplus)
        if log.segments:
            # After a sync that failed, a system may show what the disk doesn't have, and call it
            # synced: only what is written anew is tried anew.
            name = segment_name(self._segment)
            self.directory.write_at(name, log.last_group, log.last_bytes)
            self.directory.sync(name)
        if len(log.segments) > 1:
            self._close(log.segments[-2])
        self.directory.sync_directory()
        if log.torn:
            # Bytes that were cut are never written over: they'd have to be gone for certain first.
            self._offset = self._capacity
        encoder = self._begin_group(HARD_STATE_BYTES)
        encoder.hard_state(self._hard_state)
        self._finish_group(encoder)

    def _keep_aside(self, torn: Torn) -> None:
        name = f"{TORN_PREFIX}{torn.segment:012d}-{torn.offset}"
        put(self.directory, name, torn.data)
        self.notes.append(
            f"the last write before the stop was not finished: {len(torn.data)} bytes from byte "
            f"{torn.offset} of {segment_name(torn.segment)} on don't count, and are kept in "
            f"{self.directory.label}/{name}"
        )
        kept = sorted(name for name in self.directory.list() if name.startswith(TORN_PREFIX))
        for old in kept[:-KEPT_TORN]:
            self.directory.unlink(old)

    def _clean(self, surplus: Sequence[int]) -> None:
        held = self._mark.name if self._mark else ""
        for name in self.directory.list():
            is_old = name.startswith(SNAPSHOT_PREFIX) and name != held
            if name == SPARE or name.endswith(TEMPORARY) or is_old:
                self.directory.unlink(name)
        for segment in surplus:
            self.directory.unlink(segment_name(segment))

    # Groups

    def _begin_group(self, need: int) -> Encoder:
        """Return where records go that take up to `need` bytes."""
        if self._is_broken:
            raise RuntimeError("a write failed, nothing more can be written")
        self._is_broken = True
        if self._offset + align(HEADER_BYTES + need) > self._capacity:
            need += HARD_STATE_BYTES + MARK_BYTES
            self._next_segment(align(HEADER_BYTES + need) + SECTOR)
        encoder = Encoder(self._position.chain)
        if self._offset == 0:
            # The segments before this one are removed some day.
            encoder.hard_state(self._hard_state)
            if self._mark is not None:
                encoder.mark(MARK, self._mark)
        return encoder

    def _finish_group(self, encoder: Encoder) -> None:
        held = self._position
        header = Header(
            self.identity.log_id, self._segment, held.group + 1, self._last_index, self._offset,
            held.end, held.chain, encoder.length, self._capacity + SECTOR,
        )  # fmt: skip
        name = segment_name(self._segment)
        self.directory.write_at(name, self._offset, encode_group(header, encoder.parts))
        self.directory.sync(name)
        self._position = Position(self._segment, header.end, header.group, encoder.chain)
        if self._segment > held.segment > 0:
            self._close(held.segment)
        self._offset = align(header.end)
        self._highest.setdefault(self._segment, 0)
        self._is_broken = False

    def _close(self, segment: int) -> None:
        """Note in a segment that the next one has a group now, so that its loss would be seen.

        In place, as the disk may be full. An older one that isn't last any more needs no check.
        """
        name = segment_name(segment)
        closing = encode_closing(self.identity.log_id, segment)
        self.directory.write_at(name, self.directory.size(name) - SECTOR, closing)
        self.directory.sync(name)

    def _follow(self, saves: Sequence[Save], mark: Mark | None) -> None:
        """Keep in mind what was written, and what it makes superfluous."""
        highest = self._highest
        for save in saves:
            if save.hard_state is not None:
                self._hard_state = save.hard_state
            if save.snapshot is not None:
                self._highest = highest = dict.fromkeys(highest, 0)
                self._last_index = 0
            if save.entries:
                self._last_index = save.entries[-1].index
                highest[self._segment] = max(highest[self._segment], save.entries[-1].index)
        if mark is not None:
            self._replace_mark(mark)
            self.drop_below(mark.snapshot.index)
        self._note_log(_cluster_id(mark and mark.snapshot, saves))

    def _replace_mark(self, mark: Mark) -> None:
        old, self._mark = self._mark, mark
        if old is not None and old.name != mark.name:
            self.directory.unlink(old.name)

    # Segments

    def _next_segment(self, need: int) -> None:
        self._wait()
        if self._spare_bytes < need:
            self._make_spare(max(need, self._next_bytes()))
        self._segment += 1
        self.directory.rename(SPARE, segment_name(self._segment))
        self.directory.sync_directory()
        self._capacity, self._spare_bytes = self._spare_bytes - SECTOR, 0
        self._offset = 0

    def _next_bytes(self) -> int:
        return min(max(self._sizes.first, 2 * (self._capacity + SECTOR)), self._sizes.largest)

    def _make_spare(self, size: int) -> None:
        self.directory.create(SPARE, size)
        self.directory.sync(SPARE)
        self._spare_bytes = size
        self.is_full = False

    def _prepare(self) -> None:
        """Make the next segment; where there is no room for it, one of the smallest size."""
        try:
            for size in sorted({self._next_bytes(), self._sizes.first}, reverse=True):
                try:
                    self._make_spare(size)
                    break
                except OSError:
                    self._discard(SPARE)
            else:
                self.is_full = True
        finally:
            self._is_preparing = False

    def _discard(self, name: str) -> None:
        """Give back the room that an unfinished file takes, if it is there."""
        with suppress(OSError):
            self.directory.unlink(name)

    # Identity

    def _note_log(self, cluster_id: bytes) -> None:
        """Keep in mind that there is a log, so that its loss is seen."""
        if cluster_id:
            self._identify(self.identity._replace(cluster_id=cluster_id, has_log=True))

    def _identify(self, identity: Identity) -> None:
        if identity != self.identity:
            write_identity(self.directory, identity)
            self.identity = identity


def is_full(error: OSError) -> bool:
    """Return whether an error says that there is no room."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def _at_once(task: Callable[[], None]) -> Callable[[], None]:
    task()
    return _no_wait


def _no_wait() -> None:
    """Wait for what is done already."""


def _identify(directory: Directory, entropy: Iterator[int]) -> Identity:
    identity = read_identity(directory)
    if identity is None:
        if any(name.startswith((PREFIX, SNAPSHOT_PREFIX)) for name in directory.list()):
            raise Refused(
                f"{directory.label} has a log, but no file {IDENTITY} that says whose. {REJOIN}"
            )
        identity = Identity(_draw(entropy), log_id=_draw(entropy))
        write_identity(directory, identity)
    return identity


def _draw(entropy: Iterator[int]) -> int:
    return next(number for number in entropy if 0 < number < 1 << 64)


def _read_snapshot(directory: Directory, mark: Mark) -> bytes:
    if mark.name not in directory.list():
        raise Refused(f"{directory.label}/{mark.name}, the node's snapshot, is missing. {REJOIN}")
    data = directory.read(mark.name)
    if len(data) != mark.file_bytes or crc32(data) != mark.file_crc:
        raise Refused(f"{directory.label}/{mark.name}, the node's snapshot, is damaged. {REJOIN}")
    return data


def _restored(directory: Directory, log: Recovered, identity: Identity) -> Restored:
    replay = log.replay
    snapshot = None if replay.mark is None else replay.mark.snapshot
    base = 0 if snapshot is None else snapshot.index
    entries = replay.entries
    first = entries[0].index if entries else max(base, replay.last_index) + 1
    if first > base + 1:
        raise Refused(
            f"the log in {directory.label} begins at entry {first}, its snapshot is of entry "
            f"{base}: what is between is missing. {REJOIN}"
        )
    if identity.has_log and snapshot is None and not entries:
        raise Refused(
            f"{directory.label} belongs to a node of cluster {identity.cluster_id.hex()}, but its "
            f"log is missing. {REJOIN}"
        )
    return Restored(replay.hard_state, snapshot, tuple(entries[base + 1 - first :]))


def _cluster_id(snapshot: Snapshot | None, saves: Iterable[Save | Restored]) -> bytes:
    """Return the id that these say the log's cluster has; empty where they don't."""
    for save in saves:
        if save.entries and save.entries[0].kind == FOUND:
            return save.entries[0].payload[:CLUSTER_ID_BYTES]
    return b"" if snapshot is None else snapshot.configuration.cluster_id
