"""How two nodes prove themselves to each other, without I/O.

The one that dials says hello, the other answers with its own, and both hellos are what each then
proves the cluster secret over: HMAC-SHA-256 with a context per side, so that no proof can be sent
back. A hello also says who the node is, and what doesn't fit is refused with a reason that both
sides log.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from hmac import compare_digest, digest
from struct import Struct
from typing import NamedTuple

from ticketing_server.peers.frames import HELLO, PROOF, REFUSED, Frame, frame
from ticketing_server.raft.configuration import CLUSTER_ID_BYTES

VERSIONS = (1, 1)
"""Lowest and highest version of what nodes say to each other that is spoken here."""
CONTROL = 0
"""Channel of votes, heartbeats and answers."""
BULK = 1
"""Channel of entries and snapshots."""
NONCE_BYTES = 32
OTHER_CLUSTER = "other_cluster"
"""Reason of a refusal whose peer has proved the secret."""

_MAGIC = b"TKPEER"
_TLS_HELLO, _TLS_ALERT = b"\x16\x03", b"\x15\x03"
_CUT_BYTES = 3
_CONTEXTS = {True: b"TICKETING/PEER/DIAL", False: b"TICKETING/PEER/ACCEPT"}
_HELLO = Struct(">6sBBBQ32sQQBB?BBBB")


class Hello(NamedTuple):
    """What a node says first on each connection."""

    channel: int
    pair: int
    """Drawn by who dials, the same on both connections of a pair."""
    nonce: bytes
    node_id: int
    run: int
    """Drawn at the start of the process: tells a copied directory from a restart."""
    slot: int
    slots: int
    is_empty: bool
    cluster_id: bytes
    client_address: bytes
    table_versions: tuple[int, int]
    versions: tuple[int, int] = VERSIONS

    def encode(self) -> bytes:
        """Return it as the body of a frame."""
        head = _HELLO.pack(
            _MAGIC, *self.versions, self.channel, self.pair, self.nonce, self.node_id, self.run,
            self.slot, self.slots, self.is_empty, *self.table_versions, len(self.cluster_id),
            len(self.client_address),
        )  # fmt: skip
        return head + self.cluster_id + self.client_address


class Refused(Exception):
    """The connection is closed after `told` was written; the text is for the log."""

    def __init__(self, reason: str, text: str, told: bytes = b"") -> None:
        """Take a short name of the reason, the text, and what the peer is told."""
        super().__init__(text)
        self.reason = reason
        self.told = told


def decode_hello(body: bytes) -> Hello:
    """Read a hello; `Refused` where it is none, or of a version that can't be read here."""
    if body[: len(_MAGIC)] != _MAGIC or len(body) < len(_MAGIC) + 2:
        raise Refused("no_peer", "what came is not the hello of a node")
    low, high = body[len(_MAGIC)], body[len(_MAGIC) + 1]
    if low > VERSIONS[1] or high < VERSIONS[0]:
        raise _refused(
            "version",
            f"the peer speaks versions {low} to {high}, this node {VERSIONS[0]} to {VERSIONS[1]}",
        )
    try:
        (_, _, _, channel, pair, nonce, node_id, run, slot, slots, is_empty, table_low,
         table_high, id_bytes, address_bytes) = _HELLO.unpack_from(body)  # fmt: skip
    except struct.error:
        raise Refused("no_peer", "a hello was cut short") from None
    at = _HELLO.size
    cluster_id = body[at : at + id_bytes]
    address = body[at + id_bytes : at + id_bytes + address_bytes]
    whole = len(body) >= at + id_bytes + address_bytes
    if not whole or id_bytes not in (0, CLUSTER_ID_BYTES) or channel not in (CONTROL, BULK):
        raise Refused("no_peer", "a hello was damaged")
    return Hello(
        channel, pair, nonce, node_id, run, slot, slots, is_empty, cluster_id, address,
        (table_low, table_high), (low, high),
    )  # fmt: skip


def misfit(own: Hello, peer: Hello) -> tuple[str, str] | None:
    """Return reason and text where two nodes can't be of one cluster, else None."""
    if peer.slots != own.slots:
        return "other_size", f"the peer has a cluster of {peer.slots} nodes, this one {own.slots}"
    if peer.slot == own.slot or peer.slot >= own.slots:
        return "wrong_slot", f"the peer has slot {peer.slot}, this node {own.slot} of {own.slots}"
    if peer.node_id == own.node_id:
        return "same_node", "the peer has this node's id: one directory was copied to two nodes"
    low, high = peer.table_versions
    if low > own.table_versions[1] or high < own.table_versions[0]:
        return "version", (
            f"the peer has table versions {low} to {high},"
            f" this node {own.table_versions[0]} to {own.table_versions[1]}"
        )
    return None


