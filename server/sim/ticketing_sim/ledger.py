"""What the cluster has decided, and a table of our own that follows it.

Whoever is the first to apply an entry shows it here; everybody else must apply the same one at that
index, and be in the same state after it. What leaders answer is compared with what the entries say.
"""

from __future__ import annotations

from collections.abc import Callable

from ticketing_server import constants_gen as c
from ticketing_server import wire
from ticketing_server.cluster import entries
from ticketing_server.cluster.replica import Replica
from ticketing_server.queues import Link
from ticketing_server.raft.messages import BATCH, NOOP, Entry

from ticketing_sim.schedule import Broken
from ticketing_sim.table_checks import Asked, TableChecks, asked_by
from ticketing_sim.table_view import view

_CONFIRMING = frozenset(
    (
        c.REPLY_GRANTED, c.REPLY_TIMED_OUT, c.REPLY_OVERLOADED, c.REPLY_RELEASED, c.REPLY_NOT_HELD,
        c.REPLY_EXTENDED, c.REPLY_CANCELLED, c.REPLY_DROPPED,
    )
)  # fmt: skip


class Ledger:
    """Every entry that any node applied."""

    def __init__(self, count: Callable[[str], None]) -> None:
        self.entries: dict[int, Entry] = {}
        self.replica = Replica()
        self.checks = TableChecks()
        self.commands = 0
        self._count = count
        self._checksums: dict[int, bytes] = {}
        self._said: dict[tuple[int, int], bytearray] = {}
        """What the entries answer, by term and number of the connection."""

    @property
    def last(self) -> int:
        """Index of the last entry that anybody applied."""
        return self.replica.index

    def take(self, who: str, entry: Entry) -> bool:
        """A node applied an entry; returns whether it is the first one to."""
        known = self.entries.get(entry.index)
        if known is not None:
            if known != entry:
                raise Broken(f"state machine safety: {who} applies {entry}, not {known}")
            return False
        if entry.index != self.last + 1:
            raise Broken(f"{who} applies entry {entry.index} after {self.last}")
        if entry.stamp < self.replica.stamp:
            raise Broken(f"cluster time falls from {self.replica.stamp} at {entry}")
        self.entries[entry.index] = entry
        self._apply(entry)
        return True

    def _apply(self, entry: Entry) -> None:
        replica = self.replica
        asked = Asked()
        if entry.kind == BATCH:
            runs = entries.decode(entry.payload, entry.term, replica.table.connections)
            asked = asked_by(runs)
            self.commands += sum(len(commands) for _, commands in runs)
        elif entry.kind == NOOP:
            asked.began_term = True
            if view(replica.table).has_held_back:
                self._count("failover while some were held back")
        was_held_back = replica.table.held_back
        replies: list[tuple[Link, bytes]] = []
        replica.apply(entry, None, replies)
        replica.forget_events()
        if was_held_back and not replica.table.held_back and entry.kind == BATCH:
            self._count("failover grace over")
        for link, data in replies:
            self._said.setdefault((link.term, link.number), bytearray()).extend(data)
        self._checksums[entry.index] = replica.checksum
        if entry.kind in (BATCH, NOOP):
            self.checks.after(view(replica.table), entry.stamp, asked)

    def compare(self, who: str, replica: Replica) -> None:
        """A node's state is what all have at its index."""
        if replica.index and replica.checksum != self._checksums[replica.index]:
            raise Broken(f"{who} has another state than others after entry {replica.index}")

    def compare_whole(self, who: str, replica: Replica) -> bool:
        """Compare images, if the node is where we are; then go on from the image, restored."""
        if replica.index != self.last:
            return False
        image = self.replica.dump()
        if replica.dump() != image:
            raise Broken(f"{who} has another image after entry {replica.index}")
        restored = Replica.load(image)
        if restored.dump() != image:
            raise Broken(f"an image changes when it is loaded, after entry {replica.index}")
        self.replica = restored
        self._count("image compared and restored")
        return True

    def answered(self, who: str, term: int, number: int, data: bytes, at: int) -> int:
        """A leader writes this to a connection; returns how far it has said what is decided."""
        said = self._said.get((term, number), b"")
        place = 0
        while place < len(data):
            end = place + wire.HEADER_BYTES + int.from_bytes(data[place + 1 : place + 3], "big")
            frame = data[place:end]
            if frame[0] in _CONFIRMING:
                if said[at : at + len(frame)] != frame:
                    raise Broken(
                        f"{who} answers {frame!r} on connection {number} of term {term}, and the "
                        f"log says {bytes(said[at : at + len(frame)])!r}"
                    )
                at += len(frame)
            elif frame[0] == c.REPLY_ERROR and said[at : at + len(frame)] == frame:
                at += len(frame)
            place = end
        return at
