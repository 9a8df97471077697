"""The errors of the client: one tree, with a `kind` that is the same in every language.

Every error that the client raises on purpose is a `TicketingError`; cancellation stays the
language's own (`asyncio.CancelledError`, `KeyboardInterrupt`). Recognise errors by class or by
`kind`, never by their text.
"""

from __future__ import annotations

import enum
from typing import ClassVar


class LostReason(enum.Enum):
    """Why a ticket ended without its holder's release."""

    LEASE_OVER = "lease_over"
    """The server says that the lease ended."""
    OPERATOR = "operator"
    """An operator released it."""
    OTHER_CLIENT = "other_client"
    """Another client released it with its token."""
    NOT_HELD = "not_held"
    """The server, asked about the ticket, does not know it any more."""
    EXPIRED = "expired"
    """`expires_at` passed without a word from the server."""
    TAKEN_OVER = "taken_over"
    """A newer client with the same client id took over."""


class TicketingError(Exception):
    """Base of all errors of this client. `kind` is one word, the same in all languages."""

    kind: ClassVar[str] = "ticketing"


class WaitTimeoutError(TicketingError, TimeoutError):
    """The wait for a key ended before it was granted; nothing is held."""

    kind: ClassVar[str] = "timeout"


class HeldError(WaitTimeoutError):
    """An acquire that does not wait (`wait_timeout=0`) found the key held."""

    kind: ClassVar[str] = "held"


class AuthError(TicketingError):
    """Client and server do not have the same secret, or the secret may not do this."""

    kind: ClassVar[str] = "auth"


class InvalidArgumentError(TicketingError, ValueError):
    """An argument that the client, or the server (a lease over its limit), does not take."""

    kind: ClassVar[str] = "invalid_argument"


class OverloadedError(TicketingError):
    """A limit of the server is reached; nothing was queued. Try again later."""

    kind: ClassVar[str] = "overloaded"


class NotHeldError(TicketingError):
    """The ticket is not this client's to use: never held, released already, or handed over."""

    kind: ClassVar[str] = "not_held"


class LostError(TicketingError):
    """A ticket ended without its holder's release; somebody else may hold the key.

    `reason` says how the client learned of it.
    """

    kind: ClassVar[str] = "lost"

    def __init__(self, text: str, reason: LostReason = LostReason.EXPIRED) -> None:
        super().__init__(text)
        self.reason = reason


class ClosedError(TicketingError):
    """The client is closed, or the ticket belongs to a closed client or a parent process."""

    kind: ClassVar[str] = "closed"


class ProtocolError(TicketingError):
    """The server says that the client broke the protocol. A bug in one of the two."""

    kind: ClassVar[str] = "protocol"


class ConnectionFailedError(TicketingError, ConnectionError):
    """No server could be reached; the text names each endpoint with its error."""

    kind: ClassVar[str] = "connection"


class ReplyTimeoutError(ConnectionFailedError, TimeoutError):
    """A try, extend or ping had no answer within `reply_timeout`."""


ERRORS_BY_KIND: dict[str, type[TicketingError]] = {
    error.kind: error
    for error in (
        WaitTimeoutError,
        HeldError,
        AuthError,
        InvalidArgumentError,
        OverloadedError,
        NotHeldError,
        LostError,
        ClosedError,
        ProtocolError,
        ConnectionFailedError,
    )
}
"""The class of each kind."""
