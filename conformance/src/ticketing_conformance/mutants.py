"""The harness proves itself: each seeded bug must make the case fail that is named for it.

`mutants/client.toml` has bugs of the Python client, `mutants/server.toml` of the server, and
`mutants/server_suite.toml` those that a test of the server suite must catch. The named cases are
run once without a bug, where they must pass, and once with each, where they must fail.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ticketing_conformance.adapter import AdapterBroken
from ticketing_conformance.adapters import HARNESS_DIR, AdapterPool, Language, load_languages
from ticketing_conformance.context import SECRET
from ticketing_conformance.mutate import Mutant, check, load_mutants
from ticketing_conformance.real_server import ServerBroken
from ticketing_conformance.seeding import Stale
from ticketing_conformance.server_pool import ServerPool
from ticketing_conformance.server_suite.mutants import failure_with, failure_without
from ticketing_conformance.tests_of import Test, Tools, all_tests, file_tests

MUTANTS_DIR = HARNESS_DIR / "mutants"
SUITE_SIDE = "server_suite"
SIDES = ("client", "server", SUITE_SIDE)
LANGUAGE = "python"
# Cases wait more than they compute, so more of them than there are cores run at once.
THREADS = 8
# A case with a bug may wait in vain. It gets so many times what it took without, and some more.
PATIENCE_FACTOR = 2
PATIENCE_SECONDS = 6.0
_MUTATE = ("-m", "ticketing_conformance.mutate")


@dataclass(frozen=True)
class Seeded:
    """A mutant and where it comes from."""

    side: str
    path: Path
    mutant: Mutant


@dataclass(frozen=True)
class Verdict:
    """What became of one mutant, or of one case without any."""

    id: str
    case: str
    requirement: str
    fault: str
    """Empty if it is as it has to be."""
    reason: str
    """Why the case failed."""
    seconds: float


def all_mutants() -> list[Seeded]:
    """Every mutant of every list."""
    return [
        Seeded(side, path, mutant)
        for side in SIDES
        if (path := MUTANTS_DIR / f"{side}.toml").exists()
        for mutant in load_mutants(path)
    ]


def choose(mutants: Sequence[Seeded], share: tuple[int, int]) -> list[Seeded]:
    """The k-th of n shares, each spread evenly over the lists; (1, 1) is all."""
    number, shares = share
    return list(mutants[number - 1 :: shares])


def _mutated(language: Language, seeded: Seeded) -> Language:
    interpreter, *program = language.command
    command = (interpreter, *_MUTATE, str(seeded.path), seeded.mutant.id, *program)
    return replace(language, command=command)


def _server_program(seeded: Seeded) -> list[str]:
    mutate = [str(seeded.path), seeded.mutant.id, "-m", "ticketing_server"]
    return [sys.executable, *_MUTATE, *mutate]


class Proof:
    """One run over mutants."""

    def __init__(self, language: Language, mutants: Sequence[Seeded]) -> None:
        self._language = language
        self._mutants = mutants
        suites = sorted({seeded.mutant.case.partition("/")[0] for seeded in mutants})
        tests = all_tests([language], suites) if suites else []
        self._tests = {(test.id, test.api): test for test in tests}
        self._print = threading.Lock()
        self._mine = threading.local()
        self._all_tools: list[Tools] = []
        self._took: dict[tuple[str, str], float] = {}

    def run(self) -> list[Verdict]:
        """Verdicts on the cases without a bug, then on each mutant."""
        wanted = {(one.mutant.case, one.mutant.api) for one in self._mutants}
        known = sorted(name for name in wanted if name in self._tests)
        verdicts = self._suite_without()
        try:
            with ThreadPoolExecutor(THREADS) as threads:
                verdicts += threads.map(self._without, known)
                verdicts += threads.map(self._with, self._mutants)
                return verdicts
        finally:
            for tools in self._all_tools:
                tools.servers.close()
                tools.adapters.close()

    def _tools(self) -> Tools:
        """The calling thread's clients and servers without a bug, which go from case to case."""
        if not hasattr(self._mine, "tools"):
            self._mine.tools = Tools(AdapterPool(), ServerPool())
            self._all_tools.append(self._mine.tools)
        tools: Tools = self._mine.tools
        return tools

    def _suite_without(self) -> list[Verdict]:
        """One verdict on all named tests of the server suite, which are a pytest run."""
        cases = [one.mutant.case for one in self._mutants if one.side == SUITE_SIDE]
        if not cases:
            return []
        started = time.monotonic()
        reason = failure_without(cases)
        fault = f"the server suite fails without any bug: {reason}" if reason else ""
        return [Verdict("(none) server", "server", "", fault, reason, _since(started))]

    def _without(self, name: tuple[str, str]) -> Verdict:
        test = self._tests[name]
        tools = self._tools()
        tools.adapters.get(self._language)
        started = time.monotonic()
        reason = _outcome(test, self._language, tools)
        took = self._took[name] = _since(started)
        fault = f"{test.id} fails without any bug: {reason}" if reason else ""
        return Verdict(f"(none) {test.id}", test.id, "", fault, reason, took)

    def _with(self, seeded: Seeded) -> Verdict:
        mutant = seeded.mutant
        started = time.monotonic()
        reason = ""
        try:
            check(mutant)
            test = self._tests.get((mutant.case, mutant.api))
            if seeded.side == SUITE_SIDE:
                reason = failure_with(seeded.path, mutant)
                fault = "" if reason else f"{mutant.case} passes: {mutant.about}"
            elif test is None:
                fault = f"there is no case {mutant.case} under {mutant.api}"
            elif mutant.req not in test.requirements and test.requirements:
                fault = f"{mutant.case} does not name {mutant.req}"
            else:
                reason = self._seed(seeded, test)
                fault = "" if reason else f"{mutant.case} passes: {mutant.about}"
        except (Stale, AdapterBroken, ServerBroken, RuntimeError) as error:
            fault = f"{error}"
        with self._print:
            print(
                f"{'FAULT ' if fault else 'caught'} {mutant.id}: {fault or mutant.case}", flush=True
            )
        return Verdict(mutant.id, mutant.case, mutant.req, fault, reason, _since(started))

    def _seed(self, seeded: Seeded, test: Test) -> str:
        """Why the test fails. Raises where client or server do not even start with the bug."""
        took = self._took.get((test.id, test.api), 0.0)
        tools = replace(self._tools(), case_seconds=PATIENCE_FACTOR * took + PATIENCE_SECONDS)
        if seeded.side == "client":
            language = _mutated(self._language, seeded)
            tools.adapters = AdapterPool()
            try:
                tools.adapters.get(language)
                return _outcome(test, language, tools)
            finally:
                tools.adapters.close()
        tools.servers = ServerPool(_server_program(seeded))
        try:
            environment = {"TICKETING_SECRET": SECRET.decode("ascii")}
            tools.servers.give_back(tools.servers.take([], environment, "127.0.0.1:0"))
            return _outcome(test, self._language, tools)
        finally:
            tools.servers.close()


