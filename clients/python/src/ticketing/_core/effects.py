"""What the core asks its shell to do. The shell carries effects out in the order of the list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ticketing._core.urls import Endpoint
from ticketing.errors import TicketingError
from ticketing.events import Event


class Settled:
    """A call has its result. `waiter` is what the shell handed in with the call."""

    __slots__ = ("error", "value", "waiter")

    def __init__(self, waiter: Any, value: Any, error: TicketingError | None) -> None:
        self.waiter = waiter
        self.value = value
        self.error = error


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a connection; report with `connected` or `disconnected` under this serial."""

    serial: int
    endpoint: Endpoint


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Drop the connection or attempt of this serial, without sending what is still unsent."""

    serial: int


@dataclass(frozen=True, slots=True)
class TicketEnded:
    """A ticket with listeners was lost, or ended otherwise; call them."""

    ticket: Any


@dataclass(frozen=True, slots=True)
class Notify:
    """Call the program's event hook."""

    event: Event


@dataclass(frozen=True, slots=True)
class Log:
    """Write a line to the language's logger; `level` is `debug`, `info` or `warning`."""

    level: str
    text: str


@dataclass(frozen=True, slots=True)
class Closed:
    """The client has ended; let go of timers, threads and sockets."""


Effect = Settled | Connect | Disconnect | TicketEnded | Notify | Log | Closed
