"""The ticket of the asyncio API, and the awaitable that makes one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, NoReturn

from ticketing._clock import now_ns
from ticketing._core.arguments import Duration
from ticketing._core.tickets import (
    HeldTicket,
    TicketState,
    lost_error,
    name_of,
    not_held_error,
)
from ticketing._driver import Driver
from ticketing.errors import ClosedError, LostReason, TicketingError
from ticketing.events import Key

logger = logging.getLogger("ticketing")

_NS_PER_S = 1_000_000_000


class TicketFacts:
    """What the tickets of both APIs tell about themselves. Reading it is thread-safe."""

    __slots__ = ("_client", "_driver", "_held")

    def __init__(self, client: object, driver: Driver, held: HeldTicket) -> None:
        self._client = client  # A client is not collected while one of its tickets is in use.
        self._driver = driver
        self._held = held

    @property
    def key(self) -> Key:
        """The key as the program gave it, without the client's prefix; of a set the first key."""
        return self._held.shown_keys[0]

    @property
    def keys(self) -> tuple[Key, ...]:
        """All keys, sorted by their bytes."""
        return self._held.shown_keys

    @property
    def token(self) -> int:
        """The fencing token: strictly rising over all grants. Hand it to what the lock protects."""
        return self._held.token

    @property
    def lease(self) -> float:
        """The lease in seconds, as it was asked for."""
        return self._held.lease_ms / 1000

    @property
    def expires_at(self) -> float:
        """When the ticket is lost unless it is extended: seconds on `ticketing.monotonic()`.

        It is a little earlier than the server's own time, and never goes back.
        """
        return self._held.expires_ns / _NS_PER_S

    @property
    def remaining(self) -> float:
        """Seconds until `expires_at`; 0 once the ticket is not held any more."""
        if self._held.state is not TicketState.HELD:
            return 0.0
        return max(0, self._held.expires_ns - now_ns()) / _NS_PER_S

    @property
    def is_lost(self) -> bool:
        """Whether the ticket ended without its release, as far as this client knows."""
        held = self._held
        if held.state is TicketState.HELD:
            return now_ns() >= held.expires_ns
        return held.state is TicketState.LOST

    @property
    def lost_reason(self) -> LostReason | None:
        """Why the ticket is lost; None while it is not."""
        if self.is_lost:
            return self._held.lost_reason or LostReason.EXPIRED
        return None

    def __repr__(self) -> str:
        state = "lost" if self.is_lost else self._held.state.value
        return f"<Ticket {name_of(self._held)} token={self.token} {state}>"

    def __del__(self) -> None:
        held: HeldTicket | None = getattr(self, "_held", None)
        if held is None:
            return  # Its construction was interrupted.
        if held.state is TicketState.HELD and self._driver.in_its_process:
            ends = "until the client closes" if held.auto_extend else "until its lease is over"
            logger.warning("nobody can release the ticket for %s: held %s", name_of(held), ends)

    def _check_entry(self, *, entered: bool) -> None:
        """No body starts, or goes on, without the lock that it counts on."""
        if self.is_lost:
            raise lost_error(self._held)
        error = not_held_error(self._held)
        if error is not None:
            raise error
        if entered:
            raise RuntimeError(
                f"the ticket for {name_of(self._held)} is entered already: the inner body would"
                " release it at its end"
            )

    def _check_process(self) -> None:
        """A ticket belongs to the process that acquired it."""
        if not self._driver.in_its_process:
            self._held.state = TicketState.CLOSED
            raise ClosedError(f"the ticket for {name_of(self._held)} is the parent process's")


