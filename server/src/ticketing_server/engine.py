"""The seam between the shell, which owns sockets and clocks, and an engine, which owns the rules.

An engine is pure: bytes, time, limits and entropy are arguments, and what it wants written or
closed comes back as values. The shell calls it from one thread, in turns::

    engine.open(connection, peer, entropy, now_ns)     any number of times, in any order
    engine.feed(connection, data, now_ns)
    engine.close(connection)
    outputs, deadline_ns = engine.end_turn(now_ns)     once, after the turn's last socket read

Time is in integer nanoseconds of one clock that never goes back and counts suspended time.
`end_turn` is where time counts: what is due at its `now_ns` happens first, then what was fed, in
the order in which it was fed. The `now_ns` of the other calls is when the turn's reads began.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from ticketing_server.limits import Limits

ENTROPY_BYTES = 32
"""How many random bytes `open` needs: a nonce, and what a drawn delay or client id comes from."""

Inspected = Literal["tickets", "waiters", "connections", "keys"]


class NamedSecret(Protocol):
    """A secret and the name that logs and administration show instead of it."""

    @property
    def name(self) -> str:
        """Short name, shown to operators."""

    @property
    def value(self) -> bytes:
        """The secret itself, never shown."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Where a connection came from, and which protocol its listener speaks."""

    transport: Literal["tcp", "tls", "unix"]
    address: str
    protocol: Literal[3, 4] = 4


class Output(NamedTuple):
    """What the shell does for one connection at the end of a turn."""

    connection: int
    data: bytes
    """Written in one go; may be empty where `close` is not "no"."""
    close: Literal["no", "linger", "now"] = "no"
    """`linger`: after writing, shut down the sending side, read and discard until EOF or
    `CLOSING_LINGER_MS`, then close. `now`: close at once. After either the engine has forgotten
    the connection: nothing it is fed has an effect, and `close` need not be called."""


class Event(NamedTuple):
    """Something that an operator acts on. Keys and labels are raw: a log escapes them."""

    name: str
    """`lease_over`, `force_released`, `auth_failed`, `taken_over`, `limit_reached`,
    `bad_frame`, `slow_reader`, `idle_timeout`, `connected`, `disconnected`, …"""
    fields: dict[str, object]
    """By name: key or keys (bytes, tuple of bytes), token, client_id, connection (int), label,
    peer, secret, resource, reason, text (str), held_ns (int)."""


class TicketInfo(NamedTuple):
    """One ticket, as `inspect("tickets")` shows it. Page by `after=token`."""

    token: int
    keys: tuple[bytes, ...]
    owner: int
    """Client id that acquired it."""
    client: int
    """Client id that drops are sent to: the one that extended last, else the owner."""
    connection: int | None
    """Connection of `client` now, if any."""
    label: str
    peer: str
    held_ns: int
    """How long ago its lease began."""
    left_ns: int
    """How long its lease goes on unless it is extended."""


class WaiterInfo(NamedTuple):
    """One waiter, as `inspect("waiters")` shows it. Page by `after=joined`."""

    joined: int
    """Join number: waiters are granted in its order."""
    keys: tuple[bytes, ...]
    owner: int
    state: Literal["attached", "held_back", "detached"]
    connection: int | None
    label: str
    peer: str
    waited_ns: int
    """Time since its acquire was read on its present connection."""
    left_ns: int | None
    """Time until its wait ends; None where it waits for ever."""


class KeyInfo(NamedTuple):
    """One key that is held or waited for, as `inspect("keys")` shows it. Page by `after=key`."""

    key: bytes
    token: int | None
    """Token of the ticket that holds it, if any."""
    attached: int
    detached: int


class ConnectionInfo(NamedTuple):
    """One welcomed connection, as `inspect("connections")` shows it. Page by `after=connection`."""

    connection: int
    peer: Peer
    client: int
    number: int
    """The client's own number of this connection; 0 for version 3."""
    label: str
    secret: str
    waiters: int
    paused: bool
    """Whether it is not read at present because it owes output over the limit."""


Info = TicketInfo | WaiterInfo | KeyInfo | ConnectionInfo


class Page(NamedTuple):
    """What `walk` comes to."""

    infos: list[Info]
    after: int | None
    """Where the next page begins; None behind the last one."""


@dataclass(slots=True)
class Histogram:
    """Counts of sampled durations by upper bound; the last count is of what is above all."""

    bounds_ns: tuple[int, ...]
    counts: list[int]
    sum_ns: int = 0

    def add(self, value_ns: int) -> None:
        """Count one sample."""
        self.counts[bisect_left(self.bounds_ns, value_ns)] += 1
        self.sum_ns += value_ns


