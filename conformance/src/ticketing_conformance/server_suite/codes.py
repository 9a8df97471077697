"""The numbers of protocol.md §3, typed here from the page and checked against the spec."""

from __future__ import annotations

BAD_FRAME = 1
LEASE_TOO_LONG = 2
AUTH_FAILED = 3
BAD_VERSION = 4
HANDSHAKE_TIMEOUT = 5
TOO_MANY_CONNECTIONS = 6
TAKEN_OVER = 7
SLOW_READER = 8
IDLE_TIMEOUT = 9
NOT_SERVING = 10
FORBIDDEN = 11

LEASE_OVER = 1
RELEASED_BY_OPERATOR = 2
RELEASED_BY_OTHER_CLIENT = 3

LEASE_MS_MAX = 0xFFFFFFFE
KEY_BYTES_MAX = 128

LATE_MS = 10_000
"""How late something may come on a loaded machine before a test calls it late. Never early."""
