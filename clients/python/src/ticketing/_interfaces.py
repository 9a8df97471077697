"""What a program needs of a client and a ticket, for tests that put something else in their place.

Write functions that take a `ClientLike`, and give them a fake in tests; `Client` fits it too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Protocol, runtime_checkable

from ticketing._core.arguments import Duration, Forever
from ticketing.errors import LostReason
from ticketing.events import Key


@runtime_checkable
class TicketLike(Protocol):
    """A ticket of the asyncio API; `ticketing.Ticket` says what each member means."""

    @property
    def key(self) -> Key: ...
    @property
    def keys(self) -> tuple[Key, ...]: ...
    @property
    def token(self) -> int: ...
    @property
    def expires_at(self) -> float: ...
    @property
    def remaining(self) -> float: ...
    @property
    def is_lost(self) -> bool: ...
    async def release(self) -> None: ...
    async def extend(self, lease: Duration | None = None) -> None: ...
    async def hand_over(self) -> str: ...
    async def wait_lost(self) -> LostReason | None: ...
    async def __aenter__(self) -> TicketLike: ...
    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


class AcquisitionLike(
    Awaitable[TicketLike], AbstractAsyncContextManager[TicketLike, Any], Protocol
):
    """What `acquire` returns: awaitable, and usable with `async with`."""


@runtime_checkable
class ClientLike(Protocol):
    """A client of the asyncio API; `ticketing.Client` says what each member means."""

    def acquire(
        self,
        key: Key,
        *,
        lease: Duration | None = None,
        wait_timeout: Duration | Forever | None = None,
        auto_extend: bool | None = None,
    ) -> AcquisitionLike: ...
    def acquire_set(
        self,
        keys: Iterable[Key],
        *,
        lease: Duration | None = None,
        wait_timeout: Duration | Forever | None = None,
        auto_extend: bool | None = None,
    ) -> AcquisitionLike: ...
    async def try_acquire(
        self, key: Key, *, lease: Duration | None = None, auto_extend: bool | None = None
    ) -> TicketLike | None: ...
    async def adopt(
        self, reference: str, *, lease: Duration | None = None, auto_extend: bool | None = None
    ) -> TicketLike: ...
    async def ping(self) -> None: ...
    async def close(self) -> None: ...


@runtime_checkable
class SyncTicketLike(Protocol):
    """A ticket of `ticketing.sync`, where this is called `TicketLike`."""

    @property
    def key(self) -> Key: ...
    @property
    def keys(self) -> tuple[Key, ...]: ...
    @property
    def token(self) -> int: ...
    @property
    def expires_at(self) -> float: ...
    @property
    def remaining(self) -> float: ...
    @property
    def is_lost(self) -> bool: ...
    def release(self) -> None: ...
    def extend(self, lease: Duration | None = None) -> None: ...
    def hand_over(self) -> str: ...
    def wait_lost(self, timeout: Duration | None = None) -> LostReason | None: ...
    def __enter__(self) -> SyncTicketLike: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


@runtime_checkable
class SyncClientLike(Protocol):
    """A client of `ticketing.sync`, where this is called `ClientLike`."""

    def acquire(
        self,
        key: Key,
        *,
        lease: Duration | None = None,
        wait_timeout: Duration | Forever | None = None,
        auto_extend: bool | None = None,
    ) -> SyncTicketLike: ...
    def acquire_set(
        self,
        keys: Iterable[Key],
        *,
        lease: Duration | None = None,
        wait_timeout: Duration | Forever | None = None,
        auto_extend: bool | None = None,
    ) -> SyncTicketLike: ...
    def try_acquire(
        self, key: Key, *, lease: Duration | None = None, auto_extend: bool | None = None
    ) -> SyncTicketLike | None: ...
    def adopt(
        self, reference: str, *, lease: Duration | None = None, auto_extend: bool | None = None
    ) -> SyncTicketLike: ...
    def ping(self) -> None: ...
    def close(self) -> None: ...
