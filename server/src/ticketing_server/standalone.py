"""The engine of memory mode: connections -> one batch of commands per turn -> lock table.

Nothing here waits or reads a clock; see `engine.Engine` for how a shell drives it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ticketing_server.connection_engine import ConnectionEngine, new_output
from ticketing_server.connections import Connection
from ticketing_server.deadlines import NEVER
from ticketing_server.engine import NamedSecret, Output
from ticketing_server.limits import Limits
from ticketing_server.lock_table import (
    CONNECT_COMMAND,
    DISCONNECT_COMMAND,
    FORCE_RELEASE,
    LockTable,
    Run,
)
from ticketing_server.queues import Link
from ticketing_server.session import Face, FaceFactory, Received

_TERM = 0
_OPERATOR = bytes(8)


def first_token(unix_ms: int) -> int:
    """Return the first token of a run in memory mode, which forgets what it gave before."""
    return unix_ms << 20


class StandaloneEngine(ConnectionEngine):
    """See `engine.Engine`. `first_token` has to be above every token of earlier runs."""

    def __init__(self, first_token: int, faces: Mapping[int, FaceFactory]) -> None:
        """Serve with one kind of session per protocol version, made from its entropy."""
        super().__init__(faces)
        self.table = LockTable(first_token)
        self._runs: list[Run] = []
        self._dirty = self.table.dirty
        self._operator = Link(_TERM, 0, _OPERATOR)

    # What the shell tells

    def feed(self, connection: int, data: bytes, now_ns: int) -> None:
        """Take what was read; see `Engine.feed`."""
        fed = self.connections.get(connection)
        if fed is None or fed.closing or fed.refusal:
            return
        self.received_bytes += len(data)
        link = fed.link
        if link is None:
            link = self._handshake(fed, data, now_ns)
            if link is None:
                return
            data = b""
        fed.heard_ns = now_ns
        if not link.dirty:
            link.dirty = True
            self._dirty.append(link)
        received = fed.face.receive(data, link.out)
        if isinstance(received, Received):
            self._runs.append((link, received.commands))
            if received.closing is not None:
                self._close(fed, received.closing)
        elif received:
            self._runs.append((link, received))

    def configure(self, limits: Limits, secrets: Sequence[NamedSecret], now_ns: int) -> None:
        """See `Engine.configure`."""
        super().configure(limits, secrets, now_ns)
        self.table.configure(limits, now_ns)

    def force_release(self, key: bytes, token: int) -> bool:
        """See `Engine.force_release`."""
        wanted = token.to_bytes(8, "big") if 0 <= token < 1 << 64 else b""
        ticket = self.table.ticket_of(key)
        if ticket is None or ticket[0] != wanted:
            return False
        self._runs.append((self._operator, [(FORCE_RELEASE, b"", wanted, key)]))
        return True

    # The turn

    def end_turn(self, now_ns: int) -> tuple[list[Output], int | None]:
        """See `Engine.end_turn`."""
        self.now_ns = now_ns
        timers = self._timers
        if now_ns >= timers.earliest_ns:
            self._do_timers(now_ns)
        runs, self._runs = self._runs, []
        table = self.table
        table.apply(now_ns, runs)
        while table.refused or self._runs:
            for link, frame in table.refused:
                self._close_refused(link, frame)
            table.refused.clear()
            runs, self._runs = self._runs, []
            table.apply(now_ns, runs)
        outputs = self._outputs()
        if table.events:
            self._name_events()
        wake_at = min(table.wake_at(), timers.earliest_ns)
        return outputs, None if wake_at == NEVER else wake_at

    def _outputs(self) -> list[Output]:
        connections = self.connections
        outputs: list[Output] = []
        sent = self._greet(outputs) if self._fresh else 0
        for link in self._dirty:
            link.dirty = False
            out = link.out
            if out:
                number = link.number
                connection = connections.get(number)
                if connection is not None and not connection.closing:
                    data = connection.face.render(out)
                    out.clear()
                    sent += len(data)
                    outputs.append(new_output((number, data, "no")))
        self._dirty.clear()
        for connection in self._ending:
            if connections.pop(connection.number, None) is None:
                continue
            data = connection.last_bytes
            if connection.link is not None:
                data = connection.face.render(connection.link.out) + data
            sent += len(data)
            if connection.closing == "slow_reader":
                outputs.append(Output(connection.number, data, "now"))
            else:
                outputs.append(Output(connection.number, data, "linger"))
        self._ending.clear()
        self.sent_bytes += sent
        return outputs

    # Connections

    def _connected(self, connection: Connection, link: Link, frame: bytes) -> None:
        link.out.append(frame)
        self._runs.append((link, [CONNECT_COMMAND]))

    def _disconnected(self, connection: Connection, link: Link) -> None:
        self._runs.append((link, [DISCONNECT_COMMAND]))

    def _farewell(self, face: Face) -> bytes:
        return face.farewell()
