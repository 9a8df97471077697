"""The engine of memory mode until the welcome: secrets, macs, limits and take-over."""

from __future__ import annotations

import pytest
from engine_driver import FOREVER, MS, SECOND, SECRET, SPEC, Driver, Named, error, names, only
from ticketing_server import constants_gen as c
from ticketing_server.limits import Limits
from ticketing_spec.codec import proof

# Handshake


def test_greeting_and_proof_are_the_specs() -> None:
    """REQ-GREETING-VALUES, REQ-HELLO-WELCOME."""
    driver = Driver()
    peered = driver.open()
    assert peered.greeting[:10] == b"TICKET" + bytes((4, 4, 0, 255))
    driver.feed(peered, driver.hello(peered))
    name, fields = only(peered)
    assert name == "welcome"
    given = fields.pop("proof")
    assert fields == {"role": 0, "keepalive_s": 5, "fingerprint": bytes(32), "leader": b""}
    nonce = driver.hello(peered)[3 + 13 : 3 + 29]
    assert given == proof(SPEC, SECRET, peered.greeting, nonce, fields)


def test_greetings_differ_by_their_entropy() -> None:
    """REQ-GREETING-NONCE."""
    driver = Driver()
    assert driver.open().greeting != driver.open().greeting


@pytest.mark.parametrize("draw", [bytes(16), b"\xff" * 16, b"\x80" + bytes(15)])
def test_wrong_mac_is_refused_after_a_delay(draw: bytes) -> None:
    """REQ-HELLO-MAC, REQ-HELLO-DELAY: not before 100 ms, at 300 ms at the latest."""
    driver = Driver()
    peered = driver.open(entropy=bytes(16) + draw)
    began = driver.now
    driver.feed(peered, driver.hello(peered, secret=b"wrong") + b"\0garbage")
    driver.put(peered, b"more garbage")
    driver.run_until(began + 100 * MS - 1)
    assert not peered.frames
    driver.run_until(began + 300 * MS)
    assert error(peered) == (c.ERROR_AUTH_FAILED, "mac: fits none of the server's secrets")
    assert driver.engine.counters().handshake_failures == {"auth_failed": 1}


def test_several_secrets_and_the_matching_ones_name() -> None:
    """REQ-HELLO-SECRETS: rotation; a removed secret is good no more, its connections stay."""
    old, new = Named("old", b"old secret"), Named("new", b"new secret")
    driver = Driver(None, old, new)
    first = driver.open()
    driver.feed(first, driver.hello(first, 1, secret=b"old secret"))
    second = driver.open()
    driver.feed(second, driver.hello(second, 2, secret=b"new secret"))
    (_, fields), (_, others) = only(first), only(second)
    nonce = driver.hello(first)[16:32]
    given = fields.pop("proof")
    assert given == proof(SPEC, b"old secret", first.greeting, nonce, fields)
    assert given != others["proof"]
    infos = driver.engine.inspect("connections", None, 10)
    assert [info.secret for info in infos] == ["old", "new"]  # type: ignore[union-attr]
    driver.configure(Limits(), new)
    third = driver.open()
    driver.feed(third, driver.hello(third, 3, secret=b"old secret"))
    driver.turn(SECOND)
    assert error(third)[0] == c.ERROR_AUTH_FAILED
    assert driver.hold(first)


def test_without_a_secret_the_empty_one_is_good() -> None:
    """REQ-HELLO-EMPTY."""
    driver = Driver()
    driver.engine.configure(Limits(), (), driver.now)
    peered = driver.open()
    driver.feed(peered, driver.hello(peered, secret=b""))
    assert names(peered) == ["welcome"]


def test_other_version_is_told_before_the_mac() -> None:
    """REQ-HELLO-VERSION: the first byte of the body is enough."""
    driver = Driver()
    for version in (0, 3, 5, 255):
        peered = driver.open()
        driver.feed(peered, b"H\0\x3e" + bytes((version,)))
        assert error(peered) == (c.ERROR_BAD_VERSION, "version: takes 4")


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"P\0\x08" + bytes(8),
        b"H\0\0",
        b"H\0\x3d",
        b"H\0\x7e",
        b"H\xff\xff",
    ],
)
def test_only_a_hello_is_legal_before_the_welcome(data: bytes) -> None:
    """REQ-HELLO-FIRST, REQ-HELLO-TEXTS: the text does not repeat what was sent."""
    driver = Driver()
    peered = driver.open()
    driver.feed(peered, data)
    code, text = error(peered)
    assert code == c.ERROR_BAD_FRAME
    assert text in (
        "op: takes H (hello) before the welcome",
        "length of hello: takes 62 to 125",
    )