@dataclass(slots=True)
class Counters:
    """Plain numbers behind the metrics of the same names; a new object at each call."""

    requests: dict[tuple[str, str], int] = field(default_factory=dict)
    """By (op, result): op is a frame's name, result the name of its reply."""
    errors: dict[int, int] = field(default_factory=dict)
    """By error code."""
    grants_immediate: int = 0
    grants_handoff: int = 0
    tickets_ended: dict[str, int] = field(default_factory=dict)
    """By reason: released, lease_over, operator, other_client."""
    tickets: int = 0
    held_keys: int = 0
    waiters_attached: int = 0
    waiters_held_back: int = 0
    waiters_detached: int = 0
    longest_queue: int = 0
    oldest_waiter_age_ns: int = 0
    wait: dict[str, Histogram] = field(default_factory=dict)
    """By result (granted, timed_out, cancelled), of waiters only."""
    hold: Histogram | None = None
    """How long released tickets were held; sampled."""
    connections: dict[tuple[int, str, str], int] = field(default_factory=dict)
    """Welcomed connections by (protocol, transport, language); other languages are `other`."""
    handshakes: int = 0
    """Connections that are not yet welcomed."""
    connections_closed: dict[str, int] = field(default_factory=dict)
    """By reason: eof, or the name of an error code, or drained."""
    handshake_failures: dict[str, int] = field(default_factory=dict)
    received_bytes: int = 0
    sent_bytes: int = 0
    draining: bool = False


class Engine(Protocol):
    """Everything between bytes read and bytes to be written. Not safe for several threads."""

    def open(self, connection: int, peer: Peer, entropy: bytes, now_ns: int) -> None:
        """Begin a connection under a number never used before; its greeting is an output.

        `entropy` is `ENTROPY_BYTES` fresh random bytes.
        """

    def feed(self, connection: int, data: bytes, now_ns: int) -> None:
        """Take what one read of the socket gave. No effect on a connection that was closed."""

    def eof(self, connection: int) -> None:
        """The peer will send nothing more: what was read is answered, then the engine closes."""

    def close(self, connection: int) -> None:
        """The socket is gone: nothing can be read or written any more."""

    def pause(self, connection: int, now_ns: int) -> None:
        """The connection owes more than `Limits.unsent_bytes`; the shell stopped reading it.

        It is not silent meanwhile, and is given up after `SLOW_READER_TIMEOUT_MS`.
        """

    def resume(self, connection: int, now_ns: int) -> None:
        """The connection owes less than a quarter of the limit and is read again."""

    def end_turn(self, now_ns: int) -> tuple[list[Output], int | None]:
        """Do what is due and what was fed; return outputs and when to call again at the latest."""

    def configure(self, limits: Limits, secrets: Sequence[NamedSecret], now_ns: int) -> None:
        """Take new limits and secrets; no secret means the empty one. Ends no ticket or waiter.

        The first call begins the restart grace.
        """

    def drain(self, now_ns: int) -> None:
        """Send clients away: L to each version 4 connection, then close it; takes no new ones."""

    def force_release(self, key: bytes, token: int) -> bool:
        """End the ticket that has this key and token, as an operator; False if there is none.

        Its client's D and hand-offs leave with the next `end_turn`.
        """

    def inspect(
        self, what: Inspected, after: bytes | int | None, limit: int, key: bytes | None = None
    ) -> list[Info]:
        """Return at most `limit` items of the present state, in the order of what pages them.

        `after` is the paging value of the last item of the page before, None for the first page.
        With a `key` only tickets, waiters and keys that concern it: a ticket or a key is then
        found without a look at the others.
        """

    def walk(
        self, what: Literal["tickets", "waiters"], after: int, limit: int, key: bytes | None = None
    ) -> Iterator[Page | None]:
        """Make a page as `inspect` does, but so little at a time that clients don't notice.

        Yields None until it is made, then the page once. Turns may pass between the steps: what has
        ended meanwhile isn't in the page, and it may then be shorter than `limit`.
        """

    def overview(self, limit: int) -> tuple[list[TicketInfo], list[WaiterInfo]]:
        """Return at most `limit` tickets and waiters at a cost that depends on `limit` alone.

        The oldest waiters, the tickets that have the keys they wait for, then other tickets in no
        stated order: what a page that is looked at all day may ask for, unlike `inspect`.
        """

    def counters(self) -> Counters:
        """Return the numbers behind the metrics."""

    def take_events(self) -> list[Event]:
        """Return the events since the last call, oldest first; a flood of them is cut."""
