"""A store on a thread of its own: what queues while one group is synced becomes the next one."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import NamedTuple

from ticketing_server.raft.messages import Snapshot
from ticketing_server.raft.saves import Save
from ticketing_server.storage.records import Mark
from ticketing_server.storage.store import MIB, Store, is_full

GROUP_BYTES = 4 * MIB
"""Entries of one group; a single save may be larger."""
RETRY_FULL_S = 1.0
"""How often a full disk is tried again."""


class Events(NamedTuple):
    """What a writer tells, each by `call_soon`, so on the event loop's thread."""

    call_soon: Callable[..., object]
    """`loop.call_soon_threadsafe`."""
    synced: Callable[[int, float], None]
    """All saves up to this number are on disk; the last group took so many seconds."""
    full: Callable[[bool], None]
    """Whether there is room for a next segment has changed."""
    failed: Callable[[Exception], None]
    """The disk failed: nothing more is written, the process ends."""


class _Write(NamedTuple):
    save: Save
    install: bytes | None


class _Call(NamedTuple):
    task: Callable[[], None]
    done: Callable[[], None] | None


_Job = _Write | _Call | None


class Writer:
    """Writes in the order of the calls. The store is this thread's alone from now on."""

    def __init__(self, store: Store, events: Events) -> None:
        """Start the thread."""
        self._store = store
        self._events = events
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._was_full = False
        store.aside = self._aside
        self._thread = Thread(target=self._run, name="wal", daemon=True)
        self._thread.start()

    def save(self, save: Save, install: bytes | None = None) -> None:
        """Write a save; `install` is the file of its snapshot, if it has one."""
        self._jobs.put(_Write(save, install))

    def put_snapshot(
        self, snapshot: Snapshot, file: bytes, drop_below: int,
        done: Callable[[bool], None] | None = None,
    ) -> None:  # fmt: skip
        """Keep the node's own snapshot, and drop the log up to an index.

        The file is written beside the log; only its mark has to wait for its turn. `done` is told
        whether there was room for it: without it the log just stays longer.
        """

        def stage() -> None:
            try:
                mark = self._store.stage_snapshot(snapshot, file)
            except Exception as error:
                if not isinstance(error, OSError) or not is_full(error):
                    self._tell(self._events.failed, error)
                elif done is not None:
                    self._tell(done, False)
                return
            self._jobs.put(
                _Call(lambda: self._mark(mark, drop_below), done and partial(done, True))
            )

        Thread(target=stage, name="snapshot", daemon=True).start()

    def note_cluster(self, cluster_id: bytes, done: Callable[[], None] | None = None) -> None:
        """Keep the id of a cluster that was met; `done` when that is on disk."""
        self._jobs.put(_Call(lambda: self._store.note_cluster(cluster_id), done))

    def close(self) -> None:
        """Write what is queued, and end the thread."""
        self._jobs.put(None)
        self._thread.join()

    # The thread

    def _run(self) -> None:
        try:
            self._store.prepare()
            job = self._next()
            while job is not None:
                if isinstance(job, _Write):
                    job = self._write(job)
                else:
                    job.task()
                    if job.done is not None:
                        self._tell(job.done)
                    job = self._next()
        except Exception as error:
            self._tell(self._events.failed, error)

    def _next(self) -> _Job:
        """Wait for something to do; while the disk is full, look for room now and then."""
        while True:
            self._tell_full()
            try:
                return self._jobs.get(timeout=RETRY_FULL_S if self._store.is_full else None)
            except Empty:
                self._store.prepare()

    def _write(self, first: _Write) -> _Job:
        """Write a group of all that is queued, and return what comes after it."""
        saves = [first.save]
        size = _size(first.save)
        while size < GROUP_BYTES:
            try:
                after = self._jobs.get_nowait()
            except Empty:
                after = _IDLE
            if not isinstance(after, _Write) or after.install is not None:
                break
            saves.append(after.save)
            size += _size(after.save)
        else:
            after = _IDLE
        begun = time.perf_counter()
        self._store.write(saves, first.install)
        self._tell(self._events.synced, saves[-1].number, time.perf_counter() - begun)
        return after

    def _mark(self, mark: Mark, drop_below: int) -> None:
        self._store.mark_snapshot(mark)
        self._store.drop_below(drop_below)

    def _tell_full(self) -> None:
        is_full = self._store.is_full
        if is_full != self._was_full:
            self._was_full = is_full
            self._tell(self._events.full, is_full)

    def _aside(self, task: Callable[[], None]) -> Callable[[], None]:
        """Make a segment on another thread, so that no group waits for its zeros."""

        def run() -> None:
            task()
            # For the thread that writes to see whether there was room.
            self._jobs.put(_IDLE)

        thread = Thread(target=run, name="segment", daemon=True)
        thread.start()
        return thread.join

    def _tell(self, event: Callable[..., None], *arguments: object) -> None:
        # After the loop has closed nobody is left to be told.
        with suppress(RuntimeError):
            self._events.call_soon(event, *arguments)


def _nothing() -> None:
    """Do nothing."""


_IDLE = _Call(_nothing, None)


def _size(save: Save) -> int:
    return sum(entry.size for entry in save.entries)
