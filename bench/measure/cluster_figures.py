"""The figures of what is on disk: a cluster beside etcd and ZooKeeper, and one durable server.

Nothing is pinned where a cluster runs: its three nodes and the program that loads it share all
cores, on both sides. Each round has new clusters, one at a time, so that neither side runs beside
the other's nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from measure import clusters, load, servers
from measure.figure import Figure, Plan, Round, requests_per_s

PEERS = {"etcd": clusters.etcd, "zookeeper": clusters.zookeeper}


def cluster_pairs(name: str, in_flight: int) -> Callable[[Plan], Iterator[Round]]:
    """Lock and unlock through the leader, each slot on a key of its own."""

    def measure(plan: Plan) -> Iterator[Round]:
        for _ in range(plan.rounds):
            with PEERS[name](plan.disk) as peer:
                first = load.peer_pairs(peer, in_flight=in_flight, seconds=plan.seconds)
            with clusters.ticketing(plan.python, plan.disk) as ours:
                second = load.cluster_pairs(ours, in_flight=in_flight, seconds=plan.seconds)
            yield {name: first, "ticketing": second}

    return measure


def failover(plan: Plan) -> Iterator[Round]:
    """One kill of each side's leader in a round."""
    for _ in range(plan.kills):
        with clusters.etcd(plan.disk) as peer:
            first = load.failover(peer)
        with clusters.ticketing(plan.python, plan.disk) as ours:
            second = load.failover(ours)
        yield {"etcd": first, "ticketing": second}


def durable(plan: Plan) -> Iterator[Round]:
    """The same job in memory mode, and with every change on disk before its reply."""
    options: dict[str, Any] = {"connections": 64, "in_flight": 16, "seconds": plan.seconds}
    for _ in range(plan.rounds):
        with servers.ticketing(plan.python) as memory:
            first = load.run(memory, **options)
        with servers.folder_on(plan.disk) as folder:
            data = ("--data-dir", str(folder / "data"))
            with servers.ticketing(plan.python, *data) as on_disk:
                second = load.run(on_disk, **options)
        yield {"memory": first, "durable": second}


def _seconds(run: dict[str, Any]) -> float:
    return float(run["seconds"])


def _cluster_figure(name: str, peer: str, in_flight: int, gate: float) -> Figure:
    return Figure(
        name,
        f"3 nodes, fsync, 64 × {in_flight} in flight",
        peer,
        "ticketing",
        requests_per_s,
        "requests/s",
        gate,
        at_least=True,
        measure=cluster_pairs(peer, in_flight),
        needs=(peer, "go"),
        on_disk=True,
    )


FIGURES: tuple[Figure, ...] = (
    _cluster_figure("cluster", "etcd", 16, 20.0),
    _cluster_figure("cluster-one", "etcd", 1, 3.0),
    _cluster_figure("cluster-zookeeper", "zookeeper", 16, 10.0),
    Figure(
        "durable",
        "1 server, 64 × 16 in flight",
        "memory",
        "durable",
        requests_per_s,
        "requests/s",
        None,
        at_least=True,
        measure=durable,
        on_disk=True,
    ),
    Figure(
        "failover",
        "kill -9 of the leader under load → lock of the waiter at the head of a queue",
        "etcd",
        "ticketing",
        _seconds,
        "s",
        None,
        at_least=False,
        measure=failover,
        needs=("etcd", "go"),
        on_disk=True,
        limits=(0.7, 1.0),
    ),
)
