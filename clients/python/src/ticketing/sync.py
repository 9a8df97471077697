"""The client for programs without asyncio: the same names, blocking, for any number of threads.

    with ticketing.sync.connect() as client:
        with client.acquire("orders/42") as ticket:
            ...

One background thread per client does all input and output; callers only wait. A body that runs
in a thread can't be cancelled from outside, so look at `ticket.is_lost` where it matters: the
loss is reported at the end of the `with`, and the token protects what happens before.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, TypeVar

from ticketing import _constants_gen as c
from ticketing._clock import now_ns
from ticketing._core.arguments import FOREVER, Duration, Forever, duration_ns
from ticketing._core.settings import CoreSettings
from ticketing._core.tickets import HeldTicket, TicketState, lost_error
from ticketing._driver import Driver
from ticketing._interfaces import SyncClientLike as ClientLike
from ticketing._interfaces import SyncTicketLike as TicketLike
from ticketing._options import OnEvent, Options, TlsOptions, Transport
from ticketing._ticket import TicketFacts
from ticketing.errors import ClosedError, HeldError, LostReason, TicketingError
from ticketing.events import Key

__all__ = ["FOREVER", "Client", "ClientLike", "Ticket", "TicketLike", "TlsOptions", "connect"]

logger = logging.getLogger("ticketing")


_ResultT = TypeVar("_ResultT")
_Undo = Callable[[], None]
_Start = Callable[[Driver, "concurrent.futures.Future[Any]"], "_Undo | None"]
_LOOK_UP_S = 0.5


class _Runner:
    """The background thread of one client: an event loop with a driver on it."""

    def __init__(
        self, settings: CoreSettings, transport: Transport, on_event: OnEvent | None
    ) -> None:
        self.pid = os.getpid()
        self._made_with = (settings, transport, on_event)
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._lock = threading.Lock()
        self._waiting: set[concurrent.futures.Future[Any]] | None = set()
        """Calls without a result; None once the thread takes no more."""
        self.driver: Driver
        self._over: asyncio.Event
        self._thread = threading.Thread(target=self._main, name="ticketing-client", daemon=True)
        self._thread.start()
        self._ready.wait()

    def _main(self) -> None:
        try:
            self._loop.run_until_complete(self._live())
        finally:
            with self._lock:
                waiting, self._waiting = self._waiting, None
            for done in waiting or ():
                if not done.done():
                    done.set_exception(ClosedError("the client is closed"))
            self._loop.close()

    async def _live(self) -> None:
        self.driver = Driver(*self._made_with)
        self._over = asyncio.Event()
        self._ready.set()
        await self._over.wait()
        await self.driver.connection_gone()

    def call(self, start: _Start) -> Any:
        """Start a call on the background thread and wait for its result.

        An interrupt (KeyboardInterrupt) ends the waiting and gives the call up.
        """
        return self.call_for(start, lambda result: result)

    def call_for(self, start: _Start, finish: Callable[[Any], _ResultT]) -> _ResultT:
        """As `call`, and return `finish` of the result, which an interrupt undoes as well."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("a client can't be called by its own on_event: hand it to a thread")
        done: concurrent.futures.Future[Any] = concurrent.futures.Future()
        done.add_done_callback(self._forget)
        started: list[_Undo | None] = []
        try:
            self._post(done, self._begin, start, done, started)
            return finish(_wait_for(done))
        except TicketingError:
            raise
        except BaseException:
            with contextlib.suppress(ClosedError):
                self._post(None, self._abandon, started)
            self._forget(done)
            raise

    def _forget(self, done: concurrent.futures.Future[Any]) -> None:
        """Nobody waits for this call any more."""
        with self._lock:
            if self._waiting is not None:
                self._waiting.discard(done)

    def post(self, start: _Start) -> None:
        """Start a call that nobody waits for."""
        done: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._post(None, self._begin, start, done, [])

    def _post(
        self,
        done: concurrent.futures.Future[Any] | None,
        function: Callable[..., None],
        *args: Any,
    ) -> None:
        with self._lock:
            if self._waiting is None:
                raise ClosedError("the client is closed")
            if done is not None:
                self._waiting.add(done)
            self._loop.call_soon_threadsafe(function, *args)

    def _begin(
        self,
        start: _Start,
        done: concurrent.futures.Future[Any],
        started: list[_Undo | None],
    ) -> None:
        try:
            started.append(start(self.driver, done))
        except Exception as error:
            done.set_exception(error)
        self.driver.after_call()

    def _abandon(self, started: list[_Undo | None]) -> None:
        if started and started[0] is not None:
            started[0]()
            self.driver.after_call()

    def finish(self) -> None:
        """End the thread, after the core was closed."""
        with self._lock:
            if self._waiting is not None:
                self._loop.call_soon_threadsafe(self._over.set)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def leave_in_child(self) -> None:
        """In a forked child: keep the parent's loop as it is. Closing it would reach the parent."""
        _parents_loops.append(self._loop)


