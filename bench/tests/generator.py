"""Runs the load generator for a test."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

RUN_SECONDS_MAX = 300


def run(loadgen: Path, *arguments: str | int) -> subprocess.CompletedProcess[str]:
    """Run it to its end, whatever its exit code."""
    command = [str(loadgen), *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False
    )


def report(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The figures of a run that has to have succeeded, started with --json."""
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures
