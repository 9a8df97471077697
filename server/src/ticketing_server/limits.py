"""The bounds and graces that the engine works under.

Plain numbers and nothing else, so that what is pure can import them; `settings` says where
each comes from, its default and its range.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """What one server allows (protocol.md §4, back-pressure and graces)."""

    connections: int = 100_000
    """Welcomed connections; over it a new one gets `too_many_connections`."""
    handshakes: int = 1_000
    """Connections that are not yet welcomed; over it the oldest of them is closed."""
    waiters_per_key: int = 100_000
    """Waiters in the queue of one key; over it an acquire gets `overloaded`."""
    waiters: int = 1_000_000
    """Waiters in all; over it an acquire gets `overloaded`."""
    held_keys: int = 2_000_000
    """Keys held by all tickets together; over it an acquire gets `overloaded`."""
    unsent_bytes: int = 1_048_576
    """Output a connection may owe before it is no longer read; a quarter of it resumes it."""
    max_lease_ms: int = 86_400_000
    """The longest lease; over it a request gets `lease_too_long`."""
    keepalive_s: int = 5
    """What W announces; a connection silent for three times this long is closed."""
    reattach_grace_ms: int = 40_000
    """How long a detached waiter keeps its place."""
    restart_grace_ms: int = 0
    """How long after a start no key is free, so that leases of the run before end first."""
