"""A running server: listener, node, HTTP, TLS reload and log, put together from `Settings`."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import time
import traceback
from collections.abc import Coroutine
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from ticketing_server.addresses import Address
from ticketing_server.cluster_driver import EXIT_BUG, EXIT_DISK, ClusterDriver, is_of_node
from ticketing_server.costly import Costly
from ticketing_server.engine import Event
from ticketing_server.engine_events import log_engine_event
from ticketing_server.http import HttpServer, Request, Site, host_names
from ticketing_server.listener import Server, bind
from ticketing_server.log import EventLog
from ticketing_server.metrics import MetricsPage, ShellState
from ticketing_server.peers.keys import Keyring
from ticketing_server.secret_file import weak_secrets
from ticketing_server.settings import Settings
from ticketing_server.settings_load import reread_admin_secrets, reread_secrets
from ticketing_server.status import StatusPage
from ticketing_server.tls import TlsError, TlsReloader

if TYPE_CHECKING:
    from ticketing_server.admin.listening import AdminServer, AdminTls

LAG_INTERVAL_S = 0.5
LAG_SAMPLES = 20
TLS_CHECK_INTERVAL_S = 2.0


class DiskError(Exception):
    """The data directory can't be read or written; the text says why."""


class BindError(Exception):
    """An address can't be listened on; the text names setting, address and reason."""

    def __init__(self, error: OSError) -> None:
        """Take the text of `error`, which begins with the setting's flag."""
        text = error.strerror or str(error)
        super().__init__(text)
        self.is_taken = error.errno == errno.EADDRINUSE
        self.setting = text.partition(" ")[0].removeprefix("--")


