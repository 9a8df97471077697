"""Networks of their own: what is cut goes silent, what is not goes on. And disks that get full."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from ticketing_conformance.cluster.disk import NoDisk, SmallDisk
from ticketing_conformance.cluster.network import Network, NoNetwork

PORT = 5225
PATIENCE = 0.5
ECHO = f"""
import socket
server = socket.create_server(("", {PORT}))
print("ready", flush=True)
while True:
    socket.socket.sendall(*[(c, c.recv(1)) for c in [server.accept()[0]]][0])
"""
ASK = f"""
import socket, sys
with socket.create_connection((sys.argv[1], {PORT}), {PATIENCE}) as one:
    one.sendall(b"x")
    assert one.recv(1) == b"x"
"""


@pytest.fixture
def network() -> Iterator[Network]:
    try:
        made = Network(2)
    except NoNetwork as error:
        pytest.skip(str(error))
    yield made
    made.close()


@contextmanager
def echoing(network: Network, slot: int) -> Iterator[None]:
    command = [*network.inside(slot), sys.executable, "-c", ECHO]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    watchdog = threading.Timer(60, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()


def reaches(network: Network, slot: int, other: int) -> bool:
    command = [*network.inside(slot), sys.executable, "-c", ASK, network.addresses[other]]
    return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0


def client_reaches(network: Network, slot: int) -> bool:
    try:
        with socket.create_connection((network.addresses[slot], PORT), PATIENCE) as one:
            one.sendall(b"x")
            return one.recv(1) == b"x"
    except OSError:
        return False


def test_cuts_between_nodes(network: Network) -> None:
    with echoing(network, 1):
        assert reaches(network, 0, 1)
        network.cut(1, [0])
        assert not reaches(network, 0, 1)
        assert client_reaches(network, 1)
        network.heal(1)
        assert reaches(network, 0, 1)
        network.cut_one_way(0, [1])
        assert not reaches(network, 0, 1)
        network.heal(0)
        assert reaches(network, 0, 1)


def test_cuts_between_clients_and_a_node(network: Network) -> None:
    with echoing(network, 1):
        assert client_reaches(network, 1)
        network.cut_clients(1, PORT)
        assert not client_reaches(network, 1)
        assert reaches(network, 0, 1)


def test_a_cut_link_goes_silent_and_comes_back(network: Network) -> None:
    address = (network.addresses[1], PORT)
    with echoing(network, 1), socket.create_connection(address, PATIENCE) as one:
        network.cut_clients(1, PORT)
        one.sendall(b"x")
        with pytest.raises(TimeoutError):
            one.recv(1)
        network.heal(1)
        one.settimeout(30)
        assert one.recv(1) == b"x"


def test_a_disk_that_gets_full(tmp_path) -> None:
    try:
        disk = SmallDisk(tmp_path / "disk", 1)
    except NoDisk as error:
        pytest.skip(str(error))
    try:
        disk.fill()
        with pytest.raises(OSError, match="No space left"), (disk.path / "file").open("wb") as file:
            file.write(b"\0" * 4096)
        disk.free()
        (disk.path / "file").write_bytes(b"\0" * 4096)
    finally:
        disk.close()
