"""A server of memory mode."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import TYPE_CHECKING

from ticketing_server.limits import Limits
from ticketing_server.lock_table import LockTable, Run
from ticketing_server.session import Session
from ticketing_server.session_v3 import SessionV3
from ticketing_server.standalone import StandaloneEngine, first_token

from ticketing_sim.host import Host, NamedSecret
from ticketing_sim.schedule import Clock
from ticketing_sim.table_checks import TableChecks, asked_by
from ticketing_sim.table_view import view

if TYPE_CHECKING:
    from ticketing_sim.world import World


class StandaloneHost(Host):
    """Forgets all tickets at each start, and grants nothing until the old ones have ended."""

    engine: StandaloneEngine

    def __init__(
        self, world: World, name: str, clock: Clock, random: Random, limits: Limits
    ) -> None:
        super().__init__(world, name, clock, random)
        self.limits = limits
        self._checks = TableChecks()
        self.start()

    def start(self) -> None:
        """Begin, for the first time or again."""
        self.is_alive = True
        self.engine = StandaloneEngine(
            first_token(self.clock.wall_ms()), {3: SessionV3, 4: Session}
        )
        secrets = (NamedSecret("sim", self.world.secret),)
        self.engine.configure(self.limits, secrets, self.clock.now_ns())
        checks, self._checks = self._checks, TableChecks()
        self._checks.granted = checks.granted
        self._checks.ended = set(checks.granted)
        self._checks.highest = checks.highest
        self._watch(self.engine.table)
        self.begin_turn()

    def _watch(self, table: LockTable) -> None:
        """Look at the table after everything that it applies."""
        honest = table.apply

        def apply(now_ns: int, runs: Iterable[Run]) -> None:
            runs = list(runs)
            honest(now_ns, runs)
            self.world.applied += sum(len(commands) for _, commands in runs)
            seen = view(table)
            self._checks.after(seen, now_ns, asked_by(runs))

        table.apply = apply  # type: ignore[method-assign]

    @property
    def checks(self) -> TableChecks:
        """What is known of the tables of all its lives."""
        return self._checks

    def crash(self) -> None:
        """End at once."""
        self.dies("the server crashed")
