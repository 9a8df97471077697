"""The pytest plugin: collects cases and vectors, applies expectations, gathers results."""

from __future__ import annotations

import fnmatch
import json
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from ticketing_conformance.adapters import HARNESS_DIR, AdapterPool, load_languages
from ticketing_conformance.expectations import Entry, Judged, judge, load_expectations
from ticketing_conformance.kaitai import KaitaiParser
from ticketing_conformance.results import SERVER_SUITE, Result
from ticketing_conformance.server_pool import ServerPool
from ticketing_conformance.tests_of import Test, Tools, file_tests

PROPERTY = "ticketing"
EXPECTATIONS_DIR = HARNESS_DIR / "expectations"
_STATE = pytest.StashKey["State"]()


class State:
    """What one pytest process keeps."""

    def __init__(self, config: pytest.Config) -> None:
        path = Path(config.getoption("--ticketing-state"))
        told: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        everything = load_languages()
        self.languages = [everything[name] for name in told["languages"]]
        self.patterns: list[str] = told["cases"]
        self.results_path = Path(told["results"])
        parser = KaitaiParser(Path(told["kaitai"])) if told["kaitai"] else None
        self.tools = Tools(AdapterPool(), ServerPool(), parser, soak=told["soak"])
        self.lacks: dict[str, str] = told["lacks"]
        self._entries: dict[str, list[Entry]] = {}

    def entries(self, client: str) -> list[Entry]:
        """The expectations for a client."""
        if client not in self._entries:
            self._entries[client] = load_expectations(EXPECTATIONS_DIR, client)
        return self._entries[client]

    def wants(self, test_id: str) -> bool:
        """Whether --case selects this test."""
        return not self.patterns or any(matches_case(p, test_id) for p in self.patterns)


def matches_case(pattern: str, test_id: str) -> bool:
    """Whether a --case pattern means a test: the whole id, without its parameters, or with *."""
    bare = test_id.partition("[")[0]
    return pattern in (test_id, bare) or ("*" in pattern and fnmatch.fnmatchcase(bare, pattern))


class CaseFailed(Exception):
    """A test failed; the text is all that the console shows."""