def _outcome(test: Test, language: Language, tools: Tools) -> str:
    """Why the test fails with this client; "" if it passes."""
    again = file_tests(test.path, [language])
    meant = next(one for one in again if (one.id, one.api) == (test.id, test.api))
    result = meant.run(tools)
    return "" if result.outcome == "passed" else result.reason or "failed"


def _since(started: float) -> float:
    return round(time.monotonic() - started, 2)


def prove(share: tuple[int, int], only: Iterable[str], report: Path) -> int:
    """Run a share of the mutants, or those named, and print what became of them.

    Returns the exit code.
    """
    names = set(only)
    mutants = [one for one in all_mutants() if not names or one.mutant.id in names]
    unknown = names - {one.mutant.id for one in mutants}
    if unknown or not mutants:
        print(f"there is no mutant {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    started = time.monotonic()
    verdicts = Proof(load_languages()[LANGUAGE], choose(mutants, share)).run()
    report.mkdir(parents=True, exist_ok=True)
    told = json.dumps([asdict(verdict) for verdict in verdicts], indent=1)
    (report / "mutants.json").write_text(told + "\n", encoding="utf-8")
    tried = [verdict for verdict in verdicts if verdict.requirement]
    caught = [verdict for verdict in tried if not verdict.fault]
    faults = [verdict for verdict in verdicts if verdict.fault]
    requirements = {verdict.requirement for verdict in caught}
    for verdict in faults:
        print(f"FAULT   {verdict.id}: {verdict.fault}")
    print(
        f"{len(tried)} mutants, {len(caught)} caught, {len(faults)} faults;"
        f" {len(requirements)} requirements proved; {_since(started):.0f} s",
        flush=True,
    )
    return 1 if faults else 0
