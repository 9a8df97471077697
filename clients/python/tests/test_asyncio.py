"""The asyncio client against the real server."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from importlib.util import find_spec
from typing import Any

import pytest
import ticketing
from conftest import LONG, assert_empty
from ticketing import events
from ticketing_server.testing import ServerProcess, ServerThread


def run(main: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> Any:
    """Run a test's coroutine, bounded."""

    async def bounded() -> Any:
        async with asyncio.timeout(4 * LONG):
            return await main(*args)

    return asyncio.run(bounded())


class CancelledAt:
    """Runs an awaitable up to its n-th suspension and cancels it there.

    `early`: before what it waits for has come; else in the moment in which it has.
    """

    def __init__(self, awaitable: Awaitable[Any], suspension: int, *, early: bool) -> None:
        self._inner = awaitable.__await__()
        self._left = suspension
        self._early = early
        self.reached = False

    def __await__(self) -> Generator[Any, Any, Any]:
        try:
            waits_for = next(self._inner)
            while True:
                hit = self._left == 0
                self._left -= 1
                if hit and self._early:
                    self.reached = True
                    if waits_for is not None:
                        waits_for._asyncio_future_blocking = False
                        waits_for.cancel()
                    waits_for = self._inner.throw(asyncio.CancelledError())
                    continue
                yield waits_for
                if hit:
                    self.reached = True
                    waits_for = self._inner.throw(asyncio.CancelledError())
                else:
                    waits_for = next(self._inner)
        except StopIteration as end:
            return end.value


def test_acquire_release_extend_ping(server: ServerThread) -> None:
    async def main() -> None:
        async with ticketing.connect(server.url) as client:
            assert isinstance(client, ticketing.ClientLike)
            async with client.acquire("orders/42") as ticket:
                assert isinstance(ticket, ticketing.TicketLike)
                assert (ticket.key, ticket.keys) == ("orders/42", ("orders/42",))
                assert 29 < ticket.remaining < 30
                assert ticket.expires_at - ticketing.monotonic() < 30
                assert not ticket.is_lost
                assert ticket.lost_reason is None
                assert await client.try_acquire("orders/42") is None
                with pytest.raises(ticketing.HeldError):
                    await client.acquire("orders/42", wait_timeout=0)
                with pytest.raises(ticketing.WaitTimeoutError):
                    await client.acquire("orders/42", wait_timeout=0.01)
                await ticket.extend(60)
                assert ticket.remaining > 50
            assert ticket.remaining == 0
            await ticket.release()
            again = await client.try_acquire("orders/42")
            assert again is not None
            assert again.token > ticket.token
            await again.release()
            await client.ping()

    run(main)
    assert_empty(server)


def test_sets_and_prefix(server: ServerThread) -> None:
    """REQ-URL-PREFIX"""

    async def main() -> None:
        async with ticketing.connect(server.url, key_prefix="p/") as client:
            async with client.acquire_set(["b", "a", b"\xff"]) as ticket:
                assert ticket.keys == ("a", "b", b"\xff")
                assert await client.try_acquire("b") is None
                held = server.call(lambda s: s.server.engine.inspect("tickets", None, 9))
                assert held[0].keys == (b"p/a", b"p/b", b"p/\xff")
            with pytest.raises(ticketing.InvalidArgumentError):
                await client.acquire_set("ab")

    run(main)
    assert_empty(server)


def test_acquire_is_a_coroutine_too(server: ServerThread) -> None:
    """create_task, gather and wait_for take what acquire returns."""

    async def main() -> None:
        async with ticketing.connect(server.url) as client:
            tickets = [
                await asyncio.create_task(client.acquire("a")),
                await asyncio.wait_for(client.acquire("b"), LONG),
                *await asyncio.gather(client.acquire("c"), client.acquire("d")),
            ]
            for ticket in tickets:
                await ticket.release()

    run(main)
    assert_empty(server)


def test_plain_with_names_async_with(server: ServerThread) -> None:
    async def main() -> None:
        client = ticketing.connect(server.url)
        with pytest.raises(TypeError, match="async with"), client:  # type: ignore[attr-defined]
            pass
        with pytest.raises(ticketing.ClosedError, match="not open"):
            await client.ping()
        async with client:
            with pytest.raises(TypeError, match=r"ticketing\.sync"), client.acquire("k"):
                pass
            ticket = await client.acquire("k")
            with pytest.raises(TypeError, match="async with"), ticket:
                pass
            await ticket.release()

    run(main)
    assert_empty(server)


async def scenario(client: ticketing.Client) -> None:
    """Everything that a program may be cancelled in."""
    async with client.acquire("k1") as ticket:
        await ticket.extend(20)
        async with client.acquire_set(["k2", "k3"], lease=5):
            await client.ping()
        adopted = await client.adopt(await ticket.hand_over(), lease=10)
        await adopted.release()
    other = await client.try_acquire("k4")
    assert other is not None
    async with other:
        pass


