"""`python -m ticketing_conformance.tasks TASK`: run a task of every client with its own tools.

A nox session of the same name calls this, so that a language needs no line in the noxfile. A
client whose toolchain is not there is left out; the last line names it and says how to get it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
from collections.abc import Iterable

from ticketing_conformance.adapters import ROOT_DIR, TASKS, Language, expand, load_languages


def run_task(language: Language, task: str) -> bool:
    """Run one client's commands until one fails; whether none did."""
    for command in language.tasks.get(task, ()):
        print(f"{language.language}: {' '.join(command)}", flush=True)
        environment = {**os.environ, **language.environment}
        try:
            done = subprocess.run(expand(command), cwd=ROOT_DIR, env=environment, check=False)
        except OSError as error:
            print(f"{language.language}: {command[0]} could not be started: {error}", flush=True)
            return False
        if done.returncode:
            print(f"{language.language}: {command[0]} ended with {done.returncode}", flush=True)
            return False
    return True


def closing_line(task: str, done: Iterable[str], missing: Iterable[str]) -> str:
    """Which languages had their task done, and what is missing for the others."""
    left_out = "; ".join(missing) or "none"
    return f"{task}: done for {', '.join(done) or 'no language'}; not done for: {left_out}"


def main() -> int:
    """Run the task named on the command line; 1 if it failed for a client."""
    parser = argparse.ArgumentParser(prog="ticketing_conformance.tasks", description=__doc__)
    parser.add_argument("task", choices=TASKS)
    task = parser.parse_args().task
    done, missing, failed = [], [], []
    for language in load_languages().values():
        if reason := language.missing_toolchain():
            missing.append(reason)
        elif run_task(language, task):
            done.append(language.language)
        else:
            failed.append(language.language)
    if failed:
        print(f"{task}: failed for {', '.join(failed)}")
    print(closing_line(task, done, missing))
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
