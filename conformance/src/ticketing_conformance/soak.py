"""`python -m ticketing_conformance.soak`: what takes long, at full length; CI runs a part of each.

Every run of the list is named; `--only NAME` runs one or several of them. The last lines say what
became of each.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from ticketing_conformance.adapters import ROOT_DIR
from ticketing_conformance.mixed import CLUSTER_SUITE
from ticketing_conformance.script import load_cases
from ticketing_conformance.tests_of import CASES_DIR

HARNESS = (sys.executable, "-m", "ticketing_conformance")
SIMULATOR_SECONDS = 1500
"""What the simulator runs for; CI's seeds take more than a tenth of it."""


@dataclass(frozen=True)
class LongRun:
    """One run: what it shows, and the command for it."""

    name: str
    about: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


def long_runs() -> list[LongRun]:
    """The cases of real clusters that have more to do in a soak, and the simulator for as long."""
    found = []
    for path in sorted((CASES_DIR / CLUSTER_SUITE).glob("*.case")):
        for case in load_cases(path):
            if case.counts:
                report = ROOT_DIR / "conformance" / "report" / "soak" / case.name
                command = (*HARNESS, "--soak", f"--report={report}", f"--case={case.id}")
                found.append(LongRun(case.name, case.about, command))
    simulator = (sys.executable, "-m", "ticketing_sim", f"--seconds={SIMULATOR_SECONDS}")
    about = "The simulator with new seeds for 25 minutes."
    environment = {"PYTHONPATH": str(ROOT_DIR / "server" / "sim")}
    found.append(LongRun("simulation", about, simulator, environment))
    return found


def main() -> int:
    """Run those that were asked for; 1 if one of them failed."""
    runs = {run.name: run for run in long_runs()}
    parser = argparse.ArgumentParser(prog="ticketing_conformance.soak", description=__doc__)
    parser.add_argument(
        "--only", action="append", metavar="NAME", choices=runs, help=f"of: {', '.join(runs)}"
    )
    wanted = parser.parse_args().only or list(runs)
    said = []
    failed = 0
    for name in wanted:
        run = runs[name]
        print(f"\n=== {name}: {run.about}", flush=True)
        began = time.monotonic()
        environment = {**os.environ, **run.environment}
        code = subprocess.run(run.command, cwd=ROOT_DIR, env=environment, check=False).returncode
        failed += code != 0
        said.append(f"{'ok' if code == 0 else 'FAILED'}  {time.monotonic() - began:6.0f} s  {name}")
    print("\n" + "\n".join(said))
    print(f"{len(wanted) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
