"""Two and more transports on loopback: pairs come up, carry, go down and come back."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from ticketing_server.addresses import Address
from ticketing_server.cluster.messages import PeerHello
from ticketing_server.peers import connection, transport
from ticketing_server.peers.frames import PeerMessage
from ticketing_server.peers.handshake import Hello
from ticketing_server.peers.transport import PeerKeys, Peers, PeerSettings
from ticketing_server.raft.configuration import Configuration
from ticketing_server.raft.messages import Append, Entry, Heartbeat, InstallSnapshot, Snapshot
from ticketing_server.testing import make_certificates

WAIT_S = 20.0
CLUSTER = b"c" * 16
SECRET = b"the cluster secret"


class Node:
    """A transport and what it told."""

    def __init__(self, slot: int, node_id: int, bound: socket.socket, secret: bytes) -> None:
        self.slot, self.node_id, self.bound = slot, node_id, bound
        self.secret = secret
        self.cluster_id, self.is_empty = b"", True
        self.told: list[tuple[str, Any]] = []
        self.messages: list[PeerMessage] = []
        self.files: list[tuple[InstallSnapshot, bytes]] = []
        self.events: list[tuple[str, dict[str, object], str]] = []
        self.peers: Peers

    def identity(self) -> tuple[bytes, bool]:
        return self.cluster_id, self.is_empty

    def peer_up(self, hello: PeerHello) -> None:
        self.told.append(("up", hello))

    def peer_down(self, node_id: int) -> None:
        self.told.append(("down", node_id))

    def message(self, message: PeerMessage) -> None:
        self.messages.append(message)

    def snapshot(self, message: InstallSnapshot, file: bytes) -> None:
        self.files.append((message, file))

    def met_other_cluster(self, hello: Hello) -> None:
        self.told.append(("other_cluster", hello))

    def peer_event(self, name: str, fields: dict[str, object], text: str) -> None:
        self.events.append((name, fields, text))

    async def start(self, addresses: tuple[Address, ...], tls: dict[str, Any]) -> None:
        settings = PeerSettings(self.node_id, self.slot, addresses, b"127.0.0.1:1", (1, 1))
        self.peers = Peers(settings, PeerKeys((self.secret,), **tls), self)
        await self.peers.start([self.bound])

    def up(self) -> set[int]:
        return set(self.peers.up())

    def names(self) -> list[str]:
        return [name for name, _, _ in self.events]


def bind(port: int = 0) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setblocking(False)
    sock.bind(("127.0.0.1", port))
    sock.listen(64)
    return sock


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not is_so():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def nodes(
    count: int = 2,
    *,
    secrets: dict[int, bytes] | None = None,
    tls: dict[str, Any] | None = None,
    change: Callable[[Node], None] = lambda node: None,
) -> AsyncIterator[list[Node]]:
    bound = [bind() for _ in range(max(count, 3))]
    addresses = tuple(Address("127.0.0.1", sock.getsockname()[1]) for sock in bound)
    made = [Node(s, 10 + s, bound[s], (secrets or {}).get(s, SECRET)) for s in range(count)]
    try:
        for node in made:
            change(node)
            await node.start(addresses, tls or {})
        yield made
    finally:
        for node in made:
            await node.peers.stop()
        for sock in bound:
            sock.close()


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(3 * WAIT_S):
            await test()

    asyncio.run(bounded())


def heartbeat(sender: Node, to: Node, term: int) -> Heartbeat:
    return Heartbeat(sender.node_id, to.node_id, term, 2, 3)


def test_three_nodes_find_each_other_and_talk_both_ways() -> None:
    async def test() -> None:
        async with nodes(3) as made:
            await until(lambda: all(len(node.up()) == 2 for node in made))
            hello = dict(made[2].told)["up"]
            assert hello.client_address == b"127.0.0.1:1"
            for one in made:
                for two in made:
                    if one is not two:
                        one.peers.send(heartbeat(one, two, 1))
            await until(lambda: all(len(node.messages) == 2 for node in made))
            got = {(m.sender, m.to) for node in made for m in node.messages}
            assert got == {(a, b) for a in (10, 11, 12) for b in (10, 11, 12) if a != b}

    run(test)


def test_messages_of_a_channel_keep_their_order_and_large_ones_arrive() -> None:
    async def test() -> None:
        async with nodes() as (one, two):
            await until(lambda: bool(one.up() and two.up()))
            appends = [
                Append(10, 11, 1, at, 1, (Entry(at + 1, 1, 0, at, bytes(300_000)),), 0, 0)
                for at in range(20)
            ]
            for append in appends:
                one.peers.send(append)
            await until(lambda: len(two.messages) == 20)
            assert two.messages == appends

    run(test)


def test_a_file_comes_with_its_message_while_others_go_on() -> None:
    async def test() -> None:
        async with nodes() as (one, two):
            await until(lambda: bool(one.up() and two.up()))
            snapshot = Snapshot(5, 4, 3, Configuration(CLUSTER, ((0, 10), (1, 11)), 2))
            message = InstallSnapshot(11, 10, 6, snapshot, 1)
            file = bytes(range(256)) * 40_000
            two.peers.send_snapshot(message, file)
            two.peers.send_snapshot(message, file)
            two.peers.send(heartbeat(two, one, 6))
            await until(lambda: bool(one.messages))
            await until(lambda: bool(one.files))
            assert one.files == [(message, file)]
            empty = InstallSnapshot(11, 10, 7, snapshot, 1)
            two.peers.send_snapshot(empty, b"1")
            await until(lambda: len(one.files) == 2)

    run(test)


def test_a_pair_comes_back_after_the_peer_restarted() -> None:
    async def test() -> None:
        async with nodes() as (one, two):
            await until(lambda: bool(one.up() and two.up()))
            port = two.bound.getsockname()[1]
            await two.peers.stop()
            await until(lambda: not one.up())
            assert one.told[-1] == ("down", 11)
            two.bound = bind(port)
            two.node_id = 21
            await two.start(one.peers.settings.addresses, {})
            await until(lambda: bool(one.up() and two.up()))
            assert one.told[-1][1].node_id == 21

    run(test)


@pytest.mark.parametrize(
    ("secrets", "change", "reason"),
    [
        ({1: b"another secret"}, None, "wrong_secret"),
        ({}, "cluster", "other_cluster"),
    ],
)
def test_who_does_not_belong_is_refused_and_logged_on_both_sides(
    secrets: dict[int, bytes], change: str | None, reason: str
) -> None:
    def alter(node: Node) -> None:
        if change:
            node.cluster_id = bytes([node.slot]) * 16

    async def test() -> None:
        async with nodes(secrets=secrets, change=alter) as (one, two):
            for node in (one, two):
                await until(lambda node=node: "peer_refused" in node.names())  # type: ignore[misc]
            reasons = {fields["reason"] for node in (one, two) for _, fields, _ in node.events}
            assert reason in reasons
            assert reasons <= {reason, "refused"}
            assert all(told[0] == "other_cluster" for told in one.told + two.told)
            assert bool(one.told and two.told) == (reason == "other_cluster")
            assert not one.up()
            assert not two.up()

    run(test)


def test_a_founded_node_is_told_again_and_one_of_another_cluster_is_left() -> None:
    async def test() -> None:
        async with nodes() as (one, two):
            await until(lambda: bool(one.up() and two.up()))
            one.cluster_id, one.is_empty = CLUSTER, False
            one.peers.identity_changed()
            await until(lambda: len(two.told) == 2)
            assert two.told[1][1][:4] == (10, 0, CLUSTER, False)
            two.cluster_id = b"d" * 16
            two.peers.identity_changed()
            await until(lambda: not one.up() and not two.up())
            await until(lambda: "other_cluster" in str(one.events))
            assert "other_cluster" in str(two.events)

    run(test)


def test_what_is_sent_as_soon_as_a_pair_is_up_arrives() -> None:
    """One side is up a moment before the other, and may speak at once."""

    async def test() -> None:
        def greet(node: Node) -> None:
            def up(hello: PeerHello) -> None:
                node.told.append(("up", hello))
                entry = Entry(1, 1, 0, 0, b"x")
                node.peers.send(Append(node.node_id, hello.node_id, 1, 0, 0, (entry,), 0, 0))
                node.peers.send(Heartbeat(node.node_id, hello.node_id, 1, 0, 1))

            node.peer_up = up  # type: ignore[method-assign]

        async with nodes(3, change=greet) as made:
            await until(lambda: all(len(node.messages) == 4 for node in made))

    run(test)


def test_a_slot_is_not_taken_from_who_is_there() -> None:
    async def test() -> None:
        async with nodes() as (one, two):
            await until(lambda: bool(one.up() and two.up()))
            double = Node(0, 20, bind(), SECRET)
            try:
                await double.start(one.peers.settings.addresses, {})
                await until(lambda: "is connected already" in str(two.events))
                await until(lambda: "is connected already" in str(double.events))
                assert two.peers.up()[0].node_id == 10
                await one.peers.stop()
                await until(lambda: 0 in two.peers.up() and two.peers.up()[0].node_id == 20)
            finally:
                await double.peers.stop()

    run(test)


def test_a_copied_directory_is_refused_while_the_first_is_there() -> None:
    async def test() -> None:
        async with nodes() as (one, two):
            await until(lambda: bool(one.up() and two.up()))
            copy = Node(0, one.node_id, bind(), SECRET)
            try:
                await copy.start(one.peers.settings.addresses, {})
                await until(lambda: "was copied" in str(two.events))
                await until(lambda: "was copied" in str(copy.events))
                assert "down" not in str([told[0] for told in one.told + two.told])
            finally:
                await copy.peers.stop()

    run(test)


def test_strangers_on_the_port_are_closed_and_bother_nobody() -> None:
    async def test() -> None:
        async with nodes() as (one, two):
            await until(lambda: bool(one.up() and two.up()))
            port = two.peers.addresses[0].port
            strange = (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\0\0\0\5\0\0\0\0abcde", b"\xff" * 50)
            for said in strange:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(said)
                async with asyncio.timeout(WAIT_S):
                    assert await reader.read() == b""
                writer.close()
            assert len([n for n in two.names() if n in ("peer_bad_frame", "peer_refused")]) == 3
            assert one.up() == {1}
            one.peers.send(heartbeat(one, two, 1))
            await until(lambda: bool(two.messages))

    run(test)


def test_who_holds_connections_without_a_proof_does_not_shut_peers_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport, "HANDSHAKES_MAX", 4)

    async def test() -> None:
        async with nodes() as (one, two):
            port = two.bound.getsockname()[1]
            held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
            await until(lambda: bool(one.up() and two.up()))
            for _, writer in held:
                writer.close()

    run(test)


def test_a_peer_that_reads_nothing_loses_its_pair_not_our_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(connection.UNSENT_BYTES_MAX, connection.BULK, 100_000)

    async def test() -> None:
        async with nodes() as (one, two):
            await until(lambda: bool(one.up() and two.up()))
            for channel in (two.peers._pairs[0].bulk, two.peers._pairs[0].control):
                channel.transport.pause_reading()
            append = Append(10, 11, 1, 0, 1, (Entry(1, 1, 0, 0, bytes(1_000_000)),), 0, 0)
            for _ in range(100):
                one.peers.send(append)
            assert ("down", 11) in one.told
            # It is dialed again.
            await until(lambda: one.told[-1][0] == "up")

    run(test)


def test_a_silent_peer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "BEAT_S", 0.02)

    async def test() -> None:
        async with nodes() as (one, two):
            await until(lambda: bool(one.up() and two.up()))
            # Many times what a silent peer is given: the beats of both keep them up.
            await asyncio.sleep(20 * 0.02)
            assert one.up()
            assert two.up()
            for task in two.peers._tasks:
                task.cancel()
            await until(lambda: ("down", 11) in one.told)

    run(test)


def test_peers_may_speak_tls(tmp_path: Path) -> None:
    files = make_certificates(tmp_path)
    accept = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    dial = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for context in (accept, dial):
        context.load_cert_chain(files.server_cert, files.server_key)
        context.load_verify_locations(files.ca)
        context.verify_mode = ssl.CERT_REQUIRED

    async def test() -> None:
        tls = {"dial_tls": dial, "accept_tls": accept}
        async with nodes(tls=tls) as (one, two):
            await until(lambda: bool(one.up() and two.up()))
            two.peers.keys = PeerKeys((SECRET,), **tls)
            one.peers.send(heartbeat(one, two, 1))
            await until(lambda: bool(two.messages))
            port = two.peers.addresses[0].port
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"TKPEER is not how TLS begins")
            with contextlib.suppress(ConnectionResetError):
                async with asyncio.timeout(WAIT_S):
                    assert await reader.read() == b""
            await until(lambda: "wrong version number" in str(two.events))
            one.peers.keys = PeerKeys((SECRET,))
            one.peers.disconnect(two.node_id, "to dial without TLS")
            await until(lambda: "before it had proved" in str(one.events))

    run(test)


def test_a_peer_that_speaks_tls_alone_is_told_apart(tmp_path: Path) -> None:
    files = make_certificates(tmp_path)
    dial = ssl.create_default_context(cafile=str(files.ca))

    async def test() -> None:
        async with nodes() as (one, two):
            one.peers.keys = PeerKeys((SECRET,), dial_tls=dial)
            one.peers.disconnect(two.node_id, "to dial with TLS")
            await until(lambda: "the peer speaks TLS" in str(two.events))
            await until(lambda: "both nodes need" in str(one.events) or "TLS" in str(one.events))

    run(test)
