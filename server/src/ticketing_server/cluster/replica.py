"""The lock table of a node, and how far in the log it is.

Everything that it does follows from the entries it is given: two replicas that applied the same
ones are equal, byte for byte, and so are their checksums.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from struct import Struct

from ticketing_server import table_image
from ticketing_server.cluster import entries
from ticketing_server.lock_table import LockTable, Run
from ticketing_server.queues import Link
from ticketing_server.raft.messages import BATCH, NOOP, Entry

CHECKSUM_BYTES = 16
_FIRST_TOKEN = 1
_HEAD = Struct(f">QQQ{CHECKSUM_BYTES}s")
_EFFECT = Struct(">QI")


class Replica:
    """A table as of one entry."""

    def __init__(self) -> None:
        """Begin before the first entry."""
        self.table = LockTable(_FIRST_TOKEN)
        self.index = 0
        self.term = 0
        self.stamp = 0
        """Cluster time of the last entry, which is the table's time."""
        self.checksum = bytes(CHECKSUM_BYTES)
        """Over what every entry so far did to connections, in order."""

    def apply(
        self,
        entry: Entry,
        cache: Sequence[Run] | None = None,
        replies: list[tuple[Link, bytes]] | None = None,
    ) -> None:
        """Take the next entry.

        `cache` is what it says, where that was parsed already; its links are then the table's.
        What connections are answered is put into `replies`, where somebody wants it.
        """
        if entry.index != self.index + 1:
            raise ValueError(f"entry {entry.index} doesn't follow {self.index}")
        if entry.kind == BATCH:
            table = self.table
            runs = cache
            if runs is None:
                runs = entries.decode(entry.payload, entry.term, table.connections)
            dirty = table.dirty
            for link, _ in runs:
                if not link.dirty:
                    link.dirty = True
                    dirty.append(link)
            table.apply(entry.stamp, runs)
            self._take_effects(entry.index, replies)
        elif entry.kind == NOOP:
            noop = entries.decode_noop(entry.payload, entry.term)
            if noop.table_version > entries.TABLE_VERSION:
                raise ValueError(
                    f"entry {entry.index} needs table version {noop.table_version}, "
                    f"this server has {entries.TABLE_VERSION}"
                )
            self.table.begin_term(noop.term, entry.stamp)
        self.index = entry.index
        self.term = entry.term
        self.stamp = entry.stamp

    def _take_effects(self, index: int, replies: list[tuple[Link, bytes]] | None) -> None:
        """Sum up what was answered, and take it from the links."""
        effects = [self.checksum, index.to_bytes(8, "big")]
        for link in self.table.dirty:
            link.dirty = False
            out = link.out
            if out:
                data = b"".join(out)
                out.clear()
                effects.append(_EFFECT.pack(link.number, len(data)))
                effects.append(data)
                if replies is not None:
                    replies.append((link, data))
        self.table.dirty.clear()
        self.checksum = blake2b(b"".join(effects), digest_size=CHECKSUM_BYTES).digest()

    def forget_events(self) -> None:
        """Drop what only the leader of an entry acts on."""
        self.table.refused.clear()
        self.table.events.clear()

    def dump(self) -> bytes:
        """Return all of it; equal where the replicas are."""
        head = _HEAD.pack(self.index, self.term, self.stamp, self.checksum)
        return head + table_image.dump(self.table)

    @classmethod
    def load(cls, image: bytes) -> Replica:
        """Return what was dumped; `ValueError` where it can't be read."""
        if len(image) < _HEAD.size:
            raise ValueError(f"an image of {len(image)} bytes, takes {_HEAD.size} at least")
        replica = cls()
        replica.index, replica.term, replica.stamp, replica.checksum = _HEAD.unpack_from(image)
        replica.table = table_image.load(image[_HEAD.size :])
        return replica
