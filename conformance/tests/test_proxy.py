"""The proxy: forwards, records, holds back, delays and cuts where it is told to."""

import socket
import time

import pytest
from ticketing_conformance.proxy import Proxy, Rule
from ticketing_conformance.scripted_server import ScriptedServer

SECONDS = 20.0
GREETING = b"TICKET" + bytes([4, 4, 0, 255]) + bytes(16)
PING = bytes.fromhex("500008") + bytes(8)
GRANTED = bytes.fromhex("410014") + bytes(20)
RELEASED = bytes.fromhex("520008") + bytes(8)


class Pair:
    """A client's socket and the server's side of it, with a proxy between."""

    def __init__(self, **options):
        self.server = ScriptedServer()
        host, _, port = self.server.address.rpartition(":")
        self.proxy = Proxy((host, int(port)), **options)
        self.connect()

    def connect(self):
        host, _, port = self.proxy.address.rpartition(":")
        self.client = socket.create_connection((host, int(port)), SECONDS)
        self.far = self.server.accept(SECONDS)

    def read(self, size):
        data = b""
        while len(data) < size:
            part = self.client.recv(size - len(data))
            if not part:
                break
            data += part
        return data

    def is_silent(self):
        self.client.settimeout(0.1)
        try:
            self.client.recv(1)
        except TimeoutError:
            return True
        finally:
            self.client.settimeout(SECONDS)
        return False

    def close(self):
        self.client.close()
        self.proxy.stop()
        self.server.stop()


@pytest.fixture
def pair():
    pair = Pair()
    yield pair
    pair.close()


def test_it_forwards_and_records_both_ways(pair):
    pair.far.send(GREETING + GRANTED, [3, 30])
    assert pair.read(49) == GREETING + GRANTED
    pair.client.sendall(PING)
    assert pair.far.up.next_frame(SECONDS) == PING
    (connection,) = pair.proxy.connections
    assert connection.down.whole() == GREETING + GRANTED
    assert connection.up.whole() == PING


def test_an_end_is_passed_on_each_way(pair):
    pair.far.send(GREETING[:10])
    pair.far.eof()
    assert pair.read(100) == GREETING[:10]
    pair.client.sendall(PING)
    assert pair.far.up.next_frame(SECONDS) == PING
    pair.client.close()
    pair.far.up.wait(lambda: pair.far.up.ended == "eof", SECONDS, "the end")


def test_a_reset_is_passed_on(pair):
    pair.far.reset()
    with pytest.raises(ConnectionResetError):
        pair.client.recv(1)


def test_hold_keeps_and_let_go_forwards(pair):
    pair.proxy.hold("down")
    pair.far.send(GREETING)
    assert pair.is_silent()
    pair.client.sendall(PING)
    assert pair.far.up.next_frame(SECONDS) == PING
    pair.proxy.let_go("down")
    assert pair.read(26) == GREETING


def test_a_rule_holds_from_a_frame_on(pair):
    pair.proxy.rule(Rule("down", "hold", "granted"))
    pair.far.send(GREETING + PING + GRANTED + PING)
    assert pair.read(37) == GREETING + PING
    assert pair.is_silent()
    pair.proxy.let_go("down")
    assert pair.read(34) == GRANTED + PING


def test_a_rule_cuts_before_or_after_a_frame(pair):
    pair.proxy.rule(Rule("down", "cut", "granted", nth=2))
    pair.far.send(GREETING + GRANTED + RELEASED + GRANTED)
    with pytest.raises(ConnectionResetError):
        pair.read(1000)
    pair.far.up.wait(lambda: bool(pair.far.up.ended), SECONDS, "the end")
    pair.client.close()
    pair.connect()
    pair.proxy.rule(Rule("up", "cut_after", "ping"))
    pair.client.sendall(PING + PING)
    assert pair.far.up.next_frame(SECONDS) == PING
    pair.far.up.wait(lambda: bool(pair.far.up.ended), SECONDS, "the end")
    assert pair.far.up.unread() == b""


@pytest.mark.parametrize("at", [1, 26, 27, 40])
def test_a_rule_cuts_at_a_byte(pair, at):
    pair.proxy.rule(Rule("down", "eof", at_byte=at))
    pair.far.send(GREETING + GRANTED)
    assert pair.read(100) == (GREETING + GRANTED)[:at]


def test_cutting_ends_both_sides(pair):
    pair.proxy.wait_connections(1, SECONDS)
    pair.proxy.cut()
    with pytest.raises(ConnectionResetError):
        pair.client.recv(1)
    pair.far.up.wait(lambda: bool(pair.far.up.ended), SECONDS, "the end")


def test_delay_delays(pair):
    pair.proxy.delay("down", 0.2)
    began = time.monotonic()
    pair.far.send(GREETING)
    assert pair.read(26) == GREETING
    assert time.monotonic() - began >= 0.2


def test_refusing_and_listening_again(pair):
    address = pair.proxy.address
    pair.proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        pair.connect()
    pair.proxy.listen()
    assert pair.proxy.address == address
    pair.connect()
    assert pair.proxy.wait_connections(2, SECONDS).number == 2


def test_a_server_that_refuses_looks_like_a_reset(pair):
    pair.server.refuse()
    host, _, port = pair.proxy.address.rpartition(":")

    def connect_and_read():
        # The reset may be there before connect has looked at its own outcome.
        with socket.create_connection((host, int(port)), SECONDS) as client:
            client.recv(1)

    with pytest.raises(ConnectionResetError):
        connect_and_read()


def test_unframed_bytes_go_through_as_they_come():
    pair = Pair(framed=False)
    pair.far.send(b"\x16\x03\x01")
    assert pair.read(3) == b"\x16\x03\x01"
    pair.close()
