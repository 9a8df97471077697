"""What a core is built with; every value is checked before it comes here."""

from __future__ import annotations

from dataclasses import dataclass

from ticketing import _constants_gen as c
from ticketing._core.urls import Endpoint


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """All that the core needs to know. Times are whole milliseconds."""

    endpoints: tuple[Endpoint, ...]
    client_id: int
    seed: bytes
    label: bytes
    secret: bytes = b""
    fingerprint: bytes | None = None
    key_prefix: bytes = b""
    lease_ms: int | None = None
    wait_ms: int = c.WAIT_MS_FOREVER
    auto_extend: bool | None = None
    connect_for_ms: int = 0
    reply_timeout_ms: int = c.CLIENT_REPLY_TIMEOUT_MS
    release_on_close: bool = True
    observed: bool = False
    """Whether events are made at all; nobody listens otherwise."""
