"""The case language: what is read, and what is refused with file and line."""

from pathlib import Path

import pytest
from ticketing_conformance.expressions import BadExpression, mismatch, value_of
from ticketing_conformance.script import Field, ScriptError, parse_cases, parse_step

PATH = Path("cases/behaviour/topic.case")


def cases(text):
    return parse_cases(text, "behaviour", PATH)


def test_a_case_with_all_its_headers():
    (case,) = cases(
        "# comment\n"
        "case a-case\n"
        "  about One line\n"
        "  about and another\n"
        "  req REQ-A REQ-B\n"
        "  needs fork\n"
        "  api sync\n"
        "  timeout 5\n"
        "  flags dirty\n"
        "\n"
        '  open as=a url="a b"  # comment\n'
        "  acquire client=a detach=1 as=t -> ok token>5 | err kind=held\n"
    )
    assert case.id == "behaviour/a-case"
    assert case.about == "One line and another"
    assert case.requirements == ("REQ-A", "REQ-B")
    assert case.needs == {"fork", "detach"}
    assert case.apis == {"sync"}
    assert (case.seconds, case.flags, case.line) == (5, {"dirty"}, 2)
    opening, acquiring = case.steps
    assert opening.fields == (Field("as", "=", "a"), Field("url", "=", '"a b"'))
    assert [e.status for e in opening.expected] == ["ok"]
    assert [e.status for e in acquiring.expected] == ["ok", "err"]
    assert acquiring.expected[0].fields == (Field("token", ">", "5"),)


def test_parameters_multiply():
    found = cases("case c\n  about x\n  each a = 1..3\n  each b = u v\n  sleep {a}\n")
    assert [case.id for case in found][:3] == [
        "behaviour/c[a=1,b=u]",
        "behaviour/c[a=1,b=v]",
        "behaviour/c[a=2,b=u]",
    ]
    assert len(found) == 6


def test_blocks_nest():
    (case,) = cases(
        "case c\n  about x\n  repeat i 1..2\n    repeat j a b\n"
        "      sleep 1\n    end\n  end\n  sleep 2\n"
    )
    outer, last = case.steps
    assert outer.block[0].block[0].words == ("sleep", "1")
    assert last.words == ("sleep", "2")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("case c\n  sleep 1\n", "no about"),
        ("case c\n  about x\n", "no steps"),
        ("case C\n", "expected: case NAME"),
        ("  sleep 1\n", "before the first case"),
        ('case c\n  about x\n  open url="a\n', "not closed"),
        ("case c\n  about x\n  open a=1 word\n", "word after fields"),
        ("case c\n  about x\n  open a=1 a=2\n", "given twice"),
        ("case c\n  about x\n  open -> \n", "empty"),
        ("case c\n  about x\n  open -> ok | \n", "empty"),
        ("case c\n  about x\n  open -> ok word\n", "status and fields"),
        ("case c\n  about x\n  repeat i 1..2\n  sleep 1\n", "no end"),
        ("case c\n  about x\n  end\n", "without a repeat"),
        ("case c\n  about x\n  api ruby\n  sleep 1\n", "async and sync"),
        ("case c\n  about x\n  each a 1\n  sleep 1\n", "each takes"),
        ("case c\n  about x\n  timeout soon\n  sleep 1\n", "soon"),
        ("case c\n  about x\n  sleep 1\ncase c\n  about x\n  sleep 1\n", "twice"),
    ],
)
def test_what_is_refused(text, why):
    with pytest.raises(ScriptError, match=why) as raised:
        cases(text)
    assert str(PATH) in str(raised.value)


def test_an_adapter_of_its_own():
    step = parse_step("@b acquire key=1", 1)
    assert (step.adapter, step.verb) == ("b", "acquire")


VARIABLES = {"t": {"token": 7}, "n": 3, "text": "abc", "raw": b"\x00"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ('"a b"', b"a b"),
        (r'"\n\0\x7b\"\\"', b'\n\0{"\\'),
        ('"ä"', "ä".encode()),
        ("x:00", b"\x00"),
        ("word", "word"),
        ("", []),
        ('"a","b,c",x:00', [b"a", b"b,c", b"\x00"]),
        ("{n}", 3),
        ("{t.token}", 7),
        ("{n * 2 + t.token % 4}", 9),
        ("k{n}", "k3"),
        ('"k{n+1}"', b"k4"),
        ("{raw}", b"\x00"),
        ("{raw},{n}", [b"\x00", 3]),
        ("r:61*{n}", b"aaa"),
    ],
)
def test_values(text, value):
    assert value_of(text, VARIABLES) == value


@pytest.mark.parametrize(
    "text", ["{unknown}", "{t.unknown}", "{n.token}", "{f(1)}", "{n ** 2}", "{1 +}", r'"\q"', "x:0"]
)
def test_values_that_are_refused(text):
    with pytest.raises(BadExpression):
        value_of(text, VARIABLES)


@pytest.mark.parametrize(
    ("expected", "got", "wrong"),
    [
        ("a=5", {"a": 5}, False),
        ("a=5", {"a": 6}, True),
        ("a=5", {}, True),
        ("a=4..6", {"a": 6}, False),
        ("a=4..6", {"a": 7}, True),
        ("a=4..6", {"a": b"5"}, True),
        ("a={n}..{n+1}", {"a": 4}, False),
        ("a=*", {"a": 0}, False),
        ("a=*", {}, True),
        ("a=absent", {}, False),
        ("a=absent", {"a": 1}, True),
        ("a<5", {"a": 4}, False),
        ("a<5", {"a": 5}, True),
        ("a>=5", {"a": 5}, False),
        ("a!=5", {"a": 5}, True),
        ("a>{t.token}", {"a": 8}, False),
        ("a>5", {"a": b"x"}, True),
        ('a="k"', {"a": b"k"}, False),
        ('a="k"', {"a": [b"k"]}, False),
        ('a="j","k"', {"a": [b"j", b"k"]}, False),
        ('a="j","k"', {"a": [b"k", b"j"]}, True),
        ('a~"ell"', {"a": b"hello"}, False),
        ('a~"elk"', {"a": b"hello"}, True),
    ],
)
def test_expected_fields(expected, got, wrong):
    (field,) = parse_step(f"open -> ok {expected}", 1).expected[0].fields
    assert bool(mismatch(field, got, VARIABLES)) is wrong
