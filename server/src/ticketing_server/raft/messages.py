"""What the nodes of a cluster say to each other, and what they keep: plain values without rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ticketing_server.raft.configuration import Configuration

BATCH = 0
"""One turn of the event loop, or any other command: opaque here."""
NOOP = 1
"""First entry of each term; carries what the term needs, opaque here."""
FOUND = 2
REMOVE = 3
ADD = 4

ENTRY_OVERHEAD_BYTES = 32
"""What an entry takes beside its payload, as windows and limits count it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One place of the log. The payload is encoded once and never changed."""

    index: int
    term: int
    kind: int
    stamp: int
    """Cluster time in nanoseconds, never less than that of the entry before."""
    payload: bytes

    @property
    def size(self) -> int:
        """Bytes that windows and limits count."""
        return ENTRY_OVERHEAD_BYTES + len(self.payload)


class HardState(NamedTuple):
    """What a node must not forget beside its log."""

    term: int = 0
    vote: int | None = None
    """Node id that got this node's vote in `term`."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the core knows of a snapshot; the table in it is the driver's."""

    index: int
    term: int
    stamp: int
    configuration: Configuration


@dataclass(frozen=True, slots=True)
class Append:
    """Leader to follower: the entries that follow `prev_index`; may be none."""

    sender: int
    to: int
    term: int
    prev_index: int
    prev_term: int
    entries: tuple[Entry, ...]
    commit: int
    round: int
    """The last heartbeat round begun before this was sent."""


@dataclass(frozen=True, slots=True)
class AppendReply:
    """Answer to `Append` and `InstallSnapshot`."""

    sender: int
    to: int
    term: int
    accepted: bool
    index: int
    """Accepted: all up to here is synced and as the leader's. Else the `prev_index` refused."""
    hint_index: int
    hint_term: int
    """Refused: the highest place that may agree, and the term there."""
    round: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Leader to all, every 50 ms."""

    sender: int
    to: int
    term: int
    commit: int
    """Never above what the follower is known to hold."""
    round: int


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """Answer to `Heartbeat`; also how a leader of an older term hears of the newer one."""

    sender: int
    to: int
    term: int
    round: int


@dataclass(frozen=True, slots=True)
class VoteRequest:
    """Asks for a vote in `term`, or (`pre`) whether one would be given."""

    sender: int
    to: int
    term: int
    pre: bool
    last_index: int
    last_term: int
    transfer: bool
    """The leader itself asked for this election: nobody refuses for its sake."""


@dataclass(frozen=True, slots=True)
class VoteReply:
    """Answer to `VoteRequest`."""

    sender: int
    to: int
    term: int
    """The term of the node that answers."""
    campaign: int
    """The term that was asked for."""
    pre: bool
    granted: bool


@dataclass(frozen=True, slots=True)
class InstallSnapshot:
    """Take this snapshot in place of a log that the leader no longer has.

    The driver sends the file with it, and hands this to the core when the file has arrived whole.
    """

    sender: int
    to: int
    term: int
    snapshot: Snapshot
    round: int


@dataclass(frozen=True, slots=True)
class TimeoutNow:
    """The leader hands over: campaign at once."""

    sender: int
    to: int
    term: int


Message = (
    Append
    | AppendReply
    | Heartbeat
    | HeartbeatReply
    | VoteRequest
    | VoteReply
    | InstallSnapshot
    | TimeoutNow
)