class TestItem(pytest.Item):
    """One test under pytest."""

    __test__ = False

    def __init__(self, *, test: Test, state: State, **options: Any) -> None:
        super().__init__(**options)
        self._test = test
        self._state = state

    def runtest(self) -> None:
        """Run it, judge it, and hand its result to the report."""
        test = self._test
        started = time.monotonic()
        missing = sorted(test.missing)
        lacking = [reason for name, reason in self._state.lacks.items() if name in test.machine]
        if lacking:
            result = Result("", "", "", "skipped", reason=f"this machine: {'; '.join(lacking)}")
        elif missing:
            result = Result("", "", "", "skipped", reason=f"the client lacks {', '.join(missing)}")
        else:
            result = test.run(self._state.tools)
        result.seconds = round(time.monotonic() - started, 3)
        result.id, result.suite, result.column = test.id, test.suite, test.column
        result.about, result.requirements = test.about, list(test.requirements)
        entries = self._state.entries(test.client)
        # What a machine lacks is told once, as a missing toolchain is, and needs no expectation.
        judged = Judged(result.outcome, result.reason)
        if not lacking:
            judged = judge(result.outcome, result.reason, test.full_id, entries, missing)
        result.outcome, result.reason = judged.outcome, judged.reason
        self.user_properties.append((PROPERTY, result.to_json()))
        if judged.outcome == "failed":
            raise CaseFailed(
                f"{test.id} with {test.column}: {judged.reason}\n\nagain: {result.again}"
            )
        if judged.outcome == "skipped":
            pytest.skip(judged.reason)

    def repr_failure(
        self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None
    ) -> str | Any:
        """Only the text of a failed case; a trace where the harness itself failed."""
        if isinstance(excinfo.value, CaseFailed):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Where the item comes from, for headings."""
        return self.path, None, f"{self._test.id} {self._test.column}"


class TestFile(pytest.File):
    """A file of cases or vectors."""

    __test__ = False

    def collect(self) -> Iterator[pytest.Item]:
        """The tests of the file that are selected."""
        state = self.config.stash[_STATE]
        for test in file_tests(self.path, state.languages):
            if state.wants(test.id):
                name = f"{test.id.partition('/')[2]}:{test.column}"
                yield TestItem.from_parent(self, name=name, test=test, state=state)


def pytest_addoption(parser: pytest.Parser) -> None:
    """The one option that __main__ hands over."""
    parser.addoption("--ticketing-state", help="written by python -m ticketing_conformance")


def pytest_configure(config: pytest.Config) -> None:
    """Read what __main__ found out; the run is not a plain pytest run without it."""
    if config.getoption("--ticketing-state"):
        config.stash[_STATE] = State(config)
        if not hasattr(config, "workerinput"):
            config.pluginmanager.register(Gatherer(config.stash[_STATE].results_path))


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Files of cases and vectors are tests."""
    if file_path.suffix in (".case", ".vec") and _STATE in parent.config.stash:
        return TestFile.from_parent(parent, path=file_path)
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """End adapters and servers of this process.

    First of all: a worker of pytest-xdist that has reported its end is killed 10 s later, and
    what it had not ended by then would stay.
    """
    if _STATE in session.config.stash:
        tools = session.config.stash[_STATE].tools
        tools.servers.close()
        wrong = tools.adapters.close()
        if wrong:
            raise pytest.UsageError("; ".join(wrong))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Judge plain pytest tests (the server suite) by the same rules."""
    report = yield
    decides = call.when == "call" or (call.when == "setup" and report.outcome != "passed")
    if isinstance(item, TestItem) or not decides or _STATE not in item.config.stash:
        return report
    test_id = f"server/{item.path.stem.removeprefix('test_')}.{item.name}"
    reason = "" if report.passed else report.longreprtext.strip()
    if report.skipped and call.excinfo is not None:
        reason = str(call.excinfo.value)
    judged = judge(report.outcome, reason, test_id, item.config.stash[_STATE].entries(SERVER_SUITE))
    if report.skipped and item.config.getoption("--server", None):
        # Whoever points the suite at a server of theirs has declared that no other is started.
        judged = Judged("skipped", reason)
    requirements = [str(name) for mark in item.iter_markers("requirement") for name in mark.args]
    doc = getattr(getattr(item, "function", None), "__doc__", None) or ""
    result = Result(
        id=test_id,
        suite=SERVER_SUITE,
        column=SERVER_SUITE,
        outcome=judged.outcome,
        about=" ".join(doc.split()),
        reason=judged.reason,
        requirements=requirements,
        seconds=round(call.duration, 3),
    )
    if judged.outcome != report.outcome:
        report.outcome = judged.outcome  # type: ignore[assignment]
        report.longrepr = judged.reason
    report.user_properties.append((PROPERTY, result.to_json()))
    return report


class Gatherer:
    """Collects results in the process that started the workers, and writes them to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._results: list[str] = []
        self._wrong: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the result of a test; a failure outside the test itself counts too."""
        values = [value for name, value in report.user_properties if name == PROPERTY]
        if report.when == "call" or (report.when == "setup" and not report.passed):
            if values:
                self._results.append(str(values[-1]))
            elif report.failed:
                self._wrong.append(f"{report.nodeid}: {_last_line(report.longreprtext)}")
        elif report.when == "teardown" and report.failed:
            self._wrong.append(f"{report.nodeid}: {_last_line(report.longreprtext)}")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that can't be read is a failure."""
        if report.failed:
            self._wrong.append(f"{report.nodeid}: {_last_line(report.longreprtext)}")

    def pytest_sessionfinish(self) -> None:
        """Hand everything over."""
        self._path.write_text(json.dumps({"results": self._results, "wrong": self._wrong}))


def _last_line(text: str) -> str:
    """The gist of a trace that the console has shown whole."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no reason given"
