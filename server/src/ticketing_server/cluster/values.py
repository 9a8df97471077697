"""What a node is told at its start, what it wants done, and what it says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from ticketing_server.cluster.messages import Found
from ticketing_server.raft.messages import Message, Snapshot
from ticketing_server.raft.saves import Save


class NodeSettings(NamedTuple):
    """Who a node is and where the others are. Never compared between nodes."""

    slot: int
    slots: int
    node_id: int
    cluster_id: bytes
    """Of the cluster that this directory belongs to or has met; empty where it has met none."""
    is_durable_alone: bool
    """A cluster of one, which clients take for a standalone server."""
    addresses: tuple[bytes, ...]
    """Where clients reach each slot, as W and L name it."""
    failover_grace_ms: int


@dataclass(frozen=True, slots=True)
class SnapshotPolicy:
    """When a snapshot is made, and what of the log stays behind it."""

    entries: int = 20_000
    """Applied since the last one (on disk each takes a sector of 4 KiB at least), or …"""
    bytes: int = 64 * 1024 * 1024
    """… so many bytes of them."""
    trailing: int = 5_000
    """Entries before a snapshot that stay, for followers that lag a little, …"""
    trailing_bytes: int = 16 * 1024 * 1024
    """… but no more bytes of them than this."""


class NodeEffects(NamedTuple):
    """What the driver does after a turn, in any order but for what the fields say."""

    save: Save | None = None
    now: tuple[Message | Found, ...] = ()
    """Sent at once."""
    after_sync: tuple[Message, ...] = ()
    """Sent when all saves up to `after` are synced."""
    after: int = 0
    make_snapshot: int | None = None
    """Make a snapshot as of this entry, which is on disk, and tell `snapshot_made`."""
    compacted: Snapshot | None = None
    """The core stands on this snapshot: storage may drop the log up to `base_index`."""
    base_index: int = 0
    stop: str = ""
    """Why the process ends; empty as long as it goes on."""


class MemberStatus(NamedTuple):
    """One slot of the cluster, as this node sees it."""

    slot: int
    node_id: int | None
    """None where it is vacant."""
    address: bytes
    kind: Literal["voter", "learner", "vacant"]
    is_up: bool
    """Whether this node is connected to it; itself always is."""
    match: int | None
    """Leader only: up to where it has the log."""
    lag: int | None
    """Leader only: how many entries it lacks."""
    heard_ns_ago: int | None
    """Leader only: since its last answer; None for the leader itself and who never answered."""


class ClusterStatus(NamedTuple):
    """A node's place in its cluster."""

    role: str
    """leader, follower, pre-candidate, candidate."""
    slot: int
    node_id: int
    cluster_id: bytes
    term: int
    leader_slot: int | None
    """None where no leader is heard."""
    last_index: int
    commit: int
    applied: int
    pending: int
    """Requests that are in no entry yet, and entries that are not applied yet."""
    cluster_time_ns: int
    checksum: bytes
    """Over the effects of all entries up to `applied`."""
    snapshot_index: int
    members: tuple[MemberStatus, ...]
    """One per slot, and learners."""