def other_cluster(own: Hello, peer: Hello) -> tuple[str, str] | None:
    """Return reason and text where two nodes have come into different clusters, else None."""
    if not own.cluster_id or not peer.cluster_id or own.cluster_id == peer.cluster_id:
        return None
    return OTHER_CLUSTER, (
        f"the peer is of cluster {peer.cluster_id.hex()}, this node of {own.cluster_id.hex()}"
    )


class Handshake:
    """One side of one connection until both have proved themselves."""

    def __init__(
        self,
        hello: Callable[[int, int], Hello],
        secrets: Sequence[bytes],
        *,
        dialed: tuple[int, int, int] | None,
    ) -> None:
        """Take what makes this node's hello of (channel, pair), and the secrets, first to prove.

        `dialed` is (channel, pair, expected slot) at the side that dials.
        """
        self._make_hello = hello
        self._secrets = tuple(secrets)
        self._dialed = dialed
        self._transcript = b""
        self._secret = self._secrets[0]
        self._own: Hello | None = None
        self.peer: Hello | None = None
        """The peer's hello; proven once `is_done`."""
        self.is_done = False

    def begin(self) -> bytes:
        """Return what is written first: nothing at the side that was dialed."""
        if self._dialed is None:
            return b""
        channel, pair, _ = self._dialed
        self._own = self._make_hello(channel, pair)
        return frame(HELLO, self._own.encode())

    def receive(self, received: Frame) -> bytes:
        """Take a frame and return the answer; `Refused` ends the connection."""
        if received.kind == REFUSED:
            raise refused_by_peer(received)
        if received.kind == HELLO and self.peer is None:
            return self._on_hello(received.body)
        if received.kind == PROOF and self.peer is not None and not self.is_done:
            return self._on_proof(received.body)
        raise Refused("no_peer", f"a frame of kind {received.kind} came before the proof")

    def _on_hello(self, body: bytes) -> bytes:
        peer = decode_hello(body)
        own = self._own or self._make_hello(peer.channel, peer.pair)
        problem = misfit(own, peer)
        if problem is None and self._dialed is not None and peer.slot != self._dialed[2]:
            problem = "wrong_slot", f"slot {peer.slot} answers at the address of {self._dialed[2]}"
        if problem is not None:
            raise _refused(*problem)
        if (peer.channel, peer.pair) != (own.channel, own.pair):
            raise Refused("no_peer", "the peer answered for another connection")
        self._own, self.peer = own, peer
        if self._dialed is None:
            own_body = own.encode()
            self._transcript = body + own_body
            return frame(HELLO, own_body)
        self._transcript = own.encode() + body
        return frame(PROOF, self._proof(self._secret, is_dialer=True))

    def _on_proof(self, body: bytes) -> bytes:
        is_dialer = self._dialed is not None
        # Who dials expects the secret that it proved; who is dialed answers with the one it saw.
        candidates = self._secrets[:1] if is_dialer else self._secrets
        matching = [
            s for s in candidates if compare_digest(body, self._proof(s, is_dialer=not is_dialer))
        ]
        if not matching:
            raise _refused("wrong_secret", "the cluster secrets differ")
        self.is_done = True
        proof = b"" if is_dialer else frame(PROOF, self._proof(matching[0], is_dialer=False))
        self._check_cluster(proof)
        return proof

    def _check_cluster(self, proof: bytes) -> None:
        """Refuse a node of another cluster, once both know that the other has the secret."""
        if self._own is None or self.peer is None:
            raise RuntimeError("no hellos came yet")
        problem = other_cluster(self._own, self.peer)
        if problem is not None:
            refused = _refused(*problem)
            refused.told = proof + refused.told
            raise refused

    def _proof(self, secret: bytes, *, is_dialer: bool) -> bytes:
        return digest(secret, _CONTEXTS[is_dialer] + self._transcript, "sha256")


def stranger(data: bytes) -> str:
    """Return what the first bytes of a connection are, if not those of a node; else ""."""
    if data[:2] == _TLS_HELLO:
        return "the peer speaks TLS, and this node has no --peer-tls-cert"
    if data[:2] == _TLS_ALERT:
        return "the peer speaks TLS and this node does not: it has no --peer-tls-cert"
    if data[:_CUT_BYTES].isalpha():
        return "what came is not the hello of a node"
    return ""


def refused_by_peer(received: Frame) -> Refused:
    """Return what a frame REFUSED says."""
    text = received.body.decode("ascii", "replace")
    return Refused("refused", f"the peer refused this node: {text}")


def _refused(reason: str, text: str) -> Refused:
    return Refused(reason, text, frame(REFUSED, text.encode("ascii")))
