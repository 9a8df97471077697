"""Connections between the nodes of a cluster.

`frames` is how messages look as bytes and `handshake` how two nodes prove themselves, both without
I/O; `transport` has the sockets.
"""
