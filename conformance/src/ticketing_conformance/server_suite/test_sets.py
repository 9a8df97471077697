"""Sets: all or nothing, in one queue with single keys, without deadlock."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from ticketing_conformance.server_suite.codes import LATE_MS
from ticketing_conformance.server_suite.conftest import Connect
from ticketing_conformance.server_suite.marks import requirement
from ticketing_conformance.server_suite.raw import WAIT_FOREVER, RawClient


@requirement("REQ-GRANT-SET", "REQ-ACQUIRE-FREE", "REQ-RELEASE-SET")
def test_a_free_set_is_one_ticket(connect: Connect, keys: list[bytes]) -> None:
    client, other = connect(), connect()
    granted = client.expect("granted", client.acquire(*keys, wait_ms=WAIT_FOREVER))
    assert granted["waited_ms"] == 0
    assert not any(other.is_free(name) for name in keys)
    client.expect("released", client.release(keys[0], granted["token"]))
    assert all(other.is_free(name) for name in keys)


@requirement("REQ-GRANT-ALLORNOTHING", "REQ-ACQUIRE-TRY")
@pytest.mark.parametrize("held", [0, 7, 15])
def test_a_try_of_a_set_takes_all_or_nothing(
    connect: Connect, keys: list[bytes], held: int
) -> None:
    client, other = connect(), connect()
    client.hold(keys[held])
    other.expect("timed_out", other.acquire(*keys))
    for number, name in enumerate(keys):
        assert client.is_free(name) == (number != held)


@requirement("REQ-RELEASE-SET")
@pytest.mark.parametrize("named", [0, 1, 15])
def test_any_key_of_a_set_names_its_ticket(connect: Connect, keys: list[bytes], named: int) -> None:
    client = connect()
    token = client.hold(*keys)
    client.expect("extended", client.extend(keys[named], token, 70_000))
    client.expect("not_held", client.release(keys[named] + b"?", token))
    client.expect("released", client.release(keys[named], token))
    client.expect("not_held", client.release(keys[named], token))
    assert all(client.is_free(name) for name in keys)


@requirement("REQ-FRAME-KEYS", "REQ-FRAME-BYTES")
def test_keys_that_are_prefixes_of_one_another(connect: Connect, key: bytes) -> None:
    client = connect()
    names = [key, key + b"\0", key + b"\0\0", key + b"a", key + b"aa"]
    token = client.hold(*names)
    assert not any(client.is_free(name) for name in names)
    client.expect("released", client.release(key + b"aa", token))


@requirement("REQ-FRAME-KEYS")
def test_the_largest_set_of_the_longest_keys(connect: Connect, keys: list[bytes]) -> None:
    client = connect()
    names = [name.ljust(128, b"\xff") for name in keys]
    client.expect("released", client.release(names[5], client.hold(*names)))


@requirement("REQ-GRANT-SET", "REQ-GRANT-ALLORNOTHING")
def test_a_set_waits_until_all_of_its_keys_are_free(connect: Connect, keys: list[bytes]) -> None:
    one, two, waiter = connect(), connect(), connect()
    first, second = one.hold(keys[0]), two.hold(keys[1])
    request_id = waiter.acquire(*keys[:3], wait_ms=WAIT_FOREVER)
    waiter.settle()
    one.expect("released", one.release(keys[0], first))
    waiter.expect_quiet()
    two.expect("released", two.release(keys[1], second))
    assert waiter.expect("granted", request_id)["token"] > second


@requirement("REQ-GRANT-HEAD", "REQ-GRANT-NOPASS")
def test_a_waiting_set_keeps_its_free_keys_from_later_comers(
    connect: Connect, keys: list[bytes]
) -> None:
    """Strict FIFO: a key that is free, and has a waiter that came first, is not free to take."""
    holder, waiter, later = connect(), connect(), connect()
    token = holder.hold(keys[0])
    set_id = waiter.acquire(keys[0], keys[1], wait_ms=WAIT_FOREVER)
    waiter.settle()
    later.expect("timed_out", later.acquire(keys[1]))
    single_id = later.acquire(keys[1], wait_ms=WAIT_FOREVER)
    later.expect_quiet()
    holder.expect("released", holder.release(keys[0], token))
    set_token = waiter.expect("granted", set_id)["token"]
    later.expect_quiet()
    waiter.expect("released", waiter.release(keys[1], set_token))
    assert later.expect("granted", single_id)["token"] > set_token


@requirement("REQ-GRANT-SAMESTEP", "REQ-CANCEL-WAITER")
def test_a_set_that_leaves_lets_those_behind_it_go_on(connect: Connect, keys: list[bytes]) -> None:
    holder, waiter, later = connect(), connect(), connect()
    holder.hold(keys[0])
    set_id = waiter.acquire(keys[0], keys[1], wait_ms=WAIT_FOREVER)
    waiter.settle()
    single_id = later.acquire(keys[1], wait_ms=WAIT_FOREVER)
    later.expect_quiet()
    waiter.expect("cancelled", waiter.cancel(keys[1], set_id))
    later.expect("granted", single_id)
    waiter.expect_quiet()


@requirement("REQ-GRANT-SAMESTEP", "REQ-ACQUIRE-WAITEND")
def test_a_set_that_times_out_lets_those_behind_it_go_on(
    connect: Connect, keys: list[bytes]
) -> None:
    holder, waiter, later = connect(), connect(), connect()
    holder.hold(keys[0])
    started = time.monotonic()
    set_id = waiter.acquire(keys[0], keys[1], wait_ms=400)
    waiter.settle()
    single_id = later.acquire(keys[1], wait_ms=WAIT_FOREVER)
    waiter.expect("timed_out", set_id)
    later.expect("granted", single_id)
    assert 400 <= (time.monotonic() - started) * 1000 <= 400 + LATE_MS


@requirement("REQ-GRANT-SAMESTEP")
def test_one_release_can_grant_several_waiters(connect: Connect, keys: list[bytes]) -> None:
    holder, waiter = connect(), connect()
    token = holder.hold(*keys)
    ids = [waiter.acquire(name, wait_ms=WAIT_FOREVER) for name in reversed(keys)]
    waiter.settle()
    holder.expect("released", holder.release(keys[0], token))
    tokens = [waiter.expect("granted", request_id)["token"] for request_id in ids]
    # Oldest first, whatever its key: tokens rise in the order in which the waiters came.
    assert tokens == sorted(tokens)


@requirement("REQ-GRANT-FIFO", "REQ-GRANT-SET", "REQ-GRANT-HEAD")
def test_a_set_is_granted_before_what_came_later_on_each_of_its_keys(
    connect: Connect, keys: list[bytes]
) -> None:
    client = connect()
    one, two, three = keys[:3]
    token = client.hold(one, two, three)
    ids = [
        client.acquire(one, two, wait_ms=WAIT_FOREVER),
        client.acquire(two, three, wait_ms=WAIT_FOREVER),
        client.acquire(one, wait_ms=WAIT_FOREVER),
        client.acquire(three, wait_ms=WAIT_FOREVER),
        client.acquire(one, two, three, wait_ms=WAIT_FOREVER),
    ]
    client.settle()
    client.expect("released", client.release(one, token))
    first = client.expect("granted", ids[0])["token"]
    client.expect_quiet()  # 1 waits for two, 2 for one, 3 behind 1, 4 for all
    client.expect("released", client.release(one, first))
    second = client.expect("granted", ids[1])["token"]
    third = client.expect("granted", ids[2])["token"]
    client.expect_quiet()
    client.expect("released", client.release(three, second))
    fourth = client.expect("granted", ids[3])["token"]
    client.expect("released", client.release(three, fourth))
    client.expect_quiet()
    client.expect("released", client.release(one, third))
    client.expect("granted", ids[4])


@requirement("REQ-ACQUIRE-HELD", "REQ-RELEASE-SET")
def test_the_same_set_again_is_the_same_ticket(connect: Connect, keys: list[bytes]) -> None:
    client = connect()
    request_id = client.acquire(*keys)
    token = client.expect("granted", request_id)["token"]
    client.acquire(*keys, request_id=request_id)
    assert client.expect("granted", request_id)["token"] == token
    client.expect("released", client.release(keys[3], token))
    assert all(client.is_free(name) for name in keys)


@requirement("REQ-LEASE-OVER")
def test_the_lease_of_a_set_frees_all_of_its_keys(connect: Connect, keys: list[bytes]) -> None:
    client, waiter = connect(), connect()
    started = time.monotonic()
    token = client.hold(*keys, lease_ms=500)
    waiter_id = waiter.acquire(*keys, wait_ms=WAIT_FOREVER)
    client.take("dropped", token=token, reason=1)
    waiter.expect("granted", waiter_id)
    assert (time.monotonic() - started) * 1000 >= 500


ROUNDS = 12
CLIENTS = 50


@requirement("REQ-GRANT-DEADLOCK", "REQ-GRANT-ALLORNOTHING")
def test_crossing_sets_from_fifty_clients_never_deadlock(
    connect: Connect, keys: list[bytes]
) -> None:
    """Fifty clients take crossing pairs, triples and single keys of six, again and again.

    All are done in the end, and no key ever has two holders by what the clients saw.
    """
    names = keys[:6]
    holders: dict[bytes, int] = {}
    guard = threading.Lock()
    failures: list[str] = []

    def work(client: RawClient, seed: int) -> None:
        source = random.Random(seed)
        for _ in range(ROUNDS):
            wanted = source.sample(names, source.randint(1, 3))
            token = client.hold(*wanted)
            with guard:
                failures.extend(
                    f"{name!r} has token {holders[name]} and {token}"
                    for name in wanted
                    if name in holders
                )
                holders.update(dict.fromkeys(wanted, token))
            with guard:
                for name in wanted:
                    del holders[name]
            client.expect("released", client.release(wanted[-1], token))

    run_all([partial(work, connect(), seed) for seed in range(CLIENTS)])
    assert not failures
    assert all(connect().is_free(name) for name in names)


@requirement("REQ-GRANT-FIFO", "REQ-GRANT-DEADLOCK")
def test_crossing_sets_keep_their_order(connect: Connect, keys: list[bytes]) -> None:
    """Of two waiters that share a key, the one that came first is granted first."""
    source = random.Random(17)
    names = keys[:6]
    holder = connect()
    token = holder.hold(*names)
    clients = [connect() for _ in range(CLIENTS)]
    waiting: list[tuple[RawClient, int, set[bytes]]] = []
    for client in clients:
        wanted = source.sample(names, source.randint(1, 4))
        waiting.append((client, client.acquire(*wanted, wait_ms=WAIT_FOREVER), set(wanted)))
        client.settle()
    holder.expect("released", holder.release(names[0], token))
    tokens = []
    for client, request_id, names_of in waiting:
        tokens.append(client.expect("granted", request_id)["token"])
        client.expect("released", client.release(min(names_of), tokens[-1]))
    for (early, (_, _, left)), (late, (_, _, right)) in itertools.combinations(
        zip(tokens, waiting, strict=True), 2
    ):
        assert early < late or not left & right


def run_all(jobs: list[Callable[[], None]]) -> None:
    """Runs the jobs at the same time; the first failure of one of them fails the test."""
    failures: list[BaseException] = []

    def guarded(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=guarded, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "deadlock: a client still waits"
    if failures:
        raise failures[0]