class Ticket(TicketFacts):
    """A granted acquisition. `async with ticket:` releases it at the end.

    Entering raises LostError, NotHeldError or ClosedError where it is not held any more. All
    methods belong to the event loop that the ticket was acquired on. A ticket that is
    garbage-collected is not released: a warning is logged, and it is held on.
    """

    __slots__ = ("__weakref__", "_scope")

    def __init__(self, client: object, driver: Driver, held: HeldTicket) -> None:
        super().__init__(client, driver, held)
        self._scope: _Scope | None = None

    def _check_process(self) -> None:
        super()._check_process()
        self._driver.check_loop()

    async def release(self) -> None:
        """Give the key to the next waiter. Idempotent: called again it does what it did first.

        Returns when the server has answered. Raises LostError if the ticket was lost before, or
        if there was no answer by `expires_at` (but at least 1 second); ClosedError if the client
        was closed without releasing it. Cancelling ends only the waiting: the release goes on.
        REQ-BOUND-RELEASE
        """
        self._check_process()
        done = self._driver.loop.create_future()
        self._driver.core.release(self._held, done, now_ns())
        self._driver.after_call()
        await done

    async def extend(self, lease: Duration | None = None) -> None:
        """Make the lease end `lease` seconds from now, never earlier than it would.

        Without a lease: the ticket's own. A lease of 0.001 changes nothing and only asks whether
        the ticket is held. Raises LostError (also when it was lost before: then nothing is sent),
        NotHeldError after release or hand_over, ReplyTimeoutError after `reply_timeout`,
        InvalidArgumentError. One extend of a ticket is under way at a time, further ones wait.
        Cancelled, it has happened or not.
        """
        self._check_process()
        driver = self._driver
        done = driver.loop.create_future()
        request = driver.core.extend(self._held, lease, done, now_ns())
        driver.after_call()
        try:
            await done
        except (asyncio.CancelledError, GeneratorExit):
            driver.abandon(request)
            raise

    async def hand_over(self) -> str:
        """End this client's part in the ticket and return a reference that `adopt` takes.

        The lease goes on and is not extended any more, so adopt before it ends. A reference is
        for one adopter; the server does not check that. Waits for an extend that is under way.
        Raises LostError and NotHeldError. Cancelled before it returns, the ticket stays here.
        """
        self._check_process()
        driver = self._driver
        done: asyncio.Future[str] = driver.loop.create_future()
        driver.core.hand_over(self._held, done, now_ns())
        driver.after_call()
        try:
            return await done
        except (asyncio.CancelledError, GeneratorExit):
            driver.core.stop_hand_over(self._held, done, now_ns())
            driver.after_call()
            raise

    async def wait_lost(self) -> LostReason | None:
        """Wait until the ticket is lost, and return why; None if it ended in another way.

        Any number of tasks may wait. Cancelling is harmless.
        """
        self._check_process()
        if self._held.state is TicketState.HELD and not self.is_lost:
            done = self._driver.loop.create_future()

            def tell() -> None:
                if not done.done():
                    done.set_result(None)

            self._held.listeners.append(tell)
            try:
                await done
            finally:
                if tell in self._held.listeners:
                    self._held.listeners.remove(tell)
        return self.lost_reason

    async def __aenter__(self) -> Ticket:
        self._check_process()
        self._check_entry(entered=self._scope is not None)
        self._scope = _Scope(self._driver.loop, self._held)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        scope, self._scope = self._scope, None
        assert scope is not None
        cancelled_by_loss = scope.leave(exc)
        if cancelled_by_loss:
            self._release_without_waiting()
            raise lost_error(self._held)
        if exc is None:
            await self.release()
        elif isinstance(exc, Exception):
            try:
                await self.release()
            except TicketingError as error:
                logger.warning("%s; the error of the body goes on", error)
        else:  # Cancelled from outside, or the program ends: nothing may hold it up.
            self._release_without_waiting()

    def _release_without_waiting(self) -> None:
        if self._driver.in_its_process:
            self._driver.core.release(self._held, None, now_ns())
            self._driver.after_call()

    def __enter__(self) -> NoReturn:
        raise TypeError("this ticket is of the asyncio client: use `async with`")

    def __exit__(self, *_: object) -> None:
        """Never reached; `with` wants it there before it calls `__enter__`."""


class _Scope:
    """The body of an `async with`: its task is cancelled when the ticket is lost."""

    def __init__(self, loop: asyncio.AbstractEventLoop, held: HeldTicket) -> None:
        self._held = held
        self._task = asyncio.current_task(loop)
        self._cancelling = 0 if self._task is None else self._task.cancelling()
        self._cancelled = False
        self._left = False
        held.listeners.append(self._on_end)

    def _on_end(self) -> None:
        if self._left or self._task is None or self._held.state is not TicketState.LOST:
            return
        self._cancelled = True
        self._task.cancel("the ticket is lost")

    def leave(self, exc: BaseException | None) -> bool:
        """The body is over; True if its end is the cancellation that the loss brought."""
        self._left = True
        if self._on_end in self._held.listeners:
            self._held.listeners.remove(self._on_end)
        if not self._cancelled or self._task is None:
            return False
        others_cancel_too = self._task.uncancel() > self._cancelling
        return isinstance(exc, asyncio.CancelledError) and not others_cancel_too


class Acquisition(Coroutine[Any, Any, Ticket], AbstractAsyncContextManager[Ticket]):
    """What `acquire` returns: `await` it for the ticket, or use it with `async with`."""

    __slots__ = ("_coroutine", "_ticket")

    def __init__(self, coroutine: Coroutine[Any, Any, Ticket]) -> None:
        self._coroutine = coroutine
        self._ticket: Ticket | None = None

    def __await__(self) -> Generator[Any, Any, Ticket]:
        return self._coroutine.__await__()

    def send(self, value: Any) -> Any:
        """As of any coroutine, so that `asyncio.create_task` takes this object."""
        return self._coroutine.send(value)

    def throw(self, *exc_info: Any) -> Any:
        """As of any coroutine."""
        return self._coroutine.throw(*exc_info)

    def close(self) -> None:
        """As of any coroutine."""
        self._coroutine.close()

    async def __aenter__(self) -> Ticket:
        self._ticket = await self._coroutine
        return await self._ticket.__aenter__()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._ticket is not None
        await self._ticket.__aexit__(exc_type, exc, traceback)

    def __enter__(self) -> NoReturn:
        self._coroutine.close()
        raise TypeError("this is the asyncio client: use `async with`, or `ticketing.sync`")

    def __exit__(self, *_: object) -> None:
        """Never reached; `with` wants it there before it calls `__enter__`."""
