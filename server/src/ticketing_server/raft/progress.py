"""What a leader knows of one peer, and how much it may send it.

- `PROBE`: where the logs agree is not known: one append at a time, the next one after its answer
  or after a heartbeat's.
- `REPLICATE`: they agree up to `match`; appends stream ahead of the answers, within the windows.
- `SNAPSHOT`: the peer needs what the log no longer has: no entries until it answers with an index
  that the log, or the snapshot, reaches.
"""

from __future__ import annotations

from collections import deque

from ticketing_server.raft.messages import Entry, Snapshot
from ticketing_server.raft.timing import Windows

PROBE = "probe"
REPLICATE = "replicate"
SNAPSHOT = "snapshot"


class Progress:
    """One voter or learner, as the leader of one term sees it."""

    def __init__(self, next_index: int, now_ns: int, slot: int | None = None) -> None:
        """Begin to probe; a learner comes with the slot it wants."""
        self.state = PROBE
        self.match = 0
        """All up to here is on the peer's disk as in the leader's log."""
        self.next = next_index
        self.slot = slot
        self.round = 0
        """Highest heartbeat round that it acknowledged."""
        self.heard_ns = now_ns
        """When it last answered; the election counts as once."""
        self.answered = False
        self.paused = False
        """Probing: an append is on its way, …"""
        self.paused_round = 0
        """… sent after this round."""
        self.snapshot: Snapshot | None = None
        """The one that was sent last, …"""
        self.snapshot_ns = 0
        """… and when."""
        self._inflight: deque[tuple[int, int]] = deque()
        self._inflight_bytes = 0

    @property
    def inflight_messages(self) -> int:
        """Appends that stream and are not answered."""
        return len(self._inflight)

    def is_open(self, windows: Windows) -> bool:
        """Return whether entries may be sent now."""
        if self.state == PROBE:
            return not self.paused
        return (
            self.state == REPLICATE
            and len(self._inflight) < windows.messages
            and self._inflight_bytes < windows.bytes
        )

    def heard_round(self, number: int) -> None:
        """Take the reply to a heartbeat: one that was sent before the probe says nothing of it."""
        if number > self.paused_round:
            self.paused = False

    def sent(self, entries: tuple[Entry, ...], last_round: int) -> None:
        """Count an append that leaves now, after this heartbeat round."""
        if self.state == PROBE:
            self.paused = True
            self.paused_round = last_round
        elif entries:
            size = sum(entry.size for entry in entries)
            self._inflight.append((entries[-1].index, size))
            self._inflight_bytes += size
            self.next = entries[-1].index + 1

    def accepted(self, index: int, base_index: int) -> bool:
        """Take that the peer has all up to `index`; return whether that is news."""
        is_news = index > self.match
        self.match = max(self.match, index)
        self.next = max(self.next, self.match + 1)
        while self._inflight and self._inflight[0][0] <= index:
            self._inflight_bytes -= self._inflight.popleft()[1]
        wanted = base_index if self.snapshot is None else min(base_index, self.snapshot.index)
        if self.state == PROBE or (self.state == SNAPSHOT and self.match >= wanted):
            self._turn(REPLICATE, self.match + 1)
        return is_news

    def refused(self, index: int, next_index: int) -> bool:
        """Take that the peer refused what follows `index`; return whether that still counts."""
        if self.state == PROBE:
            if index != self.next - 1:
                return False
            self._turn(PROBE, max(self.match + 1, min(index, next_index)))
            return True
        if self.state == REPLICATE and index > self.match:
            self._turn(PROBE, self.match + 1)
            return True
        return False

    def lost(self) -> None:
        """Probe again: what was on its way may never arrive."""
        self._turn(PROBE, self.match + 1)

    def awaits_snapshot(self, snapshot: Snapshot, now_ns: int) -> None:
        """Send no entries until the peer has this snapshot, or as much."""
        self.snapshot = snapshot
        self.snapshot_ns = now_ns
        self._turn(SNAPSHOT, self.next)

    def _turn(self, state: str, next_index: int) -> None:
        self.state = state
        self.next = next_index
        self.paused = False
        self._inflight.clear()
        self._inflight_bytes = 0
