"""What clients believe they hold: never two of them the same key, in true time.

A client believes that it holds a ticket from the moment in which its program gets it until that
program releases it, hands it over, crashes, or its own clock shows `expires_at`, whether or not it
runs at that moment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ticketing_sim.schedule import Broken


@dataclass(slots=True)
class Belief:
    """One program's ticket."""

    who: str
    token: int
    keys: tuple[bytes, ...]
    holds: Callable[[], bool]
    """Whether it believes so still."""


class Beliefs:
    """All of them."""

    def __init__(self) -> None:
        self._by_key: dict[bytes, list[Belief]] = {}
        self._newest: dict[bytes, int] = {}
        self.begun = 0
        self.forced: set[int] = set()
        """Tokens that an operator ended: their holders learn it when D reaches them."""

    def begin(self, belief: Belief, *, is_adopted: bool) -> None:
        """A program has got a ticket."""
        self.begun += 1
        if belief.token in self.forced:
            return
        for key in belief.keys:
            others = [
                other
                for other in self._by_key.get(key, ())
                if other.holds() and other.token not in self.forced
            ]
            if others:
                raise Broken(
                    f"{belief.who} gets {key!r} with token {belief.token}, which {others[0].who} "
                    f"believes to hold with token {others[0].token}"
                )
            newest = self._newest.get(key, 0)
            if belief.token < newest or (belief.token == newest and not is_adopted):
                raise Broken(f"{belief.who} gets {key!r} with {belief.token} after {newest}")
            self._newest[key] = belief.token
            self._by_key[key] = [belief]

    def holders(self) -> list[Belief]:
        """Return who holds something now."""
        found = [belief for held in self._by_key.values() for belief in held if belief.holds()]
        return list({id(belief): belief for belief in found}.values())
