"""The value grammar of the adapter protocol."""

import pytest
from ticketing_conformance.values import (
    LINE_BYTES_MAX,
    BadLine,
    format_item,
    format_line,
    parse_item,
    parse_line,
    parse_value,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-1", -1),
        ("18446744073709551615", 2**64 - 1),
        ("-9223372036854775808", -(2**63)),
        ("x:", b""),
        ("x:00ff", b"\x00\xff"),
        ("r:61*3", b"aaa"),
        ("r:61*0", b""),
        ("word", "word"),
        ("async:cancel", "async:cancel"),
        ("007", "007"),
        ("1.5", "1.5"),
        ("a=b", "a=b"),
    ],
)
def test_items_are_read(text, value):
    assert parse_item(text) == value


@pytest.mark.parametrize(
    "text",
    ["x:0", "x:0G", "x:AB", "r:61", "r:6*1", "r:61*", "r:61*01", "18446744073709551616", "-0"],
)
def test_items_that_are_refused(text):
    with pytest.raises(BadLine):
        parse_item(text)


@pytest.mark.parametrize("text", ["", "a b", "a,b", "ä", "x:00", "r:00*1", "a\n"])
def test_words_that_can_not_be_written(text):
    with pytest.raises(BadLine):
        format_item(text)


@pytest.mark.parametrize("item", [0, 2**64 - 1, -5, b"", b"\x00", b"ab" * 40, b"a" * 500, "word"])
def test_items_come_back(item):
    assert parse_item(format_item(item)) == item


def test_long_runs_are_short():
    assert format_item(b"a" * 128) == "r:61*128"
    assert format_item(b"a" * 8) == "x:" + "61" * 8


def test_lists():
    assert parse_value("") == []
    assert parse_value("x:61,x:62") == [b"a", b"b"]
    assert parse_value("x:61") == b"a"
    for bad in (",", "x:61,", ",x:61"):
        with pytest.raises(BadLine):
            parse_value(bad)


def test_a_line_and_back():
    fields = {"key": b"k", "keys": [b"a", b"b"], "lease_ms": 5, "as": "t1", "none": []}
    line = format_line(12, "acquire", fields)
    assert line == b"12 acquire key=x:6b keys=x:61,x:62 lease_ms=5 as=t1 none=\n"
    assert parse_line(line) == (12, "acquire", fields)


@pytest.mark.parametrize(
    "line",
    [
        b"1 ok",
        b"1 ok \n",
        b"1  ok\n",
        b"0 ok\n",
        b"01 ok\n",
        b"ok\n",
        b"1 OK\n",
        b"1 ok a\n",
        b"1 ok a=1 a=1\n",
        b"1 ok A=1\n",
        b"1 ok a=\xff\n",
        b"1 ok\r\n",
        b"1 ok a=" + b"b" * LINE_BYTES_MAX + b"\n",
    ],
)
def test_lines_that_are_refused(line):
    with pytest.raises(BadLine):
        parse_line(line)


def test_a_line_that_is_too_long_is_not_written():
    assert len(format_line(1, "v", {"a": bytes(range(256)) * 31})) < LINE_BYTES_MAX
    with pytest.raises(BadLine, match="at most"):
        format_line(1, "v", {"a": bytes(range(256)) * 32})
