"""A directory in memory that loses power: what wasn't synced is kept, lost or torn."""

from __future__ import annotations

import builtins
import errno
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random


class PowerLost(BaseException):
    """The process is gone, in the middle of a call."""


@dataclass
class File:
    """Bytes as they are seen now, and those that are known to be on the medium."""

    seen: bytearray = field(default_factory=bytearray)
    synced: bytearray = field(default_factory=bytearray)
    stuck: set[int] = field(default_factory=set)
    """Sectors whose write failed: the system takes them for written until they change again."""


class FaultyDirectory:
    """Counts its steps, and can stop, fail or run out of space at one of them."""

    label = "/data"

    def __init__(self, sector: int = 512) -> None:
        """Begin empty."""
        self._sector = sector
        self._files: dict[str, File] = {}
        self._names: builtins.list[dict[str, File]] = [{}]
        """Names after the last sync of the directory, and after each change since."""
        self.steps = 0
        self.lose_power_at: int | None = None
        self.fail_from: int | None = None
        self.room: int | None = None
        """Bytes that all files may take."""

    # What a store calls

    def list(self) -> builtins.list[str]:
        return sorted(self._files)

    def size(self, name: str) -> int:
        return len(self._file(name).seen)

    def read(self, name: str) -> bytes:
        return bytes(self._file(name).seen)

    def create(self, name: str, size: int) -> None:
        self._step()
        file = self._files[name] = File()
        self._names.append(dict(self._files))
        self._grow(file, size)

    def write_at(self, name: str, offset: int, data: bytes) -> None:
        file = self._file(name)
        try:
            self._step()
        finally:
            # Whether the call came back or not, this may be on its way to the medium.
            end = offset + len(data)
            self._grow(file, max(0, end - len(file.seen)))
            file.seen[offset:end] = data
            file.stuck.difference_update(range(offset // self._sector, end // self._sector + 1))

    def sync(self, name: str) -> None:
        file = self._file(name)
        try:
            self._step()
        except OSError:
            file.stuck.update(place for place, _, _ in self._unsynced(file))
            raise
        file.synced.extend(bytes(len(file.seen) - len(file.synced)))
        for _, begin, end in self._unsynced(file):
            file.synced[begin:end] = file.seen[begin:end]

    def rename(self, name: str, to: str) -> None:
        self._step()
        self._files[to] = self._file(name)
        del self._files[name]
        self._names.append(dict(self._files))

    def unlink(self, name: str) -> None:
        self._step()
        self._file(name)
        del self._files[name]
        self._names.append(dict(self._files))

    def sync_directory(self) -> None:
        self._step()
        self._names = [dict(self._files)]

    # What a test does

    @property
    def used(self) -> int:
        """Bytes that all files take."""
        return sum(len(file.seen) for file in self._files.values())

    def lose_power(self, random: Random) -> None:
        """Leave what may be left: of names a prefix of the changes, of content any sectors."""
        self._files = dict(random.choice(self._names))
        self._names = [dict(self._files)]
        for file in self._files.values():
            self._settle(file, random)
        self.lose_power_at = None
        self.fail_from = None

    def flip(self, name: str, offset: int, bit: int) -> None:
        """Let one bit of the medium change."""
        file = self._file(name)
        file.seen[offset] ^= 1 << bit
        file.synced[:] = file.seen

    def copy(self) -> FaultyDirectory:
        """Return another one that is as this is."""
        return deepcopy(self)

    def _settle(self, file: File, random: Random) -> None:
        seen, kept = file.seen, file.synced
        if len(kept) < len(seen) and random.random() < 0.7:
            kept.extend(bytes(len(seen) - len(kept)))
        # Some losses of power take everything, some nothing, most are between.
        chance = random.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        for _, begin, end in self._unsynced(file):
            if begin < len(kept) and random.random() < chance:
                cut = end if random.random() < 0.7 else random.randrange(begin, end)
                kept[begin:cut] = seen[begin:cut]
        file.stuck.clear()
        file.seen = bytearray(kept)

    def _unsynced(self, file: File) -> builtins.list[tuple[int, int, int]]:
        """Return number, begin and end of each sector that a sync would write."""
        places = []
        for place in range(-(-len(file.seen) // self._sector)):
            begin, end = place * self._sector, (place + 1) * self._sector
            end = min(end, len(file.seen))
            if file.seen[begin:end] != file.synced[begin:end] and place not in file.stuck:
                places.append((place, begin, end))
        return places

    def _grow(self, file: File, size: int) -> None:
        if self.room is not None and self.used + size > self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        file.seen.extend(bytes(size))

    def _step(self) -> None:
        self.steps += 1
        if self.steps == self.lose_power_at:
            raise PowerLost
        if self.fail_from is not None and self.steps >= self.fail_from:
            raise OSError(errno.EIO, "Input/output error")

    def _file(self, name: str) -> File:
        file = self._files.get(name)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", name)
        return file
