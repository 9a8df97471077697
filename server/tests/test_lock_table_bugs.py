"""A model that can't fail shows nothing: bugs seeded into the lock table, each of which it finds.

Each is a change of one method's source, made in memory; a text that is not there once is stale.
"""

from __future__ import annotations

import inspect
import struct
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
from test_lock_table_model import run_randomly
from ticketing_server.deadlines import Deadlines
from ticketing_server.lock_table import LockTable
from ticketing_server.queues import Queue
from ticketing_server.table_state import TableState

SEEDS_MAX = 50

BUGS: list[tuple[str, Callable[..., Any], str, str]] = [
    (
        "a newcomer passes a held-back waiter",
        TableState._are_free,
        "slot.is_free()",
        "(slot.is_free() or not slot.holder and self.is_held_back(slot.first()))",
    ),
    (
        "a held-back waiter is granted",
        TableState._can_be_granted,
        "link.term != self.term",
        "link.term > self.term",
    ),
    (
        "one behind a held-back waiter is granted",
        Queue.first,
        "if waiter.link is not None:",
        "if waiter.link and waiter.link.term == max(w.link.term for _, w in line if w.link):",
    ),
    (
        "a held-back waiter is told that its wait is over",
        TableState._wait_over,
        "waiter.link.term != self.term",
        "waiter.link.term > self.term",
    ),
    (
        "who waits behind one that left while held back is forgotten",
        TableState._wait_over,
        "self._hand_on(waiter.keys, now)",
        "pass",
    ),
    (
        "a held-back waiter that comes back counts twice",
        TableState._pass_over,
        "self.held_back -= 1",
        "self.attached -= 1",
    ),
    (
        "waiters are held back for the grace of the term before",
        LockTable.begin_term,
        "self._held_until = now_ns + term.failover_grace_ms * MS",
        "self._held_until = self._held_until or now_ns + term.failover_grace_ms * MS",
    ),
    (
        "the floor of leases falls",
        LockTable.begin_term,
        "max(self._leases.floor_ns, self._held_until)",
        "self._held_until",
    ),
    (
        "a term leaves the limits as they were",
        LockTable.begin_term,
        "self.configure(term.limits, now_ns)",
        "pass",
    ),
    (
        "drops go to connections of earlier terms",
        LockTable.begin_term,
        "self.links = {}",
        "pass",
    ),
    (
        "connections survive their term",
        LockTable.begin_term,
        "self.connections = {}",
        "pass",
    ),
    (
        "a broken clock's token floor is taken",
        LockTable.begin_term,
        "if term.token_floor < TOKEN_FLOOR_END:",
        "if term.token_floor:",
    ),
    (
        "tokens fall to the floor",
        TableState._skip_tokens,
        "if skipped > 0:",
        "if skipped:",
    ),
    (
        "tokens minted before the floor are still given",
        TableState._skip_tokens,
        "self._tokens.clear()",
        "pass",
    ),
    (
        "the end of an earlier term's connection takes its client's new one away",
        LockTable._disconnect,
        "if link.term != self.term:",
        "if link.term > self.term:",
    ),
    (
        "version 3 waiters detach",
        LockTable._depart,
        "if leaves:",
        "if False:",
    ),
    (
        "who waits behind one that departed is forgotten",
        LockTable._depart,
        "self._hand_on(keys, now)",
        "pass",
    ),
    (
        "departures end with their first slice",
        LockTable._depart,
        "self._next_to_depart = waiter",
        "self._plan_departures(NO_DEPARTURES)",
    ),
    (
        "a waiter that leaves takes the place of the next slice with it",
        TableState._leave,
        "self._next_to_depart = waiter.after",
        "self._next_to_depart = self.line.end",
    ),
    (
        "who is detached already is detached again",
        TableState.is_held_back,
        "waiter.link is not None and waiter.link.term != self.term",
        "waiter.link is None or waiter.link.term != self.term",
    ),
    (
        "a second term goes on with the departures of the first",
        LockTable.begin_term,
        "LEAVERS_LEAVE if self.held_back",
        "self._departures or LEAVERS_LEAVE if self.held_back",
    ),
    (
        "leases end before the floor",
        Deadlines._due_ns,
        "max(self._own_due_ns(item), self.floor_ns)",
        "self._own_due_ns(item)",
    ),
    (
        "leases that were near when the floor rose are forgotten",
        Deadlines.first_due,
        "if due is not None and deadline < self.floor_ns:",
        "if due is not None and deadline < 0:",
    ),
    (
        "an extend tells less than the floor",
        LockTable._extend,
        "self.lease_end(ticket), ticket[4][2]",
        "ticket[4][1], ticket[4][2]",
    ),
]


def seed(monkeypatch: pytest.MonkeyPatch, method: Callable[..., Any], find: str, new: str) -> None:
    """Replace a method by one whose source has this change."""
    source = textwrap.dedent(inspect.getsource(method))
    assert source.count(find) == 1, f"stale: {method.__qualname__} has {source.count(find)}: {find}"
    module = sys.modules[method.__module__]
    namespace: dict[str, Any] = {}
    exec(
        "from __future__ import annotations\n" + source.replace(find, new), vars(module), namespace
    )
    owner = getattr(module, method.__qualname__.split(".")[0])
    monkeypatch.setattr(owner, method.__name__, namespace[method.__name__])


@pytest.mark.parametrize(("method", "find", "new"), [b[1:] for b in BUGS], ids=[b[0] for b in BUGS])
def test_the_model_finds_it(
    monkeypatch: pytest.MonkeyPatch, method: Callable[..., Any], find: str, new: str
) -> None:
    seed(monkeypatch, method, find, new)
    for number in range(SEEDS_MAX):
        try:
            run_randomly(number)
        except (AssertionError, AttributeError, KeyError, struct.error):
            return
    pytest.fail(f"not found in {SEEDS_MAX} runs")
