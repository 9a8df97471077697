"""All that administration needs of the process around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from ticketing_server.engine import Counters, Engine
from ticketing_server.log import EventLog
from ticketing_server.metrics import ShellState


class Standing(NamedTuple):
    """Where a node stands: whose state it is that an answer shows, and as of when."""

    mode: Literal["memory", "durable", "cluster"]
    role: Literal["alone", "leader", "follower", "candidate", "learner"]
    slot: int | None
    """None where there is no cluster."""
    term: int
    applied: int
    """The last entry that is applied; 0 in memory mode."""
    cluster_time_ns: int
    leader: str
    """Where clients reach the leader; "" where none is known or needed."""


class MemberInfo(NamedTuple):
    """One slot of a cluster."""

    slot: int
    kind: Literal["voter", "learner", "vacant"]
    node_id: int
    address: str
    is_leader: bool
    lag_entries: int | None
    heard_ns_ago: int | None


class ClusterInfo(NamedTuple):
    """What a node that keeps its state says beside its standing."""

    node_id: int
    cluster_id: bytes
    commit: int
    checksum: bytes
    members: tuple[MemberInfo, ...]


class CantDo(Exception):
    """A node can't do what it was asked for; the text says why, and what to do instead."""


class Keeper(Protocol):
    """A node that keeps its state on disk: durable mode, or a member of a cluster."""

    def standing(self) -> Standing:
        """Where it stands now."""

    def cluster_info(self) -> ClusterInfo:
        """Who its cluster is, as far as it knows."""

    def transfer(self, slot: int | None) -> None:
        """Begin to hand the lead over; CantDo where that can't be."""

    async def snapshot(self) -> bytes:
        """Make a snapshot of what is applied now, and return its file; CantDo where it fails."""


@dataclass(slots=True)
class Host:
    """The process, as administration sees it. All calls are made on its event loop."""

    engine: Engine
    counters: Callable[[], Counters]
    """The engine's, maybe of a moment ago where they cost much."""
    begin_turn: Callable[[], int]
    """Returns the time in nanoseconds, and ends the turn when the loop comes round."""
    state: ShellState
    log: EventLog
    ask_stop: Callable[[], None]
    """Begins what SIGTERM begins."""
    is_ready: Callable[[], bool]
    uptime_s: Callable[[], float]
    keeper: Keeper | None = None
    """None in memory mode."""

    def standing(self) -> Standing:
        """Where the node stands now."""
        if self.keeper is not None:
            return self.keeper.standing()
        return Standing("memory", "alone", None, 0, 0, self.begin_turn(), "")
