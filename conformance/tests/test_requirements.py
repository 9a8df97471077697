"""Every MUST has a case, or a line that says where it is shown."""

import pytest
from ticketing_conformance.requirements import (
    BadRequirementLine,
    Requirement,
    coverage_faults,
    load_elsewhere,
    parse_elsewhere,
    spec_requirements,
)

MUST = Requirement("REQ-A-ONE", "client", "MUST", "It does.")
SHOULD = Requirement("REQ-A-TWO", "client", "SHOULD", "It might.")


def test_a_must_without_a_case_is_a_fault():
    assert coverage_faults([MUST, SHOULD], set(), {}) == [
        "REQ-A-ONE is a MUST, and neither a case nor requirements.txt names it"
    ]
    assert coverage_faults([MUST, SHOULD], {"REQ-A-ONE"}, {}) == []
    assert coverage_faults([MUST], set(), {"REQ-A-ONE": "there is no client yet"}) == []


def test_lines_that_say_too_much_are_faults():
    (stale,) = coverage_faults([MUST], {"REQ-A-ONE"}, {"REQ-A-ONE": "elsewhere"})
    assert "stale" in stale
    (unknown,) = coverage_faults([SHOULD], set(), {"REQ-A-NONE": "elsewhere"})
    assert "no requirement of the spec" in unknown
    (gone,) = coverage_faults([MUST], set(), {"REQ-A-ONE": "server/tests/test_auth.py::test_gone"})
    assert "there is no" in gone


@pytest.mark.parametrize("text", ["REQ-A-ONE", "REQ-A-ONE:", "req: x", "REQ-A-B: x\nREQ-A-B: y"])
def test_lines_that_are_refused(text):
    with pytest.raises(BadRequirementLine, match=r"requirements\.txt:"):
        parse_elsewhere(text, "requirements.txt")


def test_the_kept_lines_name_tests_that_exist():
    elsewhere = load_elsewhere()
    named = {known.id for known in spec_requirements()} - set(elsewhere)
    assert coverage_faults(spec_requirements(), named, elsewhere) == []
