"""Runs one case: every line a step, every step an answer, every answer compared."""

from __future__ import annotations

import itertools
import random
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ticketing_spec.codec import Malformed

from ticketing_conformance.adapter import Adapter, AdapterBroken, Answer
from ticketing_conformance.adapters import AdapterPool, Language
from ticketing_conformance.certificates import certificates
from ticketing_conformance.cluster_verbs import ClusterVerbs
from ticketing_conformance.context import SECRET, Arguments, Capture, Context, StepFailed
from ticketing_conformance.expressions import (
    COMPARISONS,
    BadExpression,
    fill,
    mismatch,
    value_of,
)
from ticketing_conformance.load_verbs import LoadVerbs
from ticketing_conformance.peer_verbs import PeerVerbs
from ticketing_conformance.proxy_verbs import ProxyVerbs
from ticketing_conformance.real_server import ServerBroken
from ticketing_conformance.script import Case, Step, expand_values
from ticketing_conformance.server_pool import ServerPool
from ticketing_conformance.server_verbs import ServerVerbs
from ticketing_conformance.streams import cut, read_piece
from ticketing_conformance.values import BadLine, Value
from ticketing_conformance.wire_verbs import WireVerbs

# Texts of the adapter protocol travel as bytes; scripts may write them as words.
TEXT_FIELDS = {
    "url",
    "label",
    "name",
    "tls_ca",
    "tls_cert",
    "tls_key",
    "tls_server_name",
    "file",
    "key_prefix",
}
# The names that ADAPTER.md gives to what a step leaves unnamed.
DEFAULT_NAMES = {"open": "c", "acquire": "t", "adopt": "t"}
NAMING_FIELDS = ("into", "as", "ticket", "client")
AWAIT_MS = 30_000
TRANSCRIPT_LINES_MAX = 5_000


