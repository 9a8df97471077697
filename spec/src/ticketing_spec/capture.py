"""Writes a capture of TCP connections over loopback, for Wireshark's reader."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

Segments = Sequence[tuple[str, bytes]]
"""("client" | "server", payload) in the order of their sending."""

SYN, ACK, PSH = 0x02, 0x10, 0x08
LINKTYPE_RAW_IPV4 = 228
FIRST_CLIENT_PORT = 40_000


def write_capture(path: Path, connections: Sequence[Segments], port: int) -> None:
    """Write connections to `port`, one after the other; the n-th from client port 40,000 + n.

    A payload is one packet, so it has to be shorter than 65,000 bytes.
    """
    packets = [
        packet
        for number, segments in enumerate(connections)
        for packet in _connection(segments, port, FIRST_CLIENT_PORT + number)
    ]
    data = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65_535, LINKTYPE_RAW_IPV4)
    for number, packet in enumerate(packets):
        data += struct.pack("<IIII", number, 0, len(packet), len(packet)) + packet
    path.write_bytes(data)


def _connection(segments: Segments, port: int, client_port: int) -> list[bytes]:
    sent = {"client": 1000, "server": 5000}
    ports = {"client": (client_port, port), "server": (port, client_port)}
    packets = [
        _packet(ports["client"], 999, 0, SYN),
        _packet(ports["server"], 4999, 1000, SYN | ACK),
        _packet(ports["client"], 1000, 5000, ACK),
    ]
    for sender, payload in segments:
        other = "server" if sender == "client" else "client"
        packets.append(_packet(ports[sender], sent[sender], sent[other], ACK | PSH, payload))
        sent[sender] += len(payload)
    return packets


def _packet(
    ports: tuple[int, int], sequence: int, acknowledged: int, flags: int, payload: bytes = b""
) -> bytes:
    tcp = struct.pack(">HHIIBBHHH", *ports, sequence, acknowledged, 5 << 4, flags, 65_535, 0, 0)
    host = bytes([127, 0, 0, 1])
    size = 20 + len(tcp) + len(payload)
    ip = struct.pack(">BBHHHBBH", 0x45, 0, size, 0, 0, 64, 6, 0) + host + host
    return ip + tcp + payload
