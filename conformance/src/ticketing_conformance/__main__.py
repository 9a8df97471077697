"""`python -m ticketing_conformance`: find the toolchains, build, run pytest, write the report."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from ticketing_spec.kaitai import ToolMissing

from ticketing_conformance.adapter import AdapterBroken, Hello
from ticketing_conformance.adapters import (
    HARNESS_DIR,
    BadEntry,
    Language,
    load_languages,
)
from ticketing_conformance.cluster.machine import lacks
from ticketing_conformance.expectations import BadExpectation, load_expectations, stale
from ticketing_conformance.golden import stale_transcripts
from ticketing_conformance.identity import SUITE as IDENTITY
from ticketing_conformance.kaitai import KaitaiBroken, compile_parser
from ticketing_conformance.mixed import CLUSTER_SUITE
from ticketing_conformance.mutants import prove
from ticketing_conformance.plugin import EXPECTATIONS_DIR, matches_case
from ticketing_conformance.report import Report, digests_of, identity_faults, write_report
from ticketing_conformance.requirements import (
    BadRequirementLine,
    coverage_faults,
    load_elsewhere,
    spec_requirements,
)
from ticketing_conformance.results import SERVER_SUITE, Result
from ticketing_conformance.script import ScriptError, load_cases
from ticketing_conformance.tests_of import CASES_DIR, all_tests, suite_paths
from ticketing_conformance.wireshark import WiresharkMissing, captured_of, disagreements

SERVER_SUITE_DIR = Path(__file__).parent / "server_suite"
REPORT_DIR = HARNESS_DIR / "report"
# Cases wait more than they compute.
WORKERS_PER_CORE = 3
WORKERS_MAX = 8
CLUSTER_WORKERS = 2
USAGE_EXIT = 2


@dataclass
class Found:
    """Which clients can be tested, and why others can't."""

    languages: list[Language] = field(default_factory=list)
    hellos: dict[str, Hello] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)


def share_of(text: str) -> tuple[int, int]:
    """`1/10` as (1, 10)."""
    number, slash, shares = text.partition("/")
    if not (
        slash and number.isdecimal() and shares.isdecimal() and 1 <= int(number) <= int(shares)
    ):
        raise argparse.ArgumentTypeError(f"takes K/N with K from 1 to N, as 1/10, not {text}")
    return int(number), int(shares)