def _wait_for(done: concurrent.futures.Future[Any]) -> Any:
    """Return the result, looking up now and then.

    A signal that comes after Python's last look for one and before the wait itself does not end
    the wait, so an interrupt could be seen only when the key is granted.
    """
    while True:
        try:
            return done.result(_LOOK_UP_S)
        except TimeoutError:
            if done.done():  # Else it is not the call's own.
                return done.result()


def _wait_for_event(event: threading.Event, seconds: float | None) -> None:
    """Wait for it, for so long at most; as `_wait_for`."""
    ends_s = None if seconds is None else time.monotonic() + seconds
    while not event.is_set():
        left_s = _LOOK_UP_S if ends_s is None else ends_s - time.monotonic()
        if left_s <= 0:
            return
        event.wait(min(left_s, _LOOK_UP_S))


_parents_loops: list[asyncio.AbstractEventLoop] = []
_fork_lock = threading.Lock()


def _renew_fork_lock() -> None:
    """A thread of the parent, which the child does not have, may have held the old one."""
    global _fork_lock
    _fork_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_fork_lock)


def _close_unattended(runner: _Runner) -> None:
    """The client was garbage-collected: end its thread without waiting for anything."""
    if runner.pid != os.getpid():
        return
    logger.warning("a client was dropped without close(); its tickets are released")

    def close(driver: Driver, done: concurrent.futures.Future[Any]) -> None:
        done.add_done_callback(lambda _: runner.finish())
        driver.core.close(done, now_ns())

    try:
        runner.post(close)
    except ClosedError:
        return


