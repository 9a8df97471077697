"""Words of the command line: keys as tables show them, and what is refused."""

from __future__ import annotations

from argparse import ArgumentTypeError

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ticketing_server.admin import parsing
from ticketing_server.log import escape


@given(st.binary(min_size=1, max_size=128))
def test_a_key_as_shown_is_read_as_that_key(key: bytes) -> None:
    assert parsing.KEY(escape(key)) == key


def test_a_key_may_be_typed_as_it_is() -> None:
    assert parsing.KEY("orders/42 ü") == "orders/42 ü".encode()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "0 bytes"),
        ("k" * 129, "129 bytes"),
        ("a\\b", r"a backslash begins \xNN, and is itself \x5c"),
        ("a\\x2", r"a backslash begins \xNN, and is itself \x5c"),
        ("a\\", r"a backslash begins \xNN, and is itself \x5c"),
    ],
)
def test_a_key_that_is_none_is_refused_with_what_is_taken(text: str, reason: str) -> None:
    with pytest.raises(ArgumentTypeError) as refused:
        parsing.KEY(text)
    assert str(refused.value) == (
        rf"got {text!a} ({reason}), takes a key of 1 to 128 bytes, with \xNN as tables show it"
    )


def test_numbers_and_durations_have_bounds() -> None:
    assert parsing.TOKEN(str((1 << 64) - 1)) == (1 << 64) - 1
    assert parsing.DURATION("0") == 0
    assert parsing.TIMEOUT("2s") == 2_000
    assert parsing.SLOTS("3") == 3
    for parse, text in (
        (parsing.TOKEN, str(1 << 64)),
        (parsing.TOKEN, "-1"),
        (parsing.LIMIT, "0"),
        (parsing.SLOT, "5"),
        (parsing.SLOTS, "2"),
        (parsing.DURATION, "10"),
        (parsing.TIMEOUT, "0"),
    ):
        with pytest.raises(ArgumentTypeError, match="takes"):
            parse(text)