@dataclass
class Outcome:
    """What became of a case: no failure is a pass."""

    failure: str = ""
    transcript: list[str] = field(default_factory=list)
    captures: list[Capture] = field(default_factory=list)
    adapter_log: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What the case tells of itself, whether or not it passed."""


class Run:
    """One run of one case with one client and one API."""

    def __init__(
        self,
        case: Case,
        language: Language,
        api: str,
        adapters: AdapterPool,
        servers: ServerPool,
        directory: Path,
        others: Mapping[str, tuple[Language, str]] | None = None,
    ) -> None:
        self._case = case
        self._api = api
        self._language = language
        self._pool = adapters
        self._others = others or {}
        self._used: dict[str, Adapter] = {}
        self._environment: dict[str, str] = {}
        self._started: dict[str, int] = {}
        self._stopwatches: dict[str, int] = {}
        self._random = random.Random(case.id)
        self.outcome = Outcome()
        self._context = Context(directory, time.monotonic() + case.seconds)
        self._context.variables.update(
            {name: value_of(value, {}) for name, value in case.parameters}
        )
        self._context.variables.update({name: value_of(v, {}) for name, v, _ in case.counts})
        if self._others:
            self._context.variables["members"] = len(self._others)
        self._proxies = ProxyVerbs(self._context)
        self._clusters = clusters = ClusterVerbs(self._context, servers)
        self._families: dict[str, Any] = {
            "cluster": clusters,
            "load": LoadVerbs(self._context, clusters, self._members),
            "peer": PeerVerbs(self._context),
            "proxy": self._proxies,
            "server": ServerVerbs(self._context, servers),
            "wire": WireVerbs(self._context),
        }

    @property
    def context(self) -> Context:
        """What the steps share."""
        return self._context

    def replace_family(self, name: str, verbs: Any) -> None:
        """Let other verbs answer the steps of a family (the identity suite's second pass)."""
        self._families[name] = verbs

    def run(self) -> Outcome:
        """Run all steps and the checks that follow every case."""
        try:
            self._steps(self._case.steps)
            self._finish()
        except (StepFailed, BadExpression, AdapterBroken, ServerBroken, BadLine) as error:
            self.outcome.failure = f"{self._case.path.name}:{error}"
        finally:
            self.outcome.captures = self._context.captures()
            self._clean_up()
        return self.outcome

    def _steps(self, steps: tuple[Step, ...]) -> None:
        for step in steps:
            try:
                if step.verb == "repeat":
                    self._repeat(step)
                else:
                    self._step(step)
            except (StepFailed, BadExpression, AdapterBroken, ServerBroken, BadLine) as error:
                if isinstance(error, StepFailed) and error.args[0].startswith(_LINE):
                    raise
                raise StepFailed(f"{_LINE}{step.line}: {step.text}\n  {error}") from None

    def _repeat(self, step: Step) -> None:
        if len(step.words) < 3:
            raise StepFailed("repeat takes: repeat NAME VALUE… or a..b")
        values = [str(value_of(word, self._context.variables)) for word in step.words[2:]]
        for value in expand_values(values):
            self._context.variables[step.words[1]] = value_of(value, {})
            self._steps(step.block)

    def _members(self) -> dict[str, tuple[Adapter, str]]:
        """The adapters and APIs of all members, by who they are."""
        found = {}
        for seat, (language, api) in self._others.items():
            found[f"{seat}-{language.name}-{api}"] = (self.adapter(seat), api)
        return found

    def _step(self, step: Step) -> None:
        if time.monotonic() > self._context.deadline:
            raise StepFailed(f"the case takes longer than {self._case.seconds:g} s")
        variables = self._context.variables
        if step.verb in ("check", "set", "sleep", "note"):
            self._inner(step)
            self._say(step, None)
            return
        values = {item.name: value_of(item.value, variables) for item in step.fields}
        if step.verb in DEFAULT_NAMES:
            values.setdefault("as", DEFAULT_NAMES[step.verb])
        words = _words(step.words[1:], variables)
        started = time.monotonic_ns()
        if values.get("detach") == 1:
            self._started[str(values.get("as"))] = started
        answer = self._answer(step, fill(step.adapter, variables), words, values)
        ended = time.monotonic_ns()
        self._say(step, answer)
        self._remember(values, answer)
        begun = (
            self._started.get(str(values.get("as")), started) if step.verb == "await" else started
        )
        times = {
            "took_ms": _milliseconds(started, ended),
            "elapsed_ms": _milliseconds(begun, ended),
        }
        self._compare(step, Answer(answer.status, {**answer.fields, **times}))

    def _answer(self, step: Step, adapter: str, words: list[str], values: dict[str, Any]) -> Answer:
        family = self._families.get(step.verb)
        if family is not None:
            fields = {name: value for name, value in values.items() if name != "into"}
            return Answer("ok", family.do(Arguments(step.verb, words, fields)))
        if step.verb in ("certs", "file", "env", "adapter", "stopwatch"):
            fields = getattr(self, f"_do_{step.verb}")(Arguments(step.verb, words, values)) or {}
            return Answer("ok", fields)
        if words:
            raise StepFailed(f"{step.verb} takes fields, not the word {words[0]}")
        return self._ask(adapter, step.verb, values)

    def _ask(self, name: str, verb: str, values: dict[str, Any]) -> Answer:
        fields = {key: value for key, value in values.items() if key != "into"}
        if verb == "open":
            fields = self._open_fields(name, fields)
        for key, value in fields.items():
            if key in TEXT_FIELDS and isinstance(value, str):
                fields[key] = value.encode("utf-8")
        patience = fields.get("timeout_ms", AWAIT_MS)
        seconds = self._context.seconds_left(self._case.seconds)
        if verb in ("await", "wait_lost"):
            # The adapter has to be the first to give up, or the answer would be lost.
            fields["timeout_ms"] = max(1, min(int(patience), int(seconds * 1000) - 1000))
        return self.adapter(name).ask(verb, fields, seconds + 2)

    def _open_fields(self, name: str, fields: dict[str, Any]) -> dict[str, Any]:
        api = self._others[name][1] if name in self._others else self._api
        defaults: dict[str, Value] = {"api": api, "secret": SECRET}
        if "url" in self._context.variables:
            defaults["url"] = self._context.variables["url"]
        merged = {**defaults, **fields}
        return {key: value for key, value in merged.items() if value != "none"}

    def adapter(self, name: str = "") -> Adapter:
        """The adapter that steps with @name go to; "" is that of the client under test."""
        if name not in self._used:
            language = self._others[name][0] if name in self._others else self._language
            if self._environment:
                adapter, _ = language.start(self._environment)
                self._context.closers.append(adapter.kill)
            else:
                adapter = self._pool.get(language, name)
            self._used[name] = adapter
        return self._used[name]

    def _remember(self, values: Mapping[str, Any], answer: Answer) -> None:
        for naming in NAMING_FIELDS:
            if naming in values and answer.fields:
                name = str(values[naming])
                known = self._context.variables.get(name)
                merged = {**known, **answer.fields} if isinstance(known, dict) else answer.fields
                self._context.variables[name] = dict(merged)
                return

    def _compare(self, step: Step, answer: Answer) -> None:
        reasons = []
        for expected in step.expected:
            if expected.status not in (answer.status, "any"):
                reasons.append(f"expected {expected.status}")
                continue
            wrong = [
                reason
                for item in expected.fields
                if (reason := mismatch(item, answer.fields, self._context.variables))
            ]
            if not wrong:
                if answer.status == "fail":
                    break
                return
            reasons.append(", ".join(wrong))
        raise StepFailed(f"got {answer.text()}: {'; or '.join(reasons)}")

    def _say(self, step: Step, answer: Answer | None) -> None:
        if len(self.outcome.transcript) < TRANSCRIPT_LINES_MAX:
            came = f"   => {answer.text()}" if answer else ""
            self.outcome.transcript.append(f"{step.line:4} {step.text}{came}")

    # Verbs of the harness itself.

    def _inner(self, step: Step) -> None:
        variables = self._context.variables
        words = list(step.words[1:])
        if step.verb == "sleep":
            milliseconds = value_of(words[0], variables) if words else 0
            low, _, high = str(milliseconds).partition("..")
            drawn = self._random.uniform(int(low), int(high or low))
            time.sleep(min(drawn / 1000, self._context.seconds_left(3600)))
        elif step.verb == "note":
            texts = [value_of(word, variables) for word in words]
            self.outcome.notes.append(" ".join(_as_text(text) for text in texts))
        elif step.verb == "set":
            if len(words) != 3 or words[1] != "=":
                raise StepFailed("set takes: set NAME = VALUE")
            variables[words[0]] = value_of(words[2], variables)
        else:
            if len(words) != 3 or words[1] not in COMPARISONS:
                raise StepFailed("check takes: check VALUE == VALUE, or != < <= > >=")
            left, right = value_of(words[0], variables), value_of(words[2], variables)
            if not COMPARISONS[words[1]](left, right):
                raise StepFailed(f"{left!r} {words[1]} {right!r} is not so")

    def _do_certs(self, arguments: Arguments) -> dict[str, Any]:
        """`certs as=certs`: paths of authorities and certificates, made once."""
        values = {name: str(path) for name, path in certificates().items()}
        self._context.variables[arguments.text("as", "certs")] = values
        return values

    def _do_file(self, arguments: Arguments) -> dict[str, Any]:
        """`file new as=f`, `file folder as=d`, `file number {f.path}`, `file rising {f.path}`."""
        word = arguments.word(0, "what to do")
        if word in ("new", "folder"):
            name = arguments.text("as", "f")
            path = self._context.directory / name
            if word == "new":
                path.write_bytes(b"")
            values = {"path": str(path)}
            self._context.variables[name] = values
            return values
        path = Path(arguments.word(1, "a path"))
        if word == "number":
            return {"value": int(path.read_text() or "0")}
        if word != "rising":
            raise StepFailed(f"file has no verb {word}")
        tokens = [int(line) for line in Path(f"{path}.tokens").read_text().split()]
        for earlier, later in itertools.pairwise(tokens):
            if later <= earlier:
                raise StepFailed(f"token {later} follows {earlier} in {path.name}.tokens")
        return {"count": len(tokens)}

    def _do_env(self, arguments: Arguments) -> None:
        """`env NAME value`: for an adapter of its own, started at the next verb that needs one."""
        if self._used:
            raise StepFailed("env has to stand before the first verb of an adapter")
        self._environment[arguments.word(0, "a name")] = arguments.word(1, "a value")

    def _do_stopwatch(self, arguments: Arguments) -> dict[str, Any]:
        """`stopwatch as=w` starts one, `stopwatch of=w -> ok ms=…` reads it."""
        now = time.monotonic_ns()
        if arguments.has("of"):
            name = arguments.text("of")
            if name not in self._stopwatches:
                raise StepFailed(f"there is no stopwatch {name}")
            return {"ms": _milliseconds(self._stopwatches[name], now)}
        self._stopwatches[arguments.text("as", "w")] = now
        return {}

    def _do_adapter(self, arguments: Arguments) -> None:
        """`adapter kill name`: end another adapter's process at once, as a crash would."""
        if arguments.word(0, "what to do") != "kill":
            raise StepFailed("adapter has the verb kill")
        name = arguments.words[1] if len(arguments.words) > 1 else ""
        self.adapter(name).kill()
        del self._used[name]

    # What follows every case.

    def _finish(self) -> None:
        """No client leaks, and every byte that a client sent is legal."""
        for name, adapter in self._used.items():
            if "no_leak_check" in self._case.flags or not adapter.alive:
                continue
            for verb in ("reset", "leak_check"):
                answer = adapter.ask(verb)
                left = {key: value for key, value in answer.fields.items() if value != 0}
                if answer.status != "ok" or left:
                    raise StepFailed(f"@{name} {verb} at the end: {answer.text()}")
        if "dirty" not in self._case.flags:
            check_captures(self._context.captures())

    def _clean_up(self) -> None:
        if self.outcome.failure:
            self.outcome.adapter_log += self._clusters.log_lines()
            for name, adapter in self._used.items():
                self.outcome.adapter_log += [f"@{name} {line}" for line in adapter.log]
                with suppress(AdapterBroken):
                    if adapter.alive and adapter.ask("reset", seconds=10).status != "ok":
                        adapter.kill()
        try:
            self._context.close()
        except (OSError, ServerBroken, AdapterBroken) as error:
            self.outcome.failure = self.outcome.failure or f"closing failed: {error}"


_LINE = "line "


def _words(words: tuple[str, ...], variables: Mapping[str, Any]) -> list[str]:
    """The words of a step; a list stands for as many words as it has items."""
    found: list[str] = []
    for word in words:
        value = value_of(word, variables)
        for item in value if isinstance(value, list) else [value]:
            found.append(_as_text(item))
    return found


def _as_text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _milliseconds(start_ns: int, end_ns: int) -> int:
    return (end_ns - start_ns) // 1_000_000


def check_captures(captures: list[Capture]) -> None:
    """Raise StepFailed if a client sent what no correct client sends."""
    for capture in captures:
        if not capture.framed:
            continue
        pieces, rest = cut("client", capture.connection.up.whole())
        where = f"connection {capture.connection.number} of {capture.name}"
        for number, piece in enumerate(pieces):
            try:
                name, _ = read_piece("client", number, piece)
            except Malformed as error:
                raise StepFailed(f"{where}: the client sent {piece.hex()}: {error}") from None
            if (name == "hello") != (number == 0):
                raise StepFailed(f"{where}: frame {number + 1} of the client is {name}")
        if rest and capture.connection.up.ended == "eof":
            raise StepFailed(f"{where}: the client's stream ends with half a frame: {rest.hex()}")


def run_case(
    case: Case,
    language: Language,
    api: str,
    adapters: AdapterPool,
    servers: ServerPool,
    others: Mapping[str, tuple[Language, str]] | None = None,
) -> Outcome:
    """Run a case in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="ticketing-case-") as directory:
        return Run(case, language, api, adapters, servers, Path(directory), others).run()
