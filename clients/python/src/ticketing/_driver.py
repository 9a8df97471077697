"""Runs one core on one event loop: the only place of the client that touches sockets.

One write per turn of the loop, one timer for the core's next deadline, one future per call. All
methods are called from the loop's own thread.
"""

from __future__ import annotations

import asyncio
import copy
import errno
import ipaddress
import logging
import os
import socket
import ssl
import threading
import weakref
from collections.abc import Callable
from typing import Any, cast

from ticketing._clock import now_ns
from ticketing._core.client import ClientCore
from ticketing._core.effects import (
    Closed,
    Connect,
    Disconnect,
    Effect,
    Log,
    Notify,
    Settled,
    TicketEnded,
)
from ticketing._core.requests import Request
from ticketing._core.settings import CoreSettings
from ticketing._core.urls import Endpoint
from ticketing._options import OnEvent, Transport

logger = logging.getLogger("ticketing")

_NS_PER_S = 1_000_000_000
_LONGEST_SLEEP_S = 1.0
"""The loop's clock may stand still while the machine sleeps; leases go on. So look now and then."""
_USER_TIMEOUT_MS = 15_000
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING}

_drivers: weakref.WeakSet[Driver] = weakref.WeakSet()


class Driver:
    """One core, its connection, its timer."""

    def __init__(
        self, settings: CoreSettings, transport: Transport, on_event: OnEvent | None
    ) -> None:
        self.core = ClientCore(settings)
        self.pid = os.getpid()
        self.loop = asyncio.get_running_loop()
        self._tls = transport
        self._on_event = on_event
        self._wire: _Wire | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._socket: socket.socket | None = None
        self._flush_handle: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._working = False
        self._over = False
        self._ended: list[asyncio.Future[None]] = []
        self._handlers: dict[type, Callable[[Any], None]] = {
            Settled: self._settled,
            Connect: self._connect,
            Disconnect: self._disconnect,
            TicketEnded: self._ticket_ended,
            Notify: self._notify,
            Log: self._log,
            Closed: self._closed,
        }
        _drivers.add(self)

    @property
    def in_its_process(self) -> bool:
        """Whether this is the process that made the driver, and no fork of it."""
        return os.getpid() == self.pid

    # Calls.

    def check_loop(self) -> None:
        """Refuse a call from another event loop, which could not wait for its result."""
        if asyncio.get_running_loop() is not self.loop:
            raise RuntimeError(
                "a client and its tickets belong to the event loop that opened the client: make a"
                " client in each asyncio.run, or use ticketing.sync for threads"
            )

    def after_call(self) -> None:
        """Carry out what the core wants. To be called after every call into the core."""
        if self.core.effects:
            self._carry_out()
        if self._flush_handle is None and self.core.has_output():
            self._flush_handle = self.loop.call_soon(self._flush)
        self._arm()

    def abandon(self, request: Request) -> None:
        """The caller was cancelled: leave neither waiter nor ticket behind."""
        if self.in_its_process:
            self.core.abandon(request, now_ns())
            self.after_call()

    def close_unattended(self) -> None:
        """The client was dropped: close without anybody waiting for it."""
        self.core.close(None, now_ns())
        self.after_call()

    async def connection_gone(self) -> None:
        """Wait until nothing of the connection is left on the loop."""
        if self._connecting is not None:
            await asyncio.wait([self._connecting])
        if self._wire is not None:
            gone = self.loop.create_future()
            self._ended.append(gone)
            await gone

    # Effects.

    def _carry_out(self) -> None:
        if self._working:
            return  # The loop below sees what was added meanwhile.
        self._working = True
        effects: list[Effect] = self.core.effects
        handlers = self._handlers
        try:
            while effects:
                batch = effects[:]
                effects.clear()
                for effect in batch:
                    handlers[effect.__class__](effect)
        finally:
            self._working = False

    def _settled(self, effect: Settled) -> None:
        waiter = effect.waiter
        if waiter.done():
            return  # It was cancelled; whoever did that abandons the request.
        if effect.error is None:
            waiter.set_result(effect.value)
        else:
            waiter.set_exception(copy.copy(effect.error))

    def _connect(self, effect: Connect) -> None:
        self._connecting = self.loop.create_task(self._open(effect.serial, effect.endpoint))

    def _disconnect(self, effect: Disconnect) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        if self._wire is not None and self._wire.serial == effect.serial:
            self._wire.abort()

    def _ticket_ended(self, effect: TicketEnded) -> None:
        for listener in effect.ticket.listeners:
            self.loop.call_soon(listener)
        effect.ticket.listeners.clear()

    def _notify(self, effect: Notify) -> None:
        if self._on_event is None:
            return
        try:
            self._on_event(effect.event)
        except Exception:
            logger.exception("on_event raised for %s", effect.event.kind)

    def _log(self, effect: Log) -> None:
        logger.log(_LEVELS[effect.level], "%s", effect.text)

    def _closed(self, _effect: Closed) -> None:
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # Time and output.

    def _arm(self) -> None:
        due_ns = self.core.next_deadline_ns()
        if due_ns is None or (self._timer is not None and self._timer_ns <= due_ns):
            return
        if self._over:
            return
        if self._timer is not None:
            self._timer.cancel()
        delay_s = min(max(0, due_ns - now_ns()) / _NS_PER_S, _LONGEST_SLEEP_S)
        self._timer_ns = due_ns
        self._timer = self.loop.call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self.in_its_process:
            self.core.on_time(now_ns())
            self.after_call()

    def _flush(self) -> None:
        self._flush_handle = None
        wire = self._wire
        if wire is None or wire.paused or wire.serial != self.core.serial:
            return  # There is a flush when the connection stands, or is writable again.
        if self.in_its_process:
            data = self.core.take_output(now_ns())
            if data:
                wire.write(data)

    # The connection.

    async def _open(self, serial: int, endpoint: Endpoint) -> None:
        try:
            await self._open_any_address(serial, endpoint)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            reason = _why(error, endpoint)
            self._connecting = None
            self.core.disconnected(serial, reason, now_ns())
            self.after_call()
        finally:
            if self._connecting is asyncio.current_task():
                self._connecting = None

    async def _open_any_address(self, serial: int, endpoint: Endpoint) -> None:
        addresses = await self._addresses(endpoint)
        for left in range(len(addresses) - 1, -1, -1):
            family, address = addresses[len(addresses) - 1 - left]
            try:
                # The core bounds the whole attempt; each address but the last gets a part of it.
                async with asyncio.timeout(0.5 if left else None):
                    await self._open_address(serial, endpoint, family, address)
                return
            except (OSError, TimeoutError):
                if not left:
                    raise

    async def _addresses(self, endpoint: Endpoint) -> list[tuple[int, Any]]:
        if endpoint.path:
            if not hasattr(socket, "AF_UNIX"):
                raise OSError("this platform has no Unix sockets")
            return [(socket.AF_UNIX, endpoint.path)]
        try:
            version = ipaddress.ip_address(endpoint.host).version
        except ValueError:
            found = await _resolve(self.loop, endpoint)
            return [(entry[0], entry[4]) for entry in found]
        if version == 6:
            return [(socket.AF_INET6, (endpoint.host, endpoint.port))]
        return [(socket.AF_INET, (endpoint.host, endpoint.port))]

    async def _open_address(
        self, serial: int, endpoint: Endpoint, family: int, address: Any
    ) -> None:
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            if not endpoint.path:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if hasattr(socket, "TCP_USER_TIMEOUT"):
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
            await self.loop.sock_connect(sock, address)
            self._socket = sock
            context = self._tls.context
            name = None if context is None else self._tls.server_name or endpoint.host
            await self.loop.create_connection(
                lambda: _Wire(self, serial), sock=sock, ssl=context, server_hostname=name
            )
        except BaseException:
            sock.close()
            raise

    def wire_made(self, wire: _Wire) -> None:
        """The transport stands."""
        if self._over or wire.serial != self.core.serial:
            wire.abort()  # It came up in the very moment in which it was given up.
            return
        self._connecting = None
        self._wire = wire
        self.core.connected(wire.serial, now_ns())
        self.after_call()

    def wire_received(self, wire: _Wire, data: bytes) -> None:
        """Bytes came in."""
        if self.in_its_process:
            self.core.receive(wire.serial, data, now_ns())
            self.after_call()

    def wire_writable(self) -> None:
        """The transport takes bytes again."""
        if self._flush_handle is None:
            self._flush_handle = self.loop.call_soon(self._flush)

    def wire_lost(self, wire: _Wire, error: Exception | None) -> None:
        """The transport is gone."""
        if self._wire is wire:
            self._wire = None
            self._socket = None
        if not self.in_its_process:
            return
        reason = "the server closed the connection" if error is None else _why(error, None)
        if error is None and self._tls.context is not None and not wire.heard:
            reason += " (if it asks for a certificate: tls=TlsOptions(cert_file=..., key_file=...))"
        self.core.disconnected(wire.serial, reason, now_ns())
        self.after_call()
        for gone in self._ended:
            if not gone.done():
                gone.set_result(None)
        self._ended.clear()

    def close_socket_in_child(self) -> None:
        """After a fork: the parent goes on with this connection; the child only lets go of it."""
        if self._socket is not None:
            os.close(self._socket.detach())


