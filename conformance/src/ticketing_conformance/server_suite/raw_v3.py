"""A raw client of version 3, on the spec's codec for it."""

from __future__ import annotations

from typing import Any

from ticketing_spec import load_spec
from ticketing_spec.codec import encode, fingerprint, mac

from ticketing_conformance.server_suite.raw import RawConnection, Target

SPEC_V3 = load_spec("version3")

ACCEPTED = b"\x01"
REJECTED = b"\x00"
LIVE_NOWHERE = 0xFFFFFFFFFFFFFFFF

BAD_KEY = 1
BAD_LEASE = 2
NOT_ACTIVE = 3
NO_LEADER = 4
BAD_KEY_SET = 5
GROUP_MISMATCH = 6
BAD_TOKEN = 7


class RawV3Client(RawConnection):
    """A version 3 connection; request ids count from 1 on each."""

    spec = SPEC_V3
    greeting_bytes = 28

    def __init__(
        self, target: Target, secret: bytes, *, cluster_id: bytes | None = None, answer: bool = True
    ) -> None:
        super().__init__(target)
        self.secret = secret
        self.fingerprint = fingerprint(SPEC_V3, cluster_id)
        self.next_id = 1
        if answer:
            self.send_answer()
            assert self.receive_exactly(1) == ACCEPTED

    def answer_bytes(self) -> bytes:
        """The 32 bytes that answer this connection's greeting."""
        return mac(SPEC_V3, self.secret, self.greeting, {"fingerprint": self.fingerprint})

    def send_answer(self) -> None:
        self.send_bytes(self.answer_bytes())

    def new_id(self) -> int:
        self.next_id += 1
        return self.next_id - 1

    def acquire(self, *keys: bytes, wait_s: int = 0, lease_s: int = 60) -> int:
        """Sends an acquire of the key, or of the set where several are given; returns its id."""
        request_id = self.new_id()
        self.send_bytes(acquire_v3_bytes(request_id, *keys, wait_s=wait_s, lease_s=lease_s))
        return request_id

    def hold(self, *keys: bytes, wait_s: int = 60, lease_s: int = 60) -> int:
        """Acquires the key or set and returns the token."""
        granted = "granted" if len(keys) == 1 else "granted_set"
        request_id = self.acquire(*keys, wait_s=wait_s, lease_s=lease_s)
        token: int = self.expect(granted, request_id)["token"]
        return token

    def release(self, key: bytes, token: int) -> int:
        request_id = self.new_id()
        self.send("release", request_id=request_id, token=token, key=key)
        return request_id

    def release_set(self, *keys: bytes, token: int) -> int:
        request_id = self.new_id()
        self.send("release_set", request_id=request_id, token=token, keys=sorted(keys))
        return request_id

    def settle(self) -> None:
        """Returns once the server has done all that was sent here before."""
        self.expect("not_held", self.release(b"no-such-ticket", LIVE_NOWHERE))

    def expect_quiet(self) -> None:
        """Settles, and finds that the server has said nothing that a test did not take."""
        self.settle()
        assert not self.unclaimed(), f"frames that nothing asked for: {self.unclaimed()}"

    def expect_error(self, request_id: int, code: int) -> None:
        """The reply is an E with this code, and the connection goes on."""
        assert self.expect("error", request_id)["code"] == code
        self.settle()

    def expect_bare_close(self) -> None:
        """The server closes without a word."""
        assert not self.drain_until_end_or_reset()


def acquire_v3_bytes(request_id: int, *keys: bytes, wait_s: int = 0, lease_s: int = 60) -> bytes:
    """The frame of an acquire: of a key where one is given, else of the set, sorted."""
    fields: dict[str, Any] = {"request_id": request_id, "wait_s": wait_s, "lease_s": lease_s}
    if len(keys) == 1:
        return encode(SPEC_V3, "client", "acquire", fields | {"key": keys[0]})
    return encode(SPEC_V3, "client", "acquire_set", fields | {"keys": sorted(keys)})
