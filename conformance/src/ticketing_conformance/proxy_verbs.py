"""The verbs `proxy …`: record, hold, delay, cut."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ticketing_spec.codec import Malformed

from ticketing_conformance.context import Arguments, Capture, Context, StepFailed, frame_fields
from ticketing_conformance.proxy import ACTIONS, DIRECTIONS, Proxy, Rule
from ticketing_conformance.streams import Fields, cut, read_piece

WAYS = (*DIRECTIONS, "both")


class ProxyVerbs:
    """The proxies of one run."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._proxies: dict[str, Proxy] = {}
        context.sources.append(self._captures)

    def _captures(self) -> list[Capture]:
        return [
            Capture(name, connection, proxy.framed)
            for name, proxy in self._proxies.items()
            for connection in list(proxy.connections)
        ]

    def proxy(self, name: str) -> Proxy:
        """A proxy by its name."""
        if name not in self._proxies:
            raise StepFailed(f"there is no proxy {name}")
        return self._proxies[name]

    def do(self, arguments: Arguments) -> dict[str, Any]:
        """Carry out one step; returns the fields of its answer."""
        word = arguments.word(0, "what to do")
        method = getattr(self, f"_do_{word}", None)
        if method is None:
            raise StepFailed(f"proxy has no verb {word}")
        result: dict[str, Any] = method(arguments) or {}
        arguments.finish()
        return result

    def _named(self, arguments: Arguments) -> Proxy:
        return self.proxy(arguments.word(1, "the name of a proxy"))

    def _way(self, arguments: Arguments) -> str:
        way = arguments.words[2] if len(arguments.words) > 2 else "both"
        if way not in WAYS:
            raise StepFailed(f"a direction is up, down or both, not {way}")
        return way

    def _do_start(self, arguments: Arguments) -> dict[str, Any]:
        name = arguments.text("as", "x")
        target = arguments.text("to")
        tls = arguments.integer("tls", 0)
        where: tuple[str, int] | Path = Path(target)
        if not target.startswith("/"):
            host, _, port = target.rpartition(":")
            where = (host.strip("[]"), int(port))
        proxy = Proxy(where, framed=not (tls or arguments.integer("raw", 0)))
        self._proxies[name] = proxy
        self._context.closers.append(proxy.stop)
        url = f"ticketing{'s' if tls else ''}://{proxy.address}"
        values = {"address": proxy.address, "url": url}
        self._context.variables[name] = values
        self._context.variables["url"] = url
        return values

    def _do_hold(self, arguments: Arguments) -> None:
        self._named(arguments).hold(self._way(arguments))

    def _do_let_go(self, arguments: Arguments) -> None:
        self._named(arguments).let_go(self._way(arguments))

    def _do_delay(self, arguments: Arguments) -> None:
        self._named(arguments).delay(self._way(arguments), arguments.integer("ms", 0) / 1000)

    def _do_cut(self, arguments: Arguments) -> None:
        proxy = self._named(arguments)
        how = arguments.text("how", "reset")
        number = arguments.optional_integer("connection")
        proxy.cut(proxy.connections[number - 1] if number else None, how)

    def _do_refuse(self, arguments: Arguments) -> None:
        self._named(arguments).refuse()

    def _do_listen(self, arguments: Arguments) -> None:
        self._named(arguments).listen()

    def _do_on(self, arguments: Arguments) -> None:
        """`proxy on x down granted do=cut nth=2`, or `proxy on x up at_byte=40 do=cut`."""
        action = arguments.text("do")
        if action not in ACTIONS:
            raise StepFailed(f"do= takes {', '.join(ACTIONS)}, not {action}")
        way = self._way(arguments)
        frame = arguments.words[3] if len(arguments.words) > 3 else ""
        at_byte = arguments.optional_integer("at_byte")
        if bool(frame) == (at_byte is not None) or way == "both":
            raise StepFailed("a rule has one direction, and either a frame or at_byte=")
        self._named(arguments).rule(Rule(way, action, frame, arguments.integer("nth", 1), at_byte))

    def _do_stop(self, arguments: Arguments) -> None:
        """End it before the case does, where a case starts many."""
        self._named(arguments).stop()

    def _do_connections(self, arguments: Arguments) -> dict[str, Any]:
        """How many connections came so far; waits until there are `at_least`."""
        proxy = self._named(arguments)
        at_least = arguments.integer("at_least", 0)
        try:
            if at_least:
                proxy.wait_connections(at_least, self._context.seconds_left())
        except TimeoutError as error:
            raise StepFailed(str(error)) from None
        return {"count": len(proxy.connections)}

    def _do_seen(self, arguments: Arguments) -> dict[str, Any]:
        """Wait until a frame with these fields went by, `times` times; answers its last."""
        proxy = self._named(arguments)
        way = self._way(arguments)
        name = arguments.word(3, "the name of a frame")
        seconds = self._context.seconds_left(arguments.integer("within_ms", 20_000) / 1000)
        times = arguments.integer("times", 1)
        # A hello has a field of this name too, so the number of the connection is called `on`.
        on = arguments.optional_integer("on")
        wanted = frame_fields(arguments.rest())
        deadline = time.monotonic() + seconds
        while True:
            found = self._frames(proxy, way, name, on, wanted)
            if len(found) >= times:
                return dict(found[-1])
            left = deadline - time.monotonic()
            if left <= 0:
                raise StepFailed(
                    f"{len(found)} of {times} {name} {wanted} went {way} within {seconds:g} s"
                )
            with proxy.condition:
                proxy.condition.wait(min(left, 0.05))

    def _do_count(self, arguments: Arguments) -> dict[str, Any]:
        """How many frames with these fields went by so far."""
        proxy = self._named(arguments)
        way = self._way(arguments)
        name = arguments.word(3, "the name of a frame")
        on = arguments.optional_integer("on")
        wanted = frame_fields(arguments.rest())
        return {"count": len(self._frames(proxy, way, name, on, wanted))}

    def _frames(
        self, proxy: Proxy, way: str, name: str, on: int | None, wanted: Fields
    ) -> list[Fields]:
        found = []
        for connection in list(proxy.connections):
            if on is not None and connection.number != on:
                continue
            direction = DIRECTIONS[way]
            pieces, _ = cut(direction, connection.stream(way).whole())
            for number, piece in enumerate(pieces):
                try:
                    got, fields = read_piece(direction, number, piece)
                except Malformed:
                    continue
                if got == name and all(fields.get(key) == wanted[key] for key in wanted):
                    found.append(fields)
        return found