class Service:
    """Everything that one process serves; its calls are made on its event loop."""

    def __init__(self, settings: Settings, log: EventLog, *, only_check: bool = False) -> None:
        """Load what TLS needs (TlsError where that fails) and open the data directory.

        `Refused` or `DiskError` where that can't be used. Nothing is bound yet. `only_check` makes
        no directory that isn't there.
        """
        self.settings = settings
        self.log = log
        self.exit_code = 0
        """What the process ends with; other than 0 it ends at once, without draining."""
        self.tls = TlsReloader(settings.tls) if settings.tls is not None else None
        self.state = ShellState(version("ticketing-server"), "python", settings.limits)
        self.stop_asked = asyncio.Event()
        """Set by whoever wants the process to drain and end."""
        cluster = settings.cluster
        self._keyring = Keyring(cluster) if cluster is not None else None
        self._only_check = only_check
        self.driver = self._make_driver()
        self.state.mode = settings.mode
        self.state.driver = self.driver
        self.server = Server(
            settings,
            engine=self.driver.node if self.driver is not None else None,
            after_turn=self.driver.after_turn if self.driver is not None else None,
            tls=self.tls.context if self.tls is not None else None,
            on_event=self._on_event,
        )
        self.http_addresses: tuple[Address, ...] = ()
        self.peer_addresses: tuple[Address, ...] = ()
        self._started_s = time.monotonic()
        self.admin = self._make_admin()
        self._note_expiry()
        self._http = HttpServer(self._site())
        self._http_listeners: list[asyncio.Server] = []
        self._peer_sockets: list[socket.socket] = []
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Where clients of version 4 connect, with the ports that were taken."""
        return tuple(self.server.addresses)

    @property
    def v3_addresses(self) -> tuple[Address, ...]:
        """Where clients of version 3 connect."""
        return tuple(self.server.v3_addresses)

    @property
    def admin_addresses(self) -> tuple[Address, ...]:
        """Where administration is served."""
        return self.admin.addresses if self.admin is not None else ()

    async def start(self) -> None:
        """Listen everywhere, or raise BindError and listen nowhere."""
        if self.driver is not None:
            asyncio.get_running_loop().set_exception_handler(self.log_bug)
        try:
            peers = await self._bind_peers()
            self.server.prepare()
            if self.driver is not None and not self._only_check:
                keys = self._keyring.keys if self._keyring is not None else None
                await self.driver.start(self.server.begin_turn, peers, keys)
            await self.server.start()
            for address in self.settings.http_listen:
                await self._listen_http(address)
            if self.admin is not None:
                await self.admin.start()
        except OSError as error:
            await self.stop()
            raise BindError(error) from error
        self._run(self._measure_lag())
        if self.tls is not None:
            self._run(self._watch_tls_files(self.tls))
        if self._keyring is not None:
            self._run(self._watch_peer_files(self._keyring))
        if self.admin is not None and self.admin.tls is not None:
            self._run(self._watch_admin_files(self.admin, self.admin.tls))

    async def drain(self) -> None:
        """Send clients away and wait until they are gone; the listener bounds how long."""
        self.state.draining = True
        self.log.always("info", "draining")
        if self.driver is not None:
            await self.driver.hand_over()
        await self.server.drain()

    async def stop(self) -> None:
        """Close everything that is open."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.admin is not None:
            await self.admin.stop()
        for listener in self._http_listeners:
            listener.close()
        self._http.close()
        await self.server.stop()
        if self.driver is not None:
            await self.driver.stop()
        for sock in self._peer_sockets:
            sock.close()

    def reload(self) -> None:
        """Read secrets and TLS files again; what can't be read stays as it was, and is logged."""
        try:
            secrets = reread_secrets(self.settings)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            self.log.always("error", "reload_failed", {"what": "secrets"}, text=reason)
        else:
            self.server.configure(self.settings.limits, secrets)
            for warning in weak_secrets(secrets):
                self.log.always("warning", "settings", text=warning)
            names = tuple(secret.name for secret in secrets)
            self.log.always("info", "reloaded", {"what": "secrets", "names": names})
        if self.tls is not None:
            self._reload_tls(self.tls)
        if self._keyring is not None:
            self._reload_peers(self._keyring)
        if self.admin is not None:
            self._reload_admin(self.admin)

    def log_bug(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log what nobody caught, as a handler of the event loop.

        The server goes on, unless it was in a node: what that promised may be broken.
        """
        error = context.get("exception")
        trace = "".join(traceback.format_exception(error)) if error is not None else ""
        text = f"{context.get('message', '')} {trace}"
        self.log.event(time.monotonic(), "error", "bug", {}, text=text)
        if self.driver is not None and error is not None and is_of_node(error):
            self._fail(EXIT_BUG, f"the node failed, this is a bug: {type(error).__name__}: {error}")

    def _reload_tls(self, tls: TlsReloader) -> None:
        try:
            self.server.replace_tls(tls.reload())
        except TlsError as error:
            self.log.always("error", "reload_failed", {"what": "tls"}, text=str(error))
            return
        self._note_expiry()
        self.log.always("info", "reloaded", {"what": "tls"})

    def _note_expiry(self) -> None:
        self.state.certificate_expiry_unix_s = {
            **(self.tls.expires_unix_s if self.tls is not None else {}),
            **(self._keyring.expires_unix_s if self._keyring is not None else {}),
            **(self.admin.expires_unix_s if self.admin is not None else {}),
        }

    # The node

    def _make_driver(self) -> ClusterDriver | None:
        path = self.settings.data_dir
        if path is None or (self._only_check and not path.exists()):
            return None
        try:
            return ClusterDriver(
                self.settings, self._on_node_event, self._fail, only_check=self._only_check
            )
        except OSError as error:
            reason = error.strerror or str(error)
            raise DiskError(f"data directory {path} can't be read or written: {reason}") from error

    def _fail(self, code: int, reason: str) -> None:
        """End the process with this exit code, and let nothing more out of it."""
        if not self.exit_code:
            self.exit_code = code
            self.log.always("error", "disk" if code == EXIT_DISK else "stop", text=reason)
        self.server.halt()
        self.stop_asked.set()

    def _on_node_event(self, level: str, name: str, fields: dict[str, Any], text: str) -> None:
        self.log.event(time.monotonic(), level, name, fields, text=text)

    async def _bind_peers(self) -> list[socket.socket]:
        """Return listening sockets for peers, to be taken over by the driver."""
        cluster = self.settings.cluster
        bound: list[socket.socket] = []
        for address in cluster.peer_listen if cluster is not None else ():
            try:
                bound += await bind(asyncio.get_running_loop(), address)
            except OSError as error:
                for sock in bound:
                    sock.close()
                raise OSError(error.errno, f"--peer-listen {address}: {error.strerror}") from error
        self._peer_sockets = bound
        self.peer_addresses = tuple(Address(*sock.getsockname()[:2]) for sock in bound)
        return bound

    def _reload_peers(self, keyring: Keyring) -> None:
        try:
            keys = keyring.reload()
        except (OSError, ValueError, TlsError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            self.log.always("error", "reload_failed", {"what": "peers"}, text=reason)
            return
        if self.driver is not None and self.driver.peers is not None:
            self.driver.peers.keys = keys
        self._note_expiry()
        self.log.always("info", "reloaded", {"what": "peers", "names": keyring.names})

    async def _watch_peer_files(self, keyring: Keyring) -> None:
        while True:
            await asyncio.sleep(TLS_CHECK_INTERVAL_S)
            if await asyncio.to_thread(keyring.changed):
                self._reload_peers(keyring)

    def _make_admin(self) -> AdminServer | None:
        if not self.settings.admin_listen:
            return None
        # Only here is gRPC imported.
        from ticketing_server.admin.host import Host
        from ticketing_server.admin.keeping import DriverKeeper
        from ticketing_server.admin.listening import AdminServer

        keeper = None
        if self.driver is not None:
            keeper = DriverKeeper(self.driver, is_alone=self.settings.cluster is None)
        host = Host(
            engine=self.server.engine,
            counters=Costly(self.server.engine.counters),
            begin_turn=self.server.begin_turn,
            state=self.state,
            log=self.log,
            ask_stop=self.stop_asked.set,
            is_ready=lambda: not self.state.not_ready(),
            uptime_s=lambda: time.monotonic() - self._started_s,
            keeper=keeper,
        )
        return AdminServer(self.settings, host)

    def _reload_admin(self, admin: AdminServer) -> None:
        try:
            admin.replace_secrets(reread_admin_secrets(self.settings))
            admin.reload_tls()
        except (OSError, ValueError, TlsError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            self.log.always("error", "reload_failed", {"what": "admin"}, text=reason)
        else:
            self._note_expiry()
            self.log.always("info", "reloaded", {"what": "admin"})

    async def _watch_admin_files(self, admin: AdminServer, tls: AdminTls) -> None:
        while True:
            await asyncio.sleep(TLS_CHECK_INTERVAL_S)
            if await asyncio.to_thread(tls.changed):
                self._reload_admin(admin)

    def _site(self) -> Site:
        engine = self.server.engine
        counters = Costly(engine.counters)
        return Site(
            metrics=MetricsPage(counters, self.state),
            status=Costly(StatusPage(engine, counters, self.state).render),
            state=self.state,
            token=self.settings.http_token,
            host_names=host_names(self.settings.http_host),
            denied=self._on_http_denied,
        )

    async def _listen_http(self, address: Address) -> None:
        loop = asyncio.get_running_loop()
        try:
            listener = await loop.create_server(self._http.connect, address.host, address.port)
        except OSError as error:
            # asyncio's own text of it repeats the address.
            reason = error.strerror if (error.errno or 0) < 0 else os.strerror(error.errno or 0)
            raise OSError(error.errno, f"--http-listen {address}: {reason}") from error
        self._http_listeners.append(listener)
        bound = (sock.getsockname()[:2] for sock in listener.sockets)
        self.http_addresses += tuple(Address(host, port) for host, port in bound)

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        task.add_done_callback(self._on_task_end)
        self._tasks.append(task)

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.log_bug(task.get_loop(), {"message": "a task ended", "exception": error})

    async def _measure_lag(self) -> None:
        """Keep the worst lateness of a timer over the last `LAG_SAMPLES` intervals."""
        loop = asyncio.get_running_loop()
        samples: list[float] = []
        while True:
            due_s = loop.time() + LAG_INTERVAL_S
            await asyncio.sleep(LAG_INTERVAL_S)
            samples = [*samples[1 - LAG_SAMPLES :], max(0.0, loop.time() - due_s)]
            self.state.loop_lag_s = max(samples)

    async def _watch_tls_files(self, tls: TlsReloader) -> None:
        while True:
            await asyncio.sleep(TLS_CHECK_INTERVAL_S)
            # A file system that hangs must not hang the event loop.
            if await asyncio.to_thread(tls.changed):
                self._reload_tls(tls)

    def _on_event(self, event: Event) -> None:
        log_engine_event(self.log, event, time.monotonic())

    def _on_http_denied(self, reason: str, request: Request) -> None:
        fields = {"path": request.path, "host": request.headers.get("host", "")}
        self.log.event(time.monotonic(), "warning", f"http_{reason}", fields)
