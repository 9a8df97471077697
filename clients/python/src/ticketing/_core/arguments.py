"""Checks of what callers give, before anything is sent: keys, durations, references, names.

Each refusal says what was wrong, what was given and what is taken.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from ticketing import _constants_gen as c
from ticketing.errors import InvalidArgumentError
from ticketing.events import Key

Duration = float | timedelta
"""Seconds as a number, or a timedelta."""


class Forever(enum.Enum):
    """The type of `FOREVER`."""

    FOREVER = "forever"


FOREVER: Final = Forever.FOREVER
"""A `wait_timeout` that never ends, where the client's own default is a shorter one."""

_NS_PER_S = 1_000_000_000
_NS_PER_MS = 1_000_000
_SHOWN_BITS_MAX = 128


def wire_key(key: Key, prefix: bytes = b"") -> bytes:
    """The bytes of a key on the wire, prefix included. Raises InvalidArgumentError."""
    if isinstance(key, str):
        try:
            data = key.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgumentError(
                f"the key {key!r} is not valid Unicode ({error.reason}): give text, or bytes"
            ) from None
    elif isinstance(key, bytes):
        data = key
    else:
        raise InvalidArgumentError(f"a key is str or bytes, not {type(key).__name__}")
    if not data:
        raise InvalidArgumentError(f"the key is empty: it takes 1 to {c.KEY_BYTES_MAX} bytes")
    if len(prefix) + len(data) > c.KEY_BYTES_MAX:
        counted = " with its prefix" if prefix else ""
        raise InvalidArgumentError(
            f"the key has {len(prefix) + len(data)} bytes{counted}: it takes 1 to {c.KEY_BYTES_MAX}"
        )
    return prefix + data


def wire_set(keys: Iterable[Key], prefix: bytes = b"") -> list[tuple[bytes, Key]]:
    """The different keys of a set as (wire bytes, as given), sorted by unsigned bytes."""
    if isinstance(keys, str | bytes) or not isinstance(keys, Iterable):
        raise InvalidArgumentError(
            f"a set takes several keys, as in a list of str or bytes, not {type(keys).__name__}"
        )
    by_wire: dict[bytes, Key] = {}
    for key in keys:
        by_wire.setdefault(wire_key(key, prefix), key)
    if not 1 <= len(by_wire) <= c.SET_KEYS_MAX:
        raise InvalidArgumentError(
            f"the set has {len(by_wire)} different keys: it takes 1 to {c.SET_KEYS_MAX}"
        )
    return sorted(by_wire.items())


def wire_prefix(prefix: Key) -> bytes:
    """The bytes of a key prefix; empty is none."""
    if prefix in ("", b""):
        return b""
    try:
        data = wire_key(prefix)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"key_prefix: {error}") from None
    if len(data) >= c.KEY_BYTES_MAX:
        raise InvalidArgumentError(
            f"key_prefix has {len(data)} bytes: it takes up to {c.KEY_BYTES_MAX - 1},"
            " so that a key fits behind it"
        )
    return data


def duration_ns(name: str, value: Duration) -> int:
    """Nanoseconds of a duration, rounded to the nearest; raises InvalidArgumentError."""
    if isinstance(value, bool) or not isinstance(value, int | float | timedelta):
        raise InvalidArgumentError(
            f"{name} is {value!r}: it takes seconds as a number, or a timedelta"
        )
    return _number_ns(name, value)


@functools.lru_cache(maxsize=512, typed=True)
def _number_ns(name: str, value: Duration) -> int:
    if isinstance(value, timedelta):
        ns = value // timedelta(microseconds=1) * 1000
    elif isinstance(value, int):
        ns = value * _NS_PER_S
    else:
        try:
            numerator, denominator = value.as_integer_ratio()
        except (OverflowError, ValueError):
            raise InvalidArgumentError(
                f"{name} is {value!r}: it takes a finite number of seconds"
            ) from None
        ns = (2 * numerator * _NS_PER_S + denominator) // (2 * denominator)
    if isinstance(value, int | float) and value < 0:
        ns = min(ns, -1)
    if ns < 0:
        raise InvalidArgumentError(f"{name} is {_shown(value)}: it takes nothing negative")
    if ns > c.WAIT_MS_MAX * _NS_PER_MS:
        raise InvalidArgumentError(
            f"{name} is {_shown(value)}: it takes up to {c.WAIT_MS_MAX / 1000} seconds"
        )
    return ns


