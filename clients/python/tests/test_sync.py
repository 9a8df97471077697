"""The blocking client against the real server."""

from __future__ import annotations

import _thread
import gc
import linecache
import os
import signal
import sys
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import ticketing.sync
from conftest import LONG, assert_empty
from ticketing import LostReason
from ticketing.events import Event
from ticketing_server.testing import ServerProcess, ServerThread


def test_acquire_release_extend_ping(server: ServerThread) -> None:
    with ticketing.sync.connect(server.url, key_prefix="p/") as client:
        assert isinstance(client, ticketing.sync.ClientLike)
        with client.acquire("orders/42") as ticket:
            assert isinstance(ticket, ticketing.sync.TicketLike)
            assert ticket.key == "orders/42"
            assert 29 < ticket.remaining < 30
            assert client.try_acquire("orders/42") is None
            with pytest.raises(ticketing.HeldError):
                client.acquire("orders/42", wait_timeout=0)
            with pytest.raises(TimeoutError):
                client.acquire("orders/42", wait_timeout=0.01)
            ticket.extend(60)
            assert ticket.remaining > 50
        ticket.release()
        with client.acquire_set(key for key in ("b", "a")) as both:
            assert both.keys == ("a", "b")
        client.ping()
        with pytest.raises(ticketing.InvalidArgumentError):
            client.acquire("")
        with pytest.raises(ticketing.InvalidArgumentError):
            client.acquire_set("ab")
    assert_empty(server)


def test_no_body_starts_without_the_lock(server: ServerThread) -> None:
    """REQ-SCOPE-REPORT: nor does an outer one go on when an inner one has released it."""
    client = ticketing.sync.connect(server.url)
    with client.acquire("k") as ticket:
        with pytest.raises(RuntimeError, match="entered already"), ticket:
            pytest.fail("the body of an entered ticket was run")
        ticket.extend()
    handed_over = client.acquire("j")
    handed_over.hand_over()
    for ended in (ticket, handed_over):
        with pytest.raises(ticketing.NotHeldError), ended:
            pytest.fail("a body was run without its lock")
    left = client.acquire("l")
    client.close()
    with pytest.raises(ticketing.TicketingError), left:
        pytest.fail("a body was run without its lock")


def test_hand_over_and_adopt(server: ServerThread) -> None:
    with (
        ticketing.sync.connect(server.url) as one,
        ticketing.sync.connect(server.url) as two,
    ):
        ticket = one.acquire("k")
        adopted = two.adopt(ticket.hand_over())
        assert adopted.token == ticket.token
        with pytest.raises(ticketing.NotHeldError):
            ticket.extend()
        adopted.release()
        with pytest.raises(ticketing.NotHeldError):
            two.adopt(f"{adopted.token}:k")
    assert_empty(server)


def test_threads_share_a_client() -> None:
    """REQ-CONN-CALLERS: tokens rise, and the guarded counter loses nothing."""
    counter, tokens = [0], []

    def caller(client: ticketing.sync.Client) -> None:
        for _ in range(25):
            with client.acquire("one key") as ticket:
                seen = counter[0]
                time.sleep(0)
                counter[0] = seen + 1
                tokens.append(ticket.token)

    with (
        ServerProcess() as server,
        ticketing.sync.connect(server.url) as client,
        ThreadPoolExecutor(16) as pool,
    ):
        for done in [pool.submit(caller, client) for _ in range(16)]:
            done.result(4 * LONG)
    assert counter == [400]
    assert tokens == sorted(set(tokens))


def hold_until_lost(client: ticketing.sync.Client, error: type[Exception] | None = None) -> None:
    """A body that sees the loss and goes on to its end, or raises."""
    with client.acquire("k", lease=1) as ticket:
        assert ticket.wait_lost(LONG) in LostReason
        assert ticket.is_lost
        if error is not None:
            raise error


def test_loss_is_reported_at_the_end(server: ServerThread) -> None:
    """REQ-SCOPE-REPORT REQ-SCOPE-NOMASK"""
    with ticketing.sync.connect(server.url) as client:
        with pytest.raises(ticketing.LostError):
            hold_until_lost(client)
        with pytest.raises(ZeroDivisionError):
            hold_until_lost(client, ZeroDivisionError)
        with client.acquire("k") as ticket:
            assert ticket.wait_lost(0.01) is None
    assert_empty(server)


def test_wait_lost_ends_with_the_ticket(server: ServerThread) -> None:
    with ticketing.sync.connect(server.url) as client, ThreadPoolExecutor(2) as pool:
        ticket = client.acquire("k")
        waits = [pool.submit(ticket.wait_lost) for _ in range(2)]
        client.ping()
        ticket.release()
        assert [wait.result(LONG) for wait in waits] == [None, None]
        assert ticket.wait_lost() is None
    assert_empty(server)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs POSIX timers")
