"""Golden transcripts: what each stream of a scenario has to be, made by the spec's codec alone.

A scenario is a case of the suite `identity`. Its `peer` steps name every field of every frame, so
its streams follow from the script, before any client runs.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ticketing_spec.codec import Malformed, client_nonce, encode, mac

from ticketing_conformance.adapters import HARNESS_DIR
from ticketing_conformance.context import Arguments, Context, StepFailed
from ticketing_conformance.expressions import BadExpression, value_of
from ticketing_conformance.peer_verbs import Conversation, PeerVerbs
from ticketing_conformance.script import Case, ScriptError, Step, expand_values
from ticketing_conformance.scripted_server import ScriptedConnection
from ticketing_conformance.streams import Connection, Fields, the_spec

GOLDEN_DIR = HARNESS_DIR / "golden"
SECONDS = 3600.0


@dataclass(frozen=True)
class Transcript:
    """The streams of a scenario's connections, in the order in which they are accepted."""

    scenario: str
    up: tuple[bytes, ...]
    down: tuple[bytes, ...]

    @property
    def digest(self) -> str:
        """SHA-256 over what the client sends: each connection's length (8 bytes) and bytes."""
        return digest_of(self.up)

    def text(self) -> str:
        """The form in which it is kept in `golden/`."""
        lines = [f"scenario: {self.scenario}", f"sha256: {self.digest}"]
        for number, (up, down) in enumerate(zip(self.up, self.down, strict=True), 1):
            lines += [f"connection: {number}", f"up: {up.hex()}", f"down: {down.hex()}"]
        return "\n".join(lines) + "\n"


def digest_of(streams: tuple[bytes, ...]) -> str:
    """The digest of the client's streams, connection by connection."""
    total = hashlib.sha256()
    for stream in streams:
        total.update(len(stream).to_bytes(8, "big") + stream)
    return total.hexdigest()


class _PaperConnection(Connection):
    """A connection that only is written down."""

    def send(self, data: bytes, cuts: object = (), gap_seconds: float = 0.0) -> None:
        """Write down what the server sends; segments do not matter."""
        self.down.append(data)

    def hold(self) -> None:
        """Segments do not matter."""

    flush = reset = eof = close = hold


