"""Messages between nodes, streams between clients and nodes, and what comes between.

A path is blocked in one direction at a time, so a partition may be one-sided, leave a bridge, or
take everything without a word (silent): messages on a blocked path are lost, bytes of a stream
wait until it opens, as a kernel sends them again, and a reset on it never arrives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from random import Random
from typing import Protocol

from ticketing_sim.schedule import MS, US, Schedule

_PIECES_MAX = 3


class Network:
    """Who reaches whom, how fast, and how much is lost."""

    def __init__(self, schedule: Schedule, random: Random, count: Callable[[str], None]) -> None:
        self.schedule = schedule
        self.random = random
        self.count = count
        self.loss = 0.0
        self.double = 0.0
        self.delay_ns = 2 * MS
        self.slow: dict[str, int] = {}
        """Extra delay to and from a machine."""
        self.halves = 0.1
        """How often a write arrives in pieces."""
        self._down: set[str] = set()
        self._blocked: dict[tuple[str, str], int] = {}
        self._waiting: dict[tuple[str, str], list[Pipe]] = {}

    # Machines and paths

    def power(self, machine: str, *, is_on: bool) -> None:
        """Switch a machine on or off; one that is off answers nothing, not even with a reset."""
        if is_on:
            self._down.discard(machine)
        else:
            self._down.add(machine)

    def is_up(self, machine: str) -> bool:
        """Whether a machine is on."""
        return machine not in self._down

    def is_open(self, source: str, target: str) -> bool:
        """Whether something sent now arrives."""
        return (source, target) not in self._blocked

    def block(self, paths: Iterable[tuple[str, str]]) -> None:
        """Let nothing through on these paths; each is opened as often as it was blocked."""
        for path in paths:
            self._blocked[path] = self._blocked.get(path, 0) + 1

    def unblock(self, paths: Iterable[tuple[str, str]]) -> None:
        """Undo `block`; what waits in streams goes on."""
        for path in paths:
            left = self._blocked.get(path, 0) - 1
            if left > 0:
                self._blocked[path] = left
            elif self._blocked.pop(path, None) is not None:
                for pipe in self._waiting.pop(path, []):
                    pipe.go_on()

    def wait_for(self, pipe: Pipe) -> None:
        """Let a stream go on when its path opens."""
        self._waiting.setdefault((pipe.source, pipe.target), []).append(pipe)

    def delay(self, source: str, target: str) -> int:
        """Draw how long something takes."""
        extra = self.slow.get(source, 0) + self.slow.get(target, 0)
        return 50 * US + int((self.delay_ns + extra) * self.random.random())

    # Messages

    def send(self, source: str, target: str, name: str, arrive: Callable[[], None]) -> bool:
        """Send one message; it may be lost, doubled, late and overtaken. False: it was lost."""
        if not self.is_open(source, target) or self.random.random() < self.loss:
            self.count("message lost")
            return False
        copies = 1
        if self.random.random() < self.double:
            copies = 2
            self.count("message doubled")
        for _ in range(copies):
            self.schedule.after(self.delay(source, target), name, arrive)
        return True


class Reader(Protocol):
    """What a pipe ends in."""

    def arrived(self, data: bytes) -> None:
        """Take bytes."""

    def ended(self) -> None:
        """The other side will send nothing more."""


class Pipe:
    """One direction of a stream: in order, once, unless it is cut."""

    def __init__(self, network: Network, source: str, target: str, reader: Reader) -> None:
        self.source = source
        self.target = target
        self.unread = 0
        """Bytes sent and not taken yet."""
        self.on_taken: Callable[[], None] | None = None
        self._network = network
        self._reader = reader
        self._items: deque[bytes | None] = deque()
        self._is_cut = False
        self._moves = False
        self._waits = False

    def send(self, data: bytes) -> None:
        """Send bytes; they may arrive in pieces."""
        network = self._network
        self.unread += len(data)
        if len(data) > 1 and network.random.random() < network.halves:
            network.count("half frame")
            for _ in range(network.random.randrange(1, _PIECES_MAX)):
                cut = network.random.randrange(len(data))
                if cut:
                    self._items.append(data[:cut])
                    data = data[cut:]
        self._items.append(data)
        self.go_on()

    def end(self) -> None:
        """Say that nothing more comes."""
        self._items.append(None)
        self.go_on()

    def cut(self) -> None:
        """Lose what is on its way."""
        self._is_cut = True
        self._items.clear()

    def go_on(self) -> None:
        """Let the next piece move."""
        self._waits = False
        if self._moves or not self._items or self._is_cut or self._is_held_up():
            return
        network = self._network
        self._moves = True
        delay_ns = network.delay(self.source, self.target)
        network.schedule.after(delay_ns, f"{self.source}>{self.target}", self._move)

    def _is_held_up(self) -> bool:
        if self._network.is_open(self.source, self.target):
            return False
        if not self._waits:
            self._waits = True
            self._network.wait_for(self)
        return True

    def _move(self) -> None:
        self._moves = False
        if self._is_cut or self._is_held_up():
            return
        # What lies behind it comes along, as one read takes all there is.
        while self._items:
            item = self._items.popleft()
            if item is None:
                self._reader.ended()
            else:
                self._reader.arrived(item)
                if self._network.random.random() < 0.5:
                    break
        self.go_on()

    def taken(self, size: int) -> None:
        """The reader's program has read so much."""
        self.unread -= size
        if self.on_taken is not None:
            self.on_taken()
