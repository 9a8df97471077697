"""One peer's two connections once they are made: frames in and out, and files in chunks."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

from ticketing_server.cluster.messages import PeerHello
from ticketing_server.peers import frames
from ticketing_server.peers.handshake import (
    BULK,
    CONTROL,
    Handshake,
    Hello,
    Refused,
    refused_by_peer,
    stranger,
)
from ticketing_server.raft.messages import Append, InstallSnapshot

if TYPE_CHECKING:
    from ticketing_server.peers.transport import Peers

HANDSHAKE_S = 3.0
"""Who has not proved itself by then is closed."""
UNACKNOWLEDGED_MS = 2_000
"""The system gives up a connection whose bytes it got no answer to for so long: after a cut of the
network a new one is there sooner than the old one's next repetition."""
SILENT_BEATS_MAX = 8
"""A connection on which nothing came for so many beats is closed. Beats that a stalled process
missed don't count against its peers."""
UNSENT_BYTES_MAX = {CONTROL: 1024 * 1024, BULK: 16 * 1024 * 1024}
"""More than the windows of the Raft core let wait: who is behind as far reads nothing."""
CHUNK_BYTES = 256 * 1024
_CHUNKS_HIGH, _CHUNKS_LOW = 1024 * 1024, 256 * 1024
_EARLY_FRAMES_MAX = 1_024
_PING = frames.frame(frames.PING)


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
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)
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
            self.close("nothing came for too long")
        elif not self.has_sent:
            self.transport.write(_PING)
        self.has_sent = False

    def close(self, reason: str) -> None:
        """End this connection, and with it the pair."""
        self.reason = self.reason or reason
        if self.transport is not None:
            # What a refused peer is told should leave; what a dead one owes must not.
            self.transport.close() if self.pair is None else self.transport.abort()


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
