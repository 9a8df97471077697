"""The client of the asyncio API."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Generator, Iterable
from types import TracebackType
from typing import Any, NoReturn

from ticketing import _constants_gen as c
from ticketing._clock import now_ns
from ticketing._core.arguments import Duration, Forever
from ticketing._driver import Driver
from ticketing._options import OnEvent, Options, TlsOptions
from ticketing._ticket import Acquisition, Ticket
from ticketing.errors import ClosedError, HeldError
from ticketing.events import Key

logger = logging.getLogger("ticketing")


class Client:
    """A client of one server or cluster, made by `connect`. Open it with `async with` or `await`.

    It has one connection, on which any number of tasks acquire at once. All methods belong to the
    event loop on which it was opened, and raise RuntimeError on any other; for threads there is
    `ticketing.sync`. After a fork the
    child's client is a new one with an identity of its own, which connects at its first call.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._transport = options.transport()
        self._settings = options.core_settings()
        self._driver: Driver | None = None

    # Opening and closing.

    def __await__(self) -> Generator[Any, Any, Client]:
        return self._open().__await__()

    async def __aenter__(self) -> Client:
        return await self._open()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __enter__(self) -> NoReturn:
        raise TypeError("this is the asyncio client: use `async with`, or `ticketing.sync`")

    def __exit__(self, *_: object) -> None:
        """Never reached; `with` wants it there before it calls `__enter__`."""

    async def _open(self) -> Client:
        if self._driver is not None:
            raise ClosedError("a client is opened once")
        driver = Driver(self._settings, self._transport, self._options.on_event)
        self._driver = driver
        opened = driver.loop.create_future()
        driver.core.open(opened, now_ns())
        driver.after_call()
        try:
            await opened
        except BaseException:
            await self.close()
            raise
        return self

    async def close(self) -> None:
        """Cancel what waits, release what is held, and end the connection.

        Takes at most about a second, also without a server; calls that still wait fail with
        ClosedError. Idempotent. With `release_on_close=False` tickets are left to their leases.
        Cancelling ends only the waiting. REQ-SHUT-ORDER
        """
        driver = self._driver
        if driver is None or not driver.in_its_process or driver.loop.is_closed():
            return
        driver.check_loop()
        closed = driver.loop.create_future()
        driver.core.close(closed, now_ns())
        driver.after_call()
        await closed
        await driver.connection_gone()

    def _driver_here(self) -> Driver:
        """The driver of this process; after a fork that is a new client."""
        driver = self._driver
        if driver is None:
            raise ClosedError("the client is not open yet: use `async with`, or await it")
        if not driver.in_its_process:
            settings = self._options.core_settings(forked=True)
            driver = Driver(settings, self._transport, self._options.on_event)
            driver.core.open(None, now_ns())
            self._driver = driver
        driver.check_loop()
        return driver

    def __del__(self) -> None:
        driver = getattr(self, "_driver", None)
        if driver is not None and driver.in_its_process and not driver.core.is_closed:
            logger.warning("a client was dropped without close(); its tickets are released")
            try:
                driver.loop.call_soon_threadsafe(driver.close_unattended)
            except RuntimeError:
                pass  # The loop is closed, and with it the connection.

    # Calls.

    def acquire(
        self,
        key: Key,
        *,
        lease: Duration | None = None,
        wait_timeout: Duration | Forever | None = None,
        auto_extend: bool | None = None,
    ) -> Acquisition:
        """Acquire a key: `ticket = await client.acquire("k")` or `async with client.acquire("k")`.

        `key`: text (sent as UTF-8) or bytes; 1 to 128 bytes with the client's prefix.
        `lease`: seconds or a timedelta, at least a millisecond. None: the client's, else 30 s.
        `wait_timeout`: seconds or a timedelta; 0 does not wait. None: the client's, else for ever.
        `auto_extend`: whether the lease is extended while the ticket is held. None: yes without a
        lease, no with one.

        Raises WaitTimeoutError (HeldError with a wait of 0), OverloadedError, AuthError,
        LostError (granted, but read too late), InvalidArgumentError, ClosedError; a wait of 0
        also ReplyTimeoutError. A wait goes on over a lost connection and keeps its place.
        Cancelling at any moment leaves neither a waiter nor a ticket behind.

        The body of the `async with` is cancelled when the ticket is lost, and LostError is raised
        at its end; an error of the body itself always goes first.
        REQ-STOP-CLEAN REQ-SCOPE-REPORT
        """
        return Acquisition(self._acquire((key,), lease, wait_timeout, auto_extend))

    def acquire_set(
        self,
        keys: Iterable[Key],
        *,
        lease: Duration | None = None,
        wait_timeout: Duration | Forever | None = None,
        auto_extend: bool | None = None,
    ) -> Acquisition:
        """Acquire up to 16 different keys together, all or nothing, as one ticket.

        Otherwise as `acquire`. Sets that overlap never deadlock. A set waits for all its keys
        in strict turn, and keeps those that are free from later comers.
        """
        return Acquisition(self._acquire(keys, lease, wait_timeout, auto_extend))

    async def try_acquire(
        self, key: Key, *, lease: Duration | None = None, auto_extend: bool | None = None
    ) -> Ticket | None:
        """Acquire a key if it is free now, else return None. Otherwise as `acquire`."""
        try:
            return await self._acquire((key,), lease, 0, auto_extend)
        except HeldError:
            return None

    async def _acquire(
        self,
        keys: Iterable[Key],
        lease: Duration | None,
        wait_timeout: Duration | Forever | None,
        auto_extend: bool | None,
    ) -> Ticket:
        driver = self._driver_here()
        granted = driver.loop.create_future()
        request = driver.core.acquire(
            keys,
            lease=lease,
            wait_timeout=wait_timeout,
            auto_extend=auto_extend,
            waiter=granted,
            now_ns=now_ns(),
        )
        driver.after_call()
        try:
            return Ticket(self, driver, await granted)
        except (asyncio.CancelledError, GeneratorExit):
            driver.abandon(request)
            raise

    async def adopt(
        self, reference: str, *, lease: Duration | None = None, auto_extend: bool | None = None
    ) -> Ticket:
        """Take over a ticket that another client handed over.

        `reference` is what `hand_over` returned; the client's key_prefix is not added to it.
        Extends the ticket by the lease. Raises NotHeldError if it has ended, ReplyTimeoutError,
        InvalidArgumentError, ClosedError. Cancelled, it leaves the ticket as it is, or releases
        it if it had arrived.
        """
        driver = self._driver_here()
        adopted = driver.loop.create_future()
        request = driver.core.adopt(reference, lease, auto_extend, adopted, now_ns())
        driver.after_call()
        try:
            return Ticket(self, driver, await adopted)
        except (asyncio.CancelledError, GeneratorExit):
            driver.abandon(request)
            raise

    async def ping(self) -> None:
        """Ask the server for a sign of life. Raises ReplyTimeoutError, AuthError, ClosedError."""
        driver = self._driver_here()
        answered = driver.loop.create_future()
        request = driver.core.ping(answered, now_ns())
        driver.after_call()
        try:
            await answered
        except (asyncio.CancelledError, GeneratorExit):
            driver.abandon(request)
            raise


