"""The sockets between nodes: two connections per pair, dialed by the lower slot.

Control carries votes, heartbeats and answers, bulk carries entries and snapshot files, so that no
heartbeat waits behind a file. A pair is up when both are proven, and down as soon as either ends.
What doesn't fit into a bounded queue is lost with the pair, which is then dialed anew.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ticketing_server.addresses import Address
from ticketing_server.cluster.messages import PeerHello
from ticketing_server.peers import frames
from ticketing_server.peers.connection import HANDSHAKE_S, Channel, Pair
from ticketing_server.peers.handshake import (
    BULK,
    CONTROL,
    NONCE_BYTES,
    OTHER_CLUSTER,
    Handshake,
    Hello,
    Refused,
    misfit,
    other_cluster,
)
from ticketing_server.raft.messages import InstallSnapshot

DIAL_S = 1.5
"""How long connecting may take, TLS and all, before it is tried anew."""
HANDSHAKES_MAX = 64
"""Connections that have proved nothing yet; over it the oldest is closed."""
RETRY_S = (0.05, 0.5)
"""First and longest pause before a peer is dialed again, …"""
REFUSED_RETRY_S = 2.0
"""… and the pause after one refused, or was refused."""
BEAT_S = 0.5
"""A connection on which nothing was sent for so long sends a ping."""
_LIVE_BEATS = 3
_ACCEPT_PAUSE_S = 1.0


class PeerHost(Protocol):
    """What the transport tells, on the event loop."""

    def identity(self) -> tuple[bytes, bool]:
        """Return cluster id (empty while in none) and whether the log is empty."""

    def peer_up(self, hello: PeerHello) -> None:
        """A pair is up; or what its peer is (cluster id, empty) has changed."""

    def peer_down(self, node_id: int) -> None:
        """A pair that was up has ended; what was on its way may be lost."""

    def message(self, message: frames.PeerMessage) -> None:
        """Take a message of a peer whose pair is up."""

    def snapshot(self, message: InstallSnapshot, file: bytes) -> None:
        """Take a snapshot whose file has arrived whole."""

    def met_other_cluster(self, hello: Hello) -> None:
        """A node that proved the secret belongs to another cluster than this one."""

    def peer_event(self, name: str, fields: dict[str, object], text: str) -> None:
        """Log something that an operator acts on."""


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """Where the nodes are and who this one is."""

    node_id: int
    slot: int
    addresses: tuple[Address, ...]
    """Of peers, by slot."""
    client_address: bytes
    table_versions: tuple[int, int]


@dataclass(slots=True)
class PeerKeys:
    """What is loaded again while the node runs; the first secret is the one to prove."""

    secrets: Sequence[bytes]
    dial_tls: ssl.SSLContext | None = None
    accept_tls: ssl.SSLContext | None = None


class Peers:
    """All pairs of one node. Every call is made on its event loop."""

    def __init__(self, settings: PeerSettings, keys: PeerKeys, host: PeerHost) -> None:
        """Nothing is opened yet."""
        self.settings = settings
        self.keys = keys
        self.host = host
        self.loop: asyncio.AbstractEventLoop
        self._run_number = int.from_bytes(os.urandom(8), "big")
        self.addresses: tuple[Address, ...] = ()
        self._pairs: dict[int, Pair] = {}
        self._by_node: dict[int, Pair] = {}
        self._halves: dict[tuple[int, int, int], Channel] = {}
        self._handshaking: dict[Channel, None] = {}
        self._unreachable: dict[int, str] = {}
        self._bound: list[socket.socket] = []
        self._accepting: dict[asyncio.Task[None], None] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, bound: Sequence[socket.socket]) -> None:
        """Serve these listening sockets (taken over), and dial all higher slots."""
        self.loop = asyncio.get_running_loop()
        self._bound = list(bound)
        self.addresses = tuple(Address(*sock.getsockname()[:2]) for sock in bound)
        for sock in bound:
            self.loop.add_reader(sock.fileno(), self._accept, sock)
        for slot in range(self.settings.slot + 1, len(self.settings.addresses)):
            self._run(self._dial_on(slot))
        self._run(self._beat_on())

    async def stop(self) -> None:
        """End everything."""
        while self._bound:
            sock = self._bound.pop()
            self.loop.remove_reader(sock.fileno())
            sock.close()
        tasks = [*self._tasks, *self._accepting]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for pair in list(self._pairs.values()):
            pair.end("this node stops")
        for channel in [*self._handshaking, *self._halves.values()]:
            channel.close("this node stops")
        await asyncio.sleep(0)

    def send(self, message: frames.PeerMessage) -> None:
        """Send to `message.to`; without effect where that peer isn't connected."""
        pair = self._by_node.get(message.to)
        if pair is not None:
            pair.send(message)

    def send_snapshot(self, message: InstallSnapshot, file: bytes) -> None:
        """Send a snapshot's file, and the message that it comes with."""
        pair = self._by_node.get(message.to)
        if pair is not None:
            pair.send_snapshot(message, file)

    def disconnect(self, node_id: int, reason: str) -> None:
        """End the pair of a node, which is then made anew."""
        pair = self._by_node.get(node_id)
        if pair is not None:
            pair.end(reason)

    def identity_changed(self) -> None:
        """Tell every peer what `PeerHost.identity` returns now."""
        for pair in list(self._pairs.values()):
            if self.check_identity(pair):
                pair.send_identity(*self.host.identity())

    def up(self) -> dict[int, PeerHello]:
        """Return who is connected, by slot."""
        return {slot: pair.hello for slot, pair in self._pairs.items()}

    # Making connections

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(coroutine)
        task.add_done_callback(self._task_ended)
        self._tasks.append(task)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            context = {"message": "a task of the peers ended", "exception": error}
            self.loop.call_exception_handler(context)

    def _accept(self, sock: socket.socket) -> None:
        try:
            accepted, address = sock.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                self.loop.remove_reader(sock.fileno())
                self.loop.call_later(_ACCEPT_PAUSE_S, self._go_on_accepting, sock)
            return
        accepted.setblocking(False)
        where = str(Address(*address[:2]))
        task = self.loop.create_task(self._greet(accepted, where))
        self._accepting[task] = None
        task.add_done_callback(lambda done: self._accepting.pop(done, None))
        if len(self._accepting) > HANDSHAKES_MAX:
            next(iter(self._accepting)).cancel()

    def _go_on_accepting(self, sock: socket.socket) -> None:
        if sock.fileno() >= 0:
            self.loop.add_reader(sock.fileno(), self._accept, sock)

    async def _greet(self, accepted: socket.socket, where: str) -> None:
        tls = self.keys.accept_tls
        try:
            await self.loop.connect_accepted_socket(
                lambda: Channel(self, self._handshake(None), where), accepted, **_tls_options(tls)
            )
        except OSError as error:
            accepted.close()
            if tls is not None:
                self.event("peer_refused", where, _tls_reason(error), reason="tls")
        except asyncio.CancelledError:
            accepted.close()
            raise

    def _handshake(self, dialed: tuple[int, int, int] | None) -> Handshake:
        return Handshake(self._hello, self.keys.secrets, dialed=dialed)

    def _hello(self, channel: int, pair: int) -> Hello:
        settings = self.settings
        cluster_id, is_empty = self.host.identity()
        return Hello(
            channel, pair, os.urandom(NONCE_BYTES), settings.node_id, self._run_number,
            settings.slot, len(settings.addresses), is_empty, cluster_id, settings.client_address,
            settings.table_versions,
        )  # fmt: skip

    async def _dial_on(self, slot: int) -> None:
        pause_s = RETRY_S[0]
        while True:
            begun_s = self.loop.time()
            was_refused = await self._dial(slot)
            if self.loop.time() - begun_s > 2 * HANDSHAKE_S:
                pause_s = RETRY_S[0]
            await asyncio.sleep(REFUSED_RETRY_S if was_refused else pause_s)
            pause_s = min(2 * pause_s, RETRY_S[1])

    async def _dial(self, slot: int) -> bool:
        """Make a pair; when it has ended, return whether it was refused."""
        drawn = int.from_bytes(os.urandom(8), "big")
        dialed = await asyncio.gather(
            *(self._connect(slot, channel, drawn) for channel in (CONTROL, BULK)),
            return_exceptions=True,
        )
        channels = [channel for channel in dialed if isinstance(channel, Channel)]
        try:
            if len(channels) == len(dialed):
                await asyncio.wait(
                    [channel.ended for channel in channels], return_when=asyncio.FIRST_COMPLETED
                )
            self._tell_unreachable(slot, dialed, channels)
            return any(channel.was_refused for channel in channels)
        finally:
            for channel in channels:
                channel.close("the other connection of the pair ended")

    def _tell_unreachable(
        self, slot: int, dialed: Sequence[object], channels: Sequence[Channel]
    ) -> None:
        """Log once per outage and reason why a peer can't be dialed."""
        error = next((e for e in dialed if isinstance(e, Exception)), None)
        if isinstance(error, TimeoutError) and not isinstance(error, ssl.SSLError):
            text = "no answer"
        elif error is not None and self.keys.dial_tls is not None:
            text = _tls_reason(error)
        elif error is not None:
            text = getattr(error, "strerror", None) or str(error) or "no answer"
        elif any(channel.is_stranger for channel in channels):
            text = "it closed the connection before it had proved to be a node"
        else:
            return
        if self._unreachable.get(slot) != text:
            self._unreachable[slot] = text
            self.event("peer_unreachable", str(self.settings.addresses[slot]), text, slot=slot)

    async def _connect(self, slot: int, channel: int, drawn: int) -> Channel:
        address = self.settings.addresses[slot]
        tls = self.keys.dial_tls
        options: dict[str, Any] = _tls_options(tls)
        if tls is not None:
            options["server_hostname"] = address.host
        async with asyncio.timeout(DIAL_S):
            _, protocol = await self.loop.create_connection(
                lambda: Channel(self, self._handshake((channel, drawn, slot)), str(address)),
                address.host,
                address.port,
                **options,
            )
        return protocol

    async def _beat_on(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            for pair in list(self._pairs.values()):
                pair.control.beat()
                if pair.is_up:
                    pair.bulk.beat()

    # What channels tell

    def handshaking(self, channel: Channel) -> None:
        """Count a connection that has proved nothing yet."""
        self._handshaking[channel] = None
        if len(self._handshaking) > HANDSHAKES_MAX:
            next(iter(self._handshaking)).close("too many have not proved the secret")

    def proven(self, channel: Channel) -> None:
        """Take a connection whose peer has proved the secret; the second makes the pair."""
        self._handshaking.pop(channel, None)
        said = channel.hello
        old = self._pairs.get(said.slot)
        if old is not None and (reason := self._is_double(old, said)):
            channel.was_refused = True
            channel.transport.write(frames.frame(frames.REFUSED, reason.encode()))
            self.event("peer_refused", channel.where, reason, reason="double")
            channel.close(reason)
            return
        key = (said.slot, said.run, said.pair)
        other = self._halves.pop(key, None)
        if other is None or other.hello.channel == said.channel:
            if other is not None:
                other.close("the peer connected anew")
            self._halves[key] = channel
            self.loop.call_later(HANDSHAKE_S, self._close_half, key, channel)
            return
        if old is not None:
            old.end("the peer connected anew")
        ends = (channel, other) if said.channel == CONTROL else (other, channel)
        pair = Pair(self, *ends)
        self._pairs[pair.slot] = pair
        self._by_node[pair.hello.node_id] = pair
        if self.check_identity(pair):
            self._unreachable.pop(pair.slot, None)
            self.event("peer_up", pair.control.where, "", slot=pair.slot)
            self.host.peer_up(pair.hello)
            other.take_early()

    def _is_double(self, old: Pair, said: Hello) -> str:
        """Return why a node can't take the place of one that is connected, "" if it can."""
        there = old.control.hello
        if there.run == said.run or old.control.silent_beats >= _LIVE_BEATS:
            return ""
        if there.node_id == said.node_id:
            return (
                f"node {said.node_id:016x} of slot {said.slot} is connected already, from another"
                " process: its directory was copied, and one of the two has to be stopped"
            )
        return f"another node of slot {said.slot} is connected already"

    def _close_half(self, key: tuple[int, int, int], channel: Channel) -> None:
        if self._halves.get(key) is channel:
            channel.close("the other connection of the pair did not come")

    def gone(self, channel: Channel) -> None:
        """Forget a connection that has ended."""
        self._handshaking.pop(channel, None)
        for key, half in list(self._halves.items()):
            if half is channel:
                del self._halves[key]

    def pair_ended(self, pair: Pair, reason: str) -> None:
        """Forget a pair, and tell."""
        if self._pairs.get(pair.slot) is pair:
            del self._pairs[pair.slot]
        if self._by_node.get(pair.hello.node_id) is pair:
            del self._by_node[pair.hello.node_id]
            self.event("peer_down", pair.control.where, reason, slot=pair.slot)
            self.host.peer_down(pair.hello.node_id)

    def check_identity(self, pair: Pair) -> bool:
        """End a pair of two nodes that have come into different clusters meanwhile."""
        own = self._hello(CONTROL, 0)
        hello = pair.hello
        said = pair.control.hello._replace(cluster_id=hello.cluster_id, is_empty=hello.is_empty)
        problem = misfit(own, said) or other_cluster(own, said)
        if problem is not None:
            self.event("peer_refused", pair.control.where, problem[1], reason=problem[0])
            pair.end(problem[1])
            if problem[0] == OTHER_CLUSTER:
                self.host.met_other_cluster(said)
        return problem is None

    def refused(self, channel: Channel, refused: Refused) -> None:
        """Log why a connection was refused."""
        self.event("peer_refused", channel.where, str(refused), reason=refused.reason)
        if refused.reason == OTHER_CLUSTER:
            self.host.met_other_cluster(channel.hello)

    def event(self, name: str, where: str, text: str, **fields: object) -> None:
        """Log something about the peer at an address."""
        self.host.peer_event(name, {"peer": where, **fields}, text)


def _tls_options(tls: ssl.SSLContext | None) -> dict[str, Any]:
    return {} if tls is None else {"ssl": tls, "ssl_handshake_timeout": HANDSHAKE_S}


def _tls_reason(error: Exception) -> str:
    """Why TLS with a peer did not come about, as far as it is known."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate was not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return f"the TLS handshake failed: {error.reason.lower().replace('_', ' ')}"
    if isinstance(error, ConnectionRefusedError):
        return error.strerror or str(error)
    return "the TLS handshake failed; both nodes need --peer-tls-*, with one authority"
