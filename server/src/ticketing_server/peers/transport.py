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
    refused_by_peer,
    stranger,
)
from ticketing_server.raft.messages import Append, InstallSnapshot

HANDSHAKE_S = 3.0
"""Who has not proved itself by then is closed; dialing takes no longer either."""
HANDSHAKES_MAX = 64
"""Connections that have proved nothing yet; over it the oldest is closed."""
RETRY_S = (0.05, 0.5)
"""First and longest pause before a peer is dialed again, …"""
REFUSED_RETRY_S = 2.0
"""… and the pause after one refused, or was refused."""
BEAT_S = 0.5
"""A connection on which nothing was sent for so long sends a ping."""
SILENT_BEATS_MAX = 8
"""One on which nothing came for so many beats is closed. Beats that a stalled process missed
don't count against its peers."""
UNSENT_BYTES_MAX = {CONTROL: 1024 * 1024, BULK: 16 * 1024 * 1024}
"""More than the windows of the Raft core let wait: who is behind as far reads nothing."""
CHUNK_BYTES = 256 * 1024
_CHUNKS_HIGH, _CHUNKS_LOW = 1024 * 1024, 256 * 1024
_EARLY_FRAMES_MAX = 1_024
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


class Channel(asyncio.Protocol):
    """One connection to a peer."""

    def __init__(self, peers: Peers, handshake: Handshake, where: str) -> None:
        """Begin to shake hands once connected; `where` names the other side in logs."""
        self._peers = peers
        self._handshake = handshake
        self._reader = frames.FrameReader()
        self._timer: asyncio.TimerHandle | None = None
        self._early: list[frames.Frame] = []
        self.where = where
        self.transport: Any = None
        self.pair: Pair | None = None
        self.paused = False
        self.has_sent = True
        self.silent_beats = 0
        self.ended: asyncio.Future[None] = peers.loop.create_future()
        self.reason = ""
        self.was_refused = False

    @property
    def is_stranger(self) -> bool:
        """Whether the other side has neither proved itself nor been refused."""
        return not self._handshake.is_done and not self.was_refused

    @property
    def hello(self) -> Hello:
        """What the peer said; there once it is proven."""
        if self._handshake.peer is None:
            raise RuntimeError("no hello came yet")
        return self._handshake.peer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say hello, if this side dialed."""
        self.transport = transport
        self.transport.set_write_buffer_limits(high=_CHUNKS_HIGH, low=_CHUNKS_LOW)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._timer = self._peers.loop.call_later(
            HANDSHAKE_S, self.close, "the handshake was not finished"
        )
        self._peers.handshaking(self)
        if hello := self._handshake.begin():
            self.transport.write(hello)

    def data_received(self, data: bytes) -> None:
        """Take every whole frame."""
        self.silent_beats = 0
        if self._handshake.peer is None and (what := stranger(data)):
            self._end_refused(Refused("no_peer", what))
            return
        try:
            for received in self._reader.feed(data):
                if self.pair is not None:
                    self.pair.receive(received)
                elif self._handshake.is_done:
                    self._keep(received)
                else:
                    self._shake(received)
                if self.transport.is_closing():
                    return
        except frames.BadFrame as error:
            self._bad(error)

    def _shake(self, received: frames.Frame) -> None:
        try:
            answer = self._handshake.receive(received)
        except Refused as refused:
            self._end_refused(refused)
            return
        if answer:
            self.transport.write(answer)
        if self._handshake.is_done:
            self._reader.bytes_max = frames.FRAME_BYTES_MAX
            if self._timer is not None:
                self._timer.cancel()
            self._peers.proven(self)

    def _end_refused(self, refused: Refused) -> None:
        self.was_refused = True
        if refused.told:
            self.transport.write(refused.told)
        self.close(str(refused))
        self._peers.refused(self, refused)

    def _keep(self, received: frames.Frame) -> None:
        """Keep what comes while the peer has the pair up already and this side is about to."""
        if received.kind == frames.REFUSED:
            self._end_refused(refused_by_peer(received))
            return
        if len(self._early) >= _EARLY_FRAMES_MAX:
            raise frames.BadFrame("too much came before the other connection of the pair")
        self._early.append(received)

    def take_early(self) -> None:
        """Take what came before the pair was up."""
        early, self._early = self._early, []
        try:
            for received in early:
                if self.pair is not None:
                    self.pair.receive(received)
        except frames.BadFrame as error:
            self._bad(error)

    def _bad(self, error: frames.BadFrame) -> None:
        self._peers.event("peer_bad_frame", self.where, str(error))
        self.close(str(error))

    def eof_received(self) -> bool:
        """Close: nodes never half-close."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """Take the pair down."""
        if self._timer is not None:
            self._timer.cancel()
        self._peers.gone(self)
        if self.pair is not None:
            self.pair.end(self.reason or (str(error) if error else "the peer closed"))
        if not self.ended.done():
            self.ended.set_result(None)

    def pause_writing(self) -> None:
        """No more chunks of a file for now."""
        self.paused = True

    def resume_writing(self) -> None:
        """Go on with a file."""
        self.paused = False
        if self.pair is not None:
            self.pair.go_on()

    def write(self, data: bytes) -> None:
        """Send whole frames."""
        self.has_sent = True
        self.transport.write(data)

    def beat(self) -> None:
        """Ping where nothing was sent, close where nothing came."""
        self.silent_beats += 1
        if self.silent_beats > SILENT_BEATS_MAX:
            self.close(f"nothing came for {BEAT_S * SILENT_BEATS_MAX:.0f} s")
        elif not self.has_sent:
            self.transport.write(_PING)
        self.has_sent = False

    def close(self, reason: str) -> None:
        """End this connection, and with it the pair."""
        self.reason = self.reason or reason
        if self.transport is not None:
            # What a refused peer is told should leave; what a dead one owes must not.
            self.transport.close() if self.pair is None else self.transport.abort()


_PING = frames.frame(frames.PING)


class _Upload:
    """A file on its way to a peer."""

    def __init__(self, message: InstallSnapshot, file: bytes) -> None:
        self.message = message
        self.file = memoryview(file)
        self.at = 0


class Pair:
    """Both connections to one peer, up."""

    def __init__(self, peers: Peers, control: Channel, bulk: Channel) -> None:
        """Take two channels that the same peer proved."""
        said = control.hello
        self._peers = peers
        self.control = control
        self.bulk = bulk
        self.slot = said.slot
        self.hello = PeerHello(
            said.node_id, said.slot, said.cluster_id, said.is_empty, said.client_address,
            said.table_versions,
        )  # fmt: skip
        self.is_up = True
        self._upload: _Upload | None = None
        self._incoming: frames.Incoming | None = None
        self._chunks: list[bytes] = []
        self._chunks_size = 0
        control.pair = bulk.pair = self

    # Out

    def send(self, message: frames.PeerMessage) -> None:
        """Send a message, or end the pair where too much is unsent."""
        number = BULK if isinstance(message, Append) else CONTROL
        channel = self.bulk if number == BULK else self.control
        if channel.transport.get_write_buffer_size() > UNSENT_BYTES_MAX[number]:
            self.end("too much is unsent")
            return
        channel.write(frames.encode(message))

    def send_snapshot(self, message: InstallSnapshot, file: bytes) -> None:
        """Send a file, in place of one that is on its way."""
        sent, meta = self._upload, message.snapshot
        if sent and (sent.message.snapshot, sent.message.term) == (meta, message.term):
            return
        self._upload = _Upload(message, file)
        self.bulk.write(frames.encode_snapshot(message, len(file)))
        self.go_on()

    def send_identity(self, cluster_id: bytes, is_empty: bool) -> None:
        """Say that this node is in a cluster by now, or no longer empty."""
        self.control.write(frames.frame(frames.IDENTITY, bytes((is_empty,)), cluster_id))

    def go_on(self) -> None:
        """Send chunks until the connection has enough."""
        upload = self._upload
        while upload is not None and not self.bulk.paused and self.is_up:
            if upload.at >= len(upload.file):
                self._upload = None
                return
            chunk = upload.file[upload.at : upload.at + CHUNK_BYTES]
            upload.at += len(chunk)
            self.bulk.write(frames.frame(frames.CHUNK, bytes(chunk)))

    # In

    def receive(self, received: frames.Frame) -> None:
        """Take one frame of the peer."""
        kind, body = received
        if kind == frames.PING or not self.is_up:
            return
        if kind == frames.CHUNK:
            self._on_chunk(body)
            return
        if kind == frames.IDENTITY:
            self._on_identity(body)
            return
        message = frames.decode(kind, body, self.hello.node_id, self._peers.settings.node_id)
        if isinstance(message, frames.Incoming):
            self._incoming, self._chunks, self._chunks_size = message, [], 0
        else:
            self._peers.host.message(message)

    def _on_chunk(self, body: bytes) -> None:
        incoming = self._incoming
        if incoming is None:
            return
        self._chunks.append(body)
        self._chunks_size += len(body)
        if self._chunks_size > incoming.size:
            raise frames.BadFrame("a file is longer than was said")
        if self._chunks_size == incoming.size:
            file = b"".join(self._chunks)
            self._incoming, self._chunks = None, []
            self._peers.host.snapshot(incoming.message, file)

    def _on_identity(self, body: bytes) -> None:
        if not body:
            raise frames.BadFrame("an identity is empty")
        self.hello = self.hello._replace(is_empty=bool(body[0]), cluster_id=body[1:])
        if not self._peers.check_identity(self):
            return
        self._peers.host.peer_up(self.hello)

    def end(self, reason: str) -> None:
        """Take the pair down; the second call has no effect."""
        if not self.is_up:
            return
        self.is_up = False
        self._upload = None
        self.control.close(reason)
        self.bulk.close(reason)
        self._peers.pair_ended(self, reason)


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
        async with asyncio.timeout(HANDSHAKE_S):
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