@pytest.mark.parametrize("early", [True, False], ids=["before the result", "with the result"])
def test_cancelled_at_every_await(server: ServerThread, early: bool) -> None:
    """REQ-STOP-CLEAN REQ-STOP-READ REQ-STOP-OWN: no waiter and no ticket is left."""

    async def main() -> int:
        suspensions = 0
        async with ticketing.connect(server.url) as client:
            while True:
                attempt = CancelledAt(scenario(client), suspensions, early=early)
                try:
                    await attempt
                except asyncio.CancelledError:
                    assert attempt.reached
                if not attempt.reached:
                    return suspensions
                # What was handed over just then belongs to nobody: its lease would end it.
                await asyncio.to_thread(release_handed_over, server, client)
                await asyncio.to_thread(assert_empty, server)
                suspensions += 1

    assert run(main) >= 9


def release_handed_over(server: ServerThread, client: ticketing.Client) -> None:
    """A cancellation between hand_over and adopt leaves a reference that the program lost."""
    driver = client._driver
    assert driver is not None
    known = set(driver.core._tickets.held)
    for info in server.call(lambda s: s.server.engine.inspect("tickets", None, 99)):
        if info.token not in known:
            with ticketing.sync.connect(server.url) as helper:
                reference = f"{info.token}:{info.keys[0].decode()}"
                try:
                    helper.adopt(reference, lease=1).release()
                except ticketing.TicketingError:
                    pass  # It has just been released by itself.


def test_cancelled_while_opening(server: ServerThread) -> None:
    """REQ-STOP-CLEAN"""

    async def main() -> None:
        for suspension in range(10):
            client = ticketing.connect(server.url)
            attempt = CancelledAt(client, suspension, early=True)
            try:
                await attempt
            except asyncio.CancelledError:
                assert attempt.reached
            await client.close()

    run(main)
    assert_empty(server)


def test_cancelled_in_the_moment_of_the_grant(server: ServerThread) -> None:
    """REQ-STOP-READ: a thousand times."""

    async def main() -> None:
        async with ticketing.connect(server.url) as client:
            for _ in range(1000):
                attempt = CancelledAt(client.acquire("k"), 0, early=False)
                with pytest.raises(asyncio.CancelledError):
                    await attempt

    run(main)
    assert_empty(server)


def test_cancelled_while_the_grant_is_on_its_way(server: ServerThread) -> None:
    """REQ-STOP-CLEAN: a waiter is cancelled while its predecessor releases."""

    async def main() -> None:
        async with ticketing.connect(server.url) as one, ticketing.connect(server.url) as two:
            for turns in range(200):
                held = await one.acquire("k")
                waiting = asyncio.create_task(two.acquire("k"))
                await two.ping()
                release = asyncio.create_task(held.release())
                for _ in range(turns % 8):
                    await asyncio.sleep(0)
                waiting.cancel()
                await asyncio.wait([waiting, release])
                if not waiting.cancelled():
                    await waiting.result().release()

    run(main)
    assert_empty(server)


def test_a_thousand_acquires_in_flight(server: ServerThread) -> None:
    """REQ-CONN-ONE"""

    async def main() -> None:
        async with ticketing.connect(server.url) as client:
            tickets = await asyncio.gather(*(client.acquire(f"k{n}") for n in range(1000)))
            assert len({ticket.token for ticket in tickets}) == 1000
            await asyncio.gather(*(ticket.release() for ticket in tickets))

    run(main)
    assert_empty(server)


def test_ten_thousand_pairs_from_a_hundred_callers() -> None:
    """REQ-CONN-CALLERS: tokens rise, and the guarded counter loses nothing."""
    counter, tokens = 0, []

    async def caller(client: ticketing.Client) -> None:
        nonlocal counter
        for _ in range(100):
            async with client.acquire("one key") as ticket:
                seen = counter
                await asyncio.sleep(0)
                counter = seen + 1
                tokens.append(ticket.token)

    async def main() -> None:
        with ServerProcess() as server:
            async with ticketing.connect(server.url) as client:
                await asyncio.gather(*(caller(client) for _ in range(100)))

    run(main)
    assert counter == 10_000
    assert tokens == sorted(set(tokens))


async def sleep_holding(client: ticketing.Client, *keys: str) -> None:
    """A body that is still there when the ticket is lost."""
    async with client.acquire(keys[0], lease=1):
        if keys[1:]:
            await sleep_holding(client, *keys[1:])
        await asyncio.sleep(LONG)


async def hold_on_until_lost(
    client: ticketing.Client, error: type[Exception] | None = None
) -> None:
    """A body that swallows its cancellation, which is its own business."""
    async with client.acquire("k", lease=1) as ticket:
        try:
            await asyncio.sleep(LONG)
        except asyncio.CancelledError:
            assert ticket.is_lost
        if error is not None:
            raise error


