"""What a node that knows no leader says of the reason."""

from __future__ import annotations

import pytest
from ticketing_server.cluster.messages import PeerHello
from ticketing_server.no_leader import why

CLUSTER = b"c" * 16


def hello(slot: int, cluster_id: bytes = b"", *, is_empty: bool = True) -> PeerHello:
    return PeerHello(slot + 10, slot, cluster_id, is_empty and not cluster_id, b"", (1, 1))


@pytest.mark.parametrize(
    ("cluster_id", "peers", "said"),
    [
        (b"", [], "when all nodes are up, and slots 1 and 2 are not reached"),
        (b"", [hello(1)], "when all nodes are up, and slot 2 is not reached"),
        (b"", [hello(1), hello(2)], "is being founded"),
        (b"", [hello(1), hello(2, is_empty=False)], "as slot 2 is not empty"),
        (b"", [hello(1), hello(2, CLUSTER)], "slot 2 is of a cluster that has no leader"),
        (CLUSTER, [], "hears no majority: slots 1 and 2 are not reached"),
        (CLUSTER, [hello(1), hello(2)], "slots 1 and 2 are empty, and an empty node has no vote"),
        (CLUSTER, [hello(2)], "slot 1 is not reached; slot 2 is empty"),
        (CLUSTER, [hello(1, CLUSTER), hello(2, CLUSTER)], "nobody was elected yet"),
    ],
)
def test_the_reason_names_the_slots(cluster_id: bytes, peers: list[PeerHello], said: str) -> None:
    assert said in why(0, 3, cluster_id, {peer.slot: peer for peer in peers})
