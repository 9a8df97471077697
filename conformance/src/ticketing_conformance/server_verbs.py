"""The verbs `server …`: the real server, its signals and what it counts."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

from ticketing_conformance.context import SECRET, Arguments, Context, StepFailed
from ticketing_conformance.real_server import RealServer, ServerBroken
from ticketing_conformance.server_pool import ServerPool

EMPTY_SECONDS = 10.0
POLL_SECONDS = 0.02
SIGNALS = {"hup": signal.SIGHUP, "term": signal.SIGTERM, "stop": signal.SIGSTOP}


class ServerVerbs:
    """The real servers of one run."""

    def __init__(self, context: Context, pool: ServerPool) -> None:
        self._context = context
        self._pool = pool
        self._servers: dict[str, RealServer] = {}
        self._tls: dict[str, bool] = {}

    def do(self, arguments: Arguments) -> dict[str, Any]:
        """Carry out one step; returns the fields of its answer."""
        word = arguments.word(0, "what to do")
        method = getattr(self, f"_do_{word}", None)
        if method is None:
            raise StepFailed(f"server has no verb {word}")
        try:
            result: dict[str, Any] = method(arguments) or {}
        except ServerBroken as error:
            raise StepFailed(str(error)) from None
        arguments.finish()
        return result

    def _server(self, arguments: Arguments) -> RealServer:
        name = arguments.words[1] if len(arguments.words) > 1 else "s"
        if name not in self._servers:
            raise StepFailed(f"there is no server {name}")
        return self._servers[name]

    def _do_start(self, arguments: Arguments) -> dict[str, Any]:
        """Start with flags: `server start as=s keepalive=1s unix=1 tls_cert={certs.cert} …`."""
        name = arguments.text("as", "s")
        environment: dict[str, str] = {}
        secret = arguments.data("secret", SECRET)
        if not arguments.has("secret_file") and secret != b"none":
            environment["TICKETING_SECRET"] = secret.decode("ascii")
        listen = arguments.text("listen", "127.0.0.1:0")
        if arguments.integer("unix", 0):
            listen = f"unix:{self._context.directory / f'{name}.sock'}"
        flags = [
            f"--{flag.replace('_', '-')}={value.decode() if isinstance(value, bytes) else value}"
            for flag, value in sorted(arguments.rest().items())
        ]
        server = self._pool.take(flags, environment, listen)
        self._context.closers.append(lambda: self._pool.give_back(server))
        self._servers[name] = server
        self._tls[name] = any(flag.startswith("--tls-cert=") for flag in flags)
        return self._publish(name, server)

    def _publish(self, name: str, server: RealServer) -> dict[str, Any]:
        values: dict[str, Any] = {
            "address": server.address,
            "url": server.url(self._tls[name]),
            "port": server.address.rpartition(":")[2],
        }
        for extra, addresses in server.addresses.items():
            values[extra.replace("-", "_")] = addresses[0]
        self._context.variables[name] = values
        self._context.variables["url"] = values["url"]
        return values

    def _do_kill(self, arguments: Arguments) -> None:
        self._server(arguments).kill()

    def _do_stop(self, arguments: Arguments) -> dict[str, Any]:
        return {"code": self._server(arguments).stop()}

    def _do_wait(self, arguments: Arguments) -> dict[str, Any]:
        return {"code": self._server(arguments).wait()}

    def _do_again(self, arguments: Arguments) -> dict[str, Any]:
        """Start a server that ended, on the same address."""
        server = self._server(arguments)
        server.start()
        return self._publish(arguments.words[1] if len(arguments.words) > 1 else "s", server)

    def _do_signal(self, arguments: Arguments) -> None:
        """`server signal s name=hup`."""
        name = arguments.text("name")
        if name not in SIGNALS:
            raise StepFailed(f"a signal is one of {', '.join(SIGNALS)}, not {name}")
        self._server(arguments).signal(SIGNALS[name])

    def _do_freeze(self, arguments: Arguments) -> None:
        self._server(arguments).signal(signal.SIGSTOP)

    def _do_thaw(self, arguments: Arguments) -> None:
        self._server(arguments).signal(signal.SIGCONT)

    def _do_empty(self, arguments: Arguments) -> None:
        """Wait until there is neither ticket nor waiter."""
        server = self._server(arguments)
        seconds = arguments.integer("within_ms", int(EMPTY_SECONDS * 1000)) / 1000
        deadline = time.monotonic() + self._context.seconds_left(seconds)
        while (held := server.holdings()) != (0, 0):
            if time.monotonic() > deadline:
                raise StepFailed(
                    f"there still are {held[0]} tickets and {held[1]} waiters after {seconds:g} s"
                )
            time.sleep(POLL_SECONDS)

    def _do_has(self, arguments: Arguments) -> None:
        """Wait until counts are reached: `server has s tickets=1 attached=2 detached=0`."""
        server = self._server(arguments)
        seconds = arguments.integer("within_ms", int(EMPTY_SECONDS * 1000)) / 1000
        deadline = time.monotonic() + self._context.seconds_left(seconds)
        wanted = {name: int(value) for name, value in arguments.rest().items()}
        while True:
            found = {name: self._count(server, name) for name in wanted}
            if found == wanted:
                return
            if time.monotonic() > deadline:
                raise StepFailed(f"the server has {found} after {seconds:g} s, expected {wanted}")
            time.sleep(POLL_SECONDS)

    def _count(self, server: RealServer, name: str) -> int:
        if name == "tickets":
            return server.metric("ticketing_tickets")
        if name == "connections":
            return server.metric("ticketing_connections")
        if name in ("attached", "detached", "held_back"):
            return server.metric("ticketing_waiters", f'state="{name}"')
        if name == "waiters":
            return server.metric("ticketing_waiters")
        raise StepFailed(f"server has no count {name}")

    def _do_metric(self, arguments: Arguments) -> dict[str, Any]:
        """`server metric s name=… labels="op=\\"acquire\\""`: the value now, summed."""
        server = self._server(arguments)
        return {"value": server.metric(arguments.text("name"), arguments.text("labels", ""))}

    def _do_logged(self, arguments: Arguments) -> None:
        """Wait until the log has a text: `server logged s text="auth_failed"`."""
        server = self._server(arguments)
        text = arguments.text("text")
        deadline = time.monotonic() + self._context.seconds_left(EMPTY_SECONDS)
        while text not in server.log():
            if time.monotonic() > deadline:
                raise StepFailed(f"the log does not say {text!r}; it ends: {server.log()[-500:]}")
            time.sleep(POLL_SECONDS)

    def _do_file(self, arguments: Arguments) -> dict[str, Any]:
        """A file for a setting: `server file as=f text="new abc\\nold def\\n"`."""
        name = arguments.text("as", "f")
        path: Path = self._context.directory / name
        path.write_bytes(arguments.data("text", b""))
        values = {"path": str(path)}
        self._context.variables[name] = values
        return values
