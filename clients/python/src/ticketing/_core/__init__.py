"""The client without I/O: time and bytes are arguments, effects and deadlines come out.

Nothing in here reads a clock, a random source or a socket, so the whole behaviour of the client
runs under a scripted transport and a clock turned by hand. `client.ClientCore` is the entrance.
"""
