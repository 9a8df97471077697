"""Each call over a real channel, on loopback and on a Unix socket, in memory mode."""

from __future__ import annotations

import asyncio
import socket
import stat
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import ticketing
import uvloop
from admin_client import Caller, Serving, calling, serving
from ticketing_server.admin import admin_pb2 as pb
from ticketing_server.serve import BindError

PATIENCE_S = 60.0
LOOPS: dict[str, Callable[[Coroutine[Any, Any, None]], None]] = {
    "asyncio": asyncio.run,
    "uvloop": uvloop.run,
}
Body = Callable[[Serving, Caller], Coroutine[Any, Any, None]]


def run(body: Body, *, loop: str = "asyncio", unix: Path | None = None, **settings: str) -> None:
    """Run a test against a server, over loopback or a Unix socket."""
    if unix is not None:
        settings["admin_listen"] = f"unix:{unix}"

    async def bounded() -> None:
        async with (
            asyncio.timeout(3 * PATIENCE_S),
            serving(**settings) as server,
            calling(server.target(unix=unix is not None)) as caller,
        ):
            await body(server, caller)

    LOOPS[loop](bounded())


def client(server: Serving, name: str) -> Any:
    host, port = server.client_address
    return ticketing.connect(f"ticketing://{host}:{port}", name=name)


