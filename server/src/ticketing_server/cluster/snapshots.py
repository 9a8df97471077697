"""When a node wants a snapshot, and whether the one that was made is its own state."""

from __future__ import annotations

from ticketing_server.cluster.replica import Replica
from ticketing_server.cluster.values import SnapshotPolicy
from ticketing_server.raft.core import Raft
from ticketing_server.raft.messages import Entry, Snapshot


class Snapshots:
    """Follows what is applied; one snapshot is made at a time."""

    def __init__(self, raft: Raft, replica: Replica, policy: SnapshotPolicy) -> None:
        """Begin with what the log has behind the last snapshot."""
        self.is_requested = False
        self.diverged = ""
        """Why the process has to end: the replay came to something else than this node."""
        self._raft = raft
        self._replica = replica
        self._policy = policy
        self._entries = 0
        self._bytes = 0
        self._mark: tuple[int, bytes] | None = None
        """The entry that the next snapshot is of, and the checksum there."""
        self._is_making = False
        self._compacted: Snapshot | None = None
        self._is_short_of_room = False

    def disk_full(self, is_full: bool) -> None:
        """Take that the disk takes no more entries, or does again: a snapshot makes room."""
        self._is_short_of_room = is_full
        self.is_requested |= is_full

    def count(self, entry: Entry) -> None:
        """Take that an entry was applied."""
        self._entries += 1
        self._bytes += entry.size

    def installed(self, replica: Replica) -> None:
        """Take that a leader's snapshot replaced the table; one that is being made is too old."""
        self._replica = replica
        self._mark = None
        self._entries = self._bytes = 0

    def wanted(self) -> int | None:
        """Return the entry that a snapshot is to be made of now, if one is; told once."""
        replica, raft, policy = self._replica, self._raft, self._policy
        if self._mark is None:
            is_due = self._entries >= policy.entries or self._bytes >= policy.bytes
            newest = raft.snapshot.index if raft.snapshot is not None else 0
            if not (is_due or self.is_requested) or replica.index <= newest or self._is_making:
                return None
            self._mark = (replica.index, replica.checksum)
            self._entries = self._bytes = 0
            self.is_requested = False
        index = self._mark[0]
        if self._is_making or raft.stable_index < index:
            return None
        self._is_making = True
        return index

    def made(self, index: int, checksum: bytes) -> None:
        """Take that the snapshot is on disk; compact the log, unless it isn't this node's state."""
        mark, self._mark = self._mark, None
        self._is_making = False
        if mark is None or mark[0] != index:
            # A leader's came in between, which is newer.
            return
        if mark[1] != checksum:
            self.diverged = (
                f"the replay of the log to entry {index} came to {checksum.hex()}, "
                f"this node to {mark[1].hex()}"
            )
            return
        self._compacted = self._raft.compact(index, self._trailing(index))

    def _trailing(self, index: int) -> int:
        """Return how many entries up to `index` stay in the log, for peers that lag a little."""
        if self._is_short_of_room:
            return 0
        log, policy = self._raft.log, self._policy
        first = max(log.base_index, index - policy.trailing) + 1
        kept = size = 0
        for entry in reversed(log.slice(first, index)):
            size += entry.size
            if size > policy.trailing_bytes:
                break
            kept += 1
        return kept

    def failed(self, index: int) -> None:
        """Take that it couldn't be made: it is tried again when as much is applied anew."""
        self._mark = None
        self._is_making = False

    def take_compacted(self) -> Snapshot | None:
        """Return the snapshot that the core stands on since the last call, if it is a new one."""
        compacted, self._compacted = self._compacted, None
        return compacted
