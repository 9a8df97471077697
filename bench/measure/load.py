"""Runs the load generator and reads its JSON."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from measure.servers import GENERATOR_CPU, SERVER_CPU, BenchError, Running

FOLDER = Path(__file__).resolve().parents[1] / "loadgen"
RUN_SECONDS_MAX = 300


def build() -> None:
    """Compile the generator if its sources are newer than it."""
    try:
        done = subprocess.run(
            ["make", "--silent", "-C", str(FOLDER)], capture_output=True, text=True, check=False
        )
    except FileNotFoundError as error:
        raise BenchError(
            "the load generator is in C and there is no make: apt-get install gcc make"
        ) from error
    if done.returncode != 0:
        raise BenchError(f"the load generator does not compile:\n{done.stdout}{done.stderr}")


def ceiling(seconds: float) -> float:
    """Requests/s of the generator against a server that does nothing but answer."""
    mirror = subprocess.Popen([FOLDER / "mirror"], stdout=subprocess.PIPE, text=True)
    try:
        os.sched_setaffinity(mirror.pid, {SERVER_CPU})
        assert mirror.stdout is not None
        port = int(mirror.stdout.readline())
        figures = run(Running("ticketing", port, mirror.pid), seconds=seconds)
        return float(figures["requests_per_s"])
    finally:
        mirror.kill()
        mirror.communicate()


def run(server: Running, **options: str | int | float | bool) -> dict[str, Any]:
    """One verified run against `server`; `options` are the generator's, with underscores."""
    command = [str(FOLDER / "loadgen"), "--json", "--protocol", server.protocol]
    command += ["--port", str(server.port), "--server-pid", str(server.pid)]
    command += ["--cpu", str(GENERATOR_CPU)]
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        command += [flag] if value is True else [flag, str(value)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False
    )
    if done.returncode != 0:
        raise BenchError(f"{' '.join(command)}\nended with {done.returncode}: {done.stderr}")
    figures: dict[str, Any] = json.loads(done.stdout)
    if figures["job"] != "hold" and not figures["requests"]:
        raise BenchError(
            f"not one reply of {server.protocol} within the measured time: this machine is too"
            " busy to measure on, or --seconds is too short"
        )
    return figures
