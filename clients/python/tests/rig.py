"""A core under a scripted transport and a clock that is turned by hand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ticketing import _constants_gen as c
from ticketing._core import handshake
from ticketing._core.client import ClientCore
from ticketing._core.codec import HEADER, decode, encode
from ticketing._core.effects import Connect, Disconnect, Log, Notify, Settled, TicketEnded
from ticketing._core.link import LinkState
from ticketing._core.settings import CoreSettings
from ticketing._core.urls import Endpoint
from ticketing.errors import TicketingError

A = Endpoint("10.0.0.1", 5225)
B = Endpoint("10.0.0.2", 5225)
C = Endpoint("10.0.0.3", 5225)
LEADER = Endpoint("10.0.0.9", 7000)

SETTINGS = CoreSettings(
    endpoints=(A,), client_id=42, seed=bytes(range(16)), label=b"test;python/0", observed=True
)
NONCE = bytes(range(100, 116))
S = 1_000_000_000
MS = 1_000_000


class Waiter:
    """Stands where a shell puts a future; can be settled once."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.outcomes: list[Any] = []

    @property
    def done(self) -> bool:
        return bool(self.outcomes)

    @property
    def value(self) -> Any:
        assert len(self.outcomes) == 1, self.outcomes
        assert not isinstance(self.outcomes[0], Exception), self.outcomes
        return self.outcomes[0]

    @property
    def error(self) -> TicketingError:
        assert len(self.outcomes) == 1, self.outcomes
        assert isinstance(self.outcomes[0], TicketingError), self.outcomes
        return self.outcomes[0]

    @property
    def kind(self) -> str:
        return self.error.kind