def parse_arguments(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Options of the harness; what it does not know goes to pytest."""
    suites = [*suite_paths(), SERVER_SUITE]
    parser = argparse.ArgumentParser(
        prog="python -m ticketing_conformance",
        description="Drive every client against the reference server. Other options go to pytest.",
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="LANGUAGE", help="test only this client"
    )
    parser.add_argument(
        "--suite", action="append", default=[], metavar="SUITE", help=f"one of {', '.join(suites)}"
    )
    parser.add_argument(
        "--case",
        action="append",
        default=[],
        metavar="ID",
        help="run this case: its id, with or without [parameters], or a pattern with *",
    )
    parser.add_argument(
        "--require-all", action="store_true", help="a missing toolchain is a failure"
    )
    parser.add_argument(
        "--server",
        metavar="HOST:PORT",
        help="point the server suite at this server; only that suite runs then",
    )
    parser.add_argument(
        "--report", type=Path, default=REPORT_DIR, metavar="FOLDER", help="where the report goes"
    )
    parser.add_argument(
        "--mutants",
        action="store_true",
        help="instead of all this, show that seeded bugs are caught",
    )
    parser.add_argument(
        "--soak", action="store_true", help="run cases with the counts that a soak gives them"
    )
    parser.add_argument(
        "--share",
        type=share_of,
        default=(1, 1),
        metavar="K/N",
        help="with --mutants: only the K-th of N shares, each spread over all lists",
    )
    parser.add_argument(
        "--mutant", action="append", default=[], metavar="ID", help="only this seeded bug"
    )
    options, rest = parser.parse_known_args(arguments)
    if options.server and not options.suite:
        options.suite = [SERVER_SUITE]
    for suite in options.suite:
        if suite not in suites:
            parser.error(f"--suite takes one of {', '.join(suites)}, not {suite}")
    if options.share != (1, 1) and not options.mutants:
        parser.error("--share goes with --mutants")
    if options.server and options.suite != [SERVER_SUITE]:
        parser.error("--server goes with the server suite alone: the others start their servers")
    for name in options.only:
        if name not in load_languages():
            parser.error(f"--only takes one of {', '.join(load_languages())}, not {name}")
    return options, rest


def find_clients(only: list[str]) -> Found:
    """Probe toolchains, build adapters, and shake hands with each once."""
    found = Found()
    for name, language in load_languages().items():
        if only and name not in only:
            continue
        if reason := language.missing_toolchain():
            found.missing[name] = reason
            print(f"MISSING TOOLCHAIN: {reason}", flush=True)
            continue
        if language.build:
            print(f"building {name} …", flush=True)
        if reason := language.build_adapter():
            found.broken[name] = f"the build failed: {reason}"
            continue
        try:
            adapter, hello = language.start()
            adapter.stop()
        except AdapterBroken as error:
            found.broken[name] = str(error)
            continue
        found.languages.append(language)
        found.hellos[name] = hello
        print(f"{name}: client {hello.client}, runtime {hello.runtime}", flush=True)
    return found


def find_kaitai(folder: Path, faults: list[str]) -> tuple[str, str]:
    """The path of the compiled parser, or why there is none (it does not compile: a fault)."""
    try:
        return str(compile_parser(folder)), ""
    except ToolMissing as error:
        return "", str(error)
    except KaitaiBroken as error:
        faults.append(str(error))
        return "", str(error)


def ask_wireshark(results: list[Result], folder: Path, faults: list[str]) -> str:
    """Let Wireshark read what identity tests captured; returns what to say of it."""
    streams = captured_of(results)
    for result in results:
        result.captured = []
    if not streams:
        return "no streams were captured"
    try:
        found = disagreements(streams, folder)
    except WiresharkMissing as error:
        return f"captured streams were not checked: {error}"
    faults += found
    return f"{len(streams)} captured connections dissected, {len(found)} disagreements"


def refresh_golden() -> list[str]:
    """Write golden transcripts that are stale; with CI set that is an error instead."""
    folder = CASES_DIR / IDENTITY
    cases = [case for path in sorted(folder.glob("*.case")) for case in load_cases(path)]
    wrong = []
    for path, text in stale_transcripts(cases).items():
        if os.environ.get("CI"):
            wrong.append(f"{path.name} is stale: run the identity suite at home and commit it")
        elif text is None:
            path.unlink()
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(HARNESS_DIR)}", flush=True)
    return wrong


def default_suites() -> list[str]:
    """All but the suite `cluster`, which measures and so wants the machine for itself."""
    return [suite for suite in suite_paths() if suite != CLUSTER_SUITE] + [SERVER_SUITE]


def chosen_suites(options: argparse.Namespace) -> list[str]:
    """The suites that the options name, also by their cases; none: all."""
    if options.suite or not options.case:
        return list(options.suite)
    named = {case.partition("/")[0] for case in options.case}
    return [] if "*" in "".join(named) else sorted(named)


def pytest_arguments(options: argparse.Namespace, rest: list[str], state: Path) -> list[str]:
    """The command line for pytest."""
    chosen = chosen_suites(options) or default_suites()
    paths = [str(path) for suite in chosen for path in suite_paths().get(suite, [])]
    arguments = [
        f"--rootdir={HARNESS_DIR}",
        "--config-file",
        str(HARNESS_DIR / "pyproject.toml"),
        "-p",
        "ticketing_conformance.plugin",
        "-p",
        "no:cacheprovider",
        f"--ticketing-state={state}",
        "-qq",
        "--no-header",
        "--tb=short",
        "--show-capture=no",
        "-rN",
        "--disable-warnings",
    ]
    if not any(word.startswith(("-n", "--numprocesses")) for word in rest) and not options.case:
        workers = min(WORKERS_PER_CORE * (os.cpu_count() or 1), WORKERS_MAX)
        if chosen == [CLUSTER_SUITE]:
            # One of its cases takes half as long as all others together.
            workers = CLUSTER_WORKERS
            arguments.append("--dist=worksteal")
        arguments.append(f"-n{workers}")
    if SERVER_SUITE in chosen:
        paths.append(str(SERVER_SUITE_DIR))
        if options.server:
            arguments.append(f"--server={options.server}")
    return [*arguments, *rest, *paths]


def expectation_faults(languages: list[Language], suites: list[str]) -> list[str]:
    """Stale lines and files for clients that do not exist.

    A run of some suites looks only at the lines that name one of them, and needs no others.
    """
    faults: list[str] = []
    known = load_languages()
    for path in sorted(EXPECTATIONS_DIR.glob("*.txt")):
        if path.stem not in known and path.stem != SERVER_SUITE:
            faults.append(f"{path.name}: adapters.toml has no client {path.stem}")
    for language in languages:
        entries = load_expectations(EXPECTATIONS_DIR, language.name)
        if suites:
            entries = [e for e in entries if e.pattern.partition("/")[0] in suites]
        catalogue = [(test.full_id, test.missing) for test in all_tests([language], suites)]
        faults += stale(entries, catalogue)
    return faults


def stale_server_lines(results: list[Result]) -> list[str]:
    """Lines for the server suite that matched no test of a whole run of it."""
    ran = [(result.id, ()) for result in results if result.suite == SERVER_SUITE]
    return stale(load_expectations(EXPECTATIONS_DIR, SERVER_SUITE), ran) if ran else []


def unknown_cases(languages: list[Language], patterns: list[str], suites: list[str]) -> list[str]:
    """The --case patterns that mean no test."""
    if not patterns:
        return []
    ids = [test.id for test in all_tests(languages, suites)]
    return [
        pattern
        for pattern in patterns
        if not pattern.startswith(f"{SERVER_SUITE}/")
        and not any(matches_case(pattern, test_id) for test_id in ids)
    ]


def main(arguments: list[str]) -> int:
    """Run it all; returns the exit code: 0 only if nothing failed and something passed."""
    options, rest = parse_arguments(arguments)
    if options.mutants or options.mutant:
        return prove(options.share, options.mutant, options.report)
    suites = chosen_suites(options)
    try:
        faults = refresh_golden() if not suites or IDENTITY in suites else []
        found = Found() if suites == [SERVER_SUITE] else find_clients(options.only)
        faults += expectation_faults(found.languages, suites)
        if unknown := unknown_cases(found.languages, options.case, suites):
            print(f"no case is called {', '.join(unknown)}", file=sys.stderr)
            return USAGE_EXIT
        load_elsewhere()
    except (BadEntry, ScriptError, BadExpectation, BadRequirementLine) as error:
        print(error, file=sys.stderr)
        return USAGE_EXIT
    faults += [f"{name}: {reason}" for name, reason in found.broken.items()]
    lacking = lacks() if CLUSTER_SUITE in suites else {}
    found.missing |= {name: f"this machine: {reason}" for name, reason in lacking.items()}
    if options.require_all:
        faults += [f"missing toolchain: {reason}" for reason in found.missing.values()]
    with tempfile.TemporaryDirectory(prefix="ticketing-conformance-") as folder:
        state, results_path = Path(folder) / "state.json", Path(folder) / "results.json"
        parser, kaitai = find_kaitai(Path(folder), faults)
        state.write_text(
            json.dumps(
                {
                    "languages": [language.name for language in found.languages],
                    "cases": options.case,
                    "results": str(results_path),
                    "kaitai": parser,
                    "soak": options.soak,
                    "lacks": lacking,
                }
            )
        )
        code = pytest.main(pytest_arguments(options, rest, state))
        told = json.loads(results_path.read_text()) if results_path.exists() else {}
        results = [Result.from_json(text) for text in told.get("results", [])]
        wireshark = ask_wireshark(results, Path(folder), faults)
    faults += told.get("wrong", [])
    faults += identity_faults(digests_of(results))
    if not rest and not options.case and not options.server:
        faults += stale_server_lines(results)
    if not rest and not options.case and not suites and not options.only:
        named = {name for result in results for name in result.requirements}
        shown_there = all_tests(found.languages, [CLUSTER_SUITE])
        named |= {name for test in shown_there for name in test.requirements}
        faults += coverage_faults(spec_requirements(), named, load_elsewhere())
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        faults.append(f"pytest ended with {pytest.ExitCode(code).name}")
    report = Report(
        results=results,
        faults=faults,
        missing={} if options.require_all else found.missing,
        hellos=found.hellos,
        kaitai=kaitai,
        wireshark=wireshark,
    )
    write_report(report, options.report)
    print(report.console(), flush=True)
    return 0 if report.green else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