class Ticket(TicketFacts):
    """A granted acquisition. `with ticket:` releases it at the end. All methods are thread-safe.

    Entering raises LostError, NotHeldError or ClosedError where it is not held any more. A
    ticket that is garbage-collected is not released: a warning is logged, and it is held on.
    """

    __slots__ = ("__weakref__", "_entered", "_runner")

    def __init__(self, client: Client, runner: _Runner, held: HeldTicket) -> None:
        super().__init__(client, runner.driver, held)
        self._runner = runner
        self._entered = False

    def release(self) -> None:
        """Give the key to the next waiter. Idempotent: called again it does what it did first.

        Returns when the server has answered. Raises LostError if the ticket was lost before, or
        if there was no answer by `expires_at` (but at least 1 second); ClosedError if the client
        was closed without releasing it. An interrupt ends only the waiting. REQ-BOUND-RELEASE
        """
        self._check_process()

        def start(driver: Driver, done: concurrent.futures.Future[Any]) -> None:
            driver.core.release(self._held, done, now_ns())

        try:
            self._runner.call(start)
        except ClosedError:  # The thread is gone, so the state stays what it is.
            if self._held.state is TicketState.LOST:
                raise lost_error(self._held) from None
            if self._held.state is not TicketState.RELEASED or self._held.release_error:
                raise

    def extend(self, lease: Duration | None = None) -> None:
        """Make the lease end `lease` seconds from now, never earlier than it would.

        Without a lease: the ticket's own. A lease of 0.001 changes nothing and only asks whether
        the ticket is held. Raises LostError (also when it was lost before: then nothing is sent),
        NotHeldError after release or hand_over, ReplyTimeoutError after `reply_timeout`,
        InvalidArgumentError. One extend of a ticket is under way at a time, further ones wait.
        """
        self._check_process()

        def start(driver: Driver, done: concurrent.futures.Future[Any]) -> _Undo:
            request = driver.core.extend(self._held, lease, done, now_ns())
            return lambda: driver.abandon(request)

        self._runner.call(start)

    def hand_over(self) -> str:
        """End this client's part in the ticket and return a reference that `adopt` takes.

        The lease goes on and is not extended any more, so adopt before it ends. A reference is
        for one adopter; the server does not check that. Waits for an extend that is under way.
        Raises LostError and NotHeldError.
        """
        self._check_process()

        def start(driver: Driver, done: concurrent.futures.Future[Any]) -> _Undo:
            driver.core.hand_over(self._held, done, now_ns())
            return lambda: driver.core.stop_hand_over(self._held, done, now_ns())

        reference: str = self._runner.call(start)
        return reference

    def wait_lost(self, timeout: Duration | None = None) -> LostReason | None:
        """Wait until the ticket is lost, and return why.

        Returns None if it ended in another way, or after `timeout` seconds. Any number of threads
        may wait.
        """
        self._check_process()
        seconds = None if timeout is None else duration_ns("timeout", timeout) / 1_000_000_000
        ended = threading.Event()

        def listen(driver: Driver, done: concurrent.futures.Future[Any]) -> None:
            if self._held.state is TicketState.HELD:
                self._held.listeners.append(ended.set)
            else:
                ended.set()
            done.set_result(None)

        def stop(driver: Driver, done: concurrent.futures.Future[Any]) -> None:
            if ended.set in self._held.listeners:
                self._held.listeners.remove(ended.set)

        try:
            self._runner.call(listen)
            try:
                _wait_for_event(ended, seconds)
            finally:
                self._runner.post(stop)
        except ClosedError:
            pass  # What the ticket came to is known.
        return self.lost_reason

    def __enter__(self) -> Ticket:
        self._check_process()
        self._check_entry(entered=self._entered)
        self._entered = True
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc is None:
            self.release()
        elif isinstance(exc, Exception):
            try:
                self.release()
            except TicketingError as error:
                logger.warning("%s; the error of the body goes on", error)
        elif self._driver.in_its_process:  # Interrupted: nothing may hold the program up.
            try:
                self._runner.post(lambda driver, _: driver.core.release(self._held, None, now_ns()))
            except ClosedError:
                return