class Rig:
    """Drives a core and notes what it does."""

    def __init__(self, **changes: Any) -> None:
        self.core = ClientCore(replace(SETTINGS, **changes))
        self.now = 1_000 * S
        self.connects: list[Endpoint] = []
        self.serial = 0
        self.disconnects: list[int] = []
        self.events: list[Any] = []
        self.logs: list[tuple[str, str]] = []
        self.ended: list[Any] = []
        self.opened = Waiter("open")
        self._greeting = b""

    # The shell's part.

    def run(self) -> None:
        """Carry out the effects."""
        effects, self.core.effects[:] = list(self.core.effects), []
        for effect in effects:
            if isinstance(effect, Settled):
                outcome = effect.error if effect.error is not None else effect.value
                effect.waiter.outcomes.append(outcome)
            elif isinstance(effect, Connect):
                self.connects.append(effect.endpoint)
                self.serial = effect.serial
            elif isinstance(effect, Disconnect):
                self.disconnects.append(effect.serial)
            elif isinstance(effect, Notify):
                self.events.append(effect.event)
            elif isinstance(effect, Log):
                self.logs.append((effect.level, effect.text))
            elif isinstance(effect, TicketEnded):
                self.ended.append(effect.ticket)

    def at(self, seconds: float) -> None:
        """Let time pass until `seconds` after now, calling the core at each of its deadlines."""
        self.until(self.now + round(seconds * S))

    def until(self, end: int) -> None:
        """Let time pass until `end` on the rig's clock."""
        while (due := self.core.next_deadline_ns()) is not None and due <= end:
            assert due >= self.now - 1000 * S, "a deadline in the far past"
            self.now = max(self.now, due)
            self.core.on_time(self.now)
            self.run()
        self.now = end

    def jump(self, seconds: float) -> None:
        """Let time pass without calling the core: the process was stopped."""
        self.now += round(seconds * S)

    def output(self) -> bytes:
        """The bytes that the core wants written now."""
        return self.core.take_output(self.now)

    def sent(self) -> list[tuple[str, dict[str, Any]]]:
        """The frames that the core wants written now."""
        data, frames = self.output(), []
        while data:
            end = 3 + HEADER.unpack_from(data)[1]
            frames.append(decode("client", data[:end]))
            data = data[end:]
        return frames

    def names(self) -> list[str]:
        """The names of the frames that the core wants written now."""
        return [name for name, _ in self.sent()]

    def feed(self, data: bytes) -> None:
        """Bytes from the server."""
        self.core.receive(self.serial, data, self.now)
        self.run()

    def reply(self, name: str, **fields: Any) -> None:
        """One frame from the server."""
        self.feed(encode("server", name, fields))

    def error(self, code: int, request_id: int = 0, text: bytes = b"") -> None:
        """An error frame from the server."""
        self.reply("error", request_id=request_id, code=code, text=text)

    def lose(self, reason: str = "reset by peer") -> None:
        """The transport fails or ends."""
        self.core.disconnected(self.serial, reason, self.now)
        self.run()

    # Connecting.

    def open(self) -> Rig:
        """Ask the core to open, without an answer yet."""
        self.core.open(self.opened, self.now)
        self.run()
        return self

    def greet(self, low: int = 4, high: int = 4, mode: int = 0, slot: int = 255) -> None:
        """The transport stands and the server greets."""
        self.core.connected(self.serial, self.now)
        self.run()
        self._greeting = c.GREETING_MAGIC + bytes([low, high, mode, slot]) + NONCE
        self.feed(self._greeting)

    def welcome(
        self,
        role: int = 0,
        keepalive_s: int = 5,
        leader: bytes = b"",
        fingerprint: bytes = bytes(32),
        secret: bytes | None = None,
    ) -> None:
        """The server proves itself, with this client's secret unless told otherwise."""
        nonce = next(f["client_nonce"] for name, f in self.sent() if name == "hello")
        proof = handshake.server_proof(
            self.core.settings.secret if secret is None else secret,
            *(self._greeting, nonce, role, keepalive_s, fingerprint, leader),
        )
        self.reply(
            "welcome",
            role=role,
            keepalive_s=keepalive_s,
            fingerprint=fingerprint,
            proof=proof,
            leader=leader,
        )

    def ready(self, **welcome: Any) -> Rig:
        """Open and connect to a server that serves; or reconnect to one."""
        if not self.connects:
            self.open()
        self.until_connecting()
        self.greet()
        self.welcome(**welcome)
        return self

    def until_connecting(self) -> None:
        """Let the back-off pass."""
        while self.core._link.state is LinkState.BACKOFF:
            due = self.core.next_deadline_ns()
            assert due is not None
            self.until(due)

    # Calls.

    def acquire(
        self, *keys: str | bytes, lease: Any = 10, wait: Any = None, auto: bool | None = None
    ) -> Call:
        """Acquire keys with a fixed lease of 10 s unless told otherwise."""
        call = Call(self)
        call.request = self.core.acquire(
            keys or ("k",),
            lease=lease,
            wait_timeout=wait,
            auto_extend=auto,
            waiter=call.waiter,
            now_ns=self.now,
        )
        self.run()
        return call

    def hold(self, *keys: str | bytes, token: int = 7, waited_ms: int = 0, **how: Any) -> Any:
        """Acquire and be granted; returns the core's ticket, with nothing left to write."""
        call = self.acquire(*keys, **how)
        self.output()
        self.reply("granted", request_id=call.request.id, token=token, waited_ms=waited_ms)
        return call.waiter.value

    def release(self, ticket: Any) -> Waiter:
        waiter = Waiter("release")
        self.core.release(ticket, waiter, self.now)
        self.run()
        return waiter

    def extend(self, ticket: Any, lease: Any = None) -> Call:
        call = Call(self)
        call.request = self.core.extend(ticket, lease, call.waiter, self.now)
        self.run()
        return call

    def hand_over(self, ticket: Any) -> Waiter:
        waiter = Waiter("hand over")
        self.core.hand_over(ticket, waiter, self.now)
        self.run()
        return waiter

    def adopt(self, reference: str, lease: Any = 10, auto: bool | None = None) -> Call:
        call = Call(self)
        call.request = self.core.adopt(reference, lease, auto, call.waiter, self.now)
        self.run()
        return call

    def ping(self) -> Call:
        call = Call(self)
        call.request = self.core.ping(call.waiter, self.now)
        self.run()
        return call

    def close(self) -> Waiter:
        waiter = Waiter("close")
        self.core.close(waiter, self.now)
        self.run()
        return waiter

    def warnings(self) -> list[str]:
        return [text for level, text in self.logs if level == "warning"]

    def kinds(self) -> list[str]:
        """The kinds of the events so far."""
        return [event.kind for event in self.events]


class Call:
    """One call and its request."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.waiter = Waiter("call")
        self.request: Any = None

    def abandon(self) -> None:
        """The caller was cancelled."""
        self.rig.core.abandon(self.request, self.rig.now)
        self.rig.run()


def only(items: Iterable[Any]) -> Any:
    """The one item of something that has one."""
    (item,) = items
    return item
