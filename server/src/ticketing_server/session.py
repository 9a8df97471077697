"""One connection without I/O: handshake and framing, bytes in, commands and bytes out.

A session is a face of the lock table: `Session` here speaks version 4, `session_v3` version 3, and
the engine drives both through `Face`. What concerns other connections too (take-over, limits) or
time is the engine's part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from ticketing_server import auth, wire
from ticketing_server import constants_gen as c
from ticketing_server.auth import Secrets
from ticketing_server.wire import BadFrame, Command


class Place(NamedTuple):
    """What a greeting says of the server."""

    mode: int
    slot: int


STANDALONE = Place(c.MODE_STANDALONE, c.SLOT_STANDALONE)


class Authority(NamedTuple):
    """What a handshake is judged by and answered with."""

    secrets: Secrets
    keepalive_s: int
    role: int = c.ROLE_STANDALONE
    fingerprint: bytes = b""
    """That of the cluster; empty where the server is in none, as each version has its own then."""
    leader: bytes = b""
    """Where the leader is, if one is known."""
    leader_slot: int = c.SLOT_STANDALONE


class Welcome(NamedTuple):
    """A handshake that succeeded."""

    client_id: bytes
    number: int
    """The client's own number of this connection; 0 for version 3."""
    label: bytes
    secret: str
    """Name of the secret that matched."""
    frame: bytes
    """What the server answers."""


class Closing(Exception):
    """The connection is to be closed, with this error as its last frame.

    After `delay_ms`; nothing it sends meanwhile counts.
    """

    def __init__(
        self, code: int, text: str, request_id: bytes = wire.NO_REQUEST, delay_ms: int = 0
    ) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.request_id = request_id
        self.delay_ms = delay_ms


class Received(NamedTuple):
    """What a buffer of a welcomed connection held."""

    commands: Sequence[Command]
    closing: Closing | None
    """Why it is to be closed after these commands, if it is."""


class Taken(NamedTuple):
    """What a buffer of a welcomed connection held, with the bytes that its requests came in."""

    frames: bytes
    """Whole frames, all that the commands were read from; pings among them."""
    commands: list[Command]
    closing: Closing | None


class Face(Protocol):
    """One connection's protocol, as the engine drives it."""

    greeting: bytes
    leaves: bool
    """Whether its waiters leave at once when it ends."""
    silent_is_dead: bool
    """Whether three keepalive_s without a byte close it."""

    def handshake(self, data: bytes, authority: Authority) -> Welcome | None:
        """Take bytes before the welcome; None while some are missing. Raises Closing.

        What follows the handshake in `data` is kept for the first `receive`.
        """

    def receive(self, data: bytes, out: list[bytes]) -> list[Command] | Received:
        """Take bytes after the welcome. What the table has no part in is answered into `out`.

        Returns the plain commands, or `Received` where there may be more to say.
        """

    def take(self, data: bytes, out: list[bytes]) -> Taken:
        """Take bytes as `receive` does, and tell which bytes its commands came in.

        Empty where the commands are not what the client's bytes say by themselves (version 3).
        """

    def render(self, out: list[bytes]) -> bytes:
        """Make bytes of the table's reply frames (and of what `receive` put into `out`)."""

    def last_words(self, closing: Closing) -> bytes:
        """Return the bytes that tell the peer why it is closed; empty for a bare close."""

    def refused(self, frame: bytes) -> bytes:
        """Return the bytes for a frame E of the table that closes; empty for a bare close."""

    def farewell(self, leader: bytes = b"") -> bytes:
        """Return the bytes that send a welcomed client away when the server drains."""

    def know_leader(self, slot: int, address: bytes) -> bytes:
        """Take who leads, slot 255 if nobody known does; return the bytes that tell the client."""

    def undecided(self) -> bytes:
        """Return the bytes for what is unanswered when the lead is lost; empty in version 4."""