class Client:
    """A client of one server or cluster, made by `connect`. All methods are thread-safe.

    It has one connection, on which any number of threads acquire at once. After a fork the
    child's client is a new one with an identity of its own, which connects at its first call.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._transport = options.transport()
        self._closed = False
        self._runner = self._run(options.core_settings())
        try:
            self._runner.call(lambda driver, done: driver.core.open(done, now_ns()))
        except BaseException:
            self.close()
            raise

    def _run(self, settings: CoreSettings) -> _Runner:
        runner = _Runner(settings, self._transport, self._options.on_event)
        self._finalizer = weakref.finalize(self, _close_unattended, runner)
        self._finalizer.atexit = False
        return runner

    def _runner_here(self) -> _Runner:
        """The runner of this process; after a fork that is a new client."""
        if self._runner.pid == os.getpid():
            return self._runner
        with _fork_lock:
            runner = self._runner
            if runner.pid != os.getpid():
                if self._closed:
                    raise ClosedError("the client is closed")
                self._finalizer.detach()
                runner.leave_in_child()
                self._runner = self._run(self._options.core_settings(forked=True))
                self._runner.post(lambda driver, _: driver.core.open(None, now_ns()))
        return self._runner

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancel what waits, release what is held, and end connection and thread.

        Takes at most about a second, also without a server; calls that still wait in other
        threads fail with ClosedError. Idempotent. With `release_on_close=False` tickets are left
        to their leases. REQ-SHUT-ORDER
        """
        self._closed = True
        self._finalizer.detach()
        runner = self._runner
        if runner.pid != os.getpid():
            runner.leave_in_child()
            return
        try:
            runner.call(lambda driver, done: driver.core.close(done, now_ns()))
        except ClosedError:
            return  # It was closed before.
        runner.finish()

    def acquire(
        self,
        key: Key,
        *,
        lease: Duration | None = None,
        wait_timeout: Duration | Forever | None = None,
        auto_extend: bool | None = None,
    ) -> Ticket:
        """Acquire a key: `with client.acquire("k") as ticket:`, or keep the ticket.

        `key`: text (sent as UTF-8) or bytes; 1 to 128 bytes with the client's prefix.
        `lease`: seconds or a timedelta, at least a millisecond. None: the client's, else 30 s.
        `wait_timeout`: seconds or a timedelta; 0 does not wait. None: the client's, else for ever.
        `auto_extend`: whether the lease is extended while the ticket is held. None: yes without a
        lease, no with one.

        Raises WaitTimeoutError (HeldError with a wait of 0), OverloadedError, AuthError,
        LostError (granted, but read too late), InvalidArgumentError, ClosedError; a wait of 0
        also ReplyTimeoutError. A wait goes on over a lost connection and keeps its place. An
        interrupt (KeyboardInterrupt) leaves neither a waiter nor a ticket behind.

        A ticket that is lost inside the `with` raises LostError at its end; an error of the body
        itself always goes first. REQ-STOP-CLEAN REQ-SCOPE-REPORT
        """
        return self._acquire((key,), lease, wait_timeout, auto_extend)

    def acquire_set(
        self,
        keys: Iterable[Key],
        *,
        lease: Duration | None = None,
        wait_timeout: Duration | Forever | None = None,
        auto_extend: bool | None = None,
    ) -> Ticket:
        """Acquire up to 16 different keys together, all or nothing, as one ticket.

        Otherwise as `acquire`. Sets that overlap never deadlock. A set waits for all its keys
        in strict turn, and keeps those that are free from later comers.
        """
        if not isinstance(keys, str | bytes) and isinstance(keys, Iterable):
            keys = tuple(keys)  # The caller's thread runs the caller's iterator.
        return self._acquire(keys, lease, wait_timeout, auto_extend)

    def try_acquire(
        self, key: Key, *, lease: Duration | None = None, auto_extend: bool | None = None
    ) -> Ticket | None:
        """Acquire a key if it is free now, else return None. Otherwise as `acquire`."""
        try:
            return self._acquire((key,), lease, 0, auto_extend)
        except HeldError:
            return None

    def _acquire(
        self,
        keys: Iterable[Key],
        lease: Duration | None,
        wait_timeout: Duration | Forever | None,
        auto_extend: bool | None,
    ) -> Ticket:
        def start(driver: Driver, done: concurrent.futures.Future[Any]) -> _Undo:
            request = driver.core.acquire(
                keys,
                lease=lease,
                wait_timeout=wait_timeout,
                auto_extend=auto_extend,
                waiter=done,
                now_ns=now_ns(),
            )
            return lambda: driver.abandon(request)

        return self._ticket_of(start)

    def _ticket_of(self, start: _Start) -> Ticket:
        runner = self._runner_here()
        return runner.call_for(start, lambda held: Ticket(self, runner, held))

    def adopt(
        self, reference: str, *, lease: Duration | None = None, auto_extend: bool | None = None
    ) -> Ticket:
        """Take over a ticket that another client handed over.

        `reference` is what `hand_over` returned; the client's key_prefix is not added to it.
        Extends the ticket by the lease. Raises NotHeldError if it has ended, ReplyTimeoutError,
        InvalidArgumentError, ClosedError.
        """

        def start(driver: Driver, done: concurrent.futures.Future[Any]) -> _Undo:
            request = driver.core.adopt(reference, lease, auto_extend, done, now_ns())
            return lambda: driver.abandon(request)

        return self._ticket_of(start)

    def ping(self) -> None:
        """Ask the server for a sign of life. Raises ReplyTimeoutError, AuthError, ClosedError."""

        def start(driver: Driver, done: concurrent.futures.Future[Any]) -> _Undo:
            request = driver.core.ping(done, now_ns())
            return lambda: driver.abandon(request)

        self._runner_here().call(start)


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
    """Connect and return the client: `with ticketing.sync.connect() as client:`.

    The options are those of `ticketing.connect`; `on_event` is called in the background thread
    and must not call this client. Raises InvalidArgumentError, ConnectionFailedError naming each
    endpoint with its error, or AuthError; all within seconds.
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
