"""Metrics, probes, status and dashboard over HTTP, on the event loop that serves clients.

`Site` decides answers without I/O; `HttpConnection` moves bytes with h11. Everything is bounded
(connections, header bytes, time, unsent answers), so that no browser or scraper hurts a client.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import socket
import time
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from importlib import resources
from typing import cast

import h11

from ticketing_server.log import escape
from ticketing_server.metrics import MetricsPage, ShellState

CONNECTIONS_MAX = 64
"""Over it the oldest is closed, so that who only holds connections does not shut out a probe."""
ANSWERS_PER_S = 100.0
ANSWERS_BURST = 20.0
"""Over its rate an answer waits, so that a flood of requests costs clients little."""
HEADER_BYTES_MAX = 16_384
REQUEST_TIMEOUT_S = 10.0
"""A connection that brought no whole request, or did not take its answer, for so long is closed."""
_UNSENT_BYTES_MAX = 65_536
_PATHS = ("/", "/metrics", "/healthz", "/readyz", "/status")
_TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Request:
    """What of a request decides its answer; header names are lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    is_local: bool
    """Whether it came to a loopback address."""


@dataclass(frozen=True, slots=True)
class Response:
    """An answer before it is bytes."""

    status: int
    body: bytes
    content_type: str = _TEXT
    headers: tuple[tuple[str, str], ...] = ()


def _refused(status: int, text: str, *headers: tuple[str, str]) -> Response:
    return Response(status, text.encode() + b"\n", headers=headers)


@dataclass(slots=True)
class Site:
    """The pages and who may see them; pure but for what its sources read."""

    metrics: MetricsPage
    status: Callable[[], bytes]
    state: ShellState
    token: str = field(repr=False)
    host_names: frozenset[str]
    """Names that a Host header may have, in lower case, beside IP addresses."""
    denied: Callable[[str, Request], None] = lambda reason, request: None
    """Called with a reason for each request that was refused as foreign or unauthorised."""
    _dashboard: Response = field(default_factory=lambda: _load_dashboard())

    def respond(self, request: Request) -> Response:
        """Return the answer to a request."""
        host = request.headers.get("host")
        if host is not None and not self._is_known_host(host):
            # A foreign page may make its own name resolve to this server; its requests then
            # carry that name.
            self.denied("foreign_host", request)
            return _refused(
                421,
                f"The Host header has {escape(host[:200])}, which is not a name of this server;"
                " it takes localhost, this machine's name, IP addresses, and names given with"
                " --http-host.",
            )
        path = request.path.partition("?")[0]
        if path not in _PATHS:
            return _refused(404, f"There is no such page; there are {' '.join(_PATHS)}")
        if request.method not in ("GET", "HEAD"):
            return _refused(405, "Only GET and HEAD are served.", ("Allow", "GET, HEAD"))
        return self._page(path, request)

    def _page(self, path: str, request: Request) -> Response:
        if path == "/":
            return self._dashboard
        if path == "/metrics":
            content_type, body = self.metrics.render(request.headers.get("accept", ""))
            return Response(200, body, content_type)
        if path == "/healthz":
            return Response(200, b"ok\n")
        if path == "/readyz":
            if reason := self.state.not_ready():
                return _refused(503, reason)
            return Response(200, b"ready\n")
        if not request.is_local and (refusal := self._check_token(request)) is not None:
            return refusal
        return Response(200, self.status(), "application/json")

    def _is_known_host(self, header: str) -> bool:
        name = header.strip().lower()
        if name.startswith("["):
            name = name[1:].partition("]")[0]
        elif name.count(":") == 1:
            name = name.partition(":")[0]
        if name.rstrip(".") in self.host_names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _check_token(self, request: Request) -> Response | None:
        """None where the request may see keys and labels, else the refusal."""
        if not self.token:
            return _refused(
                403,
                "/status is served to this machine only, until the server is started with"
                " --http-token-file.",
            )
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        right = hmac.compare_digest(
            given.strip().encode("utf-8", "surrogateescape"), self.token.encode()
        )
        if scheme.lower() == "bearer" and right:
            return None
        self.denied("unauthorized", request)
        return _refused(
            401,
            "/status takes a header 'Authorization: Bearer TOKEN'.",
            ("WWW-Authenticate", 'Bearer realm="ticketing"'),
        )


def _load_dashboard() -> Response:
    page = resources.files("ticketing_server").joinpath("dashboard.html").read_bytes()
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src '{_inline_hash(page, b'script')}'",
            f"style-src '{_inline_hash(page, b'style')}'",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    )
    return Response(200, page, "text/html; charset=utf-8", (("Content-Security-Policy", policy),))


def _inline_hash(page: bytes, element: bytes) -> str:
    """The source expression that lets a browser run the page's one inline element, no other."""
    inside = page.split(b"<" + element + b">", 1)[1].split(b"</" + element + b">", 1)[0]
    return "sha256-" + b64encode(sha256(inside).digest()).decode()


def host_names(configured: tuple[str, ...]) -> frozenset[str]:
    """Names that this server goes by: localhost, this machine's, and the configured ones."""
    return frozenset({"localhost", socket.gethostname().lower(), *configured})