class _Wire(asyncio.Protocol):
    """One connection of a driver."""

    def __init__(self, driver: Driver, serial: int) -> None:
        self._driver = driver
        self._transport: asyncio.Transport | None = None
        self.serial = serial
        self.paused = False
        self.heard = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has other bases.
        self._driver.wire_made(self)

    def data_received(self, data: bytes) -> None:
        self.heard = True
        self._driver.wire_received(self, data)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        self._driver.wire_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        self._driver.wire_lost(self, exc)

    def write(self, data: bytes) -> None:
        """Hand bytes to the transport."""
        assert self._transport is not None
        self._transport.write(data)

    def abort(self) -> None:
        """Drop the connection at once."""
        assert self._transport is not None
        self._transport.abort()


async def _resolve(loop: asyncio.AbstractEventLoop, endpoint: Endpoint) -> list[Any]:
    """Look a name up in a thread of its own: it ends by itself and holds nobody's exit up."""
    found: asyncio.Future[list[Any]] = loop.create_future()

    def tell(result: list[Any] | None, error: OSError | None) -> None:
        if found.done():
            return
        if error is not None:
            found.set_exception(error)
        else:
            found.set_result(result or [])

    def look_up() -> None:
        result, failed = None, None
        try:
            result = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
        except OSError as error:
            failed = error
        except UnicodeError as error:
            failed = OSError(str(error))
        try:
            loop.call_soon_threadsafe(tell, result, failed)
        except RuntimeError:
            return  # The loop was closed meanwhile: nobody asks any more.

    threading.Thread(target=look_up, name="ticketing-resolve", daemon=True).start()
    return await found


def _why(error: Exception, endpoint: Endpoint | None) -> str:
    """What went wrong, and where it helps what to do, in words for people."""
    if isinstance(error, socket.gaierror):
        host = endpoint.host if endpoint is not None else ""
        return f"the name {host!r} does not resolve ({error.strerror}); check the URL"
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the server's certificate is not trusted: {error.verify_message}"
            " (name its authority in tls=TlsOptions(ca_file=...))"
        )
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or error} (is the port one for TLS?)"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused (is a server running there?)"
    if isinstance(error, FileNotFoundError):
        return "no such socket (is a server running there?)"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and error.errno is not None:
        return f"{os.strerror(error.errno)} ({errno.errorcode.get(error.errno, error.errno)})"
    return str(error) or type(error).__name__


def _after_fork_in_child() -> None:
    for driver in list(_drivers):
        driver.close_socket_in_child()
    _drivers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
