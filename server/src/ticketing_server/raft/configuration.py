"""Who votes: node ids by slot, changed by one REMOVE or ADD at a time.

A configuration holds from the moment its entry is appended, and is undone with it: `History`
follows the log.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

_MEMBER = Struct(">BQ")
CLUSTER_ID_BYTES = 16


class Configuration(NamedTuple):
    """The voters of a cluster. An empty one is that of a node that has joined none."""

    cluster_id: bytes = b""
    members: tuple[tuple[int, int], ...] = ()
    """(slot, node id), slots rising."""
    slots: int = 0
    """How many slots there are, from 0 on; one is empty between a REMOVE and its ADD."""

    @property
    def voters(self) -> frozenset[int]:
        """Node ids that vote and count."""
        return frozenset(node for _, node in self.members)

    @property
    def majority(self) -> int:
        """How many voters decide."""
        return len(self.members) // 2 + 1

    def holder(self, slot: int) -> int | None:
        """Return the node id that has a slot, if any."""
        return dict(self.members).get(slot)

    def without(self, slot: int, node: int) -> Configuration:
        """Return this with one member fewer; the same where the slot isn't that node's."""
        members = tuple(member for member in self.members if member != (slot, node))
        return self._replace(members=members)

    def with_member(self, slot: int, node: int) -> Configuration:
        """Return this with one member more; `ValueError` where slot or node is taken."""
        if self.holder(slot) is not None or node in self.voters:
            raise ValueError(f"slot {slot} or node {node} is in the configuration already")
        return self._replace(members=tuple(sorted((*self.members, (slot, node)))))


def encode_member(slot: int, node: int) -> bytes:
    """Return the payload of a REMOVE or ADD."""
    return _MEMBER.pack(slot, node)


def decode_member(payload: bytes) -> tuple[int, int]:
    """Return slot and node id of a REMOVE or ADD."""
    slot, node = _MEMBER.unpack(payload)
    return slot, node


def encode_founding(configuration: Configuration) -> bytes:
    """Return the payload of entry 1; `ValueError` where it isn't that of a new cluster."""
    if [slot for slot, _ in configuration.members] != list(range(configuration.slots)):
        raise ValueError(
            f"members {configuration.members} don't fill slots 0 to {configuration.slots - 1}"
        )
    if len(configuration.cluster_id) != CLUSTER_ID_BYTES:
        raise ValueError(
            f"cluster id has {len(configuration.cluster_id)} bytes, takes {CLUSTER_ID_BYTES}"
        )
    members = b"".join(_MEMBER.pack(*member) for member in configuration.members)
    return configuration.cluster_id + members


def decode_founding(payload: bytes) -> Configuration:
    """Return the configuration that entry 1 carries."""
    members = tuple(sorted(_MEMBER.iter_unpack(payload[CLUSTER_ID_BYTES:])))
    return Configuration(payload[:CLUSTER_ID_BYTES], members, len(members))


class History:
    """The configurations of a log, by the index each holds from; the last one holds now."""

    def __init__(self, base_index: int, base: Configuration) -> None:
        """Begin with what a snapshot (or nothing) says."""
        self.now = base
        """What holds now, committed or not."""
        self.voters = base.voters
        """Those of `now`: asked for in every turn."""
        self.changed_at = base_index
        """Index of the entry that brought `now`."""
        self._steps: list[tuple[int, Configuration]] = [(base_index, base)]

    def _settle(self) -> None:
        self.changed_at, self.now = self._steps[-1]
        self.voters = self.now.voters

    def was_member(self, node: int) -> bool:
        """Return whether any configuration that is still known has this node."""
        return any(node in held.voters for _, held in self._steps)

    def at(self, index: int) -> Configuration:
        """Return what held at an index that is not below the base."""
        return next(held for begun, held in reversed(self._steps) if begun <= index)

    def push(self, index: int, configuration: Configuration) -> None:
        """Let another one hold from the entry at `index` on."""
        self._steps.append((index, configuration))
        self._settle()

    def truncate(self, index: int) -> None:
        """Undo what came with entries from `index` on."""
        while len(self._steps) > 1 and self._steps[-1][0] >= index:
            self._steps.pop()
        self._settle()

    def compact(self, index: int) -> None:
        """Forget what held before `index`."""
        held = self.at(index)
        self._steps = [(index, held), *(step for step in self._steps if step[0] > index)]
        self._settle()


def majority_of(values: Iterable[int], majority: int) -> int:
    """Return the highest value that as many as `majority` have reached."""
    return sorted(values, reverse=True)[majority - 1]
