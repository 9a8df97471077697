"""Servers that are handed from one case to the next, as long as they are empty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ticketing_conformance.real_server import RealServer

POOLED_FLAGS_MAX = 4
_Key = tuple[tuple[str, ...], tuple[tuple[str, str], ...], str]


class ServerPool:
    """Belongs to one test process. Only servers on TCP port 0 are used twice.

    `program` starts another server than the installed one; it takes the same flags.
    """

    def __init__(self, program: Sequence[str] | None = None) -> None:
        self.program = program
        self._idle: dict[_Key, RealServer] = {}
        self._keys: dict[int, _Key] = {}

    def take(self, flags: Sequence[str], environment: Mapping[str, str], listen: str) -> RealServer:
        """A server with these flags: an idle one, or a new one."""
        key = (tuple(flags), tuple(sorted(environment.items())), listen)
        server = self._idle.pop(key, None)
        if server is not None and server.alive:
            return server
        server = RealServer(flags, environment, listen, self.program)
        # What is on a disk belongs to the case that gave the folder.
        if listen.endswith(":0") and not any(flag.startswith("--data-dir") for flag in flags):
            self._keys[id(server)] = key
        return server

    def give_back(self, server: RealServer) -> None:
        """Keep it if it is in order and empty, else close it."""
        key = self._keys.get(id(server))
        fit = key is not None and server.alive and key not in self._idle
        try:
            fit = fit and len(self._idle) < POOLED_FLAGS_MAX and server.holdings() == (0, 0)
        except OSError:
            fit = False
        if fit and key is not None:
            self._idle[key] = server
        else:
            self._keys.pop(id(server), None)
            server.close()

    def close(self) -> None:
        """Close every idle server."""
        while self._idle:
            self._idle.popitem()[1].close()
