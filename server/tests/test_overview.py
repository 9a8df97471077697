"""What the dashboard is given of a full table, and what that costs."""

from __future__ import annotations

from plain_client import PlainClient
from ticketing_server import constants_gen as c
from ticketing_server.engine import TicketInfo, WaiterInfo
from ticketing_server.serve import Service
from ticketing_server.testing import ServerThread

HELD = 3_000
LIMIT = 5


def overview(service: Service) -> tuple[list[TicketInfo], list[WaiterInfo]]:
    return service.server.engine.overview(LIMIT)


def test_waiters_come_first_and_with_them_who_holds_their_keys() -> None:
    with (
        ServerThread() as server,
        PlainClient(server.address, client_id=1) as holder,
        PlainClient(server.address, client_id=2) as waiter,
    ):
        keys = [b"key-%d" % number for number in range(HELD)]
        for key in keys:
            holder.acquire(key)
        for _ in keys:
            assert holder.read_frame()[0] == c.REPLY_GRANTED
        for key in reversed(keys):
            waiter.acquire(key, wait_ms=c.WAIT_MS_FOREVER)
        waiter.ping()
        tickets, waiters = server.call(overview)
        expected = [(key,) for key in reversed(keys)][:LIMIT]
        assert [item.keys for item in waiters] == expected
        assert [item.keys for item in tickets] == expected
        assert server.counters().longest_queue == 1


def test_without_waiters_it_is_any_tickets() -> None:
    with ServerThread() as server, PlainClient(server.address) as holder:
        held = {holder.hold(b"key-%d" % number) for number in range(LIMIT + 2)}
        tickets, waiters = server.call(overview)
        assert waiters == []
        assert len({item.token for item in tickets}) == LIMIT
        assert {item.token for item in tickets} < held


def test_an_empty_table_is_empty() -> None:
    with ServerThread() as server:
        assert server.call(overview) == ([], [])