def test_loss_cancels_the_body_and_is_reported(server: ServerThread) -> None:
    """REQ-SCOPE-CANCELBODY REQ-SCOPE-REPORT REQ-LOST-EXPIRED"""

    async def main() -> None:
        async with ticketing.connect(server.url) as client:
            with pytest.raises(ticketing.LostError) as lost:
                await sleep_holding(client, "k")
            assert lost.value.reason in ticketing.LostReason
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0
            await asyncio.sleep(0)  # nothing of the cancellation is left over
            with pytest.raises(ticketing.LostError):
                await sleep_holding(client, "outer", "inner")

    run(main)
    assert_empty(server)


def test_loss_never_masks_the_bodys_error(server: ServerThread) -> None:
    """REQ-SCOPE-NOMASK"""

    async def main() -> None:
        async with ticketing.connect(server.url) as client:
            with pytest.raises(ZeroDivisionError):
                await hold_on_until_lost(client, ZeroDivisionError)

    run(main)
    assert_empty(server)


def test_a_body_that_ignores_the_loss_still_hears_of_it(server: ServerThread) -> None:
    """REQ-SCOPE-REPORT"""

    async def main() -> None:
        async with ticketing.connect(server.url) as client:
            with pytest.raises(ticketing.LostError):
                await hold_on_until_lost(client)

    run(main)
    assert_empty(server)


def test_outer_cancellation_stays_a_cancellation(server: ServerThread) -> None:
    """REQ-STOP-OWN REQ-SCOPE-UNTIED: and the ticket is released."""

    async def main() -> None:
        async with ticketing.connect(server.url) as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05), client.acquire("k"):
                    await asyncio.sleep(LONG)
            async with client.acquire("k", wait_timeout=LONG):
                pass

    run(main)
    assert_empty(server)


def test_wait_lost(server: ServerThread) -> None:
    """REQ-LOST-DROP REQ-LOST-ONCE"""

    async def main() -> None:
        async with ticketing.connect(server.url) as one, ticketing.connect(server.url) as two:
            ticket = await one.acquire("k")
            waits = [asyncio.create_task(ticket.wait_lost()) for _ in range(3)]
            await asyncio.sleep(0)
            waits[0].cancel()
            thief = await two.adopt(f"{ticket.token}:k")
            await thief.release()
            # The other client adopted it, so the drop goes there; ask, and hear of it.
            with pytest.raises(ticketing.LostError):
                await ticket.extend()
            assert await waits[1] is ticketing.LostReason.NOT_HELD
            assert await waits[2] is ticketing.LostReason.NOT_HELD
            assert ticket.is_lost
            released = await one.acquire("k")
            waits = [asyncio.create_task(released.wait_lost())]
            await asyncio.sleep(0)
            await released.release()
            assert await waits[0] is None

    run(main)
    assert_empty(server)


def test_events_and_a_hook_that_raises(
    server: ServerThread, caplog: pytest.LogCaptureFixture
) -> None:
    """REQ-EVENT-HOOK"""
    seen: list[events.Event] = []

    def hook(event: events.Event) -> None:
        seen.append(event)
        raise RuntimeError("of the hook")

    async def main() -> None:
        async with (
            ticketing.connect(server.url, on_event=hook) as client,
            client.acquire("k") as ticket,
        ):
            await ticket.extend()
            with pytest.raises(ticketing.WaitTimeoutError):
                await client.acquire("k", wait_timeout=0.01)

    with caplog.at_level(logging.ERROR, logger="ticketing"):
        run(main)
    kinds = [event.kind for event in seen]
    assert kinds == ["connected", "granted", "extended", "timed_out", "released"]
    assert "on_event raised" in caplog.text
    assert_empty(server)


def test_clients_leave_nothing_behind(server: ServerThread) -> None:
    """REQ-SHUT-ENDS: no thread, task, timer or socket after many opened and closed clients."""

    async def use() -> None:
        async with ticketing.connect(server.url) as client:
            await client.acquire("k", wait_timeout=LONG)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        await use()
        threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
        for _ in range(50):
            await use()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert threading.active_count() == threads
        # The server, in this process too, may take a moment to close its ends.
        for _ in range(2000):
            if len(os.listdir("/proc/self/fd")) <= descriptors:
                break
            await asyncio.sleep(0.01)
        assert len(os.listdir("/proc/self/fd")) <= descriptors
        timers = [t for t in loop._scheduled if not t.cancelled()]  # type: ignore[attr-defined]
        assert len(timers) <= 1  # that of this test's own bound

    run(main)
    assert_empty(server)


