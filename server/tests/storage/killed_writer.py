"""A process that writes until it is killed, and says on its standard output what is synced.

What it writes is a function of the index, so that whoever reads the directory afterwards knows
what has to be there. Save numbers are indices.
"""

from __future__ import annotations

import asyncio
import os
import sys

from history import CLUSTER, FOUNDING, SMALL
from ticketing_server.raft.messages import BATCH, Entry, HardState, Snapshot
from ticketing_server.raft.saves import Save
from ticketing_server.raft.state import Restored
from ticketing_server.storage.real_directory import RealDirectory
from ticketing_server.storage.store import Store
from ticketing_server.storage.writer import Events, Writer

UNSYNCED = 4
TERM = 50
"""Entries of one term."""


def entry(index: int) -> Entry:
    if index == 1:
        return FOUNDING
    size = index * 7919 % 9000
    return Entry(index, hard_state(index).term, BATCH, index, bytes([index % 256]) * size)


def hard_state(index: int) -> HardState:
    term = 1 + index // TERM
    return HardState(term, 7 + term % 3)


def snapshot(index: int) -> tuple[Snapshot, bytes]:
    held = entry(index)
    return Snapshot(index, held.term, held.stamp, CLUSTER), b"table as of %d" % index * 500


def last_index(restored: Restored) -> int:
    if restored.entries:
        return restored.entries[-1].index
    return 0 if restored.snapshot is None else restored.snapshot.index


async def write(path: str) -> None:
    numbers = iter(int.from_bytes(os.urandom(8), "big") for _ in range(8))
    opened = Store.open(RealDirectory(path), numbers, SMALL)
    last = done = last_index(opened.restored)
    room = asyncio.Event()

    def synced(number: int, _seconds: float) -> None:
        nonlocal done
        done = number
        os.write(1, b"%d\n" % number)
        room.set()

    def failed(error: Exception) -> None:
        os.write(2, str(error).encode())
        os._exit(5)

    loop = asyncio.get_running_loop()
    events = Events(loop.call_soon_threadsafe, synced, lambda is_full: None, failed)
    writer = Writer(opened.store, events)
    while True:
        last += 1
        begins = last == 1 or last % TERM == 0
        writer.save(Save(last, hard_state(last) if begins else None, None, (entry(last),)))
        if last % (2 * TERM) == 0:
            writer.put_snapshot(*snapshot(last - TERM), last - TERM)
        while last - done >= UNSYNCED:
            room.clear()
            await room.wait()


if __name__ == "__main__":
    asyncio.run(write(sys.argv[1]))
