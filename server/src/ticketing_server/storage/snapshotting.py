"""The next snapshot, made by a process beside the server from the last one and the log.

The process only reads, while the server goes on writing. It is a new program, not a fork: it
shares no lock, thread or file with the server.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path

from ticketing_server.cluster import snapshot_file
from ticketing_server.storage.directory import Directory, Refused
from ticketing_server.storage.identity import read_identity
from ticketing_server.storage.real_directory import RealDirectory
from ticketing_server.storage.wal import read_log

_LENGTH_BYTES = 8
_NICENESS = 10


class SnapshotFailed(Exception):
    """No snapshot was made; the text says why. The log is still all there."""


async def make_snapshot(path: str | Path, index: int) -> tuple[bytes, bytes]:
    """Return the snapshot as of an entry that is on disk and applied: file and checksum.

    Cancelled, it ends the process that makes it.
    """
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __name__, os.fspath(path), str(index),
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE, env=_environment(),
    )  # fmt: skip
    try:
        output, problem = await child.communicate()
    finally:
        if child.returncode is None:
            with suppress(ProcessLookupError):
                child.kill()
            await child.wait()
    if child.returncode != 0 or len(output) < _LENGTH_BYTES:
        lines = problem.decode(errors="replace").strip().splitlines()
        raise SnapshotFailed(lines[-1] if lines else f"it ended with {child.returncode}")
    begin = _LENGTH_BYTES + int.from_bytes(output[:_LENGTH_BYTES], "big")
    return output[begin:], output[_LENGTH_BYTES:begin]


def make_from(directory: Directory, index: int) -> tuple[bytes, bytes]:
    """Return the snapshot's file and checksum, reading beside a store that writes.

    `ValueError` or `OSError` where it came at a bad moment: another snapshot was just installed,
    or what is asked for is not on disk yet.
    """
    identity = read_identity(directory)
    if identity is None:
        raise Refused(f"{directory.label} is no data directory")
    replay = read_log(directory, identity.log_id, is_live=True).replay
    previous = None if replay.mark is None else directory.read(replay.mark.name)
    return snapshot_file.make(previous, replay.entries, index)


def _environment() -> dict[str, str]:
    """Return what the process needs to start, without the server's settings and secrets."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TICKETING_")}


def main() -> int:
    """Make a snapshot and write it to the standard output, the checksum before it."""
    path, index = sys.argv[1:]
    os.nice(_NICENESS)
    try:
        file, checksum = make_from(RealDirectory(path, is_reader=True), int(index))
    except (ValueError, OSError, Refused) as error:
        print(error, file=sys.stderr)
        return 1
    sys.stdout.buffer.write(len(checksum).to_bytes(_LENGTH_BYTES, "big") + checksum)
    sys.stdout.buffer.write(file)
    sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
