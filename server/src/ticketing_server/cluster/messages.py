"""What nodes say to each other beside the messages of the Raft core: plain values."""

from __future__ import annotations

from typing import NamedTuple

from ticketing_server.raft.messages import Entry


class PeerHello(NamedTuple):
    """What a peer said of itself when it proved the cluster secret."""

    node_id: int
    slot: int
    cluster_id: bytes
    """Empty as long as it belongs to no cluster."""
    is_empty: bool
    """Whether its log is empty: it may be founded, or join as a learner."""
    client_address: bytes
    """Where clients reach it, `host:port`."""
    versions: tuple[int, int]
    """Lowest and highest version of the table that it can apply."""


class Found(NamedTuple):
    """Slot 0 founds the cluster: entry 1, for a node that is in none."""

    sender: int
    to: int
    entry: Entry
