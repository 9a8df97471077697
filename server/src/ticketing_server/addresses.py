"""Listen addresses as an operator writes them: `host:port`, `[v6]:port` or `unix:/path`."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Address:
    """One place to listen on: TCP where `path` is empty, else a Unix stream socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    @property
    def is_unix(self) -> bool:
        """Whether this is a Unix socket."""
        return bool(self.path)

    @property
    def is_loopback(self) -> bool:
        """Whether nobody on another machine can connect: loopback or a Unix socket.

        A name other than `localhost` counts as reachable, as what it resolves to may change.
        """
        if self.path or self.host.lower() == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def is_wildcard(self) -> bool:
        """Whether this is every interface (`0.0.0.0` or `[::]`)."""
        try:
            return ipaddress.ip_address(self.host).is_unspecified
        except ValueError:
            return False

    def __str__(self) -> str:
        """Return the text that `parse_address` takes."""
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Read one address; ValueError where it is none. A name is not resolved."""
    if text.startswith("unix:"):
        path = text[len("unix:") :]
        if not path.startswith("/"):
            raise ValueError("the path of a Unix socket begins with /")
        if len(path.encode()) > 107 or "\0" in path:
            raise ValueError("the path of a Unix socket has at most 107 bytes and no NUL")
        return Address(path=path)
    host, colon, port_text = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        ipaddress.IPv6Address(host)
    elif ":" in host:
        raise ValueError("an IPv6 address stands in brackets")
    if not colon or not host or any(c.isspace() or not c.isprintable() for c in host):
        raise ValueError("a host and a port are needed")
    # Resolving a name begins with this, and fails with an error of its own kind.
    host.encode("idna")
    if not (port_text.isascii() and port_text.isdigit()) or int(port_text) > 65_535:
        raise ValueError("the port is 0 to 65535")
    return Address(host=host, port=int(port_text))
