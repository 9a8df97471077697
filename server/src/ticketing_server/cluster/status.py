"""What a node says of itself and its cluster to administration and metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ticketing_server.cluster.values import ClusterStatus, MemberStatus
from ticketing_server.raft.state import LEADER

if TYPE_CHECKING:
    from ticketing_server.cluster.node import ClusterNode


def of(node: ClusterNode) -> ClusterStatus:
    """Return the status of a node as of its last turn."""
    raft, replica, settings = node.raft, node.replica, node.settings
    leader = raft.named_leader(raft.now_ns)
    snapshot = raft.snapshot
    is_leader = raft.role == LEADER
    return ClusterStatus(
        raft.role,
        settings.slot,
        settings.node_id,
        node.cluster_id,
        raft.term,
        None if leader is None else node.members.slot_of(leader),
        raft.log.last_index,
        raft.commit,
        replica.index,
        node.pending,
        raft.cluster_time(raft.now_ns) if is_leader else replica.stamp,
        replica.checksum,
        snapshot.index if snapshot is not None else 0,
        _members(node),
    )


def _members(node: ClusterNode) -> tuple[MemberStatus, ...]:
    raft = node.raft
    slots = max(raft.configuration.slots, node.settings.slots)
    members = []
    for slot in range(slots):
        holder = raft.configuration.holder(slot)
        if holder is None:
            members.append(MemberStatus(slot, None, b"", "vacant", False, None, None, None))
        else:
            members.append(_member(node, slot, holder))
    if raft.role == LEADER:
        voters = raft.configuration.voters
        members += [
            _member(node, peer.slot, learner)
            for learner, peer in raft.peers.items()
            if learner not in voters and peer.slot is not None
        ]
    return tuple(members)


def _member(node: ClusterNode, slot: int, holder: int) -> MemberStatus:
    raft = node.raft
    peer = raft.peers.get(holder) if raft.role == LEADER else None
    match = lag = heard = None
    if peer is not None:
        match = peer.match
        lag = raft.log.last_index - peer.match
        heard = raft.now_ns - peer.heard_ns if peer.answered else None
    elif raft.role == LEADER and holder == raft.node_id:
        match, lag = raft.stable_index, raft.log.last_index - raft.stable_index
    return MemberStatus(
        slot,
        holder,
        node.members.address_of(slot, holder),
        "voter" if holder in raft.configuration.voters else "learner",
        holder == raft.node_id or holder in node.members.hellos,
        match,
        lag,
        heard,
    )
