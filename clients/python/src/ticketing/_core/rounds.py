"""Which endpoint is tried next, how long the client waits between rounds, and what went wrong."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from ticketing import _constants_gen as c
from ticketing._core.urls import Endpoint
from ticketing.errors import AuthError, ConnectionFailedError, TicketingError

_NS_PER_MS = 1_000_000


class Backoff:
    """50 ms doubling to 1 s, each spread by half in both directions.

    The spread comes from the seed, so that a client given the same seed behaves the same.
    """

    def __init__(self, seed: bytes) -> None:
        self._seed = seed
        self._drawn = 0
        self._step = 0

    def reset(self) -> None:
        """The next round starts at once."""
        self._step = 0

    def next_delay_ns(self) -> int:
        """How long to wait before the next round; the first after a reset does not wait."""
        step = self._step
        self._step += 1
        if step == 0:
            return 0
        base_ms = min(c.CLIENT_BACKOFF_MS_MIN << min(step - 1, 16), c.CLIENT_BACKOFF_MS_MAX)
        self._drawn += 1
        digest = hashlib.sha256(self._seed + b"back-off" + self._drawn.to_bytes(8, "big")).digest()
        part = int.from_bytes(digest[:4], "big") / 2**32  # 0 to 1
        spread = c.CLIENT_BACKOFF_JITTER_PERCENT / 100 * (2 * part - 1)
        return int(base_ms * _NS_PER_MS * (1 + spread))


class Rounds:
    """Goes over the endpoints: the leader named last first, then the list, the lost one last."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._endpoints = tuple(endpoints)
        self._leader: Endpoint | None = None
        self._named_by: Endpoint | None = None
        self._lost: Endpoint | None = None
        self._tried: set[Endpoint] = set()
        self._queue: list[Endpoint] = []
        self._failures: list[tuple[Endpoint, TicketingError]] = []
        self._welcomed = False
        self._retried = False

    @property
    def several(self) -> bool:
        """Whether the URL names several endpoints; attempts are shorter then."""
        return len(self._endpoints) > 1

    def begin(self) -> None:
        """Start a round."""
        last = [endpoint for endpoint in self._endpoints if endpoint == self._lost]
        first = [endpoint for endpoint in self._endpoints if endpoint != self._lost]
        leader = [] if self._leader is None else [self._leader]
        self._queue = [*leader, *first, *last]
        self._tried = set()
        self._failures = []
        self._welcomed = False
        self._retried = False

    def next(self) -> Endpoint | None:
        """The endpoint to try now, each once per round; None at the round's end."""
        while self._queue:
            endpoint = self._queue.pop(0)
            if endpoint not in self._tried:
                self._tried.add(endpoint)
                return endpoint
        return None

    def welcomed(self) -> None:
        """A server has proved itself in this round, whatever its role."""
        self._welcomed = True

    def failed(self, endpoint: Endpoint, error: TicketingError) -> None:
        """Rule out an endpoint for this round."""
        self._failures.append((endpoint, error))

    def lost(self, endpoint: Endpoint) -> None:
        """A connection to this endpoint ended after it had been in use."""
        self._lost = endpoint

    def leader_named(
        self, leader: Endpoint | None, by: Endpoint, *, once_more: bool = False
    ) -> None:
        """A server said who leads; the rest of this round begins there.

        `once_more` is for a node that has just become leader or learned of one: the endpoint
        counts as untried again, one time per round, so that two nodes that name each other end.
        """
        if once_more and leader is not None and not self._retried:
            self._retried = True
            self._tried.discard(leader)
        self._leader = leader
        self._named_by = by
        if leader is not None:
            self._queue.insert(0, leader)

    def does_not_lead(self, endpoint: Endpoint) -> None:
        """A node refused to serve, so that the next round need not begin there."""
        if self._leader == endpoint:
            self._leader = None

    def outcome(self) -> TicketingError:
        """What a round without success amounts to, each endpoint named with its error."""
        parts = []
        for endpoint, error in self._failures:
            part = f"{endpoint}: {error}"
            if endpoint == self._leader and endpoint not in self._endpoints:
                part += (
                    f" (named as the leader by {self._named_by}; if it can't be reached from here,"
                    " check the setting --advertise of that server)"
                )
            parts.append(part)
        text = "; ".join(parts) or "no endpoint was left to try"
        if not self._welcomed and any(isinstance(e, AuthError) for _, e in self._failures):
            return AuthError(f"no server took this client: {text}")
        return ConnectionFailedError(f"no server could be reached: {text}")
