"""PROTOCOL.md shows everything that the spec says, and its links lead somewhere."""

from __future__ import annotations

import re

import pytest
from ticketing_spec import load_spec, page
from ticketing_spec.model import SPEC_DIR, SpecError

SPEC, V3 = load_spec(), load_spec("version3")
TEMPLATE = (SPEC_DIR / "protocol.md.tmpl").read_text()
TEXT = (SPEC_DIR / "PROTOCOL.md").read_text()


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_every_link_leads_somewhere() -> None:
    anchors = {slug(h) for h in re.findall(r"^#+ (.+)$", TEXT, re.MULTILINE)}
    anchors |= set(re.findall(r'<a id="([^"]+)">', TEXT))
    links = set(re.findall(r"\]\(#([^)]+)\)", TEXT))
    assert links - anchors == set()
    for target in set(re.findall(r"\]\(([^#)]+)\)", TEXT)):
        assert (SPEC_DIR / target).exists(), target


def test_every_requirement_stands_once_and_is_in_the_index() -> None:
    for spec in (SPEC, V3):
        for requirement in spec.requirements:
            assert TEXT.count(f'<a id="{requirement.id.lower()}">') == 1
            assert TEXT.count(f"(#{requirement.id.lower()})") == 1
            assert requirement.text in TEXT


def test_every_frame_error_number_and_machine_is_shown() -> None:
    for spec in (SPEC, V3):
        for frame in spec.frames:
            assert TEXT.count(f"#### {page.title(spec, frame)}\n") == 1
            for field in frame.fields:
                assert field.about in TEXT
        for error in spec.errors:
            assert f"| {error.code} | `{error.name}` |" in TEXT
        for machine in spec.machines:
            assert machine.about in TEXT
            assert all(t.does in TEXT for t in machine.transitions)
    for constant in SPEC.constants:
        assert f"| `{constant.name}` | {constant.value:,} |" in TEXT
    for metric in SPEC.metrics:
        assert f"| `{metric.name}` |" in TEXT


def test_every_malformed_case_is_shown() -> None:
    for case in (*SPEC.malformed, *V3.malformed):
        assert f"| `{case.id}` | {case.why} | {case.layer} |" in TEXT


def test_terms_come_first_and_no_marker_is_left() -> None:
    headings = re.findall(r"^## (.+)$", TEXT, re.MULTILINE)
    assert headings[0] == "1 Terms"
    assert page.MARKER.search(TEXT) is None


def test_a_diagram_is_as_wide_as_its_boxes() -> None:
    lines = page.diagram(SPEC.frame("client", "acquire"))
    assert lines[0] == lines[-1] == "```"
    assert len(lines[2]) == len(lines[3]) == len(lines[4])
    assert lines[1].split() == ["0", "1", "3", "11", "15", "19"]
    assert lines[5].split() == ["1", "2", "8", "4", "4", "1", "to", "128"]
    for name in ("'A'", "length", "request_id", "wait_ms", "lease_ms", "key"):
        assert name in lines[3]


def test_mistakes_in_the_template_are_named() -> None:
    for marker in (
        "{{ frmae }}",
        "{{ enum nothing }}",
        "{{ rules NOTHING }}",
        "{{ index too much }}",
    ):
        with pytest.raises(SpecError, match=re.escape(f"protocol.md.tmpl: {marker} leads nowhere")):
            page.render(SPEC, V3, f"{TEMPLATE}\n{marker}\n", "header")
    with pytest.raises(SpecError, match="no marker shows the rules of BYTES"):
        page.render(SPEC, V3, TEMPLATE.replace("{{ rules BYTES }}", ""), "header")
