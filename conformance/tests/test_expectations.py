"""The rules of expectations, each shown to fail a run that breaks it."""

import pytest
from ticketing_conformance.expectations import BadExpectation, judge, parse_expectations, stale

ID = "behaviour/fork[n=1]:sync"


def entries(text):
    return parse_expectations(text, "python.txt")


def test_without_entries_results_stay_what_they_are():
    assert judge("passed", "", ID, []).outcome == "passed"
    assert judge("failed", "why", ID, []).outcome == "failed"
    assert judge("failed", "why", ID, []).reason == "why"


def test_an_unlisted_failure_fails():
    listed = entries("fail behaviour/other*: known")
    assert judge("failed", "why", ID, listed).outcome == "failed"


def test_a_listed_failure_passes_and_says_so():
    judged = judge("failed", "why", ID, entries("fail behaviour/fork*:sync: a known bug"))
    assert judged.outcome == "passed"
    assert "a known bug" in judged.reason


@pytest.mark.parametrize("verdict", ["fail", "skip"])
def test_a_listed_pass_fails(verdict):
    judged = judge("passed", "", ID, entries(f"{verdict} behaviour/fork*: known"))
    assert judged.outcome == "failed"
    assert "remove the line" in judged.reason


def test_an_undeclared_skip_fails():
    assert judge("skipped", "lacks fork", ID, [], ["fork"]).outcome == "failed"
    other = entries("skip feature:cancel: no")
    assert judge("skipped", "lacks fork", ID, other, ["fork"]).outcome == "failed"


def test_a_declared_skip_is_skipped_with_its_reason():
    for pattern in ("feature:fork", "behaviour/fork*", ID):
        judged = judge("skipped", "", ID, entries(f"skip {pattern}: there is none"), ["fork"])
        assert (judged.outcome, judged.reason) == ("skipped", "there is none")


def test_every_missing_feature_has_to_be_declared():
    one = entries("skip feature:fork: none")
    assert judge("skipped", "", ID, one, ["cancel", "fork"]).outcome == "failed"
    both = entries("skip feature:fork: none\nskip feature:cancel: none")
    assert judge("skipped", "", ID, both, ["cancel", "fork"]).outcome == "skipped"


def test_an_entry_for_failures_does_not_declare_a_skip():
    assert judge("skipped", "", ID, entries(f"fail {ID}: known"), ["fork"]).outcome == "failed"


def test_stale_lines_are_named():
    listed = entries("fail behaviour/fork*: a\n# a comment\n\nskip feature:tls: b\nskip x/y: c")
    catalogue = [(ID, []), ("x/z:async", ["fork"])]
    assert stale(listed, catalogue) == [
        "python.txt:4: stale: no case matches feature:tls",
        "python.txt:5: stale: no case matches x/y",
    ]
    assert stale(listed, [*catalogue, ("x/y", ["tls"])]) == []


def test_brackets_mean_themselves():
    listed = entries("fail behaviour/fork[n=1]:*: known")
    assert judge("failed", "", ID, listed).outcome == "passed"
    assert judge("failed", "", "behaviour/fork[n=2]:sync", listed).outcome == "failed"


@pytest.mark.parametrize(
    "line",
    ["fail x/y", "fail x/y:", "fail x/y: ", "xfail x/y: why", ": why", "fail feature:fork: why"],
)
def test_lines_that_are_refused(line):
    with pytest.raises(BadExpectation, match=r"python\.txt:1"):
        entries(line)
