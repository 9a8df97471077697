"""Where the figures were measured: machine, kernel, and how the server's Python was built."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from measure.servers import BenchError

SYNCS = 200
BLOCK_BYTES = 4096

_ASK_BUILD = """
import json, platform, sysconfig
names = sysconfig.get_config_vars()
try:
    import uvloop
    loop = "uvloop " + uvloop.__version__
except ImportError:
    loop = "asyncio"
print(json.dumps({
    "version": platform.python_version(),
    "compiler": platform.python_compiler(),
    "arguments": str(names.get("CONFIG_ARGS", "")),
    "loop": loop,
}))
"""


def processor() -> str:
    """The CPU's name as the kernel gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def system() -> str:
    """The distribution's name, if there is one, and the kernel."""
    try:
        name = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        name = platform.system()
    return f"{name}, kernel {platform.release()}"


def kind_of_build(arguments: str) -> str:
    """How an interpreter was optimised, from the arguments it was configured with.

    Debian and Ubuntu build their package with profile-guided optimisation but leave no trace of
    it there; their wheel directory names them.
    """
    if "--enable-optimizations" in arguments:
        return "PGO"
    if "--with-wheel-pkg-dir=/usr/share/python-wheels" in arguments:
        return "PGO (the distribution's package)"
    return "plain (configured without --enable-optimizations)"


def python_build(python: str) -> str:
    """How `python` was built and which loop it has, asked of itself.

    A build without profile-guided optimisation takes 15 to 20 % more CPU for the same work, so
    no figure means anything without this line.
    """
    done = subprocess.run(
        [python, "-c", _ASK_BUILD], capture_output=True, text=True, timeout=30, check=True
    )
    told: dict[str, str] = json.loads(done.stdout)
    kind = kind_of_build(told["arguments"])
    return f"CPython {told['version']}, {kind}, {told['compiler']}, {told['loop']}"


def filesystem(folder: Path) -> str:
    """The type of the filesystem that a folder is on, such as ext4."""
    device = os.stat(folder).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        fields, _, source = line.partition(" - ")
        if fields.split()[2] == wanted:
            return source.split()[0]
    return "unknown"


def check_disk(folder: Path) -> None:
    """Refuse memory that looks like a disk: there nobody waits for a sync."""
    kind = filesystem(folder)
    if kind in ("tmpfs", "ramfs"):
        raise BenchError(f"{folder} is on {kind}, where a sync costs nothing: name another --disk")


def fdatasync_us(folder: Path) -> float:
    """The median time that this disk takes to keep 4 KiB written over what is there already."""
    times = []
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        os.pwrite(file.fileno(), bytes(SYNCS * BLOCK_BYTES), 0)
        os.fsync(file.fileno())
        for number in range(SYNCS):
            start = time.perf_counter()
            os.pwrite(file.fileno(), b"x" * BLOCK_BYTES, number * BLOCK_BYTES)
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def load_average() -> str:
    """Of the last minute."""
    return f"{os.getloadavg()[0]:.1f}"


def describe(python: str, disk: Path) -> dict[str, str]:
    """Everything that a reader needs beside the figures."""
    return {
        "cpu": f"{os.cpu_count()} × {processor()}",
        "system": system(),
        "server_python": python_build(python),
        "disk": f"{filesystem(disk)}, fdatasync of 4 KiB {fdatasync_us(disk):.0f} µs",
        "load_average": load_average(),
    }
