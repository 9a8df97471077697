"""A lock table as bytes: what round trips, and what is refused."""

from __future__ import annotations

from dataclasses import fields
from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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
    with pytest.raises(ValueError, match="too many bytes"):
        load(image + b"\0")


def test_tables_in_the_same_state_have_the_same_image() -> None:
    """Whatever the order in which connections and keys came into their dicts."""
    images = set()
    for order in ((1, 2, 3), (3, 1, 2)):
        table = LockTable(1)
        table.configure(Limits(), T0)
        links = {number: Link(0, number, b"client%02d" % number) for number in order}
        for number in order:
            table.apply(T0, [(links[number], [CONNECT_COMMAND])])
        for number in order:
            table.apply(T0, [(links[number], [acquire(1, b"%d" % number, lease_ms=1)])])
        table.apply(T0 + MS, [])
        for number in (1, 2, 3):
            table.apply(T0 + MS, [(links[number], [acquire(2, b"%d" % number), acquire(3, b"k")])])
        images.add(dump(table))
    assert len(images) == 1


def test_all_limits_are_in_an_image() -> None:
    limits = Limits(*range(1, len(fields(Limits)) + 1))
    table = LockTable(1)
    table.configure(limits, T0)
    assert load(dump(table))._limits == limits


def test_a_refused_connection_stays_refused() -> None:
    table = LockTable(1)
    table.configure(Limits(), T0)
    link = Link(0, 1, b"client01")
    table.apply(T0, [(link, [CONNECT_COMMAND]), (link, [acquire(1, b"k", lease_ms=0)])])
    assert link.broken
    loaded = load(dump(table))
    table.apply(T0, [(link, [acquire(2, b"k")])])
    loaded.apply(T0, [(loaded.connections[1], [acquire(2, b"k")])])
    assert (table.tickets, loaded.tickets) == (0, 0)


@pytest.mark.parametrize("last", [0, (1 << 63) + 7, (1 << 64) - 1])
def test_every_next_token_is_kept(last: int) -> None:
    table = load(dump(LockTable(last + 1)))
    assert table.next_token == last + 1


def test_another_version_is_refused() -> None:
    image = dump(full_table())
    with pytest.raises(ValueError, match="version 2, this reads 1"):
        load(b"\2" + image[1:])


@settings(max_examples=600, deadline=None)
@given(st.data())
def test_damage_is_refused_or_gives_another_canonical_image(data: st.DataObject) -> None:
    """No image brings the loader to anything but a table with that image, or a ValueError."""
    image = bytearray(IMAGE)
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.integers(0, len(image) - 1))
        image[at] = data.draw(st.one_of(st.sampled_from((0, 1, 2, 255)), st.integers(0, 255)))
    try:
        loaded = load(bytes(image))
    except ValueError:
        return
    assert dump(loaded) == image


def test_every_byte_counts() -> None:
    """Each bit flipped is refused, or is in the image of what was loaded."""
    for at in range(len(IMAGE) * 8):
        image = bytearray(IMAGE)
        image[at // 8] ^= 1 << at % 8
        try:
            loaded = load(bytes(image))
        except ValueError:
            continue
        assert dump(loaded) == image


def test_a_large_table_takes_a_small_multiple_of_its_bytes() -> None:
    """20,000 tickets and waiters: under 170 bytes for both."""
    table = LockTable(1)
    table.configure(Limits(), T0)
    link = Link(0, 1, b"client01")
    keys = [b"%06d" % number for number in range(20_000)]
    table.apply(T0, [(link, [CONNECT_COMMAND])])
    table.apply(T0, [(link, [acquire(n, key) for n, key in enumerate(keys, 1)])])
    table.apply(T0, [(link, [acquire(n, key) for n, key in enumerate(keys, 30_000)])])
    image = dump(table)
    assert len(image) / len(keys) < 170
    loaded = load(image)
    assert dump(loaded) == image
    assert (loaded.tickets, loaded.attached) == (len(keys), len(keys))


IMAGE = dump(full_table())
