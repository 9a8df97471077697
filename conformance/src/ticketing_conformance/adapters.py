"""`adapters.toml`: which languages there are, how their adapters start, what they can do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ticketing_conformance.adapter import Adapter, AdapterBroken, Hello
from ticketing_conformance.streams import the_spec

# The harness runs from a clone: its data lies beside its sources. Another folder of this shape can
# be named, for a client that lives elsewhere, and for the harness's own tests.
_CLONE_DIR = Path(__file__).resolve().parents[2]
HARNESS_DIR = Path(os.environ.get("TICKETING_CONFORMANCE_DIR") or _CLONE_DIR).resolve()
ROOT_DIR = HARNESS_DIR.parent
APIS = ("async", "sync")
BUILD_SECONDS = 900.0
PROBE_SECONDS = 60.0
_FIELDS = {"language", "probe", "build", "command", "features", "hint", "environment", "tasks"}
TASKS = ("tests", "lint", "packages")


class BadEntry(ValueError):
    """An entry of adapters.toml that can't be used; the text names entry and field."""


@dataclass(frozen=True)
class Language:
    """One entry of adapters.toml."""

    name: str
    language: str
    probe: tuple[str, ...]
    build: tuple[tuple[str, ...], ...]
    command: tuple[str, ...]
    features: frozenset[str]
    hint: str
    environment: Mapping[str, str]
    tasks: Mapping[str, tuple[tuple[str, ...], ...]]
    """Commands of the client's own tools, by the nox session that runs them."""

    @property
    def apis(self) -> list[str]:
        """The APIs that the client has."""
        return [api for api in APIS if api in self.features]

    def can(self, needed: frozenset[str], api: str) -> frozenset[str]:
        """Which of the needed features are missing under this API."""
        return frozenset(
            feature
            for feature in needed
            if feature not in self.features and f"{api}:{feature}" not in self.features
        )

    def missing_toolchain(self) -> str:
        """ "" if the probe ran, else what is missing and how to get it."""
        try:
            done = subprocess.run(
                expand(self.probe), capture_output=True, timeout=PROBE_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{self.language}: {' '.join(self.probe)}: {error}. {self.hint}"
        if done.returncode:
            said = (done.stderr or done.stdout).decode("utf-8", "replace").strip()[:200]
            return f"{self.language}: {' '.join(self.probe)} failed: {said}. {self.hint}"
        return ""

    def build_adapter(self) -> str:
        """Run the build commands; "" if all went well, else the end of what they said."""
        for command in self.build:
            try:
                done = subprocess.run(
                    expand(command),
                    cwd=ROOT_DIR,
                    capture_output=True,
                    timeout=BUILD_SECONDS,
                    check=False,
                    env={**os.environ, **self.environment},
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                return f"{' '.join(command)}: {error}"
            if done.returncode:
                said = (done.stdout + done.stderr).decode("utf-8", "replace")
                return f"{' '.join(command)} ended with {done.returncode}:\n{said[-4000:]}"
        return ""

    def start(self, environment: Mapping[str, str] | None = None) -> tuple[Adapter, Hello]:
        """Start the adapter, greet it, and compare its digest and features with what is known.

        Raises AdapterBroken.
        """
        try:
            adapter = Adapter(
                expand(self.command), ROOT_DIR, {**self.environment, **(environment or {})}
            )
        except OSError as error:
            raise AdapterBroken(f"{' '.join(self.command)}: {error}") from None
        hello = adapter.hello()
        digest = the_spec().digest
        if hello.digest != digest:
            adapter.kill()
            raise AdapterBroken(
                f"the {self.name} client was built from spec {hello.digest}, the harness has"
                f" {digest}: generate the constants and build again"
            )
        if hello.features != self.features:
            adapter.kill()
            more = ", ".join(sorted(hello.features - self.features)) or "nothing"
            fewer = ", ".join(sorted(self.features - hello.features)) or "nothing"
            raise AdapterBroken(
                f"the features of the {self.name} adapter are not those of adapters.toml:"
                f" it has {more} more, and lacks {fewer}"
            )
        return adapter, hello


def expand(command: tuple[str, ...]) -> list[str]:
    """A command of adapters.toml as it is started from the root of the clone."""
    words = [_with_interpreter(word) for word in command]
    # A relative program is meant from the root of the clone, whatever the present folder is.
    if "/" in words[0] and not words[0].startswith("/"):
        words[0] = str(ROOT_DIR / words[0])
    return [shutil.which(words[0]) or words[0], *words[1:]]


def _with_interpreter(word: str) -> str:
    return word.replace("{python}", sys.executable)


def _words(name: str, entry: Mapping[str, Any], field: str) -> tuple[str, ...]:
    value = entry.get(field, [])
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise BadEntry(f"{name}.{field} takes a list of words, not {value!r}")
    return tuple(value)


def _commands(place: str, value: object) -> tuple[tuple[str, ...], ...]:
    if not isinstance(value, list) or not all(isinstance(command, list) for command in value):
        raise BadEntry(f"{place} takes a list of commands, each a list of words")
    return tuple(tuple(command) for command in value)


def parse_languages(text: str) -> dict[str, Language]:
    """The entries of adapters.toml by their name, in its order. Raises BadEntry."""
    languages: dict[str, Language] = {}
    for name, entry in tomllib.loads(text).items():
        unknown = set(entry) - _FIELDS
        missing = {"language", "probe", "command", "features", "hint"} - set(entry)
        if unknown or missing:
            raise BadEntry(
                f"{name} has unknown fields {sorted(unknown)} and lacks {sorted(missing)}"
            )
        tasks = entry.get("tasks", {})
        if unknown_tasks := set(tasks) - set(TASKS):
            raise BadEntry(f"{name}.tasks has {sorted(unknown_tasks)}, takes {', '.join(TASKS)}")
        language = Language(
            name=name,
            language=entry["language"],
            probe=_words(name, entry, "probe"),
            build=_commands(f"{name}.build", entry.get("build", [])),
            command=_words(name, entry, "command"),
            features=frozenset(_words(name, entry, "features")),
            hint=entry["hint"],
            environment={
                variable: _with_interpreter(value)
                for variable, value in entry.get("environment", {}).items()
            },
            tasks={
                task: _commands(f"{name}.tasks.{task}", commands)
                for task, commands in tasks.items()
            },
        )
        if not language.apis:
            raise BadEntry(f"{name}.features has neither async nor sync")
        languages[name] = language
    return languages


def load_languages(path: Path = HARNESS_DIR / "adapters.toml") -> dict[str, Language]:
    """The languages of adapters.toml."""
    return parse_languages(path.read_text(encoding="utf-8"))


class AdapterPool:
    """Running adapters of one test process, by language and name; used by one thread."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, str], Adapter] = {}
        self.hellos: dict[str, Hello] = {}

    def get(self, language: Language, name: str = "") -> Adapter:
        """A running adapter; started if there is none, or if it died."""
        adapter = self._running.get((language.name, name))
        if adapter is None or not adapter.alive:
            adapter, self.hellos[language.name] = language.start()
            self._running[(language.name, name)] = adapter
        return adapter

    def close(self) -> list[str]:
        """End all with EOF; returns what went wrong."""
        wrong = []
        while self._running:
            (language, name), adapter = self._running.popitem()
            if not adapter.alive:
                continue
            try:
                code = adapter.stop()
                if code:
                    wrong.append(f"the {language} adapter {name} ended with {code} after EOF")
            except AdapterBroken as error:
                wrong.append(f"{language}: {error}")
        return wrong
