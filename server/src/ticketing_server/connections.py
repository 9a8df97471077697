"""What the engine keeps of each connection beside its session, and how many there may be."""

from __future__ import annotations

from ticketing_server import constants_gen as c
from ticketing_server.engine import Peer
from ticketing_server.queues import Link
from ticketing_server.session import Closing, Face

LANGUAGES = frozenset(("c", "csharp", "go", "java", "javascript", "python", "ruby", "rust"))
CLOSE_REASONS = {
    c.ERROR_BAD_FRAME: "bad_frame",
    c.ERROR_AUTH_FAILED: "auth_failed",
    c.ERROR_BAD_VERSION: "bad_version",
    c.ERROR_HANDSHAKE_TIMEOUT: "handshake_timeout",
    c.ERROR_TOO_MANY_CONNECTIONS: "too_many_connections",
    c.ERROR_TAKEN_OVER: "taken_over",
    c.ERROR_SLOW_READER: "slow_reader",
    c.ERROR_IDLE_TIMEOUT: "idle_timeout",
    c.ERROR_NOT_SERVING: "drained",
}
"""Names of error codes that close, as metrics and logs have them."""


class Connection:
    """One connection, from its first byte until its socket is left to the shell to close."""

    __slots__ = (
        "closing",
        "detached",
        "due_ns",
        "face",
        "heard_ns",
        "hello_number",
        "label",
        "last_bytes",
        "link",
        "number",
        "out",
        "paused",
        "peer",
        "refusal",
        "secret",
        "serves",
        "timer",
        "told",
    )

    def __init__(self, number: int, peer: Peer, face: Face, now_ns: int) -> None:
        self.number = number
        self.peer = peer
        self.face = face
        self.link: Link | None = None
        """Its link in the lock table, once it is welcomed."""
        self.hello_number = 0
        self.label = ""
        self.secret = ""
        self.heard_ns = now_ns
        self.paused = False
        self.refusal: Closing | None = None
        """Why it will be closed when its time is due; it is not listened to meanwhile."""
        self.closing: str = ""
        """Why it is closed at the end of this turn, if it is."""
        self.last_bytes = b""
        self.out: list[bytes] = []
        """What a node answers without its log; memory mode has all in the link's."""
        self.serves = False
        """A node's: whether its requests go into the log, as it was welcomed by who leads."""
        self.detached = False
        """A node's: whether everything it asked for before its end was applied."""
        self.told: int | None = None
        """A node's: slot of the leader that its client was told of last."""
        self.due_ns = 0
        self.timer: dict[int, Connection] | None = None

    @property
    def language(self) -> str:
        """The language that its label names, as metrics count it."""
        named = self.label.rpartition(";")[2].partition("/")[0]
        return named if named in LANGUAGES else "other"

    @property
    def kind(self) -> tuple[int, str, str]:
        """Protocol, transport and language."""
        return self.peer.protocol, self.peer.transport, self.language


def due_ns(connection: Connection) -> int:
    """Return when the connection's timer is due."""
    return connection.due_ns
