"""A Python parser made from `dist/ticketing.ksy`, where Node and the Kaitai compiler are.

The parser shares no code with this package's codec, which is why the harness decodes captured
streams with it. It imports `kaitaistruct`.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

from ticketing_spec.model import SPEC_DIR

KSY = SPEC_DIR / "dist" / "ticketing.ksy"
TOOLS = SPEC_DIR / "tools"
COMPILE = TOOLS / "compile_ksy.js"
COMPILE_TIMEOUT_S = 120


class ToolMissing(Exception):
    """A program or package that the compiler needs is not there; the text says how to get it."""


def missing_tool() -> str | None:
    """Why a parser can't be made here, or None if it can."""
    if shutil.which("node") is None:
        return "node is not installed"
    if not (TOOLS / "node_modules" / "kaitai-struct-compiler").is_dir():
        return (
            "kaitai-struct-compiler is missing: npm install --no-package-lock --prefix spec/tools"
        )
    if importlib.util.find_spec("kaitaistruct") is None:
        return "the Python package kaitaistruct is missing: pip install './spec[kaitai]'"
    return None


def compile_parser(directory: Path) -> ModuleType:
    """Compile ticketing.ksy into `directory` and import it; raises ToolMissing.

    The module's class `Ticketing` parses the whole stream of one peer; `Ticketing.ClientFrame` and
    `Ticketing.ServerFrame` parse one frame.
    """
    reason = missing_tool()
    if reason is not None:
        raise ToolMissing(reason)
    done = subprocess.run(
        ["node", str(COMPILE), str(KSY), "python"],
        capture_output=True,
        text=True,
        timeout=COMPILE_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise ValueError(f"ticketing.ksy does not compile: {done.stderr.strip()}")
    path = directory / "ticketing_kaitai.py"
    path.write_text(json.loads(done.stdout)["ticketing.py"])
    module_spec = importlib.util.spec_from_file_location("ticketing_kaitai", path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    return module
