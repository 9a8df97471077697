"""A small disk for a node, so that it can be full: a tmpfs, for root on Linux."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

FILLER = "filler"
CHUNK = 256 * 1024


class NoDisk(Exception):
    """A small disk can't be made here; the text says what is missing."""


def missing() -> str:
    """What is missing for small disks, or nothing."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return "mounting a tmpfs takes root and the program mount"
    return ""


class SmallDisk:
    """A file system of so many MiB at a path."""

    def __init__(self, path: Path, mebibytes: int) -> None:
        if reason := missing():
            raise NoDisk(reason)
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(path)]
        done = subprocess.run(command, capture_output=True, timeout=20, check=False)
        if done.returncode:
            raise NoDisk(done.stderr.decode("utf-8", "replace").strip())

    def fill(self) -> None:
        """Take all the room that is left."""
        with (self.path / FILLER).open("ab", buffering=0) as file:
            size = CHUNK
            while size:
                try:
                    file.write(b"\0" * size)
                except OSError:
                    size //= 2

    def free(self) -> None:
        """Give the room back."""
        (self.path / FILLER).unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount it."""
        command = ["umount", "--lazy", str(self.path)]
        subprocess.run(command, capture_output=True, timeout=20, check=False)
