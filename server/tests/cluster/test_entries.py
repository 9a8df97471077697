"""What entries carry: the same on every node, and read only where it is whole."""

from __future__ import annotations

from random import Random

import pytest
from engine_driver import SPEC
from ticketing_server import constants_gen as c
from ticketing_server import wire
from ticketing_server.cluster import entries
from ticketing_server.cluster.entries import BYTES_MAX, REQUESTS_MAX, TurnRun
from ticketing_server.cluster.replica import Replica
from ticketing_server.cluster.turn_queue import TurnQueue
from ticketing_server.limits import Limits
from ticketing_server.lock_table import RELEASE_KEYS, Run
from ticketing_server.queues import Link
from ticketing_server.raft.messages import BATCH, FOUND, NOOP, Entry
from ticketing_server.wire import Command
from ticketing_spec.codec import encode

SECOND = 1_000_000_000
TERM = 3


def acquire(number: int, key: bytes = b"k", wait_ms: int = 0) -> bytes:
    fields = {"request_id": number, "wait_ms": wait_ms, "lease_ms": 60_000, "key": key}
    return encode(SPEC, "client", "acquire", fields)


def ping(number: int) -> bytes:
    return encode(SPEC, "client", "ping", {"echo": number})


def frames(link: Link, data: bytes) -> TurnRun:
    commands, used, bad = wire.split(data, [])
    assert used == len(data)
    assert bad is None
    return entries.frames(link, data, commands)


def read(runs: list[Run]) -> list[tuple[int, bytes, bool, list[Command]]]:
    return [(link.number, link.client, link.leaves, list(commands)) for link, commands in runs]


def older(number: int, *keys: bytes) -> list[Command]:
    request_id, token = number.to_bytes(8, "big"), bytes(8)
    return [
        (wire.ACQUIRE, request_id, token, keys[0]),
        (wire.ACQUIRE_SET, request_id, token, tuple(keys)),
        (RELEASE_KEYS, request_id, token, tuple(keys)),
        (RELEASE_KEYS, request_id, token, keys[:1]),
    ]


def test_what_is_encoded_is_read_again() -> None:
    new, old = Link(TERM, 7, b"client 7"), Link(TERM, 1 << 40, b"client 8", leaves=True)
    set_fields = {"request_id": 5, "wait_ms": 1, "lease_ms": 2, "keys": [b"a", b"b"]}
    turn = [
        entries.connect(new),
        frames(new, acquire(1) + ping(3) + encode(SPEC, "client", "acquire_set", set_fields)),
        entries.commands_of_version_3(old, older(9, b"a", b"x" * 128)),
        entries.force_release(b"token 12", b"a key"),
        frames(new, acquire(2)),
        entries.detach(old),
        entries.detach(new),
    ]
    payload = entries.encode(turn)
    runs = entries.decode(payload, TERM, {old.number: old})
    assert read(runs) == read([(run.link, run.commands) for run in turn])
    assert runs[0][0] is runs[1][0]
    assert runs[2][0] is old
    assert runs[0][0].term == TERM


def test_connections_of_other_terms_are_not_heard() -> None:
    gone = Link(TERM, 7, b"client 7")
    payload = entries.encode([frames(gone, acquire(1)), entries.detach(gone)])
    assert entries.decode(payload, TERM, {}) == []


def test_what_is_cut_short_or_unknown_is_refused() -> None:
    link = Link(TERM, 7, b"client 7")
    runs = [entries.connect(link), frames(link, acquire(1)), entries.detach(link)]
    payload = entries.encode(runs)
    ends = [0]
    for run in runs:
        ends.append(ends[-1] + entries.RUN_BYTES + len(run.body))
    for size in range(len(payload)):
        if size not in ends:
            with pytest.raises(ValueError, match="run"):
                entries.decode(payload[:size], TERM, {})
    with pytest.raises(ValueError, match="kind 9"):
        entries.decode(entries.encode([TurnRun(link, 9, b"", [])]), TERM, {7: link})
    broken = TurnRun(link, entries.FRAMES, acquire(1)[:-1], [])
    with pytest.raises(ValueError, match="frames"):
        entries.decode(entries.encode([broken]), TERM, {7: link})
    with pytest.raises(ValueError, match="version 3"):
        entries.decode_commands(entries.encode_commands([(wire.CANCEL, b"i" * 8, b"w" * 8, b"k")]))


@pytest.mark.parametrize("requests", [1, 2, 3])
def test_a_run_is_cut_behind_whole_requests(requests: int) -> None:
    link = Link(TERM, 7, b"client 7")
    data = ping(1) + acquire(1) + ping(2) + ping(3) + acquire(2, b"longer") + acquire(3)
    run = frames(link, data + acquire(4) + ping(9))
    head, tail = entries.cut(run, requests)
    assert head.commands + tail.commands == run.commands
    assert len(head.commands) == requests
    assert head.body + tail.body == run.body
    for part in (head, tail):
        assert wire.split(part.body, []).commands == part.commands
    rewritten = entries.commands_of_version_3(link, older(1, b"a", b"b"))
    head, tail = entries.cut(rewritten, requests)
    assert entries.decode_commands(head.body) == rewritten.commands[:requests]
    assert entries.decode_commands(tail.body) == rewritten.commands[requests:]


