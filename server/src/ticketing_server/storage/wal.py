"""Reading a write-ahead log back: what it holds, where it ends, and whether that can be so."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ticketing_server.raft.messages import Entry, HardState
from ticketing_server.storage.directory import Directory, Refused
from ticketing_server.storage.records import (
    INSTALL,
    MAGIC,
    SECTOR,
    Header,
    Mark,
    Record,
    align,
    decode_header,
    decode_record,
    is_closed,
)

PREFIX = "wal-"
REJOIN = (
    "This node may have lost what it has promised, so it must not vote with it. To rejoin a "
    "cluster, move this directory away and start with an empty one: the others bring the node up "
    "to date under a new node id. A node that is alone needs a backup of its snapshot instead"
)


class Position(NamedTuple):
    """Where a log ends so far."""

    segment: int
    end: int
    """Behind the last record in the segment."""
    group: int
    chain: int


@dataclass
class Replay:
    """What the records read so far come to."""

    hard_state: HardState = field(default_factory=HardState)
    mark: Mark | None = None
    entries: list[Entry] = field(default_factory=list)
    highest: dict[int, int] = field(default_factory=dict)
    """The highest index that an entry in a segment ever had, by segment."""
    last_index: int = 0
    """Of the log's last entry, which may be in a segment that is dropped."""

    def take(self, record: Record, segment: int) -> None:
        """Follow one record; `ValueError` where an entry doesn't follow the ones before."""
        if isinstance(record, Entry):
            self._entry(record, segment)
        elif isinstance(record, HardState):
            self.hard_state = record
        else:
            kind, self.mark = record
            if kind == INSTALL:
                self.entries.clear()
                self.last_index = 0
                self.highest = dict.fromkeys(self.highest, 0)

    def _entry(self, entry: Entry, segment: int) -> None:
        entries = self.entries
        if entries:
            # Before the first: segments are dropped that had what comes before it.
            place = max(0, entry.index - entries[0].index)
            if place > len(entries):
                raise ValueError(
                    f"entry {entry.index} follows {entries[0].index} to {entries[-1].index}"
                )
            del entries[place:]
        entries.append(entry)
        self.last_index = entry.index
        self.highest[segment] = max(self.highest.get(segment, 0), entry.index)


class Torn(NamedTuple):
    """Bytes behind the end of the log that no whole record explains."""

    segment: int
    offset: int
    data: bytes


@dataclass
class Recovered:
    """All that a directory says of a log."""

    replay: Replay
    position: Position
    segment_bytes: int
    """Size of the segment it ends in; 0 where nothing was ever written."""
    last_group: int
    """Where the last group begins, …"""
    last_bytes: bytes
    """… and what it has up to the last record that is whole."""
    torn: list[Torn]
    segments: list[int]
    """Those that have something, rising."""
    surplus: list[int]
    """Segments that mean nothing: left by an unfinished removal, or made and not written."""


class Damaged(Exception):
    """A place of the segment at hand that can't be read."""

    def __init__(self, offset: int, what: str) -> None:
        """Say where, and what is wrong there."""
        super().__init__(what)
        self.offset = offset
        self.what = what


def segment_name(segment: int) -> str:
    """Return the file name of a segment."""
    return f"{PREFIX}{segment:012d}"


def segments_of(directory: Directory) -> list[int]:
    """Return the numbers of the segments there are, rising."""
    names = {name for name in directory.list() if name.startswith(PREFIX)}
    numbers = {name.removeprefix(PREFIX) for name in names}
    found = {int(number) for number in numbers if number.isdecimal()}
    return sorted(number for number in found if segment_name(number) in names)


def beginning(log_id: int) -> Position:
    """Return where an empty log ends."""
    return Position(0, 0, 0, log_id & 0xFFFFFFFF)


def read_log(directory: Directory, log_id: int, *, is_live: bool = False) -> Recovered:
    """Read all of a log; `Refused` where it is damaged below its last group.

    Live: a store writes to it meanwhile, so damage only means that this came too early to read on.
    """
    numbers = segments_of(directory)
    headless: list[Torn] = []
    last: Header | None = None
    data = b""
    for number in reversed(numbers):
        data = directory.read(segment_name(number))
        last = last_header(data, log_id, number)
        if last is not None:
            break
        headless.append(Torn(number, 0, data.rstrip(b"\0")))
    torn = [tail for tail in headless if tail.data]
    if last is None:
        if numbers not in ([], [1]):
            raise refusal(directory, numbers[0], 0, "no group in the log is whole")
        return Recovered(Replay(), beginning(log_id), 0, 0, b"", torn, [], numbers)
    if len(headless) > 1:
        raise refusal(directory, headless[-1].segment, 0, "no group in it is whole")
    if not is_live and is_closed(data, log_id, last.segment):
        raise _missing(directory, last.segment + 1)
    first = last.segment
    while first - 1 in numbers:
        first -= 1
    segments = list(range(first, last.segment + 1))
    reader = _Reader(directory, log_id, first)
    try:
        for number in segments[:-1]:
            reader.read_whole(number)
        damage = reader.read_last(data, last)
    except Damaged as error:
        if not is_live:
            raise refusal(directory, reader.segment, error.offset, error.what) from None
        damage = None
    if damage is not None:
        torn.append(Torn(last.segment, damage, data[damage:].rstrip(b"\0")))
    surplus = [number for number in numbers if number not in segments]
    last_bytes = data[last.offset : reader.position.end]
    return Recovered(
        reader.replay, reader.position, len(data), last.offset, last_bytes, torn, segments, surplus
    )


