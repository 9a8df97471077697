"""The bounds and graces that the engine works under.

Plain numbers and nothing else, so that what is pure can import them; `settings` says where
each comes from, its default and its range.
"""

from __future__ import annotations

from dataclasses import dataclass

from ticketing_server import constants_gen as constants


@dataclass(frozen=True, slots=True)
class Limits:
    """What one server allows (protocol.md §4, back-pressure and graces)."""

    connections: int = constants.LIMIT_CONNECTIONS_DEFAULT
    """Welcomed connections; over it a new one gets `too_many_connections`."""
    handshakes: int = constants.LIMIT_HANDSHAKES_DEFAULT
    """Connections that are not yet welcomed; over it the oldest of them is closed."""
    waiters_per_key: int = constants.LIMIT_WAITERS_PER_KEY_DEFAULT
    """Waiters in the queue of one key; over it an acquire gets `overloaded`."""
    waiters: int = constants.LIMIT_WAITERS_DEFAULT
    """Waiters in all; over it an acquire gets `overloaded`."""
    held_keys: int = constants.LIMIT_HELD_KEYS_DEFAULT
    """Keys held by all tickets together; over it an acquire gets `overloaded`."""
    unsent_bytes: int = constants.LIMIT_UNSENT_BYTES_DEFAULT
    """Output a connection may owe before it is no longer read; a quarter of it resumes it."""
    max_lease_ms: int = constants.LIMIT_MAX_LEASE_MS_DEFAULT
    """The longest lease; over it a request gets `lease_too_long`."""
    keepalive_s: int = constants.KEEPALIVE_S_STANDALONE
    """What W announces; a connection silent for three times this long is closed."""
    reattach_grace_ms: int = constants.REATTACH_GRACE_MS
    """How long a detached waiter keeps its place."""
    restart_grace_ms: int = 0
    """How long after a start no key is free, so that leases of the run before end first."""


@dataclass(frozen=True, slots=True)
class Term:
    """What the term of a leader begins with; holds until the next one (cluster.md, NOOP)."""

    number: int
    """Higher than that of every earlier term; 0 is memory mode, which has no other."""
    limits: Limits
    failover_grace_ms: int = constants.FAILOVER_GRACE_MS
    """How long waiters of earlier terms are held back, and no lease ends."""
    token_floor: int = 0
    """The next token is no lower; from `TOKEN_FLOOR_END` on it is taken for a broken clock's."""


TOKEN_FLOOR_END = 1 << 63