def _shown(value: Duration) -> str:
    """A number for people; Python refuses to write very large ones."""
    if isinstance(value, int) and value.bit_length() > _SHOWN_BITS_MAX:
        return f"a number of {value.bit_length()} bits"
    return repr(value)


def lease_ms(value: Duration) -> int:
    """Milliseconds of a lease, rounded up; raises InvalidArgumentError."""
    ns = duration_ns("lease", value)
    if ns == 0:
        raise InvalidArgumentError(f"lease is {value!r}: it takes at least a millisecond")
    return -(-ns // _NS_PER_MS)


def wait_ms(value: Duration | Forever) -> int:
    """Milliseconds of a wait, rounded up; 0 is a try. Raises InvalidArgumentError."""
    if value is FOREVER:
        return c.WAIT_MS_FOREVER
    assert not isinstance(value, Forever)
    return -(-duration_ns("wait_timeout", value) // _NS_PER_MS)


def check_flag(name: str, value: bool | None) -> bool | None:
    """A flag, None where it is not given; raises InvalidArgumentError."""
    if value is not None and not isinstance(value, bool):
        raise InvalidArgumentError(f"{name} is {value!r}: it takes True or False")
    return value


_REFERENCE = re.compile(r"([0-9]{1,20}):((?:[A-Za-z0-9\-._~]|%[0-9A-Fa-f]{2})+)", re.ASCII)
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


def format_reference(token: int, key: bytes) -> str:
    """What hand_over returns: the token, then the first key as sent."""
    escaped = "".join(chr(b) if b in _UNRESERVED else f"%{b:02X}" for b in key)
    return f"{token}:{escaped}"


def parse_reference(reference: str) -> tuple[int, bytes]:
    """Token and key of a reference; raises InvalidArgumentError."""
    match = _REFERENCE.fullmatch(reference) if isinstance(reference, str) else None
    if match is not None:
        token = int(match[1])
        key = re.sub(
            rb"%([0-9A-Fa-f]{2})", lambda m: bytes([int(m[1], 16)]), match[2].encode("ascii")
        )
        if 1 <= token < 2**64 and len(key) <= c.KEY_BYTES_MAX:
            return token, key
    raise InvalidArgumentError(
        f"the reference {reference!r} is not one that hand_over returned: <token>:<key>"
    )


def shown_key(key: bytes) -> Key:
    """A key that came as bytes, as text where it is text."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key


def make_label(name: str, version: str) -> bytes:
    """The label of a client: its name, cleaned and cut to fit, then language and version."""
    if not isinstance(name, str):
        raise InvalidArgumentError(f"name is {name!r}: it takes text")
    tail = f";python/{version}"
    clean = "".join(char if 0x21 <= ord(char) <= 0x7E else "_" for char in name)
    return (clean[: c.LABEL_BYTES_MAX - len(tail)] + tail).encode("ascii")


def check_label(label: str | bytes) -> bytes:
    """A label that is given whole, for tests."""
    data = label.encode("utf-8", "replace") if isinstance(label, str) else label
    if not (
        isinstance(data, bytes)
        and c.LABEL_BYTES_MIN <= len(data) <= c.LABEL_BYTES_MAX
        and all(0x21 <= byte <= 0x7E for byte in data)
    ):
        raise InvalidArgumentError(
            f"label is {label!r}: it takes {c.LABEL_BYTES_MIN} to {c.LABEL_BYTES_MAX}"
            " bytes of printable ASCII without space"
        )
    return data


def check_secret(secret: str | bytes) -> bytes:
    """The bytes of a secret. The text of an error never shows it."""
    try:
        data = secret.encode() if isinstance(secret, str) else secret
    except UnicodeEncodeError:
        raise InvalidArgumentError("the secret is not valid Unicode") from None
    if not isinstance(data, bytes):
        raise InvalidArgumentError(f"the secret is str or bytes, not {type(secret).__name__}")
    if len(data) > c.SECRET_BYTES_MAX:
        raise InvalidArgumentError(
            f"the secret has {len(data)} bytes: it takes up to {c.SECRET_BYTES_MAX}"
        )
    if any(byte in data for byte in b"\0\r\n"):
        raise InvalidArgumentError("the secret has a NUL or a line end in it")
    return data


def sanitised(text: bytes | str) -> str:
    """Text from elsewhere, with anything but printable ASCII as `?`."""
    data = text if isinstance(text, bytes) else text.encode("ascii", "replace")
    return "".join(chr(byte) if 0x20 <= byte <= 0x7E else "?" for byte in data)
