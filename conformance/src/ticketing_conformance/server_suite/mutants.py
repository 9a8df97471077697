"""Shows that the suite can fail: each seeded bug of the server is caught by the test named for it.

`python -m ticketing_conformance.server_suite.mutants [ID…]`; the list is
`conformance/mutants/server_suite.toml`.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ticketing_conformance.adapters import HARNESS_DIR
from ticketing_conformance.mutate import Mutant, StaleMutant, check, load_mutants

LIST = HARNESS_DIR / "mutants" / "server_suite.toml"
SUITE = Path(__file__).parent
# Most of a test's time is spent waiting, so more of them run at once than there are cores.
THREADS = 4
TEST_S = 150
TESTS_FAILED = 1
"""Exit code of a pytest run in which tests failed, and nothing else was wrong."""


def command(mutant: Mutant) -> list[str]:
    """The pytest run that has to fail."""
    module, _, test = mutant.case.removeprefix("server/").partition(".")
    mutated = [sys.executable, "-m", "ticketing_conformance.mutate", str(LIST), mutant.id]
    return [
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=line"),
        *("--server-program", shlex.join([*mutated, "-m", "ticketing_server"])),
        f"{SUITE / f'test_{module}.py'}::{test}",
    ]


def fault_of(mutant: Mutant) -> str:
    """Why a mutant counts as not caught; "" where it was."""
    try:
        check(mutant)
    except StaleMutant as stale:
        return str(stale)
    try:
        run = subprocess.run(command(mutant), capture_output=True, text=True, timeout=TEST_S)
    except subprocess.TimeoutExpired:
        return f"the test did not end within {TEST_S} s"
    if run.returncode == 0:
        return f"{mutant.case} passes although {mutant.about}"
    if run.returncode != TESTS_FAILED or re.search(r"ServerBroken|\berrors?\b in ", run.stdout):
        return f"the run itself failed: {run.stdout[-600:]}{run.stderr[-300:]}"
    return ""


def main(ids: Sequence[str]) -> int:
    """Runs the mutants with these ids, or all; returns the exit code."""
    mutants = load_mutants(LIST)
    unknown = set(ids) - {mutant.id for mutant in mutants}
    if unknown:
        print(f"there is no mutant {', '.join(sorted(unknown))} in {LIST.name}", file=sys.stderr)
        return 2
    chosen = [mutant for mutant in mutants if not ids or mutant.id in ids]
    started = time.monotonic()
    with ThreadPoolExecutor(THREADS) as threads:
        faults = 0
        for mutant, fault in zip(chosen, threads.map(fault_of, chosen), strict=True):
            faults += bool(fault)
            told = f"FAULT   {mutant.id}: {fault}" if fault else f"caught  {mutant.id}"
            print(f"{told} ({mutant.case})", flush=True)
    proved = len({mutant.req for mutant in chosen})
    print(
        f"{len(chosen)} mutants, {len(chosen) - faults} caught, {faults} faults;"
        f" {proved} requirements; {time.monotonic() - started:.0f} s"
    )
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