def test_use_after_close(server: ServerThread) -> None:
    """REQ-SHUT-AFTER"""

    async def main() -> None:
        async with ticketing.connect(server.url) as client:
            ticket = await client.acquire("k")
            lost = await client.acquire("l", lease=2)  # long enough to be read in time
            while not lost.is_lost:
                await asyncio.sleep(0.01)
        await client.close()
        await ticket.release()  # close has done it
        with pytest.raises(ticketing.LostError):
            await lost.release()
        for call in (client.ping, lambda: client.acquire("k"), lambda: client.adopt("1:k")):
            with pytest.raises(ticketing.ClosedError):
                await call()
        with pytest.raises(ticketing.NotHeldError):
            await ticket.extend()
        with pytest.raises(ticketing.ClosedError):
            await client

    run(main)
    assert_empty(server)


def test_close_settles_those_who_wait(server: ServerThread) -> None:
    """REQ-SHUT-AFTER"""

    async def main() -> None:
        client = await ticketing.connect(server.url)
        held = await client.acquire("k")
        waiting = [asyncio.create_task(client.acquire("k")) for _ in range(20)]
        await client.ping()
        await client.close()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(result, ticketing.ClosedError) for result in results)
        await held.release()

    run(main)
    assert_empty(server)


def test_dropped_tickets_and_clients_are_logged(
    server: ServerThread, caplog: pytest.LogCaptureFixture
) -> None:
    """REQ-SCOPE-DESTRUCTOR"""

    async def main() -> None:
        client = await ticketing.connect(server.url)
        await client.acquire("k")
        gc.collect()
        assert "nobody can release the ticket for 'k'" in caplog.text
        assert await client.try_acquire("k") is None
        await asyncio.sleep(0)  # The loop itself remembers the step that it is in.
        del client
        gc.collect()
        assert "dropped without close" in caplog.text
        await asyncio.to_thread(assert_empty, server)

    run(main)


def test_ticket_in_use_keeps_its_client(server: ServerThread) -> None:
    async def main() -> None:
        ticket = await (await ticketing.connect(server.url)).acquire("k")
        gc.collect()
        await ticket.extend()
        await ticket.release()

    run(main)
    gc.collect()
    assert_empty(server)


@pytest.mark.skipif(find_spec("uvloop") is None, reason="uvloop is not installed")
def test_on_uvloop(server: ServerThread) -> None:
    """The transports of another event loop, cancellation and close included."""
    import uvloop

    async def main() -> None:
        async with ticketing.connect(server.url) as client:
            tickets = await asyncio.gather(*(client.acquire(f"k{n}") for n in range(100)))
            waiting = asyncio.create_task(client.acquire("k0"))
            await client.ping()
            waiting.cancel()
            await asyncio.wait([waiting])
            await asyncio.gather(*(ticket.release() for ticket in tickets[:50]))
        with pytest.raises(ticketing.ConnectionFailedError, match="connection refused"):
            await ticketing.connect("ticketing://127.0.0.1:1")

    uvloop.run(main())
    assert_empty(server)


def test_another_event_loop_is_refused_before_anything_is_sent(server: ServerThread) -> None:
    """Its caller could not learn of a ticket that the client was granted."""

    async def on_another_loop(client: ticketing.Client, ticket: ticketing.Ticket) -> None:
        calls: list[Callable[[], Awaitable[Any]]] = [
            *(lambda: client.acquire("a"), lambda: client.try_acquire("a"), client.ping),
            *(ticket.release, ticket.extend, ticket.hand_over, ticket.wait_lost, client.close),
        ]
        for call in calls:
            with pytest.raises(RuntimeError, match="event loop that opened the client"):
                await call()

    async def main() -> None:
        async with ticketing.connect(server.url) as client, client.acquire("k") as ticket:
            await asyncio.to_thread(run, on_another_loop, client, ticket)
            await client.ping()
            assert server.counters().tickets == 1

    run(main)
    assert_empty(server)


def test_a_client_of_a_loop_that_ended_says_so(server: ServerThread) -> None:
    async def open_client() -> ticketing.Client:
        return await ticketing.connect(server.url)

    client = run(open_client)
    with pytest.raises(RuntimeError, match="event loop that opened the client"):
        run(client.ping)
    run(client.close)


def test_no_body_starts_without_the_lock(server: ServerThread) -> None:
    """REQ-SCOPE-REPORT: nor does an outer one go on when an inner one has released it."""

    async def main() -> None:
        async with ticketing.connect(server.url) as client:
            async with client.acquire("k") as ticket:
                with pytest.raises(RuntimeError, match="entered already"):
                    async with ticket:
                        pytest.fail("the body of an entered ticket was run")
                await ticket.extend()
            handed_over = await client.acquire("j")
            await handed_over.hand_over()
            for ended in (ticket, handed_over):
                with pytest.raises(ticketing.NotHeldError):
                    async with ended:
                        pytest.fail("a body was run without its lock")

    run(main)
