"""The scripted server: what it sends, cuts, records and notices."""

import socket

import pytest
from ticketing_conformance.scripted_server import ScriptedServer
from ticketing_conformance.streams import StreamEnded, StreamSilent, cut, read_stream

SECONDS = 20.0
PING = bytes.fromhex("500008") + bytes(8)


@pytest.fixture
def server():
    server = ScriptedServer()
    yield server
    server.stop()


def connect(server):
    host, _, port = server.address.rpartition(":")
    sock = socket.create_connection((host.strip("[]"), int(port)), SECONDS)
    return sock, server.accept(SECONDS)


def read_all(sock):
    data = b""
    while part := sock.recv(4096):
        data += part
    return data


def test_connections_come_in_order(server):
    socks = [connect(server) for _ in range(3)]
    assert [connection.number for _, connection in socks] == [1, 2, 3]
    for sock, _ in socks:
        sock.close()


def test_frames_are_found_over_any_segments(server):
    sock, connection = connect(server)
    for byte in PING + PING:
        sock.sendall(bytes([byte]))
    assert connection.up.next_frame(SECONDS) == PING
    assert connection.up.next_frame(SECONDS) == PING
    assert connection.up.unread() == b""
    sock.close()


def test_a_missing_frame_is_silence_or_an_end(server):
    sock, connection = connect(server)
    sock.sendall(PING[:5])
    with pytest.raises(StreamSilent):
        connection.up.next_frame(0.05)
    sock.close()
    with pytest.raises(StreamEnded, match="eof"):
        connection.up.next_frame(SECONDS)
    assert connection.up.unread() == PING[:5]


@pytest.mark.parametrize("cuts", [[], [1], [1, 2, 3], [0, 5, 99, 5], list(range(11))])
def test_cutting_changes_no_bytes(server, cuts):
    sock, connection = connect(server)
    connection.send(PING, cuts, 0.001)
    connection.eof()
    assert read_all(sock) == PING
    assert connection.down.whole() == PING
    sock.close()


def test_a_cut_with_a_gap_arrives_in_pieces(server):
    sock, connection = connect(server)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.send(PING[:4])
    assert sock.recv(4096) == PING[:4]
    connection.send(PING[4:])
    assert sock.recv(4096) == PING[4:]
    sock.close()


def test_held_bytes_come_in_one_piece(server):
    sock, connection = connect(server)
    connection.hold()
    connection.send(PING)
    sock.settimeout(0.05)
    with pytest.raises(TimeoutError):
        sock.recv(4096)
    sock.settimeout(SECONDS)
    connection.send(PING)
    connection.flush()
    assert sock.recv(4096) == PING + PING
    sock.close()


def test_after_eof_it_goes_on_reading(server):
    sock, connection = connect(server)
    connection.eof()
    assert sock.recv(10) == b""
    sock.sendall(PING)
    assert connection.up.next_frame(SECONDS) == PING
    sock.close()


def test_reset_is_a_reset(server):
    sock, connection = connect(server)
    connection.reset()
    with pytest.raises(ConnectionResetError):
        sock.recv(10)
    sock.close()


def test_refusing_and_listening_again(server):
    address = server.address
    server.refuse()
    with pytest.raises(ConnectionRefusedError):
        connect(server)
    server.listen()
    assert server.address == address
    sock, _ = connect(server)
    sock.close()


def test_a_unix_socket(tmp_path):
    server = ScriptedServer(unix_path=tmp_path / "s")
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(server.address)
    connection = server.accept(SECONDS)
    sock.sendall(PING)
    assert connection.up.next_frame(SECONDS) == PING
    sock.close()
    server.stop()
    assert not (tmp_path / "s").exists()


def test_accepting_nobody_times_out(server):
    with pytest.raises(TimeoutError, match="no connection"):
        server.accept(0.01)


def test_streams_are_cut_at_frames_and_garbage_too():
    assert cut("client", PING + PING[:7]) == ([PING], PING[:7])
    greeting = b"TICKET" + bytes([4, 4, 0, 255]) + bytes(16)
    assert cut("server", greeting[:20]) == ([], greeting[:20])
    assert cut("server", greeting + PING) == ([greeting, PING], b"")
    names = [name for name, _ in read_stream("server", greeting + PING)]
    assert names == ["greeting", "ping"]
    assert cut("client", b"GET / HTTP/1.1\r\n")[0] == []
