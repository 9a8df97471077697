"""Who the nodes of the cluster are: founding it, meeting peers, letting empty ones join."""

from __future__ import annotations

from collections.abc import Iterator

from ticketing_server.cluster.messages import Found, PeerHello
from ticketing_server.cluster.values import NodeSettings
from ticketing_server.raft.configuration import CLUSTER_ID_BYTES, Configuration, decode_founding
from ticketing_server.raft.core import Raft, founding_entry
from ticketing_server.raft.state import LEADER

_WORD_BYTES = 8
_FOUNDING_INDEX = 1
_FOUNDER = 0
"""The slot that founds a cluster, so that no two do."""


class Membership:
    """What a node knows of its peers beside the log."""

    def __init__(self, settings: NodeSettings, raft: Raft, entropy: Iterator[int]) -> None:
        """Begin with nobody up."""
        self.hellos: dict[int, PeerHello] = {}
        """By node id, of those that are connected."""
        self._settings = settings
        self._raft = raft
        self._entropy = entropy
        self._met = settings.cluster_id
        """A cluster id that this node has, or has met."""
        self._uninformed: set[int] = set()
        """Members that are up and in no cluster: they are told of the founding."""
        self._was_voter = False
        self.is_removed()

    @property
    def cluster_id(self) -> bytes:
        """The cluster that this node is in; empty where it is in none."""
        return self._raft.configuration.cluster_id

    def slot_of(self, node: int) -> int | None:
        """Return the slot of a member."""
        members = self._raft.configuration.members
        return next((slot for slot, member in members if member == node), None)

    def address_of(self, slot: int, node: int) -> bytes:
        """Return where clients reach a member: as it says itself, else as configured."""
        hello = self.hellos.get(node)
        if hello is not None and hello.client_address:
            return hello.client_address
        addresses = self._settings.addresses
        return addresses[slot] if slot < len(addresses) else b""

    def table_version(self, own: int) -> int:
        """Return the highest version of the table that this node and all that are up can apply."""
        return min([own, *(hello.versions[1] for hello in self.hellos.values())])

    # Peers

    def up(self, hello: PeerHello, now_ns: int) -> None:
        """Take that a peer is connected, or what changed since it was."""
        if hello.node_id not in self.hellos:
            # What was sent to it while it was away didn't arrive.
            self._raft.unreachable(hello.node_id)
        self.hellos[hello.node_id] = hello
        self._met = self._met or hello.cluster_id
        self._uninformed.discard(hello.node_id)
        if not hello.cluster_id and hello.is_empty:
            self._uninformed.add(hello.node_id)
        self._let_join(hello, now_ns)

    def down(self, node: int) -> None:
        """Take that the connection to a peer is gone."""
        self.hellos.pop(node, None)
        self._uninformed.discard(node)
        self._raft.unreachable(node)
        self._raft.leave(node)

    def elected(self, now_ns: int) -> None:
        """Take that this node leads: who knocked at the leader before knocks here."""
        for hello in self.hellos.values():
            self._let_join(hello, now_ns)

    def _let_join(self, hello: PeerHello, now_ns: int) -> None:
        raft = self._raft
        is_ours = hello.cluster_id in (b"", self.cluster_id)
        if raft.role == LEADER and is_ours and hello.node_id not in raft.configuration.voters:
            raft.join(hello.node_id, hello.slot, now_ns)

    def is_removed(self) -> bool:
        """Whether this node voted once and the cluster goes on without it."""
        raft = self._raft
        if self._was_voter and raft.is_voter:
            return False
        # What is not committed may be undone, but for the founding, which nobody decides on.
        is_settled = raft.history.changed_at <= max(raft.commit, _FOUNDING_INDEX)
        if raft.is_voter:
            self._was_voter = self._was_voter or is_settled
            return False
        # A snapshot doesn't tell who was a member before it.
        is_gone = self._was_voter and is_settled and bool(raft.configuration.members)
        return is_gone or raft.is_removed

    # Founding

    @property
    def is_empty(self) -> bool:
        """Whether this node has no log and no vote."""
        raft = self._raft
        return not raft.term and not raft.log.last_index

    def found_alone(self, now_ns: int) -> None:
        """Found a cluster of one, the first time a durable server starts."""
        settings = self._settings
        if settings.is_durable_alone and self.is_empty:
            self._found(((settings.slot, settings.node_id),), 1, now_ns)

    def found(self, message: Found, now_ns: int) -> None:
        """Take that slot 0 founded the cluster, where this node is in none and is named in it."""
        founded = decode_founding(message.entry.payload)
        is_named = founded.holder(self._settings.slot) == self._settings.node_id
        is_known = self._met in (b"", founded.cluster_id)
        if is_named and is_known and self._raft.found(message.entry, now_ns):
            self._met = founded.cluster_id

    def tell(self, now_ns: int) -> list[Found]:
        """Found the cluster if it is time; return what members are to hear of the founding."""
        settings, raft = self._settings, self._raft
        if settings.slot != _FOUNDER or settings.is_durable_alone:
            return []
        if not self._uninformed and self.cluster_id:
            return []
        if self.is_empty and not self._met:
            self._found_together(now_ns)
        if not self._uninformed or not self.cluster_id:
            return []
        # On disk first: else this node might found another cluster after a crash.
        has_entry = raft.log.base_index == 0 and raft.stable_index >= 1
        informed = self._uninformed & raft.configuration.voters if has_entry else set()
        self._uninformed -= informed
        entry = raft.log.slice(1, 1)[0] if informed else None
        return [
            Found(settings.node_id, node, entry) for node in sorted(informed) if entry is not None
        ]

    def _found_together(self, now_ns: int) -> None:
        settings = self._settings
        members = {settings.slot: settings.node_id}
        for hello in self.hellos.values():
            if not hello.is_empty or hello.cluster_id or hello.slot in members:
                return
            members[hello.slot] = hello.node_id
        if sorted(members) == list(range(settings.slots)):
            self._found(tuple(sorted(members.items())), settings.slots, now_ns)

    def _found(self, members: tuple[tuple[int, int], ...], slots: int, now_ns: int) -> None:
        words = [next(self._entropy) for _ in range(CLUSTER_ID_BYTES // _WORD_BYTES)]
        cluster_id = b"".join(word.to_bytes(_WORD_BYTES, "big") for word in words)
        self._met = cluster_id
        self._raft.found(founding_entry(Configuration(cluster_id, members, slots)), now_ns)
