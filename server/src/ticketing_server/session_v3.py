"""One connection of a version 3 client without I/O: another face of the same lock table.

What it reads becomes the table's commands, and the table's reply frames, which are those of
version 4, are translated. Each request read is an owner of its own: it gets an id that is never
used twice on the connection, and the client's own id, which may come twice, only labels its reply.
"""

from __future__ import annotations

import hashlib
from hmac import digest
from itertools import pairwise
from struct import Struct

from ticketing_server import auth, lock_table, wire
from ticketing_server import constants_gen as c
from ticketing_server import constants_v3_gen as v3
from ticketing_server.session import STANDALONE, Authority, Closing, Place, Received, Taken, Welcome
from ticketing_server.wire import Command

FINGERPRINT_STANDALONE = hashlib.sha256(v3.FINGERPRINT_CONTEXT_STANDALONE).digest()
"""What those who configure version 3 clients of a standalone server have to enter there."""

HEADER_BYTES = 3
_HEADER = Struct(">BH")
_AFTER_MAGIC = Struct(">3ss16s")
_ID = Struct(">Q")
_ACQUIRE_HEAD = Struct(">8sBB")
_RELEASE_HEAD = Struct(">8s8s")
_WAIT_AND_LEASE_MS = Struct(">II")
_MS_PER_S = 1000
_NO_ID = bytes(8)
_CLIENT_ID_BYTES = 8
_FORBIDDEN = (0x20, 0x0A, 0x0D)
_SET_OPS = (v3.OP_ACQUIRE_SET, v3.OP_RELEASE_SET)
_ACQUIRE_OPS = (v3.OP_ACQUIRE, v3.OP_ACQUIRE_SET)
_DROPPED_OP = c.REPLY_DROPPED
_OTHER_KEYS_OP = wire.OTHER_KEYS[0]
_GRANTS = (v3.REPLY_GRANTED, v3.REPLY_GRANTED_SET)
_TOKEN_BYTES = 8
_SET_REPLIES = {
    c.REPLY_GRANTED: v3.REPLY_GRANTED_SET,
    c.REPLY_RELEASED: v3.REPLY_RELEASED_SET,
}


class _Broken(Exception):
    """Bytes that no correct client sends: the connection just closes."""


