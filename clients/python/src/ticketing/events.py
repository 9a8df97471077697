"""What the `on_event` hook is called with: one small frozen object per event.

`kind` is the same word in every language; times are seconds. The hook is called from the client's
own thread or event loop, must not block, and what it raises is logged and goes no further.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ticketing.errors import LostReason

Key = str | bytes
"""A key as the program gave it: text (sent as UTF-8) or bytes."""


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events."""

    kind: ClassVar[str] = "event"


@dataclass(frozen=True, slots=True)
class Granted(Event):
    """An acquire was granted, `waited` seconds after the call."""

    kind: ClassVar[str] = "granted"
    keys: tuple[Key, ...]
    token: int
    waited: float


@dataclass(frozen=True, slots=True)
class TimedOut(Event):
    """A wait ended without a grant, `waited` seconds after the call."""

    kind: ClassVar[str] = "timed_out"
    keys: tuple[Key, ...]
    waited: float


@dataclass(frozen=True, slots=True)
class Released(Event):
    """A ticket was released after it was held for `held` seconds."""

    kind: ClassVar[str] = "released"
    keys: tuple[Key, ...]
    token: int
    held: float


@dataclass(frozen=True, slots=True)
class Extended(Event):
    """A ticket's lease goes on; `remaining` seconds are left of it."""

    kind: ClassVar[str] = "extended"
    keys: tuple[Key, ...]
    token: int
    remaining: float


@dataclass(frozen=True, slots=True)
class Lost(Event):
    """A ticket ended without its holder's release."""

    kind: ClassVar[str] = "lost"
    keys: tuple[Key, ...]
    token: int
    reason: LostReason


@dataclass(frozen=True, slots=True)
class Connected(Event):
    """A server that serves requests was reached and has proved that it knows the secret."""

    kind: ClassVar[str] = "connected"
    address: str


@dataclass(frozen=True, slots=True)
class Disconnected(Event):
    """The connection ended; the client reconnects by itself unless it was closed."""

    kind: ClassVar[str] = "disconnected"
    address: str
    reason: str
