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

from ticketing_spec import kaitai
from ticketing_spec.codec import Malformed

from ticketing_conformance.context import Capture
from ticketing_conformance.runner import Outcome
from ticketing_conformance.streams import Fields, cut, read_stream

INSTALL_SECONDS = 300.0
MODULE = "ticketing_kaitai"


class KaitaiBroken(Exception):
    """The description can't be compiled, or its parser disagrees with the codec."""


def compile_parser(folder: Path) -> Path:
    """The description compiled to Python: made in `folder`, or kept from an earlier run.

    Raises kaitai.ToolMissing, KaitaiBroken.
    """
    digest = hashlib.sha256(kaitai.KSY.read_bytes()).hexdigest()[:16]
    made = kaitai.TOOLS / "node_modules" / ".cache" / f"ticketing-{digest}.py"
    if made.exists():
        return made
    _install_compiler()
    try:
        module = kaitai.compile_parser(folder)
    except ValueError as error:
        raise KaitaiBroken(str(error)) from None
    assert module.__file__ is not None
    made.parent.mkdir(exist_ok=True)
    # Put there in one step, as another run may be doing the same.
    new = made.with_suffix(f".{os.getpid()}")
    shutil.copyfile(module.__file__, new)
    new.replace(made)
    return made


def _install_compiler() -> None:
    """Let npm, where it is, fetch the compiler that is not there yet."""
    npm = shutil.which("npm")
    if npm is None or (kaitai.TOOLS / "node_modules" / "kaitai-struct-compiler").is_dir():
        return
    command = [npm, "install", "--prefix", str(kaitai.TOOLS), "--ignore-scripts"]
    try:
        done = subprocess.run(
            [*command, "--no-audit", "--no-fund", "--no-package-lock"],
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise kaitai.ToolMissing(f"npm did not end in {INSTALL_SECONDS:g} s") from None
    if done.returncode:
        raise kaitai.ToolMissing(f"npm can't install the compiler: {done.stderr.strip()[-300:]}")


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
