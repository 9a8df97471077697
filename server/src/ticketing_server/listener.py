"""The shell around an engine: the only file that touches clients' sockets and clocks.

Reads of one turn of the event loop are fed as they come; one `call_soon` per turn ends it, writes
each connection's output in one go and arms one timer for the engine's next deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl
import stat
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

from ticketing_server import constants_gen as c
from ticketing_server.addresses import Address
from ticketing_server.engine import ENTROPY_BYTES, Engine, Event, NamedSecret, Output, Peer
from ticketing_server.limits import Limits
from ticketing_server.session import Session
from ticketing_server.session_v3 import SessionV3
from ticketing_server.settings import Settings
from ticketing_server.standalone import StandaloneEngine, first_token

_BACKLOG = 4096
_ACCEPTS_PER_CALL = 64
_ACCEPT_PAUSE_S = 1.0
_TIMER_S_MAX = 1.0
"""The loop's clock stands still while the machine sleeps, the engine's does not; so look often."""
_LARGE_READ_BYTES = 65_536
"""A connection that gives as much in one read is read once per turn: libuv would go on reading it,
and the replies of one turn could grow far over the limit of unsent bytes."""
_LINGER_S = c.CLOSING_LINGER_MS / 1000
_DRAIN_S = c.DRAIN_TIMEOUT_MS / 1000
_OUT_OF_RESOURCES = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def clock_ns() -> int:
    """Read a clock that never goes back and, where there is one, counts suspended time."""
    return time.clock_gettime_ns(_CLOCK)


class ClientSocket(asyncio.Protocol):
    """One accepted socket."""

    def __init__(self, server: Server, number: int, peer: Peer) -> None:
        self._server = server
        self._feed = server.engine.feed
        self.number = number
        self.peer = peer
        self.transport: Any = None
        self.lingering = False
        self.paused = False
        self._ended = False
        self._linger_ends_s = 0.0
        self._linger_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet: the engine has the greeting ready at the end of this turn."""
        self.transport = transport
        server = self._server
        unsent = server.limits.unsent_bytes
        self.transport.set_write_buffer_limits(high=unsent, low=unsent // 4)
        self.write = self.transport.write
        server.sockets[self.number] = self
        if not server.reads_clients:
            self.transport.pause_reading()
        now_ns = server.begin_turn()
        server.engine.open(self.number, self.peer, os.urandom(ENTROPY_BYTES), now_ns)

    def data_received(self, data: bytes) -> None:
        """Feed the engine; discard what comes after its last word."""
        if not self.lingering:
            server = self._server
            self._feed(self.number, data, server.turn_ns or server.begin_turn())
            if len(data) >= _LARGE_READ_BYTES:
                self.transport.pause_reading()
                server.read_enough.append(self)

    def eof_received(self) -> bool:
        """Let what was read be answered, then close."""
        if self.lingering:
            return False
        self._ended = True
        self._server.begin_turn()
        self._server.engine.eof(self.number)
        # Nothing can be sent after the end of TLS, and asyncio complains where that is hoped for.
        return self.peer.transport != "tls"

    def pause_writing(self) -> None:
        """Stop reading a peer that does not read."""
        self.paused = True
        if not self.lingering:
            self.transport.pause_reading()
            self._server.engine.pause(self.number, self._server.begin_turn())

    def resume_writing(self) -> None:
        """Go on reading."""
        self.paused = False
        if not self.lingering:
            if self._server.reads_clients:
                self.transport.resume_reading()
            self._server.engine.resume(self.number, self._server.begin_turn())

    def read_on(self) -> None:
        """Read again in the next turn, unless there is another reason not to."""
        if not self.paused and not self.lingering and self._server.reads_clients:
            self.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        """Tell the engine, unless it was its own wish."""
        server = self._server
        server.sockets.pop(self.number, None)
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        if not self.lingering:
            server.begin_turn()
            server.engine.close(self.number)
        server.socket_gone()

    def linger(self) -> None:
        """Shut down the sending side, then read and discard for a while: a close with unread
        bytes would reset the connection and could destroy the last frame on its way."""
        self.lingering = True
        transport = self.transport
        if transport.is_closing():
            return
        loop = self._server.loop
        self._linger_ends_s = loop.time() + _DRAIN_S
        if self._ended:
            transport.close()
            self._linger_timer = loop.call_later(_DRAIN_S, transport.abort)
            return
        if not transport.is_reading():
            transport.resume_reading()
        if transport.can_write_eof():
            with contextlib.suppress(OSError):
                transport.write_eof()
        self._linger_timer = loop.call_later(_LINGER_S, self._end_linger)

    def _end_linger(self) -> None:
        loop = self._server.loop
        if self.transport.get_write_buffer_size() and loop.time() < self._linger_ends_s:
            self._linger_timer = loop.call_later(_LINGER_S, self._end_linger)
        else:
            self.transport.abort()

    def abort(self) -> None:
        """Close at once."""
        self.lingering = True
        self.transport.abort()


class Server:
    """Listens as `settings` say and drives an engine. All calls are made on its event loop."""

    def __init__(
        self,
        settings: Settings,
        *,
        engine: Engine | None = None,
        after_turn: Callable[[], bool] | None = None,
        tls: ssl.SSLContext | None = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        """Drive `engine`, or one of memory mode that is made here; nothing is bound yet.

        `after_turn` is called once the engine has ended a turn, and says whether clients are to
        be read; `tls` is used by every TCP address of `settings.listen`; `on_event` gets what an
        operator acts on.
        """
        self.settings = settings
        self.limits = settings.limits
        self.engine: Engine = engine or StandaloneEngine(
            first_token(time.time_ns() // 1_000_000), {3: SessionV3, 4: Session}
        )
        self.reads_clients = True
        self._after_turn = after_turn
        self._is_prepared = False
        self._is_halted = False
        self.addresses: list[Address] = []
        self.v3_addresses: list[Address] = []
        self.sockets: dict[int, ClientSocket] = {}
        self.read_enough: list[ClientSocket] = []
        self.loop: asyncio.AbstractEventLoop
        self._tls = tls
        self._on_event = on_event
        self._listeners: list[_Listener] = []
        self._accepting: dict[asyncio.Task[None], None] = {}
        self._next_number = 1
        self.turn_ns = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._empty: asyncio.Event | None = None

    def prepare(self) -> None:
        """Begin the first turn on this event loop, so that the engine runs before it listens."""
        self._is_prepared = True
        self.loop = asyncio.get_running_loop()
        self.configure(self.settings.limits, self.settings.secrets)

    async def start(self) -> None:
        """Listen on every address, or raise OSError, naming it, and listen on none."""
        if not self._is_prepared:
            self.prepare()
        try:
            for address in self.settings.listen:
                self.addresses += await self._listen("--listen", address, 4)
            for address in self.settings.listen_v3:
                self.v3_addresses += await self._listen("--listen-v3", address, 3)
        except OSError:
            self._stop_listening()
            raise

    def configure(self, limits: Limits, secrets: Sequence[NamedSecret]) -> None:
        """Take new limits and secrets; connections, tickets and waiters stay."""
        self.limits = limits
        self.engine.configure(limits, secrets, self.begin_turn())

    def replace_tls(self, tls: ssl.SSLContext) -> None:
        """Use this context for connections accepted from now on."""
        self._tls = tls

    async def drain(self) -> None:
        """Accept no more, send every client away, and wait until all are gone, at most 10 s."""
        self._stop_listening()
        self.engine.drain(self.begin_turn())
        self._end_turn()
        self._empty = asyncio.Event()
        if self.sockets:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), _DRAIN_S)

    async def stop(self) -> None:
        """Close everything at once; no turn comes after."""
        self._is_halted = True
        self._stop_listening()
        for task in list(self._accepting):
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        for client in list(self.sockets.values()):
            client.abort()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # Transports report their end in the next turn of the loop.
        await asyncio.sleep(0)

    def halt(self) -> None:
        """End every connection now, and no turn any more: what the engine says can't be trusted."""
        self._is_halted = True
        self._stop_listening()
        for client in list(self.sockets.values()):
            client.abort()

    # Turns

    def begin_turn(self) -> int:
        """Return when this turn began, and see to it that it ends."""
        if not self.turn_ns:
            self.turn_ns = clock_ns()
            self.loop.call_soon(self._end_turn)
        return self.turn_ns

    def _end_turn(self) -> None:
        self.turn_ns = 0
        if self._is_halted:
            return
        now_ns = clock_ns()
        outputs, deadline_ns = self.engine.end_turn(now_ns)
        if self._after_turn is not None and self._after_turn() != self.reads_clients:
            self._read_clients(not self.reads_clients)
        sockets = self.sockets
        for output in outputs:
            number, data, close = output
            client = sockets.get(number)
            if client is not None:
                if close == "no":
                    client.write(data)
                else:
                    self._write_last(client, output)
        if self.read_enough:
            for client in self.read_enough:
                client.read_on()
            self.read_enough.clear()
        if deadline_ns is not None and (self._timer is None or deadline_ns < self._timer_ns):
            self._arm(deadline_ns, now_ns)
        if self._on_event is not None:
            for event in self.engine.take_events():
                self._on_event(event)

    def _read_clients(self, reads: bool) -> None:
        """Stop reading every client, or go on, as the engine has more than it can take."""
        self.reads_clients = reads
        for client in self.sockets.values():
            if reads:
                client.read_on()
            elif not client.lingering:
                client.transport.pause_reading()

    def _write_last(self, client: ClientSocket, output: Output) -> None:
        if output.data:
            client.write(output.data)
        if output.close == "now":
            client.abort()
        else:
            client.linger()

    def _arm(self, deadline_ns: int, now_ns: int) -> None:
        """Set the one timer; rounded up to its resolution, so that it never fires early."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = deadline_ns
        delay_ms = max(0, deadline_ns - now_ns + 999_999) // 1_000_000
        self._timer = self.loop.call_later(min(delay_ms / 1000, _TIMER_S_MAX), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.begin_turn()

    def socket_gone(self) -> None:
        """Note the end of a socket, for who waits until there is none."""
        if self._empty is not None and not self.sockets:
            self._empty.set()

    # Listening

    async def _listen(
        self, setting: str, address: Address, protocol: Literal[3, 4]
    ) -> list[Address]:
        bound = []
        try:
            for listening in await bind(self.loop, address):
                listener = _Listener(listening, address, protocol)
                self._listeners.append(listener)
                self.loop.add_reader(listening.fileno(), self._accept, listener)
                bound.append(listener.bound())
        except OSError as error:
            raise OSError(error.errno, f"{setting} {address}: {error.strerror}") from error
        return bound

    def _stop_listening(self) -> None:
        for listener in self._listeners:
            self.loop.remove_reader(listener.socket.fileno())
            listener.close()
        self._listeners.clear()

    def _accept(self, listener: _Listener) -> None:
        for _ in range(_ACCEPTS_PER_CALL):
            try:
                accepted, address = listener.socket.accept()
            except OSError as error:
                # Other errors are of the connection that was to be accepted, which is gone.
                if error.errno in _OUT_OF_RESOURCES:
                    self._pause_accepting(listener, error)
                return
            tls = self._tls if listener.takes_tls else None
            peer = listener.peer(address, tls is not None)
            task = self.loop.create_task(self._connect(accepted, peer, tls))
            self._accepting[task] = None
            task.add_done_callback(self._accepted)
            if tls is not None and len(self._accepting) > self.limits.handshakes:
                # Who holds a socket without finishing the TLS handshake must not shut others out.
                next(iter(self._accepting)).cancel()

    def _accepted(self, task: asyncio.Task[None]) -> None:
        del self._accepting[task]

    async def _connect(
        self, accepted: socket.socket, peer: Peer, tls: ssl.SSLContext | None
    ) -> None:
        number = self._next_number
        self._next_number += 1
        tls_options: dict[str, Any] = {}
        if tls is not None:
            tls_options = {"ssl": tls, "ssl_handshake_timeout": c.HANDSHAKE_TIMEOUT_MS / 1000}
        try:
            _prepare(accepted, peer, self.limits.keepalive_s)
            await self.loop.connect_accepted_socket(
                lambda: ClientSocket(self, number, peer), accepted, **tls_options
            )
        except (OSError, ssl.SSLError, asyncio.CancelledError) as error:
            accepted.close()
            if tls is not None and self._on_event is not None:
                text = str(error) or "the handshake was not finished"
                self._on_event(Event("tls_failed", {"peer": peer.address, "text": text}))

    def _pause_accepting(self, listener: _Listener, error: OSError) -> None:
        """Leave new connections in the backlog for a while: those that are there are served."""
        self.loop.remove_reader(listener.socket.fileno())
        self.loop.call_later(_ACCEPT_PAUSE_S, self._go_on_accepting, listener)
        if self._on_event is not None:
            fields: dict[str, object] = {"resource": "files", "text": error.strerror}
            self._on_event(Event("limit_reached", fields))

    def _go_on_accepting(self, listener: _Listener) -> None:
        if listener in self._listeners:
            self.loop.add_reader(listener.socket.fileno(), self._accept, listener)


class _Listener:
    """One listening socket."""

    def __init__(self, listening: socket.socket, address: Address, protocol: Literal[3, 4]) -> None:
        self.socket = listening
        self.protocol = protocol
        self._address = address
        self._path_id = _path_id(address.path)
        self.takes_tls = protocol == 4 and not address.is_unix

    def bound(self) -> Address:
        """Return the address with the port that was taken."""
        if self._address.is_unix:
            return self._address
        host, port = self.socket.getsockname()[:2]
        return Address(host, port)

    def peer(self, address: Any, is_tls: bool) -> Peer:
        """Return what the engine is told of a peer."""
        if self._address.is_unix:
            return Peer("unix", self._address.path, self.protocol)
        host, port = address[:2]
        text = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return Peer("tls" if is_tls else "tcp", text, self.protocol)

    def close(self) -> None:
        """Stop listening; a Unix socket's path goes too, unless another server has it by now."""
        self.socket.close()
        if self._path_id is not None and _path_id(self._address.path) == self._path_id:
            with contextlib.suppress(OSError):
                os.unlink(self._address.path)


def _path_id(path: str) -> tuple[int, int] | None:
    """What tells the file at a path from one that came there later; None where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


async def bind(loop: asyncio.AbstractEventLoop, address: Address) -> list[socket.socket]:
    """Return listening sockets on all that an address resolves to; OSError with none left open."""
    if address.is_unix:
        return [_bind_unix(address.path)]
    infos = await loop.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    bound: list[socket.socket] = []
    try:
        for family, kind, protocol, _, where in dict.fromkeys(infos):
            listening = socket.socket(family, kind, protocol)
            bound.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.setblocking(False)
            listening.bind(where)
            listening.listen(_BACKLOG)
    except OSError:
        for listening in bound:
            listening.close()
        raise
    return bound


def _bind_unix(path: str) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.setblocking(False)
        try:
            listening.bind(path)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not is_abandoned(path):
                raise
            os.unlink(path)
            listening.bind(path)
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


def is_abandoned(path: str) -> bool:
    """Whether a path is a Unix socket that nobody listens on any more."""
    if not stat.S_ISSOCK(os.stat(path).st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        return probe.connect_ex(path) == errno.ECONNREFUSED


def _prepare(accepted: socket.socket, peer: Peer, keepalive_s: int) -> None:
    accepted.setblocking(False)
    if peer.transport == "unix":
        return
    accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    silent_s = c.SILENCE_KEEPALIVES * keepalive_s
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # A client that reads nothing counts for the system as one that vanished; whether it is
        # given up is the engine's to say, and the system must not be quicker.
        vanished_ms = max(silent_s * 1000, 2 * c.SLOW_READER_TIMEOUT_MS)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, vanished_ms)
    if peer.protocol == 3:
        # Version 3 has no ping: only the system notices a peer that vanished.
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("TCP_KEEPIDLE", keepalive_s), ("TCP_KEEPINTVL", keepalive_s)):
            if hasattr(socket, option):
                accepted.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        if hasattr(socket, "TCP_KEEPCNT"):
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, c.SILENCE_KEEPALIVES)
