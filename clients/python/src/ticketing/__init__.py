"""The Python client of Ticketing, the distributed lock.

    async with ticketing.connect() as client:
        async with client.acquire("orders/42") as ticket:
            ...

`ticketing.sync` has the same names for programs without asyncio. Times are seconds.
"""

from ticketing import sync
from ticketing._client import Client, connect
from ticketing._clock import monotonic
from ticketing._core.arguments import FOREVER
from ticketing._interfaces import ClientLike, TicketLike
from ticketing._options import TlsOptions, __version__
from ticketing._ticket import Acquisition, Ticket
from ticketing.errors import (
    AuthError,
    ClosedError,
    ConnectionFailedError,
    HeldError,
    InvalidArgumentError,
    LostError,
    LostReason,
    NotHeldError,
    OverloadedError,
    ProtocolError,
    ReplyTimeoutError,
    TicketingError,
    WaitTimeoutError,
)
from ticketing.events import Event, Key

__all__ = [
    "FOREVER",
    "Acquisition",
    "AuthError",
    "Client",
    "ClientLike",
    "ClosedError",
    "ConnectionFailedError",
    "Event",
    "HeldError",
    "InvalidArgumentError",
    "Key",
    "LostError",
    "LostReason",
    "NotHeldError",
    "OverloadedError",
    "ProtocolError",
    "ReplyTimeoutError",
    "Ticket",
    "TicketLike",
    "TicketingError",
    "TlsOptions",
    "WaitTimeoutError",
    "__version__",
    "connect",
    "monotonic",
    "sync",
]
