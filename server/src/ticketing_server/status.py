"""What /status shows: counts, and the holders and waiters of as many keys as a page can show."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from ticketing_server.engine import Counters, Engine, TicketInfo, WaiterInfo
from ticketing_server.log import escape
from ticketing_server.metrics import ShellState
from ticketing_server.metrics_node import status_fields

ITEMS_MAX = 500
"""Tickets and waiters that one answer lists; counts always cover all."""


class StatusPage:
    """Makes the answer of /status of counters, an overview of the table and the shell's state."""

    def __init__(
        self,
        engine: Engine,
        counters: Callable[[], Counters],
        state: ShellState,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read `engine`, `counters` and `state` when asked; `clock_s` is monotonic, in seconds."""
        self._engine = engine
        self._counters = counters
        self._state = state
        self._clock_s = clock_s
        self._started_s = clock_s()

    def render(self) -> bytes:
        """The present state as JSON; keys and labels are escaped text."""
        return json.dumps(self._make()).encode() + b"\n"

    def _make(self) -> dict[str, Any]:
        counters = self._counters()
        tickets, waiters = self._engine.overview(ITEMS_MAX)
        waiting = counters.waiters_attached + counters.waiters_held_back + counters.waiters_detached
        driver = self._state.driver
        node = {} if driver is None else {"node": status_fields(driver)}
        return {
            "version": self._state.version,
            "engine": self._state.engine,
            "mode": self._state.mode,
            **node,
            "uptime_s": round(self._clock_s() - self._started_s, 3),
            "draining": self._state.draining,
            "loop_lag_s": round(self._state.loop_lag_s, 6),
            "tickets": counters.tickets,
            "held_keys": counters.held_keys,
            "waiters": waiting,
            "waiters_held_back": counters.waiters_held_back,
            "waiters_detached": counters.waiters_detached,
            "longest_queue": counters.longest_queue,
            "oldest_waiter_age_s": _seconds(counters.oldest_waiter_age_ns),
            "connections": sum(counters.connections.values()),
            "connections_by_language": _by_language(counters.connections),
            "handshakes": counters.handshakes,
            "grants_total": counters.grants_immediate + counters.grants_handoff,
            "requests_total": sum(counters.requests.values()),
            "tickets_ended_total": counters.tickets_ended,
            "tickets_listed": [_ticket(ticket) for ticket in tickets],
            "waiters_listed": [_waiter(waiter) for waiter in waiters],
            "all_listed": len(tickets) >= counters.tickets and len(waiters) >= waiting,
        }


def _ticket(ticket: TicketInfo) -> dict[str, Any]:
    # Tokens and ids are text, as they go beyond what a JavaScript number holds.
    return {
        "keys": [escape(key) for key in ticket.keys],
        "token": str(ticket.token),
        "client_id": str(ticket.owner),
        "label": escape(ticket.label),
        "peer": escape(ticket.peer),
        "connected": ticket.connection is not None,
        "held_s": _seconds(ticket.held_ns),
        "left_s": _seconds(ticket.left_ns),
    }


def _waiter(waiter: WaiterInfo) -> dict[str, Any]:
    return {
        "keys": [escape(key) for key in waiter.keys],
        "client_id": str(waiter.owner),
        "label": escape(waiter.label),
        "peer": escape(waiter.peer),
        "state": waiter.state,
        "waited_s": _seconds(waiter.waited_ns),
        "left_s": None if waiter.left_ns is None else _seconds(waiter.left_ns),
    }


def _seconds(nanoseconds: int) -> float:
    return round(nanoseconds / 1e9, 3)


def _by_language(connections: dict[tuple[int, str, str], int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for (_, _, language), count in connections.items():
        found[language] = found.get(language, 0) + count
    return found