class _Refused(Exception):
    """A request that is answered with an error; the connection goes on."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def client_mac(secret: bytes, greeting: bytes, fingerprint: bytes) -> bytes:
    """Return the right answer to a greeting."""
    version_and_mode, slot, nonce = _AFTER_MAGIC.unpack_from(greeting, len(v3.GREETING_MAGIC))
    message = v3.MAC_CONTEXT_CLIENT + version_and_mode + fingerprint + slot + nonce
    return digest(secret, message, "sha256")


class SessionV3:
    """Version 3; see `session.Face` for how the engine drives it."""

    __slots__ = (
        "_accepted",
        "_drains",
        "_entropy",
        "_leader_slot",
        "_next_id",
        "_rest",
        "_unanswered",
        "greeting",
    )

    leaves = True
    silent_is_dead = False

    def __init__(self, entropy: bytes, place: Place = STANDALONE) -> None:
        nonce, self._entropy = entropy[: auth.NONCE_BYTES], entropy[auth.NONCE_BYTES :]
        head = v3.PROTOCOL_VERSION.to_bytes(2, "big") + bytes((place.mode, place.slot))
        self.greeting = v3.GREETING_MAGIC + head + nonce
        self._leader_slot = v3.SLOT_STANDALONE
        self._rest = b""
        self._accepted = b""
        self._next_id = 1
        self._unanswered: dict[bytes, tuple[bytes, bool]] = {}
        """By our id: the client's id, and whether the request named a set."""
        self._drains = False

    # Handshake

    def handshake(self, data: bytes, authority: Authority) -> Welcome | None:
        """Take bytes of the answer; see `Face.handshake`."""
        data = self._rest + data
        if len(data) < v3.ANSWER_BYTES:
            self._rest = data
            return None
        answer, self._rest = data[: v3.ANSWER_BYTES], data[v3.ANSWER_BYTES :]
        fingerprint = authority.fingerprint or FINGERPRINT_STANDALONE
        matched = authority.secrets.match(
            answer, lambda secret: client_mac(secret, self.greeting, fingerprint)
        )
        drawn, spread = self._entropy[:_CLIENT_ID_BYTES], self._entropy[_CLIENT_ID_BYTES:]
        if matched is None:
            text = "answer: fits none of the server's secrets"
            delay_ms = auth.refusal_delay_ms(spread)
            raise Closing(c.ERROR_AUTH_FAILED, text, delay_ms=delay_ms)
        self._accepted = bytes((v3.VERDICT_ACCEPTED,))
        self._leader_slot = authority.leader_slot
        return Welcome(drawn, 0, b"", matched[0], self._accepted)

    # Requests

    def receive(self, data: bytes, out: list[bytes]) -> Received:
        """Take bytes of requests; see `Face.receive`."""
        data = self._rest + data
        commands: list[Command] = []
        at = 0
        try:
            while len(data) - at >= HEADER_BYTES:
                op, length = _HEADER.unpack_from(data, at)
                _check_header(op, length)
                end = at + HEADER_BYTES + length
                if end > len(data):
                    break
                self._take(op, data[at + HEADER_BYTES : end], commands, out)
                at = end
        except _Broken as broken:
            self._rest = b""
            return Received(commands, Closing(c.ERROR_BAD_FRAME, str(broken)))
        self._rest = data[at:]
        return Received(commands, None)

    def take(self, data: bytes, out: list[bytes]) -> Taken:
        """Take bytes of requests; see `Face.take`."""
        received = self.receive(data, out)
        return Taken(b"", list(received.commands), received.closing)

    def _take(self, op: int, body: bytes, commands: list[Command], out: list[bytes]) -> None:
        """Make one request a command, or answer it where it is refused."""
        request_id = body[: len(_NO_ID)]
        if request_id == _NO_ID:
            raise _Broken("request_id: got 0, takes 1 and up")
        own_id = _ID.pack(self._next_id)
        self._next_id += 1
        self._unanswered[own_id] = (request_id, op in _SET_OPS)
        keys = _split_keys(body[_head_bytes(op) :]) if op in _SET_OPS else None
        try:
            if op in _ACQUIRE_OPS:
                commands.append(_acquire(own_id, body, keys))
            else:
                commands.append(_release(own_id, body, keys))
        except _Refused as refused:
            out.append(wire.error(refused.code, "", own_id))

    # Replies

    def render(self, out: list[bytes]) -> bytes:
        """Translate the table's frames, and after `farewell` answer what they left unanswered."""
        data = b"".join(out)
        # The verdict is no frame: it goes first, and as it is.
        replies = [self._accepted]
        at = len(self._accepted)
        self._accepted = b""
        while at < len(data):
            op, length = _HEADER.unpack_from(data, at)
            body = data[at + HEADER_BYTES : at + HEADER_BYTES + length]
            at += HEADER_BYTES + length
            if op != _DROPPED_OP:
                replies.append(self._translate(op, body))
        if self._drains:
            replies += [
                _error(request_id, v3.ERROR_NOT_ACTIVE)
                for request_id, _ in self._unanswered.values()
            ]
            self._unanswered.clear()
        return b"".join(replies)

    def _translate(self, op: int, body: bytes) -> bytes:
        own_id, rest = body[: len(_NO_ID)], body[len(_NO_ID) :]
        request_id, is_set = self._unanswered.pop(own_id)
        if op == c.REPLY_ERROR and rest[0] == c.ERROR_NOT_SERVING:
            slot = bytes((self._leader_slot,))
            return _HEADER.pack(v3.REPLY_MOVED, len(request_id) + 1) + request_id + slot
        if op == c.REPLY_ERROR:
            # Ours carry this version's code. The table's only one is that a lease is over
            # max_lease: lease_too_long there and bad_lease here are the same number.
            return _error(request_id, rest[0])
        if op == _OTHER_KEYS_OP:
            return _error(request_id, v3.ERROR_GROUP_MISMATCH)
        if is_set:
            op = _SET_REPLIES.get(op, op)
        token = rest[:_TOKEN_BYTES] if op in _GRANTS else b""
        return _HEADER.pack(op, len(request_id) + len(token)) + request_id + token

    def last_words(self, closing: Closing) -> bytes:
        """Return the verdict where an answer is rejected; any other close is bare."""
        if closing.code == c.ERROR_AUTH_FAILED:
            return bytes((v3.VERDICT_REJECTED,))
        return b""

    def refused(self, frame: bytes) -> bytes:
        """Return nothing: the connection just closes."""
        return b""

    def farewell(self, leader: bytes = b"") -> bytes:
        """Nothing yet: what this turn leaves unanswered is refused by the next `render`."""
        self._drains = True
        return b""

    def know_leader(self, slot: int, address: bytes) -> bytes:
        """Return the frame L; requests that this node refuses are sent on to the same slot."""
        self._leader_slot = slot
        return _HEADER.pack(v3.REPLY_LEADER, 1) + bytes((slot,))

    def undecided(self) -> bytes:
        """Answer everything that is unanswered with I."""
        head = _HEADER.pack(v3.REPLY_INDETERMINATE, len(_NO_ID))
        answers = [head + request_id for request_id, _ in self._unanswered.values()]
        self._unanswered.clear()
        return b"".join(answers)