FaceFactory = Callable[[bytes, Place], Face]
"""Makes the session of one connection from its entropy."""


class Session:
    """Version 4."""

    __slots__ = ("_entropy", "_rest", "greeting")

    leaves = False
    silent_is_dead = True

    def __init__(self, entropy: bytes, place: Place = STANDALONE) -> None:
        nonce, self._entropy = entropy[: auth.NONCE_BYTES], entropy[auth.NONCE_BYTES :]
        self.greeting = auth.greeting(place.mode, place.slot, nonce)
        self._rest = b""

    def handshake(self, data: bytes, authority: Authority) -> Welcome | None:
        """Take bytes of a hello; see `Face.handshake`."""
        data = self._rest + data
        try:
            read = wire.read_hello(data)
        except BadFrame as bad:
            raise Closing(c.ERROR_BAD_FRAME, bad.text) from None
        if read is None:
            self._rest = data
            return None
        if isinstance(read, int):
            raise Closing(c.ERROR_BAD_VERSION, f"version: takes {c.PROTOCOL_VERSION}")
        hello, used = read
        self._rest = data[used:]
        covered = hello.covered()
        matched = authority.secrets.match(
            hello.mac, lambda secret: auth.client_mac(secret, self.greeting, covered)
        )
        if matched is None:
            delay_ms = auth.refusal_delay_ms(self._entropy)
            text = "mac: fits none of the server's secrets"
            raise Closing(c.ERROR_AUTH_FAILED, text, delay_ms=delay_ms)
        name, secret = matched
        frame = self._welcome(secret, hello.client_nonce, authority)
        return Welcome(hello.client_id, hello.number, hello.label, name, frame)

    def _welcome(self, secret: bytes, client_nonce: bytes, authority: Authority) -> bytes:
        fingerprint = authority.fingerprint or auth.FINGERPRINT_STANDALONE
        fields = wire.welcome_fields(authority.role, authority.keepalive_s, fingerprint)
        leader = authority.leader
        proof = auth.proof(secret, self.greeting, client_nonce, fields, leader)
        return wire.welcome(fields, proof, leader)

    def receive(self, data: bytes, out: list[bytes]) -> list[Command] | Received:
        """Take bytes of requests; see `Face.receive`."""
        if self._rest:
            data = self._rest + data
            self._rest = b""
        uniform = wire.split_uniform(data)
        if uniform is not None:
            return uniform
        taken = self._split(data, out)
        return Received(taken.commands, taken.closing) if taken.closing else taken.commands

    def take(self, data: bytes, out: list[bytes]) -> Taken:
        """Take bytes of requests; see `Face.take`."""
        if self._rest:
            data = self._rest + data
            self._rest = b""
        uniform = wire.split_uniform(data)
        return self._split(data, out) if uniform is None else Taken(data, uniform, None)

    def _split(self, data: bytes, out: list[bytes]) -> Taken:
        commands, used, bad = wire.split(data, out)
        if bad is not None:
            closing = Closing(c.ERROR_BAD_FRAME, bad.text, bad.request_id)
            return Taken(data[:used], commands, closing)
        if used != len(data):
            self._rest = data[used:]
            data = data[:used]
        return Taken(data, commands, None)

    def render(self, out: list[bytes]) -> bytes:
        """Join the table's frames, which are this version's."""
        return b"".join(out)

    def last_words(self, closing: Closing) -> bytes:
        """Return the frame E."""
        return wire.error(closing.code, closing.text, closing.request_id)

    def refused(self, frame: bytes) -> bytes:
        """Return the table's frame as it is."""
        return frame

    def farewell(self, leader: bytes = b"") -> bytes:
        """Return the frame L."""
        return wire.leader(leader)

    def know_leader(self, slot: int, address: bytes) -> bytes:
        """Return the frame L; see `Face.know_leader`."""
        return wire.leader(address)

    def undecided(self) -> bytes:
        """Return nothing: the client sends again what was not answered."""
        return b""
