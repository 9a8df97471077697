"""Metrics of durable mode and clusters: the log, the lead, the disk and the peers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from ticketing_server.cluster.values import ClusterStatus
from ticketing_server.cluster_driver import ClusterDriver
from ticketing_server.engine import Histogram


def node_families(driver: ClusterDriver) -> Iterator[Metric]:
    """Yield what a node and its disk say of themselves."""
    status = driver.node.cluster_status()
    yield from _raft_families(driver, status)
    yield from _peer_families(status)
    yield _histogram(
        "ticketing_wal_fsync_duration_seconds",
        "How long writing and syncing a group of the log took.",
        driver.fsyncs,
    )
    yield GaugeMetricFamily(
        "ticketing_wal_bytes", "Bytes of the log's segments on disk.", value=driver.wal_bytes
    )
    yield _histogram(
        "ticketing_snapshot_duration_seconds", "How long making a snapshot took.", driver.snapshots
    )


def _raft_families(driver: ClusterDriver, status: ClusterStatus) -> Iterator[Metric]:
    voters = [member.node_id for member in status.members if member.kind == "voter"]
    gauges = (
        (
            "has_leader",
            "1 while this node hears a leader, or is one.",
            status.leader_slot is not None,
        ),
        ("is_leader", "1 while this node leads.", status.leader_slot == status.slot),
        ("is_voter", "1 where this node's vote counts.", status.node_id in voters),
        ("voters", "Voters of the configuration that this node knows.", len(voters)),
        ("term", "Term of the Raft core.", status.term),
        ("commit_index", "Last entry known to be on a majority's disks.", status.commit),
        ("applied_index", "Last entry whose effects are in the table.", status.applied),
        ("proposals_pending", "Requests and entries not applied yet.", status.pending),
    )
    for name, about, value in gauges:
        yield GaugeMetricFamily(f"ticketing_raft_{name}", about, value=float(value))
    yield CounterMetricFamily(
        "ticketing_raft_leader_changes",
        "How often this node heard of another leader.",
        value=driver.leader_changes,
    )


def _peer_families(status: ClusterStatus) -> Iterator[Metric]:
    up = GaugeMetricFamily(
        "ticketing_raft_peer_up", "1 while the peer of a slot is connected.", labels=["peer"]
    )
    lag = GaugeMetricFamily(
        "ticketing_raft_peer_lag_entries",
        "Entries that a peer has yet to take; only where this node leads.",
        labels=["peer"],
    )
    for member in status.members:
        if member.node_id == status.node_id or member.kind == "learner":
            continue
        up.add_metric([str(member.slot)], int(member.is_up))
        if member.lag is not None:
            lag.add_metric([str(member.slot)], member.lag)
    yield up
    yield lag


def _histogram(name: str, about: str, histogram: Histogram) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, about)
    family.add_metric([], *buckets(histogram))
    return family


def buckets(histogram: Histogram) -> tuple[list[tuple[str, float]], float]:
    """Return cumulative buckets and the sum, in seconds."""
    bounds = [repr(bound / 1e9) for bound in histogram.bounds_ns] + ["+Inf"]
    below = 0
    found: list[tuple[str, float]] = []
    for bound, count in zip(bounds, histogram.counts, strict=True):
        below += count
        found.append((bound, below))
    return found, histogram.sum_ns / 1e9


def status_fields(driver: ClusterDriver) -> dict[str, Any]:
    """Return a node's part of /status; ids are text, as they go beyond JavaScript's numbers."""
    status = driver.node.cluster_status()
    return {
        "slot": status.slot,
        "node_id": f"{status.node_id:016x}",
        "cluster_id": status.cluster_id.hex(),
        "role": status.role,
        "leader_slot": status.leader_slot,
        "term": status.term,
        "commit": status.commit,
        "applied": status.applied,
        "checksum": status.checksum.hex(),
        "snapshot_index": status.snapshot_index,
        "pending": status.pending,
        "grants_held_s": round(driver.grants_held_s(), 3),
        "members": [
            {
                "slot": member.slot,
                "node_id": None if member.node_id is None else f"{member.node_id:016x}",
                "address": member.address.decode("ascii", "replace"),
                "kind": member.kind,
                "up": member.is_up,
                "lag": member.lag,
            }
            for member in status.members
        ],
    }
