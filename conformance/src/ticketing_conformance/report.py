"""The report of a run: console, report.json, junit.xml, report.md and a static site."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from ticketing_conformance.adapter import Hello
from ticketing_conformance.requirements import Requirement, load_elsewhere, spec_requirements
from ticketing_conformance.results import Result, client_of
from ticketing_conformance.streams import the_spec

OUTCOMES = ("passed", "failed", "skipped")


@dataclass
class Report:
    """All that a run found. `faults` are failures that belong to no single test."""

    results: list[Result]
    faults: list[str]
    missing: Mapping[str, str]
    hellos: Mapping[str, Hello]
    kaitai: str = ""
    """Why captured streams were not read by Kaitai's parser; empty if they were."""
    wireshark: str = ""
    """What came of the dissector for Wireshark."""
    requirements: list[Requirement] = field(default_factory=spec_requirements)
    elsewhere: Mapping[str, str] = field(default_factory=load_elsewhere)
    """Where requirements without a case are shown."""

    def count(self, outcome: str) -> int:
        """How many tests ended so; a fault is a failure, a missing toolchain a skip."""
        extra = {"failed": len(self.faults), "skipped": len(self.missing)}
        counted = sum(result.outcome == outcome for result in self.results)
        return counted + extra.get(outcome, 0)

    @property
    def green(self) -> bool:
        """Nothing failed, and something was tested."""
        return self.count("failed") == 0 and self.count("passed") > 0

    @cached_property
    def suites(self) -> list[str]:
        """The suites that ran, in the order of their first result's suite name."""
        return sorted({result.suite for result in self.results})

    @cached_property
    def columns(self) -> list[str]:
        """Clients and APIs."""
        return sorted({result.column for result in self.results})

    def cell(self, suite: str, column: str) -> dict[str, int]:
        """Counts by outcome of one suite with one client."""
        counts = dict.fromkeys(OUTCOMES, 0)
        for result in self.results:
            if result.suite == suite and result.column == column:
                counts[result.outcome] += 1
        return counts

    @cached_property
    def digests(self) -> dict[str, dict[str, str]]:
        """Identity: SHA-256 by scenario and column."""
        return digests_of(self.results)

    @cached_property
    def identity_clients(self) -> list[str]:
        """The columns of the identity table."""
        return sorted({client_of(column) for row in self.digests.values() for column in row})

    def identity_cell(self, scenario: str, client: str) -> str:
        """What a client's APIs sent: one digest, or both where they differ, or a dash."""
        row = self.digests[scenario]
        found = {digest for column, digest in row.items() if client_of(column) == client}
        return " ≠ ".join(sorted(found)) or "-"

    @cached_property
    def coverage(self) -> list[tuple[Requirement, list[str]]]:
        """Each requirement with the ids of the passed tests that name it."""
        by_requirement: dict[str, set[str]] = {}
        for result in self.results:
            for name in result.requirements:
                if result.outcome == "passed":
                    by_requirement.setdefault(name, set()).add(result.id)
        return [(known, sorted(by_requirement.get(known.id, ()))) for known in self.requirements]

    def console(self) -> str:
        """What the console shows last: faults, the table, and one plain line."""
        lines = [""]
        for fault in self.faults:
            lines.append(f"FAILED: {fault}")
        for reason in self.missing.values():
            lines.append(f"SKIPPED, NOT TESTED: {reason}")
        lines += [f"{r.id}: {note}" for r in self.results for note in r.notes]
        lines += ["", *self.table(), "", *self.other_readers()]
        lines.append(", ".join(f"{self.count(outcome)} {outcome}" for outcome in OUTCOMES))
        return "\n".join(lines)

    def other_readers(self) -> list[str]:
        """What other decoders made of captured streams, a sentence for each."""
        return [self._kaitai(), f"Wireshark: {self.wireshark or 'no streams were captured'}"]

    def _kaitai(self) -> str:
        if self.kaitai:
            return f"Kaitai: captured streams were not checked: {self.kaitai}"
        read = sum(result.kaitai_streams for result in self.results)
        if not read:
            return "Kaitai: no streams were captured"
        return f"Kaitai: {read} captured streams read as the codec reads them"

    def table(self) -> list[str]:
        """Suite × client as text: passed/all, with failures and skips where there are any."""
        rows = [["", *self.columns]]
        for suite in self.suites:
            rows.append([suite, *(cell_text(self.cell(suite, c)) for c in self.columns)])
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        return [
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]


def digests_of(results: Iterable[Result]) -> dict[str, dict[str, str]]:
    """Identity: SHA-256 of what a client sent, by scenario and column."""
    table: dict[str, dict[str, str]] = {}
    for result in results:
        if result.digest:
            table.setdefault(result.id.partition("/")[2], {})[result.column] = result.digest
    return table


def identity_faults(digests: Mapping[str, Mapping[str, str]]) -> list[str]:
    """The scenarios in which not all clients sent the same bytes, expected or not."""
    faults = []
    for scenario, row in sorted(digests.items()):
        if len(set(row.values())) > 1:
            sent = ", ".join(f"{column} {digest[:16]}" for column, digest in sorted(row.items()))
            faults.append(f"identity/{scenario}: clients sent different bytes: {sent}")
    return faults


def cell_text(counts: Mapping[str, int]) -> str:
    """A cell of the table: how many passed, failed and were skipped."""
    if not any(counts.values()):
        return "-"
    parts = [f"{counts['passed']} passed"]
    parts += [f"{counts[outcome]} {outcome}" for outcome in OUTCOMES[1:] if counts[outcome]]
    return ", ".join(parts)


