"""A simulated data directory: what wasn't synced is kept, lost or torn when its node crashes.

It has the methods of `ticketing_server.storage.directory.Directory`. Content becomes durable with
`sync`, names (created, renamed, unlinked) with `sync_directory`. At a crash a prefix of the changes
of names survives, as in a journal, and each sector that wasn't synced fares on its own.
"""

from __future__ import annotations

import errno
from random import Random

SECTOR_BYTES = 512


class Crashed(BaseException):
    """The node's machine stops in the middle of this call; nothing may catch it but the world."""


class _File:
    """Bytes as a process sees them, and as they are on the medium."""

    def __init__(self) -> None:
        self.now = bytearray()
        self.durable = bytearray()
        self.dirty: set[int] = set()

    def touch(self, first: int, end: int) -> None:
        self.dirty.update(range(first // SECTOR_BYTES, -(-end // SECTOR_BYTES)))

    def sync(self) -> None:
        size = len(self.now)
        del self.durable[size:]
        self.durable.extend(bytes(size - len(self.durable)))
        for sector in sorted(self.dirty):
            first = sector * SECTOR_BYTES
            self.durable[first : first + SECTOR_BYTES] = self.now[first : first + SECTOR_BYTES]
        self.dirty.clear()

    def crash(self, random: Random) -> int:
        """Let each unsynced sector be kept, lost or torn; return how many were torn."""
        torn = 0
        if len(self.now) != len(self.durable) and random.random() < 0.5:
            size = len(self.now)
            del self.durable[size:]
            self.durable.extend(bytes(size - len(self.durable)))
        for sector in sorted(self.dirty):
            first = sector * SECTOR_BYTES
            new = self.now[first : first + SECTOR_BYTES]
            fate = random.random()
            if fate < 0.4:
                continue
            if fate < 0.6:
                new = new[: random.randrange(len(new) + 1)]
                torn += 1
            room = max(0, len(self.durable) - first)
            self.durable[first : first + min(len(new), room)] = new[:room]
        self.dirty.clear()
        self.now = bytearray(self.durable)
        return torn


class SimDirectory:
    """One node's directory, over all of its lives."""

    def __init__(self, random: Random) -> None:
        """Begin empty; `random` decides what a crash leaves."""
        self._random = random
        self._names: dict[str, _File] = {}
        self._durable_names: dict[str, _File] = {}
        self._unsynced: list[dict[str, _File]] = []
        """What the names were after each change that wasn't synced."""
        self.steps = 0
        """Calls that changed or synced something; a crash or an error can be set for one."""
        self.crash_at: int | None = None
        self.fail_at: int | None = None
        """The step at which the medium gives out: EIO there, and at each later one."""
        self.free_bytes: int | None = None
        """What is left to grow by; None where that doesn't matter."""
        self.torn = 0

    # What the store calls

    @property
    def label(self) -> str:
        """How texts for people name it."""
        return "disk"

    def list(self) -> list[str]:
        """Return the names."""
        return sorted(self._names)

    def size(self, name: str) -> int:
        """Return how long a file is."""
        return len(self._file(name).now)

    def read(self, name: str) -> bytes:
        """Return all of a file."""
        return bytes(self._file(name).now)

    def create(self, name: str, size: int) -> None:
        """Make a file of zeros; an old one of this name is replaced."""
        self._step()
        self._take_space(size)
        file = _File()
        file.now = bytearray(size)
        file.touch(0, size)
        self._names[name] = file
        self._changed()

    def write_at(self, name: str, offset: int, data: bytes) -> None:
        """Write into a file, or behind its end."""
        file = self._file(name)
        end = offset + len(data)
        crashes = self._is_crash_step()
        if crashes:
            # Some of it may have got to the cache, in any order of sectors.
            data = data[: self._random.randrange(len(data) + 1)]
            end = offset + len(data)
        else:
            self._step()
        if end > len(file.now):
            self._take_space(end - len(file.now))
            first = len(file.now)
            file.now.extend(bytes(end - len(file.now)))
            file.touch(first, end)
        file.now[offset:end] = data
        file.touch(offset, end)
        if crashes:
            self._step()

    def sync(self, name: str) -> None:
        """Make the content of a file durable."""
        self._step()
        self._file(name).sync()

    def rename(self, name: str, to: str) -> None:
        """Give a file another name, in the place of what has it."""
        self._step()
        self._names[to] = self._file(name)
        del self._names[name]
        self._changed()

    def unlink(self, name: str) -> None:
        """Remove a name."""
        self._step()
        self._file(name)
        del self._names[name]
        self._changed()

    def sync_directory(self) -> None:
        """Make all names durable."""
        self._step()
        self._durable_names = dict(self._names)
        self._unsynced.clear()

    # What the world does to it

    def crash(self) -> None:
        """Stop the machine: only what is on the medium is left, whatever that is."""
        states = [self._durable_names, *self._unsynced]
        # What was unlinked and isn't there yet again may come back.
        self._durable_names = dict(self._random.choice(states))
        self._names = dict(self._durable_names)
        self._unsynced.clear()
        seen: list[_File] = []
        for name in sorted(self._names):
            file = self._names[name]
            if not any(file is other for other in seen):
                seen.append(file)
                self.torn += file.crash(self._random)
        self.crash_at = None

    def wipe(self) -> None:
        """Lose everything, as when a disk is replaced."""
        self.__init__(self._random)  # type: ignore[misc]

    def flip(self, name: str, offset: int, bit: int) -> None:
        """Change one bit on the medium, unseen."""
        file = self._file(name)
        for content in (file.now, file.durable):
            if offset < len(content):
                content[offset] ^= 1 << bit

    def crash_within(self, steps: int) -> None:
        """Stop the machine at one of the next calls that change something."""
        self.crash_at = self.steps + 1 + self._random.randrange(max(1, steps))

    # Steps

    def _is_crash_step(self) -> bool:
        return self.crash_at is not None and self.steps + 1 >= self.crash_at

    def _step(self) -> None:
        self.steps += 1
        if self.crash_at is not None and self.steps >= self.crash_at:
            raise Crashed
        if self.fail_at is not None and self.steps >= self.fail_at:
            raise OSError(errno.EIO, "the medium gave out")

    def _take_space(self, size: int) -> None:
        if self.free_bytes is None:
            return
        if size > self.free_bytes:
            raise OSError(errno.ENOSPC, "no space left")
        self.free_bytes -= size

    def _file(self, name: str) -> _File:
        file = self._names.get(name)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", name)
        return file

    def _changed(self) -> None:
        self._unsynced.append(dict(self._names))
