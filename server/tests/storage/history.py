"""Random lives of a store, and what its disk may hold after each step of them."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from ticketing_server.raft.configuration import Configuration, encode_founding
from ticketing_server.raft.messages import BATCH, FOUND, Entry, HardState, Snapshot
from ticketing_server.raft.saves import Save
from ticketing_server.raft.state import Restored
from ticketing_server.storage.store import Opened, Sizes, Store

SMALL = Sizes(32 * 1024, 96 * 1024)
CLUSTER = Configuration(b"c" * 16, ((0, 7), (1, 8), (2, 9)), 3)
FOUNDING = Entry(1, 1, FOUND, 5, encode_founding(CLUSTER))


def entropy() -> Iterator[int]:
    """Yield numbers for an identity."""
    number = 1000
    while True:
        number += 1
        yield number


class Held(NamedTuple):
    """What a store gives back when it is opened."""

    restored: Restored = Restored()
    file: bytes | None = None

    def step(self, part: HardState | Entry | tuple[Snapshot, bytes, bool]) -> Held:
        """Return what is held after one more record."""
        hard, snapshot, entries = self.restored
        if isinstance(part, HardState):
            return Held(Restored(part, snapshot, entries), self.file)
        base = 0 if snapshot is None else snapshot.index
        if isinstance(part, Entry):
            kept = entries[: part.index - base - 1]
            return Held(Restored(hard, snapshot, (*kept, part)), self.file)
        new, file, installs = part
        kept = () if installs else entries[new.index - base :]
        return Held(Restored(hard, new, kept), file)


class Life:
    """A store that is told what raft might tell it, drawn from `random`."""

    def __init__(self, random: Random, held: Held = Held()) -> None:  # noqa: B008
        """Begin where the last life ended."""
        self.random = random
        self.held = held
        """What is synced."""
        self.possible: list[Held] = [held]
        """What may be found if the power is lost now."""
        self._number = 0

    def act(self, store: Store) -> None:
        """Do one thing, and know before it begins what may be left of it."""
        choice = self.random.random()
        if not self._last and self.held.restored.snapshot is None:
            self._save(store, [self._founding()])
        elif choice < 0.06:
            self._install(store)
        elif choice < 0.16 and self.held.restored.entries:
            self._snapshot(store)
        elif choice < 0.2:
            store.note_cluster(CLUSTER.cluster_id)
        else:
            self._save(store, self._saves())

    @property
    def _last(self) -> int:
        _, snapshot, entries = self.held.restored
        return entries[-1].index if entries else 0 if snapshot is None else snapshot.index

    def _founding(self) -> Save:
        return self._numbered(HardState(1, 7), (FOUNDING,))

    def _numbered(
        self, hard: HardState | None, entries: tuple[Entry, ...], snapshot: Snapshot | None = None
    ) -> Save:
        self._number += 1
        return Save(self._number, hard, snapshot, entries)

    def _saves(self) -> list[Save]:
        """Draw a group: terms that rise, votes, entries that go on or replace some."""
        held = self.held
        saves = []
        for _ in range(self.random.choice((1, 1, 1, 2, 3))):
            hard, snapshot, entries = held.restored
            base = 0 if snapshot is None else snapshot.index
            last = entries[-1].index if entries else base
            new: HardState | None = None
            if self.random.random() < 0.3:
                new = HardState(hard.term + 1, self.random.choice((None, 7, 8, 9)))
            term = (new or hard).term
            first = last + 1
            if new is not None and len(entries) > 1 and self.random.random() < 0.4:
                first = self.random.randrange(max(base, 1) + 1, last + 1)
            added = tuple(
                self._entry(index, term)
                for index in range(first, first + self.random.choice((0, 1, 1, 2, 5)))
            )
            save = self._numbered(new, added)
            saves.append(save)
            held = _after(held, save)[-1]
        return saves

    def _entry(self, index: int, term: int) -> Entry:
        size = self.random.choice((0, 20, 500, 5000, 9000))
        return Entry(index, term, BATCH, index * 10, self.random.randbytes(size))

    def _save(self, store: Store, saves: list[Save]) -> None:
        self.possible = [self.held]
        for save in saves:
            self.possible += _after(self.possible[-1], save)
        store.write(saves)
        self._done()

    def _install(self, store: Store) -> None:
        index = self._last + self.random.randrange(-3, 20)
        snapshot = self.held.restored.snapshot
        if index <= max(1, 0 if snapshot is None else snapshot.index):
            return
        term = self.held.restored.hard_state.term + 1
        new = Snapshot(index, term, index * 10, CLUSTER)
        file = self.random.randbytes(self.random.choice((10, 3000)))
        hard = HardState(term, None)
        entries = tuple(self._entry(index + 1 + n, term) for n in range(self.random.choice((0, 2))))
        save = self._numbered(hard, entries, new)
        self.possible = [self.held, *_after(self.held, save, file)]
        store.write([save], file)
        self._done()

    def _snapshot(self, store: Store) -> None:
        entry = self.random.choice(self.held.restored.entries)
        new = Snapshot(entry.index, entry.term, entry.stamp, CLUSTER)
        file = self.random.randbytes(self.random.choice((10, 3000)))
        self.possible = [self.held, self.held.step((new, file, False))]
        store.put_snapshot(new, file)
        self._done()
        store.drop_below(entry.index - self.random.choice((0, 3)))

    def _done(self) -> None:
        self.held = self.possible[-1]
        self.possible = [self.held]


def _after(held: Held, save: Save, file: bytes = b"") -> list[Held]:
    """Return what may be held when a save is cut short behind any of its records."""
    steps = []
    parts: list[HardState | Entry | tuple[Snapshot, bytes, bool]] = []
    if save.hard_state is not None:
        parts.append(save.hard_state)
    if save.snapshot is not None:
        parts.append((save.snapshot, file, True))
    for part in (*parts, *save.entries):
        held = held.step(part)
        steps.append(held)
    return steps or [held]


def held_of(opened: Opened) -> Held:
    """Return what a store gave back."""
    return Held(opened.restored, opened.snapshot_file)
