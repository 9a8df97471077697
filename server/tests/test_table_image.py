"""A lock table as bytes: what round trips, and what is refused."""

from __future__ import annotations

from struct import pack

import pytest
from ticketing_server.limits import Limits, Term
from ticketing_server.lock_table import CONNECT_COMMAND, LockTable
from ticketing_server.queues import Link
from ticketing_server.table_image import dump, load
from ticketing_server.wire import ACQUIRE, ACQUIRE_SET, Command

MS = 1_000_000
FOREVER = 0xFFFFFFFF
T0 = 1 << 50


def acquire(number: int, *keys: bytes, wait_ms: int = FOREVER, lease_ms: int = 9_000) -> Command:
    word = pack(">II", wait_ms, lease_ms)
    if len(keys) == 1:
        return (ACQUIRE, number.to_bytes(8, "big"), word, keys[0])
    return (ACQUIRE_SET, number.to_bytes(8, "big"), word, keys)


def full_table() -> LockTable:
    """A table in its second term, with something of every kind in it."""
    table = LockTable(1)
    old = Link(1, 7, b"client01")
    leaver = Link(1, 8, b"client02", leaves=True)
    table.begin_term(Term(1, Limits(restart_grace_ms=1)), T0)
    table.apply(T0, [(old, [CONNECT_COMMAND]), (leaver, [CONNECT_COMMAND])])
    table.apply(T0 + 2 * MS, [(old, [acquire(1, b"a"), acquire(2, b"b", b"c")])])
    table.apply(
        T0 + 3 * MS, [(old, [acquire(3, b"a", wait_ms=7_000)]), (leaver, [acquire(1, b"c")])]
    )
    table.begin_term(Term(2, Limits(), failover_grace_ms=4_000, token_floor=1 << 50), T0 + 4 * MS)
    new = Link(2, 7, b"client03")
    table.apply(T0 + 5 * MS, [(new, [CONNECT_COMMAND, acquire(1, b"b", lease_ms=1_000)])])
    return table


def test_round_trip() -> None:
    table = full_table()
    image = dump(table)
    loaded = load(image)
    assert dump(loaded) == image
    assert (loaded.attached, loaded.held_back, loaded.detached) == (1, 1, 0)
    assert (loaded.tickets, loaded.held_keys, loaded.next_token) == (2, 3, 1 << 50)
    assert list(loaded.connections) == [7]
    assert loaded.results() == {("acquire", "granted"): 0, ("release", "released"): 0}


def test_every_cut_is_refused() -> None:
    image = dump(full_table())
    for end in range(len(image)):
        with pytest.raises(ValueError, match="image of a lock table: "):
            load(image[:end])
    with pytest.raises(ValueError, match="1 bytes too many"):
        load(image + b"\0")
