"""Messages between nodes survive the way through bytes, and damage never does."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ticketing_server.cluster.messages import Found
from ticketing_server.peers import frames
from ticketing_server.peers.frames import BadFrame, FrameReader, Incoming, decode, encode
from ticketing_server.raft.configuration import Configuration
from ticketing_server.raft.messages import (
    Append,
    AppendReply,
    Entry,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    Snapshot,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)

SENDER, TO = 7, 2**64 - 1
u64 = st.integers(0, 2**64 - 1)
small = st.integers(0, 2**40)


@st.composite
def appends(draw: st.DrawFn) -> Append:
    previous = draw(small)
    payloads = draw(st.lists(st.binary(max_size=40), max_size=4))
    entries = tuple(
        Entry(previous + 1 + at, draw(u64), draw(st.integers(0, 4)), draw(u64), payload)
        for at, payload in enumerate(payloads)
    )
    return Append(SENDER, TO, draw(u64), previous, draw(u64), entries, draw(u64), draw(u64))


messages = st.one_of(
    appends(),
    st.builds(AppendReply, st.just(SENDER), st.just(TO), u64, st.booleans(), u64, u64, u64, u64),
    st.builds(Heartbeat, st.just(SENDER), st.just(TO), u64, u64, u64),
    st.builds(HeartbeatReply, st.just(SENDER), st.just(TO), u64, u64),
    st.builds(
        VoteRequest, st.just(SENDER), st.just(TO), u64, st.booleans(), u64, u64, st.booleans()
    ),
    st.builds(VoteReply, st.just(SENDER), st.just(TO), u64, u64, st.booleans(), st.booleans()),
    st.builds(TimeoutNow, st.just(SENDER), st.just(TO), u64),
    st.builds(
        Found,
        st.just(SENDER),
        st.just(TO),
        st.builds(Entry, u64, u64, st.just(2), u64, st.binary(max_size=60)),
    ),
)


def read(data: bytes, step: int, bytes_max: int = frames.FRAME_BYTES_MAX) -> list[frames.Frame]:
    reader = FrameReader(bytes_max)
    return [f for at in range(0, len(data), step) for f in reader.feed(data[at : at + step])]


@settings(max_examples=150, deadline=None)
@given(st.lists(messages, min_size=1, max_size=5), st.integers(1, 200))
def test_messages_come_out_as_they_went_in(sent: list[frames.PeerMessage], step: int) -> None:
    got = read(b"".join(map(encode, sent)), step)
    assert [decode(kind, body, SENDER, TO) for kind, body in got] == sent


def test_the_begin_of_a_snapshot_comes_out_as_it_went_in() -> None:
    for configuration in (
        Configuration(),
        Configuration(b"0123456789abcdef", ((0, 5), (2, 2**64 - 1)), 3),
    ):
        message = InstallSnapshot(SENDER, TO, 9, Snapshot(8, 7, 6, configuration), 5)
        ((kind, body),) = read(frames.encode_snapshot(message, 2**33), 50)
        assert decode(kind, body, SENDER, TO) == Incoming(message, 2**33)


@settings(max_examples=150, deadline=None)
@given(messages, st.data())
def test_a_flipped_bit_is_never_taken(message: frames.PeerMessage, data: st.DataObject) -> None:
    sent = bytearray(encode(message))
    at = data.draw(st.integers(0, len(sent) - 1))
    sent[at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        got = read(bytes(sent), len(sent))
    except BadFrame:
        return
    # A longer length waits for bytes that never come.
    assert got == []


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 30), st.binary(max_size=100))
def test_any_body_is_a_message_or_refused(kind: int, body: bytes) -> None:
    try:
        decode(kind, body, SENDER, TO)
    except BadFrame:
        pass


@pytest.mark.parametrize("length", [0, 1_025, 2**32 - 1])
def test_a_length_out_of_bounds_ends_the_stream_at_once(length: int) -> None:
    with pytest.raises(BadFrame, match="taken are 1 to 1024"):
        read(length.to_bytes(4, "big") + bytes(4), 100, bytes_max=1_024)
    with pytest.raises(BadFrame, match="taken are 1 to 1024"):
        read(length.to_bytes(4, "big") + bytes(4), 3, bytes_max=1_024)


def test_the_bound_may_rise_between_two_frames_of_one_read() -> None:
    reader = FrameReader(10)
    got = reader.feed(frames.frame(1) + frames.frame(2, bytes(100)))
    assert next(got).kind == 1
    reader.bytes_max = 200
    assert next(got).kind == 2


def test_a_frame_over_the_bound_is_not_made() -> None:
    with pytest.raises(ValueError, match="at most"):
        frames.frame(1, bytes(frames.FRAME_BYTES_MAX))
