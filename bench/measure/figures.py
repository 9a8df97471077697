"""The figures of one server: beside Redis, and against itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from measure import cluster_figures, load, servers
from measure.figure import Figure, Plan, Round, requests_per_s, server_cpu_us
from measure.servers import Running

#: 10^6 held tickets and the pairs beside them need more than the default limits.
WIDE_LIMITS = ("--max-held-keys", "2000000", "--max-waiters", "2000000")


def rss_mb(when: str) -> Callable[[dict[str, Any]], float]:
    """The server's resident memory at one of the generator's marks."""
    return lambda run: float(run["server_rss_kib"][when]) * 1024 / 1e6


@contextmanager
def both(plan: Plan) -> Iterator[tuple[Running, Running]]:
    """Redis and the server, up at the same time on the same core, one of them idle."""
    with ExitStack() as stack:
        peer = stack.enter_context(servers.redis())
        ours = stack.enter_context(servers.ticketing(plan.python))
        yield peer, ours


def beside_redis(**options: Any) -> Callable[[Plan], Iterator[Round]]:
    """The same job on both servers, turn by turn."""

    def measure(plan: Plan) -> Iterator[Round]:
        with both(plan) as (peer, ours):
            for _ in range(plan.rounds):
                yield {
                    "redis": load.run(peer, seconds=plan.seconds, **options),
                    "ticketing": load.run(ours, seconds=plan.seconds, **options),
                }

    return measure


def two_loads(
    first: tuple[str, dict[str, Any]], second: tuple[str, dict[str, Any]]
) -> Callable[[Plan], Iterator[Round]]:
    """Two jobs on one server, turn by turn."""

    def measure(plan: Plan) -> Iterator[Round]:
        with servers.ticketing(plan.python, *WIDE_LIMITS) as ours:
            for _ in range(plan.rounds):
                yield {
                    name: load.run(ours, seconds=plan.seconds, **options)
                    for name, options in (first, second)
                }

    return measure


def memory_held(plan: Plan) -> Iterator[Round]:
    """A fresh server in each round: idle, then with 10^5 tickets."""
    for _ in range(plan.rounds):
        with servers.ticketing(plan.python) as ours:
            idle = load.run(ours, job="hold", hold=1, connections=1, in_flight=1)
        with servers.ticketing(plan.python) as ours:
            held = load.run(ours, job="hold", hold=100_000)
        yield {"idle": idle, "held": held}


def memory_of_distinct_keys(plan: Plan) -> Iterator[Round]:
    """A fresh server in each round: the same few keys first, then 10^6 keys used once each."""
    few = {"connections": 1, "in_flight": 64}
    for _ in range(plan.rounds):
        with servers.ticketing(plan.python) as ours:
            yield {
                "before": load.run(ours, requests=200_000, **few),
                "after": load.run(ours, requests=2_000_000, distinct_keys=True, **few),
            }


def _redis_figure(name: str, title: str, gate: float | None, **options: Any) -> Figure:
    return Figure(
        name,
        title,
        "redis",
        "ticketing",
        requests_per_s,
        "requests/s",
        gate,
        at_least=True,
        measure=beside_redis(**options),
        needs=("redis",),
    )


def _cpu_figure(
    name: str,
    title: str,
    gate: float | None,
    first: tuple[str, dict[str, Any]],
    second: tuple[str, dict[str, Any]],
) -> Figure:
    return Figure(
        name,
        title,
        first[0],
        second[0],
        server_cpu_us,
        "µs CPU per request",
        gate,
        at_least=False,
        measure=two_loads(first, second),
    )


def _waiters(in_flight: int) -> dict[str, Any]:
    """Ten keys that all slots queue for; the warm-up is long enough for 10^5 to have queued."""
    return {
        "job": "contended",
        "keys": 10,
        "in_flight": in_flight,
        "wait_ms": 600_000,
        "warmup": 5,
    }


FIGURES: tuple[Figure, ...] = (
    _redis_figure("one-length", "50 × 64 in flight, keys of 10 bytes", 2.0, in_flight=64),
    _redis_figure(
        "mixed-lengths",
        "50 × 64 in flight, keys of 8 to 40 bytes",
        1.5,
        in_flight=64,
        key_bytes="8-40",
    ),
    _redis_figure("not-pipelined", "50 × 1 in flight", 0.85, in_flight=1),
    _redis_figure("one-connection", "1 × 64 in flight", None, connections=1, in_flight=64),
    _cpu_figure(
        "contended",
        "contended path: 320 keys, 10 waiters each",
        4.0,
        ("uncontended", {}),
        ("contended", {"job": "contended", "keys": 320}),
    ),
    _cpu_figure(
        "queue-growth",
        "10 keys with 10 → 10^4 waiters each",
        1.5,
        ("10 waiters", _waiters(2)),
        ("10^4 waiters", _waiters(2000)),
    ),
    _cpu_figure(
        "key-growth",
        "10^3 → 10^6 other keys held",
        1.5,
        ("10^3 keys", {"hold": 1000, "lease_ms": 3_600_000}),
        ("10^6 keys", {"hold": 1_000_000, "lease_ms": 3_600_000}),
    ),
    _cpu_figure(
        "lease-spread",
        "1 → 10^5 different leases and waits in use",
        1.5,
        ("one", {}),
        ("10^5", {"lease_spread": 100_000}),
    ),
    Figure(
        "memory-held",
        "RSS idle → 10^5 tickets held",
        "idle",
        "held",
        rss_mb("filled"),
        "MB",
        None,
        at_least=False,
        measure=memory_held,
    ),
    Figure(
        "memory-distinct",
        "RSS before → after 10^6 distinct keys, at most 64 held",
        "before",
        "after",
        rss_mb("emptied"),
        "MB",
        1.1,
        at_least=False,
        measure=memory_of_distinct_keys,
    ),
    *cluster_figures.FIGURES,
)