def write_report(report: Report, folder: Path) -> None:
    """Write all forms of the report; what an earlier run left there is removed."""
    from ticketing_conformance.report_html import write_site

    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / "report.json").write_text(report_json(report), encoding="utf-8")
    (folder / "junit.xml").write_text(junit(report), encoding="utf-8")
    (folder / "report.md").write_text(markdown(report), encoding="utf-8")
    write_site(report, folder)


def report_json(report: Report) -> str:
    """The whole report as JSON."""
    return json.dumps(
        {
            "spec_digest": the_spec().digest,
            "counts": {outcome: report.count(outcome) for outcome in OUTCOMES},
            "clients": {
                name: {**asdict(hello), "features": sorted(hello.features)}
                for name, hello in report.hellos.items()
            },
            "missing_toolchains": dict(report.missing),
            "faults": report.faults,
            "other_readers": report.other_readers(),
            "identity": report.digests,
            "requirements": {known.id: tests for known, tests in report.coverage},
            "results": [asdict(result) for result in report.results],
        },
        indent=1,
    )


def junit(report: Report) -> str:
    """JUnit XML, one suite per column and suite."""
    lines = ['<?xml version="1.0" encoding="utf-8"?>', "<testsuites>"]
    for suite in report.suites:
        for column in report.columns:
            results = [r for r in report.results if (r.suite, r.column) == (suite, column)]
            if not results:
                continue
            counts = report.cell(suite, column)
            lines.append(
                f'<testsuite name={quoteattr(f"{suite} {column}")} tests="{len(results)}"'
                f' failures="{counts["failed"]}" skipped="{counts["skipped"]}">'
            )
            for result in results:
                lines += _junit_case(result)
            lines.append("</testsuite>")
    if report.faults or report.missing:
        total = len(report.faults) + len(report.missing)
        lines.append(
            f'<testsuite name="run" tests="{total}" failures="{len(report.faults)}"'
            f' skipped="{len(report.missing)}">'
        )
        for number, fault in enumerate(report.faults, 1):
            lines.append(
                f'<testcase classname="run" name="fault {number}">'
                f"<failure message={quoteattr(_xml_text(fault[:200]))}/></testcase>"
            )
        for name, reason in report.missing.items():
            lines.append(
                f'<testcase classname="run" name={quoteattr(name)}>'
                f"<skipped message={quoteattr(_xml_text(reason))}/></testcase>"
            )
        lines.append("</testsuite>")
    lines.append("</testsuites>")
    return "\n".join(lines) + "\n"


def _junit_case(result: Result) -> list[str]:
    head = (
        f"<testcase classname={quoteattr(f'{result.suite}.{result.column}')}"
        f' name={quoteattr(result.id)} time="{result.seconds}"'
    )
    if result.outcome == "passed":
        return [head + "/>"]
    reason = _xml_text(result.reason)
    if result.outcome == "skipped":
        return [head + f"><skipped message={quoteattr(reason)}/></testcase>"]
    first = reason.splitlines()[0] if reason else "failed"
    return [head + f"><failure message={quoteattr(first)}>{escape(reason)}</failure></testcase>"]


def _xml_text(text: str) -> str:
    return "".join(c if c in "\n\t" or " " <= c <= "\ud7ff" else "?" for c in text)


def markdown(report: Report) -> str:
    """The report for a terminal or a pull request."""
    lines = ["# Conformance", "", f"Spec digest `{the_spec().digest}`.", ""]
    lines.append(", ".join(f"{report.count(outcome)} {outcome}" for outcome in OUTCOMES) + ".")
    lines += ["", *(f"{said}." for said in report.other_readers())]
    lines += ["", "| suite | " + " | ".join(report.columns) + " |"]
    lines.append("| --- |" + " --- |" * len(report.columns))
    for suite in report.suites:
        cells = [cell_text(report.cell(suite, column)) for column in report.columns]
        lines.append(f"| {suite} | " + " | ".join(cells) + " |")
    problems = [result for result in report.results if result.outcome != "passed"]
    if report.faults or problems or report.missing:
        lines += ["", "## Not passed", ""]
        lines += [f"- failed: {fault}" for fault in report.faults]
        lines += [f"- not tested: {reason}" for reason in report.missing.values()]
        lines += [
            f"- {r.outcome}: `{r.id}` with {r.column}: {r.reason.splitlines()[-1].strip()}"
            for r in problems
        ]
    if report.digests:
        lines += ["", "## Identity: SHA-256 of what each client sent", ""]
        lines.append("| scenario | " + " | ".join(report.identity_clients) + " |")
        lines.append("| --- |" + " --- |" * len(report.identity_clients))
        for scenario in sorted(report.digests):
            cells = [f"`{report.identity_cell(scenario, c)}`" for c in report.identity_clients]
            lines.append(f"| {scenario} | " + " | ".join(cells) + " |")
    named = sum(1 for _, tests in report.coverage if tests)
    lines += [
        "",
        "## Requirements",
        "",
        f"{named} of {len(report.coverage)} named by a passed test.",
    ]
    lines += [
        f"- {known.id} ({known.side}, {known.level}): {report.elsewhere.get(known.id, 'nowhere')}"
        for known, tests in report.coverage
        if not tests
    ]
    return "\n".join(lines) + "\n"
