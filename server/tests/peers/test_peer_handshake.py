"""Who may be a peer: the secret, the cluster, the slot, the version, and no reflection."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from ticketing_server.peers import handshake
from ticketing_server.peers.frames import HELLO, PROOF, Frame, FrameReader, frame
from ticketing_server.peers.handshake import (
    BULK,
    CONTROL,
    OTHER_CLUSTER,
    Handshake,
    Hello,
    Refused,
)

CLUSTER = b"c" * 16


@dataclass
class Side:
    """What one node would say, and with which secrets."""

    slot: int
    node_id: int
    secrets: tuple[bytes, ...] = (b"the secret",)
    fields: dict[str, Any] = field(default_factory=dict)

    def hello(self, channel: int, pair: int) -> Hello:
        said = Hello(
            channel, pair, bytes([self.slot]) * 32, self.node_id, 5, self.slot, 3, True, b"",
            b"127.0.0.1:5225", (1, 2),
        )  # fmt: skip
        return said._replace(**self.fields)

    def dial(self, slot: int, channel: int = CONTROL) -> Handshake:
        return Handshake(self.hello, self.secrets, dialed=(channel, 99, slot))

    def accept(self) -> Handshake:
        return Handshake(self.hello, self.secrets, dialed=None)


def frames_of(data: bytes) -> list[Frame]:
    return list(FrameReader().feed(data))


def shake(dialer: Handshake, acceptor: Handshake) -> None:
    """Carry frames to and fro until nobody has anything more to say."""
    data, to, other = dialer.begin(), acceptor, dialer
    while data:
        data = b"".join(to.receive(received) for received in frames_of(data))
        to, other = other, to


def refusal(one: Side, two: Side) -> Refused:
    with pytest.raises(Refused) as caught:
        shake(one.dial(1), two.accept())
    return caught.value


@pytest.mark.parametrize("channel", [CONTROL, BULK])
def test_two_nodes_prove_themselves(channel: int) -> None:
    one, two = Side(0, 10).dial(1, channel), Side(1, 11, fields={"cluster_id": CLUSTER}).accept()
    shake(one, two)
    assert one.is_done
    assert two.is_done
    assert one.peer is not None
    assert two.peer is not None
    assert (one.peer.node_id, one.peer.cluster_id) == (11, CLUSTER)
    assert (two.peer.node_id, two.peer.pair, two.peer.channel) == (10, 99, channel)


def test_secrets_rotate_without_a_gap() -> None:
    old, new = b"old", b"new"
    for ours, theirs in (((old,), (old, new)), ((new, old), (old, new)), ((new,), (new, old))):
        shake(Side(0, 10, ours).dial(1), Side(1, 11, theirs).accept())
    assert refusal(Side(0, 10, (new,)), Side(1, 11, (old,))).reason == "wrong_secret"


@pytest.mark.parametrize(
    ("reason", "fields"),
    [
        ("other_size", {"slots": 5}),
        ("wrong_slot", {"slot": 0}),
        ("wrong_slot", {"slot": 3}),
        ("wrong_slot", {"slot": 2}),
        ("same_node", {"node_id": 10}),
        ("version", {"versions": (2, 3)}),
        ("version", {"table_versions": (3, 4)}),
    ],
)
def test_what_does_not_fit_is_refused_with_its_reason(reason: str, fields: dict[str, Any]) -> None:
    dialer = Side(0, 10, fields={"cluster_id": CLUSTER})
    refused = refusal(dialer, Side(1, 11, fields=fields))
    assert refused.reason == reason
    # The other side is told, and logs it.
    (told,) = frames_of(refused.told)
    with pytest.raises(Refused, match="the peer refused this node: ") as caught:
        dialer.dial(1).receive(told)
    assert caught.value.told == b""


def test_a_node_of_another_cluster_is_refused_once_both_are_proven() -> None:
    one = Side(0, 10, fields={"cluster_id": CLUSTER}).dial(1)
    two = Side(1, 11, fields={"cluster_id": b"d" * 16}).accept()
    (hello,) = frames_of(one.begin())
    (answer,) = frames_of(two.receive(hello))
    (proof,) = frames_of(one.receive(answer))
    with pytest.raises(Refused) as caught:
        two.receive(proof)
    assert two.is_done
    assert caught.value.reason == OTHER_CLUSTER
    proof, told = frames_of(caught.value.told)
    with pytest.raises(Refused) as caught:
        one.receive(proof)
    assert one.is_done
    assert caught.value.reason == OTHER_CLUSTER
    with pytest.raises(Refused, match="the peer is of cluster"):
        one.receive(told)


def test_a_proof_can_not_be_sent_back() -> None:
    """Who knows no secret gains nothing by repeating what it was told."""
    victim = Side(1, 11).accept()
    stranger = Side(0, 10, (b"guess",)).dial(1)
    (hello,) = frames_of(stranger.begin())
    (answer,) = frames_of(victim.receive(hello))
    (proof,) = frames_of(stranger.receive(answer))
    assert proof.kind == PROOF
    with pytest.raises(Refused, match="secrets differ"):
        victim.receive(proof)
    fooled = Side(0, 10).dial(1)
    (hello,) = frames_of(fooled.begin())
    (forged,) = frames_of(Side(1, 11, (b"guess",)).accept().receive(hello))
    (proof,) = frames_of(fooled.receive(forged))
    with pytest.raises(Refused, match="secrets differ"):
        fooled.receive(proof)
    assert not fooled.is_done


@pytest.mark.parametrize(
    "said",
    [
        frame(HELLO, b"GET / HTTP/1.1"),
        frame(HELLO),
        frame(HELLO, b"TKPEER\1\1"),
        frame(HELLO, Side(0, 10).hello(7, 1).encode()),
        frame(HELLO, Side(0, 10).hello(0, 1).encode()[:-3]),
        frame(PROOF, bytes(32)),
        frame(16, bytes(60)),
    ],
)
def test_strangers_are_refused(said: bytes) -> None:
    (received,) = frames_of(said)
    with pytest.raises(Refused) as caught:
        Side(1, 11).accept().receive(received)
    assert caught.value.reason == "no_peer"


def test_an_answer_for_another_connection_is_refused() -> None:
    one = Side(0, 10).dial(1)
    one.begin()
    (answer,) = frames_of(frame(HELLO, Side(1, 11).hello(CONTROL, 98).encode()))
    with pytest.raises(Refused, match="another connection"):
        one.receive(answer)


def test_hellos_may_grow() -> None:
    """A later version may append to the hello what this one doesn't read."""
    said = Side(0, 10).hello(CONTROL, 1)
    assert handshake.decode_hello(said.encode() + b"more") == said
