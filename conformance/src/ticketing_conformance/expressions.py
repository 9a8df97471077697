"""Substitution and comparison: `{…}` in steps, and what expectations say about fields."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from ticketing_conformance.script import Field
from ticketing_conformance.values import BadLine, Item, Value, parse_item

Variables = Mapping[str, Any]

_OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "~": lambda value, part: part in value,
}
_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\", '"': b'"'}
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")


class BadExpression(ValueError):
    """A value in a script that can't be worked out; the text says why."""


def _evaluate(node: ast.expr, variables: Variables) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name):
        if node.id not in variables:
            raise BadExpression(f"{node.id} is not known here")
        return variables[node.id]
    if isinstance(node, ast.Attribute):
        owner = _evaluate(node.value, variables)
        if not isinstance(owner, Mapping) or node.attr not in owner:
            raise BadExpression(f"{ast.unparse(node)} is not known here")
        return owner[node.attr]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        left, right = _evaluate(node.left, variables), _evaluate(node.right, variables)
        return _OPERATIONS[type(node.op)](left, right)
    raise BadExpression(f"{ast.unparse(node)} is no name, number, sum or product")


def evaluate(text: str, variables: Variables) -> Any:
    """The value of what stands between braces: names, attributes, integers, + - * // %."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError:
        raise BadExpression(f"{{{text}}} can't be read") from None
    return _evaluate(tree.body, variables)


def _as_text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def fill(text: str, variables: Variables) -> str:
    """The text with every `{…}` in it replaced."""
    return re.sub(r"\{([^{}]*)\}", lambda match: _as_text(evaluate(match[1], variables)), text)


def unquote(text: str) -> bytes:
    r"""The bytes of a quoted text (quotes included): UTF-8, with \n \r \t \0 \\ \" \xNN."""
    out = b""
    position = 1
    while position < len(text) - 1:
        if text[position] != "\\":
            out += text[position].encode("utf-8")
            position += 1
        elif text[position + 1] == "x":
            out += bytes.fromhex(text[position + 2 : position + 4])
            position += 4
        elif text[position + 1] in _ESCAPES:
            out += _ESCAPES[text[position + 1]]
            position += 2
        else:
            raise BadExpression(f"unknown escape \\{text[position + 1]} in {text}")
    return out


def _split_list(text: str) -> list[str]:
    parts = re.findall(r'(?:"(?:[^"\\]|\\.)*"|\{[^{}]*\}|[^,"])+|(?<=,)(?=,|$)', text)
    return parts if parts else [text]


def _item(text: str, variables: Variables) -> Any:
    whole = re.fullmatch(r"\{([^{}]*)\}", text)
    if whole:
        return evaluate(whole[1], variables)
    if text.startswith('"') and text.endswith('"') and len(text) >= 2:
        # Braces are filled in before escapes are read, so that \x7b stays a brace.
        return unquote(fill(text, variables))
    try:
        return parse_item(fill(text, variables))
    except BadLine as error:
        raise BadExpression(str(error)) from None


def value_of(text: str, variables: Variables) -> Any:
    """The value of a field in a script: an item, or a list where there are commas or nothing."""
    if text == "":
        return []
    parts = _split_list(text)
    if len(parts) == 1:
        return _item(parts[0], variables)
    return [_item(part, variables) for part in parts]


def mismatch(expected: Field, got: Mapping[str, Value], variables: Variables) -> str:
    """ "" if the field is as expected, else what is wrong.

    `*` is anything, `a..b` an integer from a to b; `absent` a field that is not there.
    """
    if expected.value == "absent" and expected.operator == "=":
        return f"{expected.name} is there" if expected.name in got else ""
    if expected.name not in got:
        return f"{expected.name} is missing"
    value: Value | Item = got[expected.name]
    if expected.value == "*":
        return ""
    span = _RANGE.fullmatch(fill(expected.value, variables)) if '"' not in expected.value else None
    if span and expected.operator == "=":
        if isinstance(value, int) and int(span[1]) <= value <= int(span[2]):
            return ""
        return f"{expected.name} is {value!r}, expected {span[1]} to {span[2]}"
    wanted = value_of(expected.value, variables)
    if expected.operator == "~" and not isinstance(wanted, bytes):
        wanted = str(wanted).encode("utf-8")
    if isinstance(value, list) and not isinstance(wanted, list):
        wanted = [wanted]
    if isinstance(wanted, list) and not isinstance(value, list):
        value = [value]
    try:
        if COMPARISONS[expected.operator](value, wanted):
            return ""
    except TypeError:
        return f"{expected.name} is {value!r}, which can't be compared with {wanted!r}"
    return f"{expected.name} is {value!r}, expected {expected.operator} {wanted!r}"