class _PaperPeer(PeerVerbs):
    """The verbs of a scripted server, on paper: what is expected is written down as sent."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.connections: list[_PaperConnection] = []
        self.openings: dict[str, Fields] = {}
        self._hellos: dict[str, int] = {}
        self._accepted: dict[str, int] = {}

    def _do_listen(self, arguments: Arguments) -> dict[str, Any]:
        name = arguments.text("as", "p")
        self._secrets[name] = arguments.data("secret", self._secrets.get(name, _SECRET))
        arguments.rest()
        return {}

    def _do_accept(self, arguments: Arguments) -> dict[str, Any]:
        server = arguments.word(1, "the name of a scripted server")
        number = self._accepted[server] = self._accepted.get(server, 0) + 1
        paper = _PaperConnection(number)
        self.connections.append(paper)
        secret = self._secrets[server]
        conversation = Conversation(_as_scripted(paper), secret)
        self._conversations[arguments.text("as", "k")] = conversation
        arguments.rest()
        return {}

    def _ignore(self, arguments: Arguments) -> None:
        arguments.rest()

    _do_refuse = _do_listen_again = _do_flush = _ignore
    _do_expect_nothing = _ignore

    def _do_expect_end(self, arguments: Arguments) -> dict[str, Any]:
        arguments.rest()
        return {}

    def expect_frame(
        self, conversation: Conversation, name: str, wanted: Fields, seconds: float
    ) -> Fields:
        """Write down the frame that the script expects."""
        fields = {key: value for key, value in wanted.items() if key not in ("of", "mac_right")}
        if name == "hello":
            fields = self._hello(conversation, str(wanted.get("of", "c")), fields)
        data = encode(the_spec(), "client", name, fields)
        conversation.connection.up.append(data)
        conversation.last = fields
        return fields

    def _hello(self, conversation: Conversation, client: str, fields: Fields) -> Fields:
        opening = self.openings[client]
        number = self._hellos[client] = self._hellos.get(client, 0) + 1
        seed = opening["seed"]
        assert isinstance(seed, bytes)
        hello: Fields = {
            "version": 4,
            "client_id": opening["client_id"],
            "connection": number,
            "client_nonce": client_nonce(the_spec(), seed, number),
            "label": opening["label"],
            **fields,
        }
        hello["mac"] = mac(the_spec(), conversation.secret, conversation.greeting, hello)
        conversation.hello = hello
        return hello


def _as_scripted(paper: _PaperConnection) -> ScriptedConnection:
    return paper  # type: ignore[return-value]


_SECRET = b"conformance-secret"


def make_transcript(case: Case) -> Transcript:
    """The golden transcript of a scenario. Raises ScriptError where the script leaves it open."""
    context = Context(Path("/nonexistent"), SECONDS + 1e12)
    context.variables.update({name: value_of(value, {}) for name, value in case.parameters})
    peer = _PaperPeer(context)
    _walk(case, case.steps, context, peer)
    return Transcript(
        case.id.partition("/")[2],
        tuple(paper.up.whole() for paper in peer.connections),
        tuple(paper.down.whole() for paper in peer.connections),
    )


def _walk(case: Case, steps: tuple[Step, ...], context: Context, peer: _PaperPeer) -> None:
    for step in steps:
        try:
            if step.verb == "repeat":
                values = [str(value_of(word, context.variables)) for word in step.words[2:]]
                for value in expand_values(values):
                    context.variables[step.words[1]] = value_of(value, {})
                    _walk(case, step.block, context, peer)
            elif step.verb == "peer":
                values_of = {f.name: value_of(f.value, context.variables) for f in step.fields}
                peer.do(Arguments("peer", list(step.words[1:]), values_of))
            elif step.verb == "open":
                _remember_opening(step, context, peer)
        except (Malformed, KeyError, TypeError, StepFailed, BadExpression) as error:
            raise ScriptError(
                f"{case.path}:{step.line}: the golden transcript is left open here: {error}"
            ) from None


def _remember_opening(step: Step, context: Context, peer: _PaperPeer) -> None:
    identity = ("client_id", "seed", "label", "as")
    values = {
        item.name: value_of(item.value, context.variables)
        for item in step.fields
        if item.name in identity
    }
    name = str(values.pop("as", "c"))
    if set(values) != {"client_id", "seed", "label"}:
        raise StepFailed("an identity scenario opens with client_id, seed and label")
    label = values["label"]
    values["label"] = label.encode("ascii") if isinstance(label, str) else label
    peer.openings[name] = values


def golden_path(case: Case) -> Path:
    """Where the transcript of a scenario is kept."""
    name = re.sub(r"[^A-Za-z0-9=,.-]", "_", case.id.partition("/")[2].replace("[", ".").rstrip("]"))
    return GOLDEN_DIR / f"{name}.txt"


def stale_transcripts(cases: list[Case]) -> dict[Path, str | None]:
    """What has to be written (None: removed) so that the kept transcripts are those of now."""
    wanted = {golden_path(case): make_transcript(case).text() for case in cases}
    changes: dict[Path, str | None] = {
        path: text
        for path, text in wanted.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    }
    kept = set(GOLDEN_DIR.glob("*.txt")) if GOLDEN_DIR.is_dir() else set()
    changes.update(dict.fromkeys(kept - set(wanted)))
    return changes


def read_transcript(case: Case) -> Transcript:
    """The kept transcript of a scenario."""
    path = golden_path(case)
    up: list[bytes] = []
    down: list[bytes] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(": ")
        if name in ("up", "up:"):
            up.append(bytes.fromhex(value))
        elif name in ("down", "down:"):
            down.append(bytes.fromhex(value))
    return Transcript(path.stem, tuple(up), tuple(down))