class HttpServer:
    """Makes connections, and bounds how many there are and how much they may ask."""

    def __init__(self, site: Site, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Serve `site`; `clock_s` is a monotonic clock in seconds."""
        self.site = site
        self._connections: dict[HttpConnection, None] = {}
        self._clock_s = clock_s
        self._answers = ANSWERS_BURST
        self._refilled_s = clock_s()

    def connect(self) -> HttpConnection:
        """A protocol for `loop.create_server`."""
        return HttpConnection(self)

    def add(self, connection: HttpConnection) -> None:
        """Count a connection, and close the oldest where there are too many."""
        self._connections[connection] = None
        if len(self._connections) > CONNECTIONS_MAX:
            next(iter(self._connections)).abort()

    def remove(self, connection: HttpConnection) -> None:
        """Count it no more."""
        self._connections.pop(connection, None)

    def delay_s(self) -> float:
        """Take the right to one answer: how long that one has to wait."""
        now_s = self._clock_s()
        gained = (now_s - self._refilled_s) * ANSWERS_PER_S
        self._answers = min(ANSWERS_BURST, self._answers + gained) - 1
        self._refilled_s = now_s
        return max(0.0, -self._answers / ANSWERS_PER_S)

    def close(self) -> None:
        """Close every connection at once."""
        for connection in list(self._connections):
            connection.abort()


class HttpConnection(asyncio.Protocol):
    """One connection: bytes to requests to bytes."""

    def __init__(self, server: HttpServer) -> None:
        """Belong to `server`."""
        self._server = server
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=HEADER_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._request: h11.Request | None = None
        self._is_local = False
        self._ended = False
        """Whether the peer sends nothing more."""
        self._stalled = False
        """Whether the peer does not read what it asked for."""
        self._delayed: asyncio.TimerHandle | None = None
        """Set while an answer waits for its turn."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        # uvloop's transports are not of asyncio's classes.
        self._transport = transport = cast(asyncio.Transport, transport)
        self._server.add(self)
        transport.set_write_buffer_limits(high=_UNSENT_BYTES_MAX)
        self._is_local = _is_loopback(transport.get_extra_info("sockname"))
        self._restart_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._server.remove(self)
        for timer in (self._timer, self._delayed):
            if timer is not None:
                timer.cancel()

    def pause_writing(self) -> None:
        """Answer nothing more until the peer has read."""
        self._stalled = True
        self._read_while_wanted()

    def resume_writing(self) -> None:
        """Go on with requests that came meanwhile."""
        self._stalled = False
        self._read_while_wanted()
        self._advance()

    def data_received(self, data: bytes) -> None:
        """Take bytes of the peer."""
        self._h11.receive_data(data)
        self._advance()

    def eof_received(self) -> bool:
        """The peer sends nothing more: let what is being written leave, then close."""
        self._ended = True
        return self._delayed is not None

    def abort(self) -> None:
        """Close now."""
        if self._transport is not None:
            self._transport.abort()

    def _read_while_wanted(self) -> None:
        """Read only while what comes can be answered."""
        assert self._transport is not None
        if self._transport.is_closing():
            return
        if self._stalled or self._delayed is not None:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _restart_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(REQUEST_TIMEOUT_S, self.abort)

    def _advance(self) -> None:
        """Answer every whole request that is there, while the peer takes the answers."""
        try:
            while not self._stalled and self._delayed is None:
                event = self._h11.next_event()
                if isinstance(event, h11.Request):
                    self._request = event
                elif isinstance(event, h11.Data):
                    self._send(_refused(413, "A body is not taken."), close=True)
                    return
                elif isinstance(event, h11.EndOfMessage):
                    self._answer_in_turn()
                elif event is h11.PAUSED:
                    if self._h11.our_state is not h11.DONE:
                        self._close()
                        return
                    self._h11.start_next_cycle()
                else:
                    return
        except h11.RemoteProtocolError as error:
            if self._h11.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                text = "This is not an HTTP request that is understood here."
                self._send(_refused(error.error_status_hint, text), close=True)
            else:
                self._close()

    def _answer_in_turn(self) -> None:
        delay_s = self._server.delay_s()
        if not delay_s:
            self._answer()
            return
        loop = asyncio.get_running_loop()
        self._delayed = loop.call_later(delay_s, self._answer_after_delay)
        self._read_while_wanted()

    def _answer_after_delay(self) -> None:
        self._delayed = None
        self._answer()
        self._read_while_wanted()
        self._advance()
        if self._ended and self._delayed is None:
            self._close()

    def _answer(self) -> None:
        assert self._request is not None
        head, self._request = self._request, None
        request = Request(
            method=head.method.decode("ascii"),
            path=head.target.decode("latin-1"),
            headers={k.decode("ascii"): v.decode("latin-1") for k, v in head.headers},
            is_local=self._is_local,
        )
        self._restart_timer()
        self._send(self._server.site.respond(request), is_head=request.method == "HEAD")
        if self._h11.our_state is h11.MUST_CLOSE:
            self._close()
        elif self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE:
            self._h11.start_next_cycle()

    def _send(self, response: Response, *, is_head: bool = False, close: bool = False) -> None:
        headers = [
            ("Content-Type", response.content_type),
            ("Content-Length", str(len(response.body))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
            *response.headers,
        ]
        if close:
            headers.append(("Connection", "close"))
        out = self._h11.send(h11.Response(status_code=response.status, headers=headers)) or b""
        if not is_head:
            out += self._h11.send(h11.Data(data=response.body)) or b""
        out += self._h11.send(h11.EndOfMessage()) or b""
        assert self._transport is not None
        self._transport.write(out)
        if close:
            self._close()

    def _close(self) -> None:
        assert self._transport is not None
        self._transport.close()


def _is_loopback(sockname: object) -> bool:
    if not isinstance(sockname, tuple):
        return False
    address = ipaddress.ip_address(str(sockname[0]).partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
