"""Words of the command line as values, with errors that say what is taken."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Callable
from typing import TypeVar

from ticketing_server.constants_gen import KEY_BYTES_MAX
from ticketing_server.setting_values import count, parse_duration_ms, parse_path

_ESCAPED = re.compile(rb"\\(?:x([0-9a-fA-F]{2}))?")
_Value = TypeVar("_Value")


def unescape(text: str) -> bytes:
    r"""Read a key as tables show it; ValueError where a `\` is not the begin of `\xNN`."""

    def byte(match: re.Match[bytes]) -> bytes:
        if match[1] is None:
            raise ValueError(r"a backslash begins \xNN, and is itself \x5c")
        return bytes.fromhex(match[1].decode())

    return _ESCAPED.sub(byte, text.encode("utf-8", "surrogateescape"))


def value(takes: str, parse: Callable[[str], _Value]) -> Callable[[str], _Value]:
    """Return what `add_argument` takes as `type`; `takes` says what the value may be."""

    def read(text: str) -> _Value:
        try:
            return parse(text)
        except ValueError as error:
            reason = f" ({error})" if error.args else ""
            raise ArgumentTypeError(f"got {text!a}{reason}, takes {takes}") from None

    return read


def _key(text: str) -> bytes:
    key = unescape(text)
    if not 1 <= len(key) <= KEY_BYTES_MAX:
        raise ValueError(f"{len(key)} bytes")
    return key


def _timeout_ms(text: str) -> int:
    if not (milliseconds := parse_duration_ms(text)):
        raise ValueError
    return milliseconds


def _slots(text: str) -> int:
    if text not in ("1", "3", "5"):
        raise ValueError
    return int(text)


KEY = value(rf"a key of 1 to {KEY_BYTES_MAX} bytes, with \xNN as tables show it", _key)
TOKEN = value("a whole number, 0 to 2^64 - 1", count(0, (1 << 64) - 1))
LIMIT = value("a whole number, 1 to 1,000,000", count(1, 1_000_000))
SLOT = value("a slot, 0 to 4", count(0, 4))
SLOTS = value("1, 3 or 5", _slots)
PATH = value("a path", parse_path)
DURATION = value("a duration with its unit (ms, s, m, h, d), or 0", parse_duration_ms)
TIMEOUT = value("a duration with its unit (ms, s, m, h, d)", _timeout_ms)