def test_an_entry_takes_so_many_requests_and_bytes() -> None:
    """REQ: 4,096 requests or 256 KiB."""
    queue = TurnQueue()
    link = Link(TERM, 7, b"client 7")
    sent: list[Command] = []
    number = 0
    for count in (1000, 3000, 5000, 1, 4096):
        data = b"".join(acquire(number + place) for place in range(count))
        number += count
        queue.add(frames(link, data))
        sent += wire.split(data, []).commands
    assert queue.is_full
    assert queue.requests == len(sent)
    got: list[Command] = []
    while queue:
        runs = queue.take()
        taken = [command for run in runs for command in run.commands]
        assert 0 < len(taken) <= REQUESTS_MAX
        assert len(entries.encode(runs)) <= BYTES_MAX
        got += taken
    assert got == sent
    assert (queue.requests, queue.size) == (0, 0)
    assert not queue.is_full


def test_one_read_that_is_larger_is_an_entry() -> None:
    queue = TurnQueue()
    link = Link(TERM, 7, b"client 7")
    large = TurnRun(link, entries.FRAMES, bytes(BYTES_MAX + 1), [])
    queue.add(entries.detach(link))
    queue.add(large)
    queue.add(large)
    assert [len(queue.take()) for _ in range(3)] == [1, 1, 1]
    assert not queue


def test_a_noop_says_what_the_term_needs() -> None:
    limits = Limits(waiters_per_key=1, waiters=2, held_keys=3, max_lease_ms=4, reattach_grace_ms=5)
    noop = entries.decode_noop(entries.encode_noop(limits, 6, 7), 8)
    term = noop.term
    assert (term.number, term.failover_grace_ms, term.token_floor) == (8, 6, 7)
    assert term.limits == limits
    assert noop.table_version == entries.TABLE_VERSION
    largest = entries.decode_noop(entries.encode_noop(limits, 6, 1 << 70), 8)
    assert largest.term.token_floor == (1 << 64) - 1
    assert entries.decode_noop(entries.encode_noop(limits, 6, -1), 8).term.token_floor == 0
    with pytest.raises(ValueError, match="NOOP"):
        entries.decode_noop(b"short", 8)


def noop(index: int, term: int, version: int = entries.TABLE_VERSION) -> Entry:
    return Entry(
        index, term, NOOP, index * SECOND, entries.encode_noop(Limits(), 5000, 99, version)
    )


def test_replicas_of_one_log_are_equal_however_they_are_fed() -> None:
    leader, follower = Replica(), Replica()
    random = Random(5)
    replies: list[tuple[Link, bytes]] = []
    links: dict[int, Link] = {}
    for index in range(1, 200):
        if index == 1:
            both = [Entry(1, 1, FOUND, 0, b"")]
            cache = None
        elif index % 60 == 2:
            both = [noop(index, 1 + index // 60)]
            cache = None
            links.clear()
        else:
            turn = []
            term = leader.term
            if len(links) < 4:
                links[index] = Link(term, index, b"client%2d" % random.randrange(10))
                turn.append(entries.connect(links[index]))
            for link in links.values():
                key = random.choice((b"a", b"b"))
                turn.append(frames(link, acquire(index, key, random.choice((0, 900, 9000)))))
            if random.random() < 0.3:
                number = random.choice(list(links))
                turn.append(entries.detach(links.pop(number)))
            both = [Entry(index, term, BATCH, index * SECOND, entries.encode(turn))]
            cache = [(run.link, run.commands) for run in turn]
        leader.apply(both[0], cache, replies)
        follower.apply(both[0])
        follower.forget_events()
        leader.forget_events()
        assert leader.checksum == follower.checksum
        if index % 20 == 0:
            assert leader.dump() == follower.dump()
            follower = Replica.load(follower.dump())
    assert replies
    assert all(not link.out for link, _ in replies)


def test_a_replica_takes_entries_in_their_order_and_no_newer_table() -> None:
    replica = Replica()
    with pytest.raises(ValueError, match="follow"):
        replica.apply(noop(2, 1))
    with pytest.raises(ValueError, match="version"):
        replica.apply(noop(1, 1, entries.TABLE_VERSION + 1))
    with pytest.raises(ValueError, match="image"):
        Replica.load(b"short")


def test_the_checksum_is_over_all_that_is_answered() -> None:
    """Two logs that answer differently have other checksums from then on."""
    sums = set()
    for key in (b"a", b"b"):
        replica = Replica()
        replica.apply(noop(1, 1))
        one, two = Link(1, 1, b"client 1"), Link(1, 2, b"client 2")
        turn = [entries.connect(one), entries.connect(two)]
        turn += [frames(one, acquire(1, b"a")), frames(two, acquire(1, key))]
        replica.apply(Entry(2, 1, BATCH, 2 * SECOND, entries.encode(turn)))
        sums.add(replica.checksum)
    assert len(sums) == 2


def test_no_frame_of_a_client_is_a_command_of_the_log() -> None:
    for op in (RELEASE_KEYS, 1, 2, 4):
        assert op not in wire.BOUNDS
    assert c.OP_PING in wire.BOUNDS
