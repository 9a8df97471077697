"""What `ticketing-admin` does with a running server: a call, and its answer as text."""

from __future__ import annotations

import contextlib
import os
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from ticketing_server.admin import admin_pb2 as pb
from ticketing_server.admin import tables
from ticketing_server.admin.calls import Calls
from ticketing_server.admin.errors import DISK, NO_ANSWER, AdminError
from ticketing_server.admin.target import Target, target
from ticketing_server.log import escape

PAGE_MAX = 5_000
_LISTING_TIMEOUT_S = 60.0
_SNAPSHOT_TIMEOUT_S = 600.0
"""Where none is given: what takes longer where there is much."""
_Item = TypeVar("_Item")
_Page = tuple[pb.AppliedState, list[_Item], int | None]


def status(options: Namespace) -> str:
    """Show a node, its counts and its cluster."""
    with Calls(target(options)) as calls:
        answer = calls.status()
    if options.json:
        return tables.as_json(tables.status_json(answer))
    return tables.status_table(answer)


def tickets(options: Namespace) -> str:
    """List tickets in grant order."""

    def page(after: int, limit: int) -> _Page[pb.Ticket]:
        request = pb.ListTicketsRequest(key=options.key, after=after, limit=limit)
        answer = calls.list_tickets(request)
        return answer.state, list(answer.tickets), _next(answer)

    with Calls(_patient(options, _LISTING_TIMEOUT_S)) as calls:
        state, found, after = _collect(page, options)
    if options.json:
        listed = [tables.ticket_json(ticket) for ticket in found]
        return _listing_json(state, {"tickets": listed}, after)
    return _listing(state, tables.tickets_table(found), after)


def waiters(options: Namespace) -> str:
    """List waiters in grant order."""

    def page(after: int, limit: int) -> _Page[pb.Waiter]:
        request = pb.ListWaitersRequest(key=options.key, after=after, limit=limit)
        answer = calls.list_waiters(request)
        return answer.state, list(answer.waiters), _next(answer)

    with Calls(_patient(options, _LISTING_TIMEOUT_S)) as calls:
        state, found, after = _collect(page, options)
    if options.json:
        listed = [tables.waiter_json(waiter) for waiter in found]
        return _listing_json(state, {"waiters": listed}, after)
    return _listing(state, tables.waiters_table(found), after)


def force_release(options: Namespace) -> str:
    """End a ticket, and say whose it was."""
    with Calls(target(options)) as calls:
        answer = calls.force_release(options.key, options.token)
    if options.json:
        released = tables.ticket_json(answer.released)
        return tables.as_json({"state": tables.state_json(answer.state), "released": released})
    return f"{tables.state_line(answer.state)}released:\n{tables.tickets_table([answer.released])}"


def transfer(options: Namespace) -> str:
    """Let another node lead."""
    with Calls(target(options)) as calls:
        answer = calls.transfer_lead(options.to)
    done = "the lead is being handed over; `ticketing-admin status` of any node says who has it"
    return _done(options, answer.state, done)


def drain(options: Namespace) -> str:
    """End a server once its clients are sent on."""
    with Calls(target(options)) as calls:
        answer = calls.drain()
    return _done(options, answer.state, "the server sends its clients on, and ends within 10 s")


def snapshot(options: Namespace) -> str:
    """Write a backup to a file, whole or not at all."""
    path: Path = options.file
    to = _patient(options, _SNAPSHOT_TIMEOUT_S)
    part = path.with_name(path.name + ".part")
    with _refusing_disk(path):
        if path.exists():
            raise FileExistsError(0, "it is there already; name a file that is not")
        with Calls(to) as calls, part.open("xb") as file:
            try:
                state, size = _receive(calls, file.write)
                file.flush()
                os.fsync(file.fileno())
                part.rename(path)
            finally:
                part.unlink(missing_ok=True)
    return _done(options, state, f"{size} bytes are in {escape(str(path))}", size=size)


def _patient(options: Namespace, timeout_s: float) -> Target:
    to = target(options)
    return to if hasattr(options, "timeout") else replace(to, timeout_s=timeout_s)


def _receive(calls: Calls, write: Callable[[bytes], object]) -> tuple[pb.AppliedState, int]:
    state, expected, size = pb.AppliedState(), 0, 0
    for answer in calls.take_snapshot():
        if answer.HasField("state"):
            state, expected = answer.state, answer.size
        write(answer.data)
        size += len(answer.data)
    if not size or size != expected:
        raise AdminError(
            f"{size} of {expected} bytes came, and nothing was kept; try again", NO_ANSWER
        )
    return state, size


@contextlib.contextmanager
def _refusing_disk(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise AdminError(
            f"{str(path)!a} can't be written ({error.strerror}); name another file", DISK
        ) from None


def _next(answer: pb.ListTicketsResponse | pb.ListWaitersResponse) -> int | None:
    return answer.next_after if answer.HasField("next_after") else None


def _collect(page: Callable[[int, int], _Page[_Item]], options: Namespace) -> _Page[_Item]:
    """Fetch pages until there is enough; the state is that of the first one."""
    wanted = None if options.all else options.limit
    state, found, after = page(options.after, min(wanted or PAGE_MAX, PAGE_MAX))
    while after is not None and (wanted is None or len(found) < wanted):
        rest = PAGE_MAX if wanted is None else min(wanted - len(found), PAGE_MAX)
        _, more, after = page(after, rest)
        found += more
    return state, found, after


def _listing(state: pb.AppliedState, table: str, after: int | None) -> str:
    more = f"there are more: add --after {after}, or --all\n" if after is not None else ""
    return tables.state_line(state) + table + more


def _listing_json(state: pb.AppliedState, listed: dict[str, Any], after: int | None) -> str:
    more = None if after is None else str(after)
    return tables.as_json({"state": tables.state_json(state), **listed, "next_after": more})


def _done(options: Namespace, state: pb.AppliedState, text: str, **fields: object) -> str:
    if options.json:
        return tables.as_json({"state": tables.state_json(state), **fields})
    return f"{tables.state_line(state)}{text}\n"
