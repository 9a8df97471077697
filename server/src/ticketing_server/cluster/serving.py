"""How a node deals with its clients: who it says leads, what goes into the log, what is refused.

What the log and its peers are is `node`'s part. A connection **serves** where its requests go into
the log: it was welcomed by the leader, and ends with its lead (version 3: goes on without it).
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

from ticketing_server import constants_gen as c
from ticketing_server import wire
from ticketing_server.cluster import entries
from ticketing_server.cluster.turn_queue import TurnQueue
from ticketing_server.connection_engine import ConnectionEngine, new_output
from ticketing_server.connections import Connection
from ticketing_server.engine import Output
from ticketing_server.queues import Link
from ticketing_server.session import STANDALONE, Face, FaceFactory, Place
from ticketing_server.wire import Command

UNKNOWN_SLOT = c.SLOT_STANDALONE
_NOT_LEADING = "this node does not lead; nothing was done"
_NO_ROOM = "the disk is full; nothing was done"
_VERSION_3 = 3


class Standing(NamedTuple):
    """Who leads, as clients are told."""

    role: int
    slot: int
    address: bytes


NOBODY = Standing(c.ROLE_UNKNOWN, UNKNOWN_SLOT, b"")
ALONE = Standing(c.ROLE_STANDALONE, UNKNOWN_SLOT, b"")


def fingerprint(cluster_id: bytes) -> bytes:
    """Return what clients may pin; zeros as long as the node is in no cluster."""
    if not cluster_id:
        return bytes(32)
    return hashlib.sha256(c.FINGERPRINT_CONTEXT + cluster_id).digest()


class Serving(ConnectionEngine):
    """The clients' side of a node."""

    def __init__(self, faces: Mapping[int, FaceFactory], slot: int | None) -> None:
        """Begin without a leader; `slot` is None where the server is alone."""
        self._is_alone = slot is None
        super().__init__(faces, STANDALONE if slot is None else Place(c.MODE_CLUSTER, slot))
        self._standing = ALONE if self._is_alone else NOBODY
        self._leading = 0
        """The term that this node leads, 0 while it doesn't."""
        self._is_disk_full = False
        self._queue = TurnQueue()
        self._replies: list[tuple[Link, bytes]] = []
        self._told: list[Output] = []
        self._speaking: dict[int, Connection] = {}

    # What was read

    def feed(self, connection: int, data: bytes, now_ns: int) -> None:
        """Take what was read; see `Engine.feed`."""
        fed = self.connections.get(connection)
        if fed is None or fed.closing or fed.refusal:
            return
        self.received_bytes += len(data)
        if fed.link is None:
            self._look_who_leads(now_ns)
            if self._handshake(fed, data, now_ns) is None:
                return
            data = b""
        link = fed.link
        assert link is not None
        fed.heard_ns = now_ns
        taken = fed.face.take(data, fed.out)
        commands = taken.commands
        if commands:
            if not fed.serves or (self._is_disk_full and self._is_alone):
                self._refuse_requests(fed, commands)
            elif fed.peer.protocol == _VERSION_3:
                self._queue.add(entries.commands_of_version_3(link, commands))
            else:
                self._queue.add(entries.frames(link, taken.frames, commands))
        if fed.out:
            self._speaking[connection] = fed
        if taken.closing is not None:
            self._close(fed, taken.closing)

    def _refuse_requests(self, connection: Connection, commands: list[Command]) -> None:
        text = _NO_ROOM if self._is_alone else _NOT_LEADING
        self.errors[c.ERROR_NOT_SERVING] += len(commands)
        connection.out += [
            wire.error(c.ERROR_NOT_SERVING, text, request_id) for _, request_id, _, _ in commands
        ]
        self._speaking[connection.number] = connection

    def _refuse_queued(self) -> None:
        """Refuse the requests that are in no entry yet; what else is queued stays."""
        runs = list(self._queue)
        self._queue.clear()
        for run in runs:
            connection = self.connections.get(run.link.number)
            if run.kind not in (entries.FRAMES, entries.COMMANDS):
                self._queue.add(run)
            elif connection is not None and connection.link is run.link:
                self._refuse_requests(connection, run.commands)

    # Connections

    def _connected(self, connection: Connection, link: Link, frame: bytes) -> None:
        connection.out.append(frame)
        self._speaking[connection.number] = connection
        connection.told = self._standing.slot
        if connection.peer.protocol == _VERSION_3 and not self._is_alone:
            connection.serves = bool(self._leading)
        else:
            connection.serves = self._standing.role in (c.ROLE_STANDALONE, c.ROLE_LEADER)
        if connection.serves:
            self._queue.add(entries.connect(link))

    def _disconnected(self, connection: Connection, link: Link) -> None:
        if connection.serves:
            self._queue.add(entries.detach(link))

    def _farewell(self, face: Face) -> bytes:
        # Said when all that was asked for is answered.
        return b""

    def connection_of(self, client: bytes) -> Connection | None:
        """Return the connection over which a client uses this node, if it leads."""
        connection = super().connection_of(client)
        return connection if connection is not None and connection.serves else None

    # Who leads

    @abstractmethod
    def _look_who_leads(self, now_ns: int) -> None:
        """Bring `_standing` up to date."""

    def _stand(self, standing: Standing, cluster_id: bytes) -> None:
        """Say this in handshakes from now on."""
        self._standing = standing
        self._authority = self._authority._replace(
            role=standing.role,
            leader=standing.address,
            leader_slot=standing.slot,
            fingerprint=b"" if self._is_alone else fingerprint(cluster_id),
        )

    def _tell_leader(self) -> None:
        """Tell those who wait for it, or know another one, where the leader is."""
        slot, address = self._standing.slot, self._standing.address
        for connection in self.connections.values():
            is_older = connection.peer.protocol == _VERSION_3
            if (
                connection.link is None
                or connection.closing
                or (connection.serves and not is_older)
            ):
                continue
            frame = connection.face.know_leader(slot, address)
            if slot not in (UNKNOWN_SLOT, connection.told):
                connection.told = slot
                self._say(connection, frame)

    def _gain(self, term: int) -> None:
        """Take that this node leads: version 3 connections that are there serve from now on."""
        self._leading = term
        if self._is_alone:
            return
        for connection in self.connections.values():
            link = connection.link
            is_older = connection.peer.protocol == _VERSION_3 and link is not None
            if is_older and link is not None and not connection.closing:
                connection.link = Link(0, link.number, link.client, leaves=link.leaves)
                connection.serves = True
                self._queue.add(entries.connect(connection.link))

    def _lose(self) -> None:
        """Take that the lead is gone: nothing that was asked for here is answered any more."""
        self._leading = 0
        self._queue.clear()
        self._replies.clear()
        for connection in list(self.connections.values()):
            link = connection.link
            if link is None:
                continue
            served, connection.serves = connection.serves, False
            frame = connection.face.know_leader(self._standing.slot, self._standing.address)
            connection.told = self._standing.slot
            if connection.peer.protocol == _VERSION_3:
                connection.link = Link(0, link.number, link.client, leaves=link.leaves)
                # First what is answered already: of that nothing is undecided.
                self._say(connection, b"")
                self._say(connection, connection.face.undecided())
                if not connection.closing:
                    self._say(connection, frame)
            elif connection.closing:
                continue
            elif served:
                self._close_with(connection, "leader_changed", frame)
            else:
                self._say(connection, frame)

    def _say(self, connection: Connection, data: bytes) -> None:
        """Write bytes as they are, behind what is answered already."""
        answered = connection.face.render(connection.out)
        connection.out.clear()
        if answered or data:
            self._told.append(new_output((connection.number, answered + data, "no")))

    # Timers

    @property
    @abstractmethod
    def reads_clients(self) -> bool:
        """Whether clients are read now; while not, the shell pauses all of them."""

    def _check_silence(self, connection: Connection, now_ns: int) -> None:
        if not self.reads_clients:
            # What it sends lies unread.
            connection.heard_ns = now_ns
        super()._check_silence(connection, now_ns)

    # Outputs

    def _applied_end(self, number: int) -> None:
        """Take that the end of a connection is applied, and so all that it asked for before."""
        connection = self.connections.get(number)
        if connection is not None and connection.closing:
            connection.detached = True

    def _outputs(self) -> list[Output]:
        connections = self.connections
        outputs: list[Output] = []
        sent = self._greet(outputs) if self._fresh else 0
        for told in self._told:
            sent += len(told.data)
            outputs.append(told)
        self._told.clear()
        speaking = self._speaking
        for link, reply in self._replies:
            connection = connections.get(link.number)
            if connection is not None and connection.link is link:
                connection.out.append(reply)
                speaking[link.number] = connection
        self._replies.clear()
        for number, connection in speaking.items():
            if not connection.closing and number in connections:
                data = connection.face.render(connection.out)
                connection.out.clear()
                if data:
                    sent += len(data)
                    outputs.append(new_output((number, data, "no")))
        speaking.clear()
        if self._ending:
            sent += self._last_outputs(outputs)
        self.sent_bytes += sent
        return outputs

    def _last_outputs(self, outputs: list[Output]) -> int:
        """Close what has nothing to wait for; return how many bytes that writes."""
        sent = 0
        waiting: list[Connection] = []
        for connection in self._ending:
            if self.connections.get(connection.number) is not connection:
                continue
            if self._is_owed_replies(connection):
                waiting.append(connection)
                continue
            del self.connections[connection.number]
            data = connection.last_bytes
            if connection.link is not None:
                face = connection.face
                if connection.closing == "drained":
                    data = face.farewell(self._standing.address)
                data = face.render(connection.out) + data
            sent += len(data)
            how = "now" if connection.closing == "slow_reader" else "linger"
            outputs.append(new_output((connection.number, data, how)))
        self._ending = waiting
        return sent

    def _is_owed_replies(self, connection: Connection) -> bool:
        """Whether something that was read before the end of a connection is yet to be applied."""
        if not connection.serves or connection.detached or connection.closing == "slow_reader":
            return False
        return connection.link is not None and not (self._is_disk_full and self._is_alone)
