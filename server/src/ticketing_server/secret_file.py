"""Reading and making secrets: lines of `name secret`, or a bare secret called `default`."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

SECRET_BYTES_MAX = 1_024
SECRET_BYTES_ADVISED = 16
_NAME = re.compile(rb"[A-Za-z0-9._-]{1,32}\Z")


@dataclass(frozen=True, slots=True)
class Secret:
    """One secret that clients may prove; only its name is ever shown."""

    name: str
    value: bytes = field(repr=False)


def new_secret() -> str:
    """Return a new secret of 256 random bits as 43 characters without a space."""
    return secrets.token_urlsafe(32)


def parse_secrets(data: bytes) -> tuple[Secret, ...]:
    """Read the lines of a secret file; ValueError names the line, never what it holds."""
    found: dict[str, Secret] = {}
    for number, raw in enumerate(data.split(b"\n"), start=1):
        line = raw.removesuffix(b"\r")
        if not line:
            continue
        name, space, value = line.partition(b" ")
        if not space:
            name, value = b"default", line
        if not _NAME.match(name):
            raise ValueError(
                f"line {number}: a name is 1 to 32 of A-Z a-z 0-9 . _ -, then a space, then the"
                " secret (a secret with a space in it needs a name)"
            )
        try:
            secret = check_secret(name.decode("ascii"), value)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        if secret.name in found:
            raise ValueError(f"line {number}: the name {secret.name!r} is there already")
        found[secret.name] = secret
    if not found:
        raise ValueError("there is no secret in it")
    return tuple(found.values())


def check_secret(name: str, value: bytes) -> Secret:
    """Make a secret; ValueError where its length or bytes are not allowed."""
    if not 1 <= len(value) <= SECRET_BYTES_MAX:
        raise ValueError(f"a secret has 1 to {SECRET_BYTES_MAX} bytes, this one {len(value)}")
    if any(byte in value for byte in b"\0\r\n"):
        raise ValueError("a secret has no NUL and no line end")
    return Secret(name, value)


def read_secret_file(path: Path) -> tuple[Secret, ...]:
    """Read a secret file; OSError or ValueError where that fails."""
    return parse_secrets(path.read_bytes())


def check_admin_secrets(found: tuple[Secret, ...]) -> tuple[Secret, ...]:
    """Return secrets that may be sent as they are in a header; ValueError where one may not."""
    for secret in found:
        value = secret.value
        if len(value) < SECRET_BYTES_ADVISED or any(not 0x21 <= byte <= 0x7E for byte in value):
            raise ValueError(
                f"the secret {secret.name!r} is not of {SECRET_BYTES_ADVISED} to"
                f" {SECRET_BYTES_MAX:,} printable ASCII characters without space"
            )
    return found


def read_admin_secret_file(path: Path) -> tuple[Secret, ...]:
    """Read a file of administration secrets; OSError or ValueError where that fails."""
    return check_admin_secrets(read_secret_file(path))


def weak_secrets(secrets_in_use: Iterable[Secret]) -> list[str]:
    """A warning for each secret that is short enough to be guessed."""
    return [
        f"the secret {secret.name!r} has fewer than {SECRET_BYTES_ADVISED} bytes and may be"
        " guessed; `ticketing-server secret` makes a good one"
        for secret in secrets_in_use
        if len(secret.value) < SECRET_BYTES_ADVISED
    ]
