"""What every simulated program has: input that waits while it is suspended, and a life to lose."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from ticketing_sim.schedule import US, Clock, Schedule

_LATER = 0.3
"""How often, after each thing that waited, a turn ends before the next."""
_TURN_NS = 250 * US


class Process:
    """A program on a machine. What comes in is done in order; while suspended, it waits."""

    def __init__(self, name: str, schedule: Schedule, clock: Clock, chance: Random) -> None:
        self.name = name
        self.chance = chance
        self.schedule = schedule
        self.clock = clock
        self.is_alive = True
        self.life = 0
        """Counts its starts: what was scheduled for an earlier life doesn't happen."""
        self.is_suspended = False
        self._catches_up = False
        """Whether it runs again, and has yet to do some of what waited."""
        self._waiting: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._next: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        """What it was about to do when it was suspended."""

    def do(self, call: Callable[..., None], *arguments: Any) -> None:
        """Let it do something as soon as it runs."""
        if not self.is_alive:
            return
        if self.is_suspended or self._catches_up:
            self._waiting.append((call, arguments))
        else:
            call(*arguments)

    def do_next(self, call: Callable[..., None], *arguments: Any) -> None:
        """While it is suspended: let it go on with this, before anything that came in."""
        self._next.append((call, arguments))

    def later(self, delay_ns: int, name: str, call: Callable[..., None], *arguments: Any) -> None:
        """Let it do something in a while, unless this life of it has ended by then."""
        self.schedule.after(
            delay_ns, f"{self.name} {name}", self._in_life, self.life, call, arguments
        )

    def at_local(
        self, local_ns: int, name: str, call: Callable[..., None], *arguments: Any
    ) -> None:
        """Let it do something when its own clock shows a time."""
        when_ns = self.clock.true_ns(local_ns)
        self.schedule.at(when_ns, f"{self.name} {name}", self._in_life, self.life, call, arguments)

    def _in_life(self, life: int, call: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if life != self.life:
            return
        if self.is_suspended:
            self._waiting.append((call, arguments))
        else:
            call(*arguments)

    def suspend(self) -> None:
        """Stop it where it is; its sockets take in what comes."""
        self.is_suspended = True

    def resume(self) -> None:
        """Let it go on."""
        self.is_suspended = False
        self._catch_up()

    def _catch_up(self) -> None:
        """Do what waited, not always all of it before anything else: sockets are read in turns."""
        self._catches_up = False
        waiting, self._next, self._waiting = self._next + self._waiting, [], []
        for place, (call, arguments) in enumerate(waiting):
            if not self.is_alive:
                return
            is_later = place > 0 and self.chance.random() < _LATER
            if self.is_suspended or is_later:
                self._waiting = waiting[place:] + self._waiting
                if is_later and not self.is_suspended:
                    self._catches_up = True
                    self.later(_TURN_NS, "catch up", self._catch_up)
                return
            call(*arguments)

    def die(self) -> None:
        """End it at once."""
        self.is_alive = False
        self.is_suspended = False
        self._catches_up = False
        self.life += 1
        self._waiting.clear()
        self._next.clear()
