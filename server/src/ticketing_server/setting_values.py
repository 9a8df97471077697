"""How the text of a setting becomes a value: each parser raises ValueError for what it refuses."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from ticketing_server.addresses import Address, parse_address

_DURATION = re.compile(r"(\d{1,12})(ms|s|m|h|d)\Z", re.ASCII)
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_duration_ms(text: str) -> int:
    """Read `500ms`, `30s`, `5m`, `1h`, `1d` or `0` as milliseconds; ValueError else."""
    if text == "0":
        return 0
    match = _DURATION.match(text)
    if match is None:
        raise ValueError
    return int(match[1]) * _UNIT_MS[match[2]]


def show_duration(milliseconds: int) -> str:
    """Write milliseconds in the largest unit that shows them exactly."""
    for unit in ("d", "h", "m", "s"):
        if milliseconds and milliseconds % _UNIT_MS[unit] == 0:
            return f"{milliseconds // _UNIT_MS[unit]}{unit}"
    return f"{milliseconds}ms" if milliseconds else "0"


def count(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        digits = text.replace("_", "")
        if not (digits.isascii() and digits.isdigit()) or not low <= int(digits) <= high:
            raise ValueError
        return int(digits)

    return parse


def duration(low_ms: int, high_ms: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not low_ms <= (value := parse_duration_ms(text)) <= high_ms:
            raise ValueError
        return value

    return parse


def parse_keepalive(text: str) -> int:
    whole, rest = divmod(parse_duration_ms(text), 1_000)
    if rest or not 1 <= whole <= 3_600:
        raise ValueError
    return whole


def choice(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError
        return text

    return parse


def parse_addresses(text: str) -> tuple[Address, ...]:
    if text == "off":
        return ()
    return tuple(dict.fromkeys(parse_address(part.strip()) for part in text.split(",")))


def parse_listen(text: str) -> tuple[Address, ...]:
    if not (addresses := parse_addresses(text)):
        raise ValueError
    return addresses


def parse_http_listen(text: str) -> tuple[Address, ...]:
    addresses = parse_addresses(text)
    if any(address.is_unix for address in addresses):
        raise ValueError
    return addresses


def parse_peer_listen(text: str) -> tuple[Address, ...]:
    addresses = parse_listen(text)
    if any(address.is_unix for address in addresses):
        raise ValueError
    return addresses


def parse_advertise(text: str) -> Address:
    address = parse_address(text)
    if address.is_unix or address.is_wildcard or not address.port:
        raise ValueError
    return address


def parse_cluster(text: str) -> tuple[tuple[Address, Address], ...]:
    """Read each node's address for peers and for clients; how many is checked with the slot."""
    nodes = []
    for part in text.split(","):
        peer, slash, client = part.strip().partition("/")
        if not slash:
            raise ValueError
        nodes.append((parse_advertise(peer), parse_advertise(client)))
    return tuple(nodes)


def parse_path(text: str) -> Path:
    if not text or "\0" in text:
        raise ValueError
    return Path(text)


def parse_host_names(text: str) -> tuple[str, ...]:
    names = tuple(part.strip().lower() for part in text.split(","))
    if not all(re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,252}[a-z0-9])?", name) for name in names):
        raise ValueError
    return names