def test_an_interrupt_leaves_nothing_behind(server: ServerThread) -> None:
    """REQ-STOP-OWN REQ-STOP-CLEAN: KeyboardInterrupt in the middle of a wait."""

    def interrupt(_signal: int, _frame: object) -> None:
        raise KeyboardInterrupt

    old = signal.signal(signal.SIGALRM, interrupt)
    try:
        with ticketing.sync.connect(server.url) as client, client.acquire("k"):
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(KeyboardInterrupt):
                client.acquire("k")
            assert server.counters().tickets == 1
            client.ping()
            assert server.counters().waiters_attached == 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert_empty(server)


@pytest.mark.parametrize("call", ["acquire", "wait_lost"])
def test_an_interrupt_that_the_wait_does_not_see_ends_it_all_the_same(
    server: ServerThread, call: str
) -> None:
    """REQ-STOP-OWN: it is pending, as after a signal in the moment before the wait begins."""
    # Whoever started the tests may have them ignore signals.
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with ticketing.sync.connect(server.url) as client, client.acquire("k") as ticket:
            wait = {
                "acquire": lambda: client.acquire("k", wait_timeout=60),
                "wait_lost": lambda: ticket.wait_lost(60),
            }[call]
            pending = threading.Timer(0.1, _thread.interrupt_main)
            pending.start()
            began = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                wait()
            assert time.monotonic() - began < 30
            pending.join()
            client.ping()
            assert server.counters().waiters_attached == 0
    finally:
        signal.signal(signal.SIGINT, old)
    assert_empty(server)


def test_an_interrupt_at_any_line_leaves_nothing_behind(server: ServerThread) -> None:
    """REQ-STOP-CLEAN: from the call's first line to its last."""
    lines = 0
    interrupt_at = 0

    def trace(frame: types.FrameType, event: str, _arg: object) -> Any:
        nonlocal lines
        if frame.f_code.co_filename != ticketing.sync.__file__:
            return None
        line = linecache.getline(ticketing.sync.__file__, frame.f_lineno)
        # On its way out of a `with` the interpreter takes no signal before the lock is free.
        if event == "line" and not line.strip().startswith("with "):
            lines += 1
            if lines == interrupt_at:
                raise KeyboardInterrupt
        return trace

    with ticketing.sync.connect(server.url) as client:
        ticket = None
        while ticket is None:
            lines, interrupt_at = 0, interrupt_at + 1
            try:
                sys.settrace(trace)
                ticket = client.acquire("k", wait_timeout=LONG)
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(None)
            client.ping()
            assert server.counters().tickets == (ticket is not None), f"line {interrupt_at}"
            assert server.counters().waiters_attached == 0
        assert interrupt_at > 10
        ticket.release()
    assert_empty(server)


def test_a_hook_that_calls_its_client_is_told_so(
    server: ServerThread, caplog: pytest.LogCaptureFixture
) -> None:
    """It would wait for itself, and nothing of the client would go on."""
    clients: list[ticketing.sync.Client] = []

    def ping(event: Event) -> None:
        if event.kind == "granted":
            clients[0].ping()

    with ticketing.sync.connect(server.url, on_event=ping) as client:
        clients.append(client)
        with client.acquire("k"):
            client.ping()
    assert "can't be called by its own on_event" in caplog.text


def test_close_ends_those_who_wait(server: ServerThread) -> None:
    """REQ-SHUT-AFTER"""
    client = ticketing.sync.connect(server.url)
    ticket = client.acquire("k")
    with ThreadPoolExecutor(10) as pool:
        waits = [pool.submit(client.acquire, "k") for _ in range(10)]
        while server.counters().waiters_attached < 10:
            time.sleep(0.005)
        closes = [threading.Thread(target=client.close) for _ in range(3)]
        for thread in closes:
            thread.start()
        for wait in waits:
            with pytest.raises(ticketing.ClosedError):
                wait.result(LONG)
        for thread in closes:
            thread.join(LONG)
            assert not thread.is_alive()
    ticket.release()
    for call in (client.ping, lambda: client.acquire("k"), lambda: client.adopt("1:k")):
        with pytest.raises(ticketing.ClosedError):
            call()
    client.close()
    assert_empty(server)


def test_clients_leave_nothing_behind(server: ServerThread) -> None:
    """REQ-SHUT-ENDS: no thread and no descriptor."""

    def use() -> None:
        with ticketing.sync.connect(server.url) as client:
            client.acquire("k", wait_timeout=LONG)

    use()
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        use()
    assert threading.active_count() == threads
    give_up = time.monotonic() + LONG
    while len(os.listdir("/proc/self/fd")) > descriptors:
        assert time.monotonic() < give_up
        time.sleep(0.01)
    assert_empty(server)


def test_dropped_clients_end_by_themselves(
    server: ServerThread, caplog: pytest.LogCaptureFixture
) -> None:
    """REQ-SCOPE-DESTRUCTOR: their tickets are released, and the log says why."""
    threads = threading.active_count()
    client = ticketing.sync.connect(server.url)
    client.acquire("k")
    del client
    gc.collect()
    assert "nobody can release the ticket for 'k'" in caplog.text
    assert "dropped without close" in caplog.text
    assert_empty(server)
    give_up = time.monotonic() + LONG
    while threading.active_count() > threads:
        assert time.monotonic() < give_up
        time.sleep(0.01)
