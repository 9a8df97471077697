"""The value grammar of the adapter protocol (ADAPTER.md), read and written."""

from __future__ import annotations

import re
from collections.abc import Mapping

LINE_BYTES_MAX = 16_384
INTEGER_MIN = -(2**63)
INTEGER_MAX = 2**64 - 1
# From here on a repeated byte is shorter, and easier to read, as a run.
RUN_BYTES_MIN = 24

Item = int | bytes | str
Value = Item | list[Item]

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_HEX = re.compile(r"([0-9a-f]{2})*")
_RUN = re.compile(r"([0-9a-f]{2})\*(0|[1-9][0-9]*)")
_WORD = re.compile(r"[!-+\--~]+")


class BadLine(ValueError):
    """A line or a value that the grammar does not allow; the text says which and why."""


def format_item(item: Item) -> str:
    """One item as its text; bytes that repeat one byte become a run."""
    if isinstance(item, bool):
        return "1" if item else "0"
    if isinstance(item, int):
        if not INTEGER_MIN <= item <= INTEGER_MAX:
            raise BadLine(f"integer {item} is out of range: {INTEGER_MIN} to {INTEGER_MAX}")
        return str(item)
    if isinstance(item, bytes):
        if len(item) >= RUN_BYTES_MIN and item.count(item[0]) == len(item):
            return f"r:{item[0]:02x}*{len(item)}"
        return "x:" + item.hex()
    if not _WORD.fullmatch(item) or item.startswith(("x:", "r:")):
        raise BadLine(f"{item!r} is no word: printable ASCII, no space or comma, no x: or r: first")
    return item


def format_value(value: Value) -> str:
    """A value as its text: items joined by commas, nothing for the empty list."""
    if isinstance(value, list):
        return ",".join(format_item(item) for item in value)
    return format_item(value)


def parse_item(text: str) -> Item:
    """One item; what looks like bytes or a run must be one."""
    if text.startswith("x:"):
        if not _HEX.fullmatch(text, 2):
            raise BadLine(f"{text!r}: after x: come pairs of lower-case hex digits")
        return bytes.fromhex(text[2:])
    if text.startswith("r:"):
        run = _RUN.fullmatch(text, 2)
        if run is None:
            raise BadLine(f"{text!r}: a run is r:<two hex digits>*<count>")
        return bytes.fromhex(run[1]) * int(run[2])
    if _INTEGER.fullmatch(text):
        number = int(text)
        if text == "-0" or not INTEGER_MIN <= number <= INTEGER_MAX:
            raise BadLine(f"integer {text} is out of range: {INTEGER_MIN} to {INTEGER_MAX}")
        return number
    if not _WORD.fullmatch(text):
        raise BadLine(f"{text!r} is no integer, bytes, run or word")
    return text


def parse_value(text: str) -> Value:
    """A value: one item, or a list where there is a comma or nothing at all."""
    if text == "":
        return []
    if "," in text:
        return [parse_item(part) for part in text.split(",")]
    return parse_item(text)


def as_list(value: Value) -> list[Item]:
    """The value of a field that is a list, which with one item looks like the item."""
    return value if isinstance(value, list) else [value]


def format_line(number: int, word: str, fields: Mapping[str, Value]) -> bytes:
    """A request or an answer, with its LF."""
    parts = [str(number), word]
    for name, value in fields.items():
        if not _NAME.fullmatch(name):
            raise BadLine(f"{name!r} is no field name")
        parts.append(f"{name}={format_value(value)}")
    line = " ".join(parts).encode("ascii") + b"\n"
    if len(line) > LINE_BYTES_MAX:
        raise BadLine(f"the line has {len(line)} bytes, at most {LINE_BYTES_MAX} are allowed")
    return line


def parse_line(line: bytes) -> tuple[int, str, dict[str, Value]]:
    """The number, the verb or status, and the fields of a line with its LF."""
    if len(line) > LINE_BYTES_MAX:
        raise BadLine(f"a line of more than {LINE_BYTES_MAX} bytes")
    if not line.endswith(b"\n"):
        raise BadLine(f"the line does not end with LF: {line[-40:]!r}")
    try:
        text = line[:-1].decode("ascii")
    except UnicodeDecodeError:
        raise BadLine(f"the line is not ASCII: {line[:80]!r}") from None
    number, *rest = text.split(" ")
    if not re.fullmatch(r"[1-9][0-9]*", number) or not rest or not _NAME.fullmatch(rest[0]):
        raise BadLine(f"a line begins with a number and a word, not {text[:80]!r}")
    fields: dict[str, Value] = {}
    for part in rest[1:]:
        name, equals, value = part.partition("=")
        if not equals or not _NAME.fullmatch(name):
            raise BadLine(f"{part[:80]!r} is no name=value")
        if name in fields:
            raise BadLine(f"{name} is given twice")
        fields[name] = parse_value(value)
    return int(number), rest[0], fields