def _check_header(op: int, length: int) -> None:
    bounds = v3.CLIENT_BODY_BYTES.get(op)
    if bounds is None:
        raise _Broken(f"op: got 0x{op:02x}, takes A, S, R or G")
    if not bounds[0] <= length <= bounds[1]:
        raise _Broken(f"length: got {length}, takes {bounds[0]} to {bounds[1]}")


def _head_bytes(op: int) -> int:
    return _ACQUIRE_HEAD.size if op in _ACQUIRE_OPS else _RELEASE_HEAD.size


def _acquire(own_id: bytes, body: bytes, keys: list[bytes] | None) -> Command:
    _, wait_s, lease_s = _ACQUIRE_HEAD.unpack_from(body)
    if not v3.LEASE_S_MIN <= lease_s <= v3.LEASE_S_MAX:
        raise _Refused(v3.ERROR_BAD_LEASE)
    word = _WAIT_AND_LEASE_MS.pack(wait_s * _MS_PER_S, lease_s * _MS_PER_S)
    if keys is None:
        return (wire.ACQUIRE, own_id, word, _checked_key(body[_ACQUIRE_HEAD.size :]))
    return (wire.ACQUIRE_SET, own_id, word, _checked_set(keys))


def _release(own_id: bytes, body: bytes, keys: list[bytes] | None) -> Command:
    _, token = _RELEASE_HEAD.unpack_from(body)
    if token == bytes(_TOKEN_BYTES):
        raise _Refused(v3.ERROR_BAD_TOKEN)
    if keys is None:
        named: tuple[bytes, ...] = (_checked_key(body[_RELEASE_HEAD.size :]),)
    else:
        named = _checked_set(keys)
    return (lock_table.RELEASE_KEYS, own_id, token, named)


def _split_keys(tail: bytes) -> list[bytes]:
    """Cut the tail of a set; that it fills the body exactly is a matter of framing."""
    keys: list[bytes] = []
    at = 1
    for _ in range(tail[0]):
        if at >= len(tail) or at + 1 + tail[at] > len(tail):
            raise _Broken(f"keys: the body ends before key {len(keys) + 1} of {tail[0]}")
        keys.append(tail[at + 1 : at + 1 + tail[at]])
        at += 1 + tail[at]
    if at != len(tail):
        raise _Broken(f"keys: {len(tail) - at} bytes are left after {tail[0]} keys")
    return keys


def _is_good_key(key: bytes) -> bool:
    return v3.KEY_BYTES_MIN <= len(key) <= v3.KEY_BYTES_MAX and not any(
        byte in key for byte in _FORBIDDEN
    )


def _checked_key(key: bytes) -> bytes:
    if not _is_good_key(key):
        raise _Refused(v3.ERROR_BAD_KEY)
    return key


def _checked_set(keys: list[bytes]) -> tuple[bytes, ...]:
    rising = all(low < high for low, high in pairwise(keys))
    if (
        not v3.SET_KEYS_MIN <= len(keys) <= v3.SET_KEYS_MAX
        or not rising
        or not all(map(_is_good_key, keys))
    ):
        raise _Refused(v3.ERROR_BAD_KEY_SET)
    return tuple(keys)


def _error(request_id: bytes, code: int) -> bytes:
    return _HEADER.pack(v3.REPLY_ERROR, len(request_id) + 1) + request_id + bytes((code,))
