"""Connections between the nodes of a cluster.

`frames` is how messages look as bytes and `handshake` how two nodes prove themselves, both without
I/O; `connection` is one peer's pair of sockets, `transport` makes and keeps all of them.
"""