def refusal(directory: Directory, segment: int, offset: int, what: str) -> Refused:
    """Return the error that says which place is damaged and how the node gets back."""
    return Refused(
        f"{directory.label}/{segment_name(segment)} is damaged at byte {offset} ({what}), and no "
        f"write that was cut short explains it. {REJOIN}"
    )


def _missing(directory: Directory, segment: int) -> Refused:
    """Return the error that says which segment is gone, or as good as gone."""
    return Refused(
        f"{directory.label}/{segment_name(segment)} is missing, or nothing in it is whole, and the "
        f"segment before says that it was begun. {REJOIN}"
    )


def last_header(data: bytes, log_id: int, segment: int) -> Header | None:
    """Return the last header in a segment that is valid."""
    at = data.rfind(MAGIC)
    while at >= 0:
        if at % SECTOR == 0:
            header = decode_header(data, at, log_id, segment)
            if header is not None:
                return header
        at = data.rfind(MAGIC, 0, at + len(MAGIC) - 1)
    return None


class _Reader:
    """Reads segment after segment, checking that each group continues the one before."""

    def __init__(self, directory: Directory, log_id: int, first: int) -> None:
        """Begin at the first segment that there is."""
        self._directory = directory
        self._log_id = log_id
        self._ahead = (0, b"")
        self.replay = Replay()
        self.segment = first
        self.position = beginning(log_id)
        self._is_begun = first == 1
        """Else what came before is dropped, and the first header is believed."""

    def read_whole(self, segment: int) -> None:
        """Read a segment that another follows, whose header says where this one ends."""
        data = self._read(segment)
        self.segment = segment + 1
        follower = self._header(self._read(segment + 1), 0)
        self.segment = segment
        offset = 0
        while True:
            header = self._follow(data, offset)
            stop = min(header.end, follower.previous_end)
            self._records(data, header, stop)
            if stop == follower.previous_end:
                return
            offset = self._padding(data)

    def read_last(self, data: bytes, last: Header) -> int | None:
        """Read the segment that the log ends in; return where a torn tail begins, if it has one."""
        self.segment = last.segment
        offset = 0
        while offset < last.offset:
            header = self._follow(data, offset)
            self._records(data, header, header.end)
            offset = self._padding(data)
        header = self._follow(data, offset)
        try:
            self._records(data, header, header.end)
            offset = self._padding(data)
        except Damaged:
            return self.position.end
        return self.position.end if data[offset:].strip(b"\0") else None

    def _read(self, segment: int) -> bytes:
        """Read a segment, not anew where it was the last one looked at."""
        if self._ahead[0] != segment:
            self._ahead = segment, self._directory.read(segment_name(segment))
        return self._ahead[1]

    def _header(self, data: bytes, offset: int) -> Header:
        header = decode_header(data, offset, self._log_id, self.segment)
        if header is None:
            raise Damaged(offset, "the header of a group is not valid")
        return header

    def _follow(self, data: bytes, offset: int) -> Header:
        """Step onto the group at an offset."""
        header = self._header(data, offset)
        size = header.segment_bytes
        if len(data) != size:
            what = f"the file has {len(data)} bytes, and had {size} when it was written to"
            raise Damaged(min(len(data), size), what)
        held = self.position
        follows = (held.group + 1, held.end, held.chain)
        if self._is_begun and (header.group, header.previous_end, header.chain) != follows:
            raise Damaged(offset, "a group does not continue the one before")
        if not self._is_begun:
            self.replay.last_index = header.last_index
        self._is_begun = True
        self.position = Position(self.segment, header.begin, header.group, header.chain)
        return header

    def _records(self, data: bytes, header: Header, stop: int) -> None:
        """Take the records of a group up to `stop`."""
        view = memoryview(data)
        _, offset, group, chain = self.position
        while offset != stop:
            found = decode_record(view, offset, stop, chain)
            if found is None:
                raise Damaged(offset, "a record is not as it was written")
            record, offset, chain = found
            try:
                self.replay.take(record, self.segment)
            except ValueError as error:
                raise Damaged(offset, str(error)) from None
            self.position = Position(self.segment, offset, group, chain)

    def _padding(self, data: bytes) -> int:
        """Return where the next group begins; between them are zeros."""
        end = self.position.end
        offset = align(end)
        if data[end:offset].strip(b"\0"):
            raise Damaged(end, "there is something between two groups")
        return offset
