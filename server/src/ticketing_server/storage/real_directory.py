"""A directory of the file system, held by one process at a time."""

from __future__ import annotations

import builtins
import fcntl
import os
from pathlib import Path

from ticketing_server.storage.directory import Refused

_CHUNK = 1024 * 1024
_ZEROS = bytes(_CHUNK)
_PIECE = 4 * 1024 * 1024
"""Pieces of what is large are synced one by one, so that the log's syncs wait for little."""


class RealDirectory:
    """See `directory.Directory`."""

    def __init__(self, path: str | Path, *, is_reader: bool = False) -> None:
        """Make it if it is missing, and hold it; `Refused` where that can't be.

        A reader neither makes nor holds it, and may only read.
        """
        self.label = os.fspath(path)
        self._files: dict[str, int] = {}
        try:
            if not is_reader:
                _make(Path(path))
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise Refused(f"data directory {self.label} can't be used: {error.strerror}") from None
        if not is_reader:
            self._hold()

    def _hold(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise Refused(
                f"data directory {self.label} is in use by another process. Stop that one, or "
                "give this one a directory of its own (--data-dir)"
            ) from None

    def close(self) -> None:
        """Let another process have it; again is no error."""
        for fd in (*self._files.values(), self._fd):
            if fd >= 0:
                os.close(fd)
        self._files.clear()
        self._fd = -1

    def list(self) -> builtins.list[str]:
        """Return the names of the files in it."""
        # Other things, as a lost+found, are somebody else's.
        with os.scandir(self._fd) as found:
            return sorted(entry.name for entry in found if entry.is_file())

    def size(self, name: str) -> int:
        """Return the bytes of a file."""
        return os.stat(name, dir_fd=self._fd).st_size

    def read(self, name: str) -> bytes:
        """Return the whole content of a file."""
        with open(os.open(name, os.O_RDONLY, dir_fd=self._fd), "rb", buffering=0) as file:
            return file.readall()

    def create(self, name: str, size: int) -> None:
        """Make a file of zeros, which are written and not only promised."""
        self._forget(name)
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC
        fd = os.open(name, flags, 0o600, dir_fd=self._fd)
        try:
            for offset in range(0, size, _CHUNK):
                _write(fd, offset, _ZEROS[: size - offset])
                os.fdatasync(fd)
        finally:
            os.close(fd)

    def write_at(self, name: str, offset: int, data: bytes) -> None:
        """Write in place."""
        fd = self._file(name)
        if len(data) <= _PIECE:
            _write(fd, offset, data)
            return
        view = memoryview(data)
        for begin in range(0, len(data), _PIECE):
            _write(fd, offset + begin, view[begin : begin + _PIECE])
            os.fdatasync(fd)

    def sync(self, name: str) -> None:
        """Return when the content is on disk."""
        os.fdatasync(self._file(name))

    def rename(self, name: str, to: str) -> None:
        """Give a file another name."""
        self._forget(name)
        self._forget(to)
        os.rename(name, to, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def unlink(self, name: str) -> None:
        """Remove a file."""
        self._forget(name)
        os.unlink(name, dir_fd=self._fd)

    def sync_directory(self) -> None:
        """Return when the names are on disk."""
        os.fsync(self._fd)

    def _file(self, name: str) -> int:
        fd = self._files.get(name)
        if fd is None:
            fd = self._files[name] = os.open(name, os.O_RDWR, dir_fd=self._fd)
        return fd

    def _forget(self, name: str) -> None:
        fd = self._files.pop(name, None)
        if fd is not None:
            os.close(fd)


def _make(path: Path) -> None:
    missing = [made for made in (path, *path.parents) if not made.exists()]
    if missing:
        path.mkdir(mode=0o700, parents=True)
    for made in missing:
        fd = os.open(made.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _write(fd: int, offset: int, data: bytes | memoryview) -> None:
    done = os.pwrite(fd, data, offset)
    while done < len(data):
        done += os.pwrite(fd, data[done:], offset + done)
