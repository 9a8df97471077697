"""Why a node knows no leader, in words for an operator; pure."""

from __future__ import annotations

from collections.abc import Mapping

from ticketing_server.cluster.messages import PeerHello


def why(slot: int, slots: int, cluster_id: bytes, peers: Mapping[int, PeerHello]) -> str:
    """Say what a node waits for, from what its peers (by slot) said of themselves."""
    away = [other for other in range(slots) if other != slot and other not in peers]
    foreign = [other for other, hello in peers.items() if hello.cluster_id]
    empty = [other for other, hello in peers.items() if not hello.cluster_id and hello.is_empty]
    used = [other for other in peers if other not in foreign and other not in empty]
    if cluster_id:
        found = [f"{_slots(away)} not reached"] if away else []
        if empty:
            found.append(
                f"{_slots(empty)} empty, and an empty node has no vote until it has joined"
            )
        text = "; ".join(found) or "nobody was elected yet"
        return f"this node is of cluster {cluster_id.hex()} and hears no majority: {text}"
    if foreign:
        text = f"{_slots(foreign)} of a cluster that has no leader to let this empty node in"
    elif used:
        text = f"this node is empty and founds no cluster, as {_slots(used)} not empty"
    elif away:
        text = f"a cluster is founded when all nodes are up, and {_slots(away)} not reached"
    else:
        return "the cluster is being founded"
    return text


def _slots(numbers: list[int]) -> str:
    shown = [str(number) for number in sorted(numbers)]
    if len(shown) == 1:
        return f"slot {shown[0]} is"
    return f"slots {', '.join(shown[:-1])} and {shown[-1]} are"
