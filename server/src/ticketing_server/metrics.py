"""Metrics for Prometheus: plain integers of the engine, read when somebody scrapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from ticketing_server import constants_gen
from ticketing_server.cluster_driver import ClusterDriver
from ticketing_server.engine import Counters
from ticketing_server.limits import Limits
from ticketing_server.metrics_node import buckets, node_families

_Family = TypeVar("_Family", GaugeMetricFamily, CounterMetricFamily)
_ERROR_NAMES = {
    value: name.removeprefix("ERROR_").lower()
    for name, value in vars(constants_gen).items()
    if name.startswith("ERROR_") and isinstance(value, int) and not name.startswith("ERROR_TEXT_")
}


@dataclass(slots=True)
class ShellState:
    """What metrics and status show beside the engine's counters; the shell keeps it current."""

    version: str
    engine: str
    limits: Limits
    draining: bool = False
    loop_lag_s: float = 0.0
    certificate_expiry_unix_s: dict[str, float] = field(default_factory=dict)
    mode: str = "memory"
    driver: ClusterDriver | None = None
    """Of durable mode and clusters."""

    def not_ready(self) -> str:
        """Return why clients had better go elsewhere, "" where there is no reason."""
        if self.draining:
            return "draining"
        return self.driver.not_ready() if self.driver is not None else ""


class EngineCollector(Collector):
    """Turns `Counters` into metric families; O(1) in tickets, waiters and keys."""

    def __init__(self, counters: Callable[[], Counters], state: ShellState) -> None:
        """Read `counters` and `state` at each scrape, on the thread that serves it."""
        self._counters = counters
        self._state = state

    def describe(self) -> list[Metric]:
        """Nothing, so that registering does not read the counters."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield every family."""
        counters = self._counters()
        yield from self._shell_families()
        yield from _request_families(counters)
        yield from _table_families(counters)
        yield from _connection_families(counters)
        if self._state.driver is not None:
            yield from node_families(self._state.driver)

    def _shell_families(self) -> Iterator[Metric]:
        state = self._state
        yield _labelled_gauge(
            "ticketing_build_info",
            "Version of the server and kind of engine; always 1.",
            ("version", "engine"),
            {(state.version, state.engine): 1},
        )
        limits = state.limits
        yield _labelled_gauge(
            "ticketing_limit",
            "Configured limits, in the unit of what they bound.",
            ("resource",),
            {
                ("connections",): limits.connections,
                ("handshakes",): limits.handshakes,
                ("waiters_per_key",): limits.waiters_per_key,
                ("waiters",): limits.waiters,
                ("held_keys",): limits.held_keys,
                ("unsent_bytes",): limits.unsent_bytes,
                ("lease_seconds",): limits.max_lease_ms / 1_000,
            },
        )
        yield GaugeMetricFamily(
            "ticketing_loop_lag_seconds",
            "How late the event loop ran its last timer, the worst of the last seconds.",
            value=state.loop_lag_s,
        )
        yield GaugeMetricFamily(
            "ticketing_draining",
            "1 while the server sends its clients away, else 0.",
            value=int(state.draining),
        )
        if state.certificate_expiry_unix_s:
            yield _labelled_gauge(
                "ticketing_certificate_expiry_timestamp_seconds",
                "When the first certificate of a TLS file ends, in unix seconds.",
                ("use",),
                {(use,): end for use, end in state.certificate_expiry_unix_s.items()},
            )


