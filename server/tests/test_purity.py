"""What is pure stays pure: time, bytes and entropy are arguments, and nothing does I/O."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import ticketing_server

SOURCE = Path(ticketing_server.__file__).parent
PURE = (
    "auth",
    *sorted(f"cluster.{path.stem}" for path in (SOURCE / "cluster").glob("*.py")),
    "connection_engine",
    "connections",
    "constants_gen",
    "constants_v3_gen",
    "deadlines",
    "engine",
    "inspection",
    "limits",
    "no_leader",
    "lock_table",
    "queues",
    "peers.frames",
    "peers.handshake",
    *sorted(f"raft.{path.stem}" for path in (SOURCE / "raft").glob("*.py")),
    "session",
    "session_v3",
    "standalone",
    "table_image",
    "storage.directory",
    "storage.identity",
    "storage.records",
    "storage.store",
    "storage.wal",
    "table_state",
    "wire",
)
IMPURE = {
    "asyncio", "datetime", "logging", "os", "pathlib", "random", "secrets", "select", "selectors",
    "signal", "socket", "ssl", "subprocess", "sys", "threading", "time", "uuid", "uvloop",
}  # fmt: skip


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import"
            module = node.module or ""
            found.add(module)
            found.update(f"{module}.{alias.name}" for alias in node.names)
    return found


@pytest.mark.parametrize("module", PURE)
def test_pure_modules_import_only_what_is_pure(module: str) -> None:
    for name in imports(SOURCE / f"{module.replace('.', '/')}.py"):
        top, _, rest = name.partition(".")
        assert top not in IMPURE, f"{module} imports {name}"
        if top == "ticketing_server" and rest:
            is_pure = f"{rest}.".startswith(tuple(f"{pure}." for pure in PURE))
            assert is_pure or f"{rest}.__init__" in PURE, (
                f"{module} imports {name}, which is not pure"
            )


def test_engine_runs_without_a_clock_or_socket_in_reach() -> None:
    """Importing the engine loads neither the event loop nor sockets."""
    program = (
        "import sys, ticketing_server.standalone, ticketing_server.session_v3;"
        "import ticketing_server.cluster.node;"
        "print([m for m in ('asyncio', 'socket', 'ssl', 'random', 'uvloop') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