def connect(
    url: str | None = None,
    *,
    secret: str | bytes | None = None,
    name: str | None = None,
    key_prefix: Key = "",
    lease: Duration | None = None,
    wait_timeout: Duration | Forever | None = None,
    auto_extend: bool | None = None,
    tls: ssl.SSLContext | TlsOptions | None = None,
    fingerprint: str | bytes | None = None,
    connect_for: Duration = 0,
    reply_timeout: Duration = c.CLIENT_REPLY_TIMEOUT_MS / 1000,
    release_on_close: bool = True,
    on_event: OnEvent | None = None,
    client_id: int | None = None,
    seed: bytes | None = None,
    label: str | bytes | None = None,
) -> Client:
    """Make a client: `async with ticketing.connect() as client:`, or `await ticketing.connect()`.

    `url`: `ticketing://host:port,host:port`, `ticketings://…` (TLS) or `ticketing+unix:///path`;
    else TICKETING_URL, else `ticketing://127.0.0.1:5225`.
    `secret`: what clients and server share; else TICKETING_SECRET, else empty.
    `name`: what the server's logs call this client; else TICKETING_NAME, else `host:pid`.
    `key_prefix`: goes before every key on the wire; `ticket.key` shows the key without it.
    `lease`, `wait_timeout`, `auto_extend`: defaults of every acquire.
    `tls`: an ssl.SSLContext or TlsOptions, for a `ticketings://` URL.
    `fingerprint`: of the cluster that this client must be talking to; any otherwise.
    `connect_for`: seconds to keep trying to open; 0 tries each endpoint once.
    `reply_timeout`: seconds after which a try, an extend or a ping without an answer fails.
    `release_on_close`: whether close releases what is held.
    `on_event`: called with each `ticketing.events.Event`, in the client's thread; must not block.
    `client_id`, `seed` (16 bytes), `label`: for tests that need the same bytes in every run.

    Raises InvalidArgumentError at once. Opening raises ConnectionFailedError naming each endpoint
    with its error, or AuthError; both within seconds. A cancelled opening leaves nothing behind.
    """
    return Client(
        Options(
            url=url,
            secret=secret,
            name=name,
            key_prefix=key_prefix,
            lease=lease,
            wait_timeout=wait_timeout,
            auto_extend=auto_extend,
            tls=tls,
            fingerprint=fingerprint,
            connect_for=connect_for,
            reply_timeout=reply_timeout,
            release_on_close=release_on_close,
            on_event=on_event,
            client_id=client_id,
            seed=seed,
            label=label,
        )
    )
