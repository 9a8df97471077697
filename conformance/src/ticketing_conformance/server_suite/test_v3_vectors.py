"""Version 3: every vector of spec/vectors, good and malformed."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

import pytest
from ticketing_spec import vectors
from ticketing_spec.codec import decode

from ticketing_conformance.server_suite.conftest import ConnectV3
from ticketing_conformance.server_suite.raw_v3 import (
    BAD_KEY,
    BAD_KEY_SET,
    BAD_LEASE,
    BAD_TOKEN,
    SPEC_V3,
    RawV3Client,
)
from ticketing_conformance.server_suite.vector_groups import groups

FILES = vectors.files(SPEC_V3)
BY_FRAME = groups(FILES["v3-client"])
BY_CASE = groups(FILES["v3-client-malformed"])
FAR_FROM_THEIRS = 1 << 40
"""Where our own request ids begin, so that none is that of a vector."""
CODES = {
    "bad_key": BAD_KEY,
    "bad_lease": BAD_LEASE,
    "bad_key_set": BAD_KEY_SET,
    "bad_token": BAD_TOKEN,
}
REPLIES = {
    "acquire": {"granted", "timed_out", "overloaded"},
    "acquire_set": {"granted_set", "timed_out", "overloaded"},
    "release": {"not_held"},
    "release_set": {"not_held"},
}


@pytest.mark.parametrize("frame", BY_FRAME)
def test_every_good_request_is_answered(connect_v3: ConnectV3, frame: str) -> None:
    """Each on a connection of its own; what waits for an earlier one leaves with its connection."""
    for vector in BY_FRAME[frame]:
        assert vector.wire is not None
        client = connect_v3()
        client.next_id = FAR_FROM_THEIRS
        client.send_bytes(vector.wire)
        request_id = vector.fields["request_id"]
        client.settle()
        frames = [reply for reply in client.unclaimed() if reply.fields["request_id"] == request_id]
        if frames or not vector.fields.get("wait_s"):
            (reply,) = frames
            assert reply.name in REPLIES[frame], f"{vector.id}: {reply}"
            give_back(client, vector.fields, reply.fields.get("token", 0))
        client.close()


def give_back(client: RawV3Client, fields: Mapping[str, Any], token: int) -> None:
    """Releases what an acquire with these fields got, if anything."""
    if not token:
        return
    names, key = fields.get("keys"), fields.get("key")
    if isinstance(names, list):
        client.expect("released_set", client.release_set(*names, token=token))
    else:
        assert isinstance(key, bytes)
        client.expect("released", client.release(key, token))


@pytest.mark.parametrize("case", sorted(BY_CASE))
def test_every_malformed_frame_is_refused(connect_v3: ConnectV3, case: str) -> None:
    """By an error where the request alone is wrong, else by a bare close."""
    bystander = connect_v3()
    for vector in BY_CASE[case]:
        assert vector.wire is not None
        client = connect_v3()
        client.send_bytes(vector.wire)
        if vector.layer == "request":
            assert vector.answer is not None
            error = client.take("error")
            assert error.fields["code"] == CODES[vector.answer], f"{vector.id}: {error}"
            client.settle()
        elif vector.layer == "stream":
            client.socket.shutdown(socket.SHUT_WR)
            frames = client.drain_until_end_or_reset()
            assert not frames or vector.error == "one-more", f"{vector.id}: {frames}"
            if frames:
                fields = decode(SPEC_V3, "client", vector.wire[:-1])[1]
                give_back(bystander, fields, frames[0].fields.get("token", 0))
        else:
            client.expect_bare_close()
        client.close()
    bystander.settle()
