"""Which tests there are: every case with every client and API, and what each needs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path

from ticketing_spec.model import SPEC_DIR

from ticketing_conformance import identity, mixed, vectors
from ticketing_conformance.adapters import HARNESS_DIR, AdapterPool, Language
from ticketing_conformance.kaitai import KaitaiParser, second_opinion
from ticketing_conformance.requirements import spec_requirements
from ticketing_conformance.results import Result, stream_texts
from ticketing_conformance.runner import run_case
from ticketing_conformance.script import Case, ScriptError, load_cases
from ticketing_conformance.server_pool import ServerPool

CASES_DIR = HARNESS_DIR / "cases"
VECTORS_DIR = SPEC_DIR / "vectors"


@dataclass
class Tools:
    """What tests of one process share."""

    adapters: AdapterPool
    servers: ServerPool
    kaitai: KaitaiParser | None = None
    case_seconds: float | None = None
    """A shorter bound than the cases' own."""
    soak: bool = False
    """Run cases with the counts and the time that a soak gives them."""


@dataclass(frozen=True)
class Test:
    """One test: a case, or a file of vectors, with one client and one API, or with all of them."""

    __test__ = False

    id: str
    suite: str
    about: str
    requirements: tuple[str, ...]
    path: Path
    client: str
    """The name of its entry in adapters.toml."""
    api: str
    missing: frozenset[str]
    """Features that it needs and the client lacks."""
    run: Callable[[Tools], Result]
    machine: frozenset[str] = field(default=frozenset(), kw_only=True)
    """Its result, without expectations: passed or failed."""

    @property
    def column(self) -> str:
        """The client and API, as the report's columns name them."""
        return f"{self.client}-{self.api}" if self.api else self.client

    @property
    def full_id(self) -> str:
        """What patterns of expectations are matched against."""
        return f"{self.id}:{self.api}" if self.api else self.id


def _run_script(
    case: Case,
    language: Language,
    api: str,
    tools: Tools,
    others: Mapping[str, tuple[Language, str]] | None = None,
) -> Result:
    if tools.soak:
        case = case.at_length()
    if tools.case_seconds is not None:
        case = replace(case, seconds=min(case.seconds, tools.case_seconds))
    outcome = run_case(case, language, api, tools.adapters, tools.servers, others)
    streams = second_opinion(tools.kaitai, outcome)
    result = Result("", "", "", "failed" if outcome.failure else "passed", reason=outcome.failure)
    if outcome.failure:
        result.transcript = outcome.transcript
        result.streams = stream_texts(outcome.captures)
        result.log = outcome.adapter_log
    result.kaitai_streams = streams
    result.notes = outcome.notes
    return result


def _case_tests(case: Case, language: Language, api: str) -> Iterator[Test]:
    base = Test(
        id=case.id,
        suite=case.suite,
        about=case.about,
        requirements=case.requirements,
        path=case.path,
        client=language.name,
        api=api,
        missing=language.can(case.needs, api),
        run=partial(_run_script, case, language, api),
        machine=case.machine,
    )
    if case.suite != identity.SUITE:
        yield base
        return
    yield replace(base, run=partial(identity.run_scripted, case, language, api))
    if identity.REAL_FLAG in case.flags:
        real = partial(identity.run_real, case, language, api)
        yield replace(base, id=f"{case.id}+real", run=real)


def file_tests(path: Path, languages: list[Language]) -> list[Test]:
    """All tests of one file of cases or vectors. Raises ScriptError, VectorError."""
    found: list[Test] = []
    if path.suffix == ".vec":
        for check in vectors.load_checks(path):
            found += [
                Test(
                    id=check.id,
                    suite=vectors.SUITE,
                    about=check.about,
                    requirements=(),
                    path=path,
                    client=language.name,
                    api="",
                    missing=language.can(check.needs, ""),
                    run=partial(vectors.run_check, check, language),
                )
                for language in languages
            ]
        return found
    for case in load_cases(path):
        if unknown := set(case.requirements) - requirement_ids():
            raise ScriptError(f"{path}:{case.line}: no requirement {', '.join(sorted(unknown))}")
        tests = [
            test
            for language in languages
            for api in language.apis
            if case.apis is None or api in case.apis
            for test in _case_tests(case, language, api)
        ]
        found += _together(case, tests, languages) if case.suite in mixed.SUITES else tests
    return found


def _together(case: Case, tests: list[Test], languages: list[Language]) -> list[Test]:
    """One test with all clients that can take part; those that can't are skipped on their own."""
    by_name = {language.name: language for language in languages}
    able = [(by_name[test.client], test.api) for test in tests if not test.missing]
    unable = [test for test in tests if test.missing]
    if not able:
        return unable
    run = partial(_run_script, case, *able[0], others=mixed.seats(able))
    together = replace(tests[0], client=mixed.COLUMN, api="", missing=frozenset(), run=run)
    return [together, *unable]


@cache
def requirement_ids() -> frozenset[str]:
    """The ids of the requirements of both protocol versions."""
    return frozenset(requirement.id for requirement in spec_requirements())


def suite_paths() -> dict[str, list[Path]]:
    """Folders of cases and vectors by suite."""
    paths = {
        path.name: [path]
        for path in sorted(CASES_DIR.iterdir())
        if path.is_dir() and any(path.glob("*.case"))
    }
    return {vectors.SUITE: [VECTORS_DIR], **paths}


def all_tests(languages: list[Language], suites: Collection[str] = ()) -> list[Test]:
    """The catalogue of these suites (without any: of all), whatever cases are selected."""
    return [
        test
        for suite, folders in suite_paths().items()
        if not suites or suite in suites
        for folder in folders
        for path in sorted([*folder.glob("*.case"), *folder.glob("*.vec")])
        for test in file_tests(path, languages)
    ]