def _request_families(counters: Counters) -> Iterator[Metric]:
    yield _labelled_counter(
        "ticketing_requests",
        "Requests by frame and reply.",
        ("op", "result"),
        {(op, result): n for (op, result), n in counters.requests.items()},
    )
    yield _labelled_counter(
        "ticketing_errors",
        "Error frames sent, by code.",
        ("code",),
        {(_ERROR_NAMES.get(code, "other"),): n for code, n in counters.errors.items()},
    )
    yield _labelled_counter(
        "ticketing_grants",
        "Tickets granted, at once or after a wait.",
        ("path",),
        {("immediate",): counters.grants_immediate, ("handoff",): counters.grants_handoff},
    )
    yield _labelled_counter(
        "ticketing_tickets_ended",
        "Tickets that ended, by reason.",
        ("reason",),
        {(reason,): n for reason, n in counters.tickets_ended.items()},
    )
    waits = HistogramMetricFamily(
        "ticketing_wait_seconds", "How long waiters waited, by result.", labels=["result"]
    )
    for result, histogram in counters.wait.items():
        waits.add_metric([result], *buckets(histogram))
    yield waits
    if counters.hold is not None:
        holds = HistogramMetricFamily(
            "ticketing_hold_seconds", "How long released tickets were held (a sample)."
        )
        holds.add_metric([], *buckets(counters.hold))
        yield holds


def _table_families(counters: Counters) -> Iterator[Metric]:
    yield GaugeMetricFamily("ticketing_tickets", "Tickets held now.", value=counters.tickets)
    yield GaugeMetricFamily(
        "ticketing_held_keys", "Keys of all tickets held now.", value=counters.held_keys
    )
    yield _labelled_gauge(
        "ticketing_waiters",
        "Waiters now, by state.",
        ("state",),
        {
            ("attached",): counters.waiters_attached,
            ("held_back",): counters.waiters_held_back,
            ("detached",): counters.waiters_detached,
        },
    )
    yield GaugeMetricFamily(
        "ticketing_longest_queue_waiters",
        "Waiters in the longest queue now.",
        value=counters.longest_queue,
    )
    yield GaugeMetricFamily(
        "ticketing_oldest_waiter_age_seconds",
        "How long the oldest waiter has waited.",
        value=counters.oldest_waiter_age_ns / 1e9,
    )


def _connection_families(counters: Counters) -> Iterator[Metric]:
    yield _labelled_gauge(
        "ticketing_connections",
        "Welcomed connections now.",
        ("protocol", "transport", "language"),
        {(str(p), transport, lang): n for (p, transport, lang), n in counters.connections.items()},
    )
    yield GaugeMetricFamily(
        "ticketing_handshakes", "Connections not yet welcomed.", value=counters.handshakes
    )
    yield _labelled_counter(
        "ticketing_connections_closed",
        "Connections closed, by reason.",
        ("reason",),
        {(reason,): n for reason, n in counters.connections_closed.items()},
    )
    yield _labelled_counter(
        "ticketing_handshake_failures",
        "Handshakes that failed, by reason.",
        ("reason",),
        {(reason,): n for reason, n in counters.handshake_failures.items()},
    )
    yield CounterMetricFamily(
        "ticketing_received_bytes", "Bytes read from clients.", value=counters.received_bytes
    )
    yield CounterMetricFamily(
        "ticketing_sent_bytes", "Bytes written to clients.", value=counters.sent_bytes
    )


def _labelled_gauge(
    name: str, about: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float]
) -> GaugeMetricFamily:
    return _fill(GaugeMetricFamily(name, about, labels=labels), values)


def _labelled_counter(
    name: str, about: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float]
) -> CounterMetricFamily:
    return _fill(CounterMetricFamily(name, about, labels=labels), values)


def _fill(family: _Family, values: Mapping[tuple[str, ...], float]) -> _Family:
    for label_values, value in values.items():
        family.add_metric(label_values, value)
    return family


class MetricsPage:
    """The text of /metrics, from a registry of this server's own."""

    def __init__(self, counters: Callable[[], Counters], state: ShellState) -> None:
        """Register the engine's families and the process's."""
        self._registry = CollectorRegistry()
        self._registry.register(EngineCollector(counters, state))
        ProcessCollector(registry=self._registry)

    def render(self, accept: str) -> tuple[str, bytes]:
        """Return content type and body, in the format that an Accept header asks for."""
        encoder, content_type = choose_encoder(accept)
        return content_type, encoder(self._registry)
