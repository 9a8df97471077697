"""A second opinion on captured streams: the parser that Kaitai makes of the spec's description.

It shares no code with the spec's codec. Every stream that the codec reads cleanly has to be read by
it too, to the same frames and values. It is used where Node and the runtime are there.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

from ticketing_spec.codec import Malformed
from ticketing_spec.model import SPEC_DIR

from ticketing_conformance.context import Capture
from ticketing_conformance.runner import Outcome
from ticketing_conformance.streams import Fields, cut, read_stream

KSY = SPEC_DIR / "dist" / "ticketing.ksy"
TOOLS_DIR = Path(__file__).resolve().parents[2]
COMPILE_SECONDS = 120.0
MODULE = "ticketing_kaitai"


class KaitaiMissing(Exception):
    """A tool is not there; the text names it and says how to get it."""


class KaitaiBroken(Exception):
    """The description can't be compiled, or its parser disagrees with the codec."""


def compile_parser(folder: Path) -> Path:
    """The description compiled to Python, in `folder` if it was not yet.

    Raises KaitaiMissing, KaitaiBroken.
    """
    node, npm = shutil.which("node"), shutil.which("npm")
    if importlib.util.find_spec("kaitaistruct") is None:
        raise KaitaiMissing("the Python runtime is missing: pip install kaitaistruct")
    if node is None or npm is None:
        raise KaitaiMissing("Node with npm is missing: install nodejs and npm")
    if not (TOOLS_DIR / "node_modules" / "kaitai-struct-compiler").is_dir():
        install = [npm, "install", "--prefix", str(TOOLS_DIR), "--ignore-scripts"]
        done = _run([*install, "--no-audit", "--no-fund", "--no-package-lock"])
        if done.returncode:
            raise KaitaiMissing(f"npm can't install the compiler: {done.stderr.strip()[-300:]}")
    digest = hashlib.sha256(KSY.read_bytes()).hexdigest()[:16]
    made = TOOLS_DIR / "node_modules" / ".cache" / f"ticketing-{digest}.py"
    if not made.exists():
        done = _run([node, str(TOOLS_DIR / "compile_ksy.cjs"), str(KSY), str(folder)])
        if done.returncode:
            raise KaitaiBroken(f"{KSY.name} does not compile: {done.stderr.strip()[-1000:]}")
        made.parent.mkdir(exist_ok=True)
        # Put there in one step, as another run may be doing the same.
        new = made.with_suffix(f".{os.getpid()}")
        shutil.copyfile(folder / "ticketing.py", new)
        new.replace(made)
    return made


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise KaitaiMissing(f"{command[0]} did not end in {COMPILE_SECONDS:g} s") from None


class KaitaiParser:
    """The compiled parser, loaded."""

    def __init__(self, path: Path) -> None:
        # The generated module is called like the client's package, so it gets another name.
        spec = importlib.util.spec_from_file_location(MODULE, path)
        assert spec is not None
        assert spec.loader is not None
        self._module: ModuleType = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self._module)

    def check(self, captures: list[Capture]) -> int:
        """Read every stream that the codec reads. Returns how many; raises KaitaiBroken."""
        count = 0
        for capture in captures:
            for way, direction in (("up", "client"), ("down", "server")):
                pieces, _ = cut(direction, capture.connection.stream(way).whole())
                data = b"".join(pieces)
                if not data or not capture.framed:
                    continue
                try:
                    frames = read_stream(direction, data)
                except Malformed:
                    continue  # A hostile script; what clients send is checked elsewhere.
                where = f"{capture.name}, connection {capture.connection.number}, {way}"
                self.compare(direction, data, frames, where)
                count += 1
        return count

    def compare(
        self, direction: str, data: bytes, frames: list[tuple[str, Fields]], where: str
    ) -> None:
        """Raise KaitaiBroken unless the parser reads these frames."""
        try:
            stream: Any = self._module.Ticketing.from_bytes(data)
            read = self._frames(direction, stream)
        except Exception as error:
            raise KaitaiBroken(f"{where}: Kaitai can't read {data.hex()}: {error}") from None
        if read != frames:
            raise KaitaiBroken(f"{where}: Kaitai reads {read}, the codec {frames}")

    def _frames(self, direction: str, stream: Any) -> list[tuple[str, Fields]]:
        frames: list[tuple[str, Fields]] = []
        half = stream.server if direction == "server" else stream.client
        if direction == "server":
            frames.append(("greeting", _fields(half.greeting)))
        frames += [(frame.op.name, _fields(frame.body)) for frame in half.frames]
        return frames


def _fields(body: Any) -> Fields:
    """The fields of a parsed frame: enums as numbers, the keys of a set as a list."""
    fields: Fields = {}
    for name, value in vars(body).items():
        if name.startswith("_"):
            continue
        if name == "keys":
            fields[name] = [key.key for key in value.keys]
        elif name == "rest":
            continue
        else:
            fields[name] = getattr(value, "value", value)
    return fields


def second_opinion(parser: KaitaiParser | None, outcome: Outcome) -> int:
    """Check the captures of a case, if there is a parser; a disagreement fails the case.

    Returns how many streams were read.
    """
    if parser is None:
        return 0
    try:
        return parser.check(outcome.captures)
    except KaitaiBroken as error:
        outcome.failure = outcome.failure or str(error)
        return 0