async def until_waiting(server: Serving, count: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while server.service.server.engine.counters().waiters_attached < count:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("loop", sorted(LOOPS))
@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_status_of_an_empty_server(loop: str, transport: str, tmp_path: Path) -> None:
    async def body(server: Serving, caller: Caller) -> None:
        status = await caller.call("Status")
        assert (status.state.mode, status.state.role) == (pb.MODE_MEMORY, pb.ROLE_ALONE)
        assert (status.state.term, status.state.index, status.state.leader) == (0, 0, "")
        assert not status.state.HasField("slot")
        assert (status.tickets, status.waiters_attached, status.connections) == (0, 0, 0)
        assert status.engine == "python"
        assert not status.members
        later = await caller.call("Status")
        assert later.state.cluster_time_ms >= status.state.cluster_time_ms > 0

    run(body, loop=loop, unix=tmp_path / "admin" if transport == "unix" else None)


@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_tickets_and_waiters_in_grant_order(transport: str, tmp_path: Path) -> None:
    async def body(server: Serving, caller: Caller) -> None:
        async with client(server, "first") as first, client(server, "second") as second:
            ticket = await first.acquire("a b")
            other = await first.acquire("other")
            waiting = [
                asyncio.create_task(second.acquire("a b", wait_timeout=50)),
                asyncio.create_task(second.acquire_set(["x", "other"])),
            ]
            await until_waiting(server, 2)
            answer = await caller.call("ListTickets")
            assert [(t.token, list(t.keys)) for t in answer.tickets] == [
                (ticket.token, [b"a b"]),
                (other.token, [b"other"]),
            ]
            shown = answer.tickets[0]
            assert shown.connected
            assert shown.name.startswith("first")
            assert shown.peer.startswith("127.0.0.1:")
            assert 0 <= shown.held_ms < 1_000 * PATIENCE_S
            assert 0 < shown.left_ms <= 86_400_000
            answer = await caller.call("ListWaiters")
            assert [list(w.keys) for w in answer.waiters] == [[b"a b"], [b"other", b"x"]]
            assert answer.waiters[0].joined < answer.waiters[1].joined
            assert {w.state for w in answer.waiters} == {pb.Waiter.STATE_ATTACHED}
            assert answer.waiters[0].name.startswith("second")
            assert 0 < answer.waiters[0].left_ms <= 50_000
            assert not answer.waiters[1].HasField("left_ms")
            for key, tokens, joined in (
                (b"other", [other.token], [answer.waiters[1].joined]),
                (b"x", [], [answer.waiters[1].joined]),
                (b"nobody's", [], []),
            ):
                tickets = await caller.call("ListTickets", key=key)
                waiters = await caller.call("ListWaiters", key=key)
                assert [t.token for t in tickets.tickets] == tokens
                assert [w.joined for w in waiters.waiters] == joined
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    run(body, unix=tmp_path / "admin" if transport == "unix" else None)


def test_pages_follow_each_other() -> None:
    async def body(server: Serving, caller: Caller) -> None:
        async with client(server, "holder") as holder, client(server, "waiter") as waiter:
            tokens = [(await holder.acquire(f"key-{n}")).token for n in range(5)]
            waiting = [asyncio.create_task(waiter.acquire(f"key-{n}")) for n in range(5)]
            await until_waiting(server, 5)
            found, joined, after = [], [], 0
            for size in (2, 2, 1):
                answer = await caller.call("ListTickets", after=after, limit=2)
                assert len(answer.tickets) == size
                found += [ticket.token for ticket in answer.tickets]
                assert answer.HasField("next_after") == (size == 2)
                after = answer.next_after
            assert found == tokens
            answer = await caller.call("ListWaiters", limit=3)
            joined = [waiter.joined for waiter in answer.waiters]
            answer = await caller.call("ListWaiters", limit=3, after=answer.next_after)
            joined += [waiter.joined for waiter in answer.waiters]
            assert not answer.HasField("next_after")
            assert joined == sorted(joined)
            assert len(joined) == 5
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    run(body)


@pytest.mark.parametrize("loop", sorted(LOOPS))
def test_a_forced_release_tells_the_holder_and_hands_on(loop: str) -> None:
    async def body(server: Serving, caller: Caller) -> None:
        async with client(server, "holder") as holder, client(server, "next") as following:
            ticket = await holder.acquire("orders/42")
            waiting = asyncio.create_task(following.acquire("orders/42"))
            await until_waiting(server, 1)
            answer = await caller.call("ForceRelease", key=b"orders/42", token=ticket.token)
            assert answer.released.token == ticket.token
            assert answer.released.name.startswith("holder")
            assert answer.state.role == pb.ROLE_ALONE
            async with asyncio.timeout(PATIENCE_S):
                await ticket.wait_lost()
                granted = await waiting
            assert granted.token > ticket.token
            (line,) = [line for line in server.lines if " admin_call " in line]
            assert "call=force_release caller=127.0.0.1:" in line
            assert line.endswith(f" key=orders/42 token={ticket.token}\n")
            await granted.release()

    run(body, loop=loop)


def test_a_forced_release_names_key_and_token() -> None:
    async def body(server: Serving, caller: Caller) -> None:
        assert await caller.refusal("ForceRelease", key=b"a b", token=1) == (
            "NOT_FOUND",
            r"nobody holds the key a\x20b; look at: ticketing-admin tickets --key 'a\x20b'",
        )
        assert await caller.refusal("ForceRelease", token=1) == (
            "INVALID_ARGUMENT",
            "the key is empty; name a key of the ticket",
        )
        code, text = await caller.refusal("ForceRelease", key=b"k" * 129, token=1)
        assert (code, text) == ("INVALID_ARGUMENT", "a key has at most 128 bytes, this one 129")
        async with client(server, "holder") as holder:
            ticket = await holder.acquire_set(["a", "b"])
            wrong = ticket.token + 1
            assert await caller.refusal("ForceRelease", key=b"b", token=wrong) == (
                "NOT_FOUND",
                f"the key b is held with token {ticket.token}, not with {wrong}, and nothing was"
                " ended; look at: ticketing-admin tickets --key b",
            )
            assert not ticket.is_lost
            answer = await caller.call("ForceRelease", key=b"b", token=ticket.token)
            assert list(answer.released.keys) == [b"a", b"b"]

    run(body)


def test_what_memory_mode_has_not_says_so() -> None:
    async def body(server: Serving, caller: Caller) -> None:
        assert await caller.refusal("TransferLead") == (
            "FAILED_PRECONDITION",
            "this server is no cluster: nobody else can lead",
        )
        assert await caller.refusal("TakeSnapshot") == (
            "FAILED_PRECONDITION",
            "memory mode keeps nothing that a backup could hold; start the server with --data-dir",
        )

    run(body)


def test_drain_asks_the_process_to_end() -> None:
    async def body(server: Serving, caller: Caller) -> None:
        await caller.call("Drain")
        assert server.service.stop_asked.is_set()
        assert any("call=drain" in line for line in server.lines)

    run(body)


def test_a_unix_socket_is_for_its_user_only_and_outlives_no_server(tmp_path: Path) -> None:
    path = tmp_path / "admin"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))

    async def body(server: Serving, caller: Caller) -> None:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with pytest.raises(BindError, match=f"--admin-listen unix:{path}: Address already in use"):
            async with serving(admin_listen=f"unix:{path}"):
                pass
        await caller.call("Status")

    run(body, unix=path)
    assert not path.exists()


def test_a_port_that_is_taken_is_refused() -> None:
    async def body(server: Serving, caller: Caller) -> None:
        taken = server.target()
        with pytest.raises(BindError, match=f"--admin-listen {taken}: Address already in use"):
            async with serving(admin_listen=taken):
                pass

    run(body)
