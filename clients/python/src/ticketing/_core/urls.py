"""Endpoints, and the URLs that name them."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import unquote

from ticketing import _constants_gen as c
from ticketing.errors import InvalidArgumentError

FORMS = (
    "ticketing://host:port, ticketing://host:port,host:port, ticketings://host:port (TLS)"
    " or ticketing+unix:///path"
)
_PATH_BYTES_MAX = 107
_HOST = re.compile(r"[A-Za-z0-9._\-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server listens: a host and port, or the path of a Unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Target:
    """What a URL says: the endpoints in order, and whether TLS is spoken."""

    endpoints: tuple[Endpoint, ...]
    tls: bool = False


DEFAULT_TARGET = Target((Endpoint("127.0.0.1", c.DEFAULT_PORT),))


def parse_url(url: str) -> Target:
    """Read a URL; raises InvalidArgumentError, which never repeats what may be a password."""
    if not isinstance(url, str):
        raise InvalidArgumentError(f"the URL is {type(url).__name__}: it takes text, as in {FORMS}")
    scheme, separator, rest = url.partition("://")
    scheme = scheme.lower()
    if "@" in url and scheme != "ticketing+unix":
        raise InvalidArgumentError(
            "the URL has a user or a password in it: give the secret as option `secret`"
            " or in TICKETING_SECRET"
        )
    if not separator or scheme not in ("ticketing", "ticketings", "ticketing+unix"):
        raise InvalidArgumentError(f"the URL {url!r} is none of {FORMS}")
    if scheme == "ticketing+unix":
        path = unquote(rest)
        if not path.startswith("/") or path == "/" or "\0" in path:
            raise InvalidArgumentError(
                f"the URL {url!r} names no absolute path: ticketing+unix:///path"
            )
        if len(path.encode()) > _PATH_BYTES_MAX:
            raise InvalidArgumentError(
                f"the path of a Unix socket has {len(path.encode())} bytes:"
                f" it takes up to {_PATH_BYTES_MAX}"
            )
        return Target((Endpoint(path=path),))
    rest = rest.removesuffix("/")
    if any(char in rest for char in "/?#"):
        raise InvalidArgumentError(f"the URL {url!r} has a path or a query: it takes {FORMS}")
    endpoints: list[Endpoint] = []
    for part in rest.split(","):
        endpoint = parse_address(part, c.DEFAULT_PORT)
        if endpoint is None:
            raise InvalidArgumentError(
                f"the URL {url!r} has {part!r}, which is no host:port with a port of 1 to 65535"
                " (IPv6 in brackets)"
            )
        if endpoint not in endpoints:
            endpoints.append(endpoint)
    return Target(tuple(endpoints), tls=scheme == "ticketings")


def parse_address(text: str, default_port: int | None = None) -> Endpoint | None:
    """Read `host:port` or `[v6]:port`; None where it is neither."""
    if text.startswith("["):
        host, bracket, port_text = text[1:].partition("]")
        try:
            ipaddress.IPv6Address(host.partition("%")[0])
        except ValueError:
            return None
        if not bracket or (port_text and not port_text.startswith(":")):
            return None
        has_port, port_text = bool(port_text), port_text[1:]
    else:
        host, colon, port_text = text.partition(":")
        has_port = bool(colon)
        if not _HOST.fullmatch(host):
            return None
    if not has_port:
        return None if default_port is None else Endpoint(host, default_port)
    if not re.fullmatch(r"[0-9]{1,5}", port_text, re.ASCII) or not 1 <= int(port_text) <= 65535:
        return None
    return Endpoint(host, int(port_text))
