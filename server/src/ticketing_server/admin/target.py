"""Which server `ticketing-admin` calls, and what it shows there: from options and environment."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ticketing_server.addresses import Address, parse_address
from ticketing_server.admin.errors import USAGE, AdminError
from ticketing_server.secret_file import (
    Secret,
    check_admin_secrets,
    check_secret,
    read_admin_secret_file,
)
from ticketing_server.settings import DEFAULT_ADMIN_PORT
from ticketing_server.settings_load import ADMIN_ADDRESS_ENV, ADMIN_SECRET_ENV

SECRET_FILE_ENV = "TICKETING_ADMIN_SECRET_FILE"
DEFAULT_ADDRESS = f"127.0.0.1:{DEFAULT_ADMIN_PORT}"
DEFAULT_TIMEOUT_MS = 10_000


@dataclass(frozen=True, slots=True)
class Target:
    """Which server, and how it is spoken to."""

    address: Address
    secret: str = field(default="", repr=False)
    is_tls: bool = False
    ca: Path | None = None
    """Authorities to trust; None: the system's."""
    cert: Path | None = None
    key: Path | None = None
    name: str = ""
    """Name that the server's certificate has to have, where that isn't the address."""
    timeout_s: float = DEFAULT_TIMEOUT_MS / 1_000


def target(options: Namespace, env: Mapping[str, str] = os.environ) -> Target:
    """Put together what options and environment say; AdminError where that is no target."""
    given = vars(options)
    cert, key = given.get("tls_cert"), given.get("tls_key")
    if (cert is None) != (key is None):
        raise AdminError("--tls-cert and --tls-key go together; give both", USAGE)
    made = Target(
        address=_address(given.get("address"), env),
        secret=_secret(given.get("secret_file"), env),
        is_tls=bool(given.get("tls") or given.get("tls_ca") or cert),
        ca=given.get("tls_ca"),
        cert=cert,
        key=key,
        name=given.get("tls_name", ""),
        timeout_s=given.get("timeout", DEFAULT_TIMEOUT_MS) / 1_000,
    )
    if made.secret and not made.is_tls and not made.address.is_loopback:
        raise AdminError(
            f"without TLS everybody on the way to {made.address} could read the secret; try:"
            " --tls-ca FILE, with the authority that signed the server's certificate",
            USAGE,
        )
    return made


def _address(text: str | None, env: Mapping[str, str]) -> Address:
    called = "--address" if text is not None else ADMIN_ADDRESS_ENV
    text = text or env.get(ADMIN_ADDRESS_ENV) or DEFAULT_ADDRESS
    try:
        return parse_address(text)
    except ValueError as error:
        raise AdminError(
            f"{called}: got {text!a} ({error}), takes host:port, [v6]:port or unix:/path", USAGE
        ) from None


def _secret(path: Path | None, env: Mapping[str, str]) -> str:
    """The first secret of a file, or the one of the environment; "" where there is none."""
    called = "--secret-file" if path is not None else SECRET_FILE_ENV
    text = env.get(ADMIN_SECRET_ENV, "")
    if path is None and text:
        called = ADMIN_SECRET_ENV
    elif path is None and (name := env.get(SECRET_FILE_ENV)):
        path = Path(name)
    try:
        if path is not None:
            return _shown(read_admin_secret_file(path))
        if text:
            return _shown(check_admin_secrets((check_secret("default", os.fsencode(text)),)))
    except OSError as error:
        raise AdminError(
            f"{called}: got {str(path)!a}, which can't be read ({error.strerror}); takes the"
            " server's --admin-secret-file",
            USAGE,
        ) from None
    except ValueError as error:
        raise AdminError(f"{called}: {error}; takes what the server was given", USAGE) from None
    return ""


def _shown(secrets: tuple[Secret, ...]) -> str:
    return secrets[0].value.decode("ascii")