def test_no_hello_in_time() -> None:
    """REQ-HELLO-TIMEOUT: after 5 s to the nanosecond, also with half a hello."""
    driver = Driver()
    peered = driver.open()
    began = driver.now
    driver.now += SECOND
    driver.feed(peered, driver.hello(peered)[:-1])
    driver.run_until(began + 5 * SECOND - 1)
    assert peered.close == "no"
    driver.run_until(began + 5 * SECOND)
    assert error(peered)[0] == c.ERROR_HANDSHAKE_TIMEOUT


def test_second_hello_and_bad_label() -> None:
    """REQ-HELLO-SECOND, REQ-HELLO-LABEL."""
    driver = Driver()
    peered = driver.connect()
    driver.feed(peered, driver.hello(peered))
    code, text = error(peered)
    assert (code, text.startswith("op: got a second H")) == (c.ERROR_BAD_FRAME, True)
    peered = driver.open()
    driver.feed(peered, driver.hello(peered).replace(b"test:1;", b"test 1;"))
    assert error(peered) == (
        c.ERROR_BAD_FRAME,
        "label: takes printable ASCII without space",
    )


def test_connections_over_the_limit() -> None:
    """REQ-HELLO-MANY: refused after the greeting; a client that comes back takes its own place."""
    driver = Driver(Limits(connections=2))
    first = driver.connect(1)
    driver.connect(2)
    third = driver.open()
    assert third.greeting
    assert error(third)[0] == c.ERROR_TOO_MANY_CONNECTIONS
    driver.engine.close(first.number)
    driver.turn()
    late = driver.open()
    driver.connect(4)
    driver.feed(late, driver.hello(late, 5))
    assert error(late)[0] == c.ERROR_TOO_MANY_CONNECTIONS
    assert driver.engine.counters().connections == {(4, "tcp", "python"): 2}


def test_strangers_over_the_limit_make_room() -> None:
    """REQ-HELLO-LIMIT: the oldest without a welcome is closed, nobody else suffers."""
    driver = Driver(Limits(handshakes=3, connections=10))
    client = driver.connect()
    strangers = [driver.open() for _ in range(50)]
    assert [peered.close for peered in strangers[-4:]] == ["linger", "no", "no", "no"]
    assert {peered.close for peered in strangers[:-3]} == {"linger"}
    assert driver.engine.counters().handshakes == 3
    assert driver.hold(client)
    assert driver.connect(2)


# Take-over


def test_higher_connection_number_wins_and_takes_the_place_over() -> None:
    """REQ-TAKEOVER-HIGHER, REQ-TAKEOVER-UNREAD, REQ-TAKEOVER-DETACH, REQ-ACQUIRE-WAITS."""
    driver = Driver()
    holder, old, other = driver.connect(1), driver.connect(2, 1), driver.connect(3)
    token = driver.hold(holder)
    waiting = driver.acquire(old)
    driver.acquire(other)
    new = driver.open()
    driver.put(new, driver.hello(new, 2, 2))
    driver.request(new, "acquire", wait_ms=FOREVER, lease_ms=1000, key=b"k", request_id=waiting)
    driver.request(old, "cancel", acquire_id=waiting, key=b"k")
    driver.turn()
    assert error(old)[0] == c.ERROR_TAKEN_OVER
    driver.request(holder, "release", token=token, key=b"k")
    driver.turn()
    (welcome, _), (granted, fields) = new.take()
    assert (welcome, granted, fields["request_id"]) == ("welcome", "granted", waiting)
    assert not other.frames


def test_lower_or_equal_connection_number_loses() -> None:
    """REQ-TAKEOVER-EQUAL, REQ-TAKEOVER-LOSER: a late hello does not kill the newer connection."""
    driver = Driver()
    present = driver.connect(2, 5)
    for number in (5, 4, 1):
        late = driver.open()
        driver.feed(late, driver.hello(late, 2, number))
        assert error(late)[0] == c.ERROR_TAKEN_OVER
    assert driver.hold(present)
    wrong = driver.open()
    driver.feed(wrong, driver.hello(wrong, 2, 9, secret=b"wrong"))
    driver.turn(SECOND)
    assert error(wrong)[0] == c.ERROR_AUTH_FAILED
    assert present.close == "no"
