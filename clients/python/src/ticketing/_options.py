"""Options as programs give them, checked and completed from the environment."""

from __future__ import annotations

import os
import secrets
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ticketing import _constants_gen as c
from ticketing._core import arguments
from ticketing._core.arguments import Duration, Forever
from ticketing._core.settings import CoreSettings
from ticketing._core.urls import DEFAULT_TARGET, Target, parse_url
from ticketing.errors import InvalidArgumentError
from ticketing.events import Event, Key

__version__ = "0.1.0"
"""The version of this package."""

OnEvent = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """Files for TLS, where a whole `ssl.SSLContext` is more than is needed.

    `ca_file`: PEM file of the authorities to trust instead of the system's. `cert_file` and
    `key_file`: what this client shows of itself (mutual TLS); `key_password` opens the key.
    `server_name`: the name that the server's certificate must have, where it is not the URL's.
    TLS 1.2 is the oldest version that is spoken.
    """

    ca_file: str | os.PathLike[str] | None = None
    cert_file: str | os.PathLike[str] | None = None
    key_file: str | os.PathLike[str] | None = None
    key_password: str | None = None
    server_name: str | None = None

    def context(self) -> ssl.SSLContext:
        """Build the context. Raises InvalidArgumentError naming the file that can't be used."""
        for option in ("ca_file", "cert_file", "key_file"):
            path = getattr(self, option)
            if path is not None and not Path(path).is_file():
                raise InvalidArgumentError(f"tls: {option} {os.fspath(path)!r} is no file")
        if self.key_file is not None and self.cert_file is None:
            raise InvalidArgumentError("tls: key_file needs a cert_file")
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ValueError) as error:
            raise InvalidArgumentError(f"tls: ca_file {self.ca_file}: {error}") from None
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.cert_file is not None:
            try:
                context.load_cert_chain(self.cert_file, self.key_file, self.key_password)
            except (OSError, ValueError) as error:
                raise InvalidArgumentError(
                    f"tls: cert_file {self.cert_file}, key_file {self.key_file}: {error}"
                ) from None
        return context


@dataclass(frozen=True, slots=True)
class Transport:
    """How connections are made."""

    context: ssl.SSLContext | None
    server_name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Everything that a client is made of, as it was given."""

    url: str | None = None
    secret: str | bytes | None = None
    name: str | None = None
    key_prefix: Key = ""
    lease: Duration | None = None
    wait_timeout: Duration | Forever | None = None
    auto_extend: bool | None = None
    tls: ssl.SSLContext | TlsOptions | None = None
    fingerprint: str | bytes | None = None
    connect_for: Duration = 0
    reply_timeout: Duration = c.CLIENT_REPLY_TIMEOUT_MS / 1000
    release_on_close: bool = True
    on_event: OnEvent | None = None
    client_id: int | None = None
    seed: bytes | None = None
    label: str | bytes | None = None

    def target(self) -> Target:
        """Where to connect: the URL given, else TICKETING_URL, else the default."""
        url = self.url if self.url is not None else os.environ.get("TICKETING_URL") or None
        return DEFAULT_TARGET if url is None else parse_url(url)

    def transport(self) -> Transport:
        """How to connect there. Raises InvalidArgumentError."""
        target, tls = self.target(), self.tls
        if not target.tls:
            if tls is not None:
                raise InvalidArgumentError("tls was given, but the URL does not say ticketings://")
            return Transport(None, None)
        if tls is None:
            tls = TlsOptions()
        if isinstance(tls, TlsOptions):
            return Transport(tls.context(), tls.server_name)
        if not isinstance(tls, ssl.SSLContext):
            raise InvalidArgumentError(f"tls is {tls!r}: it takes an ssl.SSLContext or TlsOptions")
        return Transport(tls, None)

    def core_settings(self, *, forked: bool = False) -> CoreSettings:
        """Checked settings with their own identity; in a forked child always a new one.

        Raises InvalidArgumentError naming the option at fault.
        """
        if arguments.check_flag("release_on_close", self.release_on_close) is None:
            raise InvalidArgumentError("release_on_close is None: it takes True or False")
        if self.on_event is not None and not callable(self.on_event):
            raise InvalidArgumentError(f"on_event is {self.on_event!r}: it takes a function")
        wait_ms = c.WAIT_MS_FOREVER
        if self.wait_timeout is not None:
            wait_ms = arguments.wait_ms(self.wait_timeout)
        reply_ns = arguments.duration_ns("reply_timeout", self.reply_timeout)
        if reply_ns == 0:
            raise InvalidArgumentError("reply_timeout is 0: it takes more")
        secret = self.secret
        if secret is None:
            secret = os.environ.get("TICKETING_SECRET", "")
        fresh = forked or self.client_id is None
        return CoreSettings(
            endpoints=self.target().endpoints,
            client_id=secrets.randbits(64) if fresh else self._checked_client_id(),
            seed=secrets.token_bytes(16) if forked or self.seed is None else self._checked_seed(),
            label=self._label(),
            secret=arguments.check_secret(secret),
            fingerprint=self._fingerprint(),
            key_prefix=arguments.wire_prefix(self.key_prefix),
            lease_ms=None if self.lease is None else arguments.lease_ms(self.lease),
            wait_ms=wait_ms,
            auto_extend=arguments.check_flag("auto_extend", self.auto_extend),
            connect_for_ms=arguments.duration_ns("connect_for", self.connect_for) // 1_000_000,
            reply_timeout_ms=-(-reply_ns // 1_000_000),
            release_on_close=self.release_on_close,
            observed=self.on_event is not None,
        )

    def _checked_client_id(self) -> int:
        if type(self.client_id) is not int or not 0 <= self.client_id < 2**64:
            raise InvalidArgumentError(f"client_id is {self.client_id!r}: 0 to 2**64 - 1")
        return self.client_id

    def _checked_seed(self) -> bytes:
        if not isinstance(self.seed, bytes) or len(self.seed) != 16:
            raise InvalidArgumentError("seed takes 16 bytes")
        return self.seed

    def _label(self) -> bytes:
        if self.label is not None:
            return arguments.check_label(self.label)
        name = self.name if self.name is not None else os.environ.get("TICKETING_NAME")
        return arguments.make_label(name or f"{socket.gethostname()}:{os.getpid()}", __version__)

    def _fingerprint(self) -> bytes | None:
        pinned = self.fingerprint
        if isinstance(pinned, str):
            try:
                pinned = bytes.fromhex(pinned)
            except ValueError:
                pinned = b""
        if pinned is not None and (not isinstance(pinned, bytes) or len(pinned) != 32):
            raise InvalidArgumentError("fingerprint takes 32 bytes, or 64 hexadecimal digits")
        return pinned
