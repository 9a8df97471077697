"""Pages that are made in steps: as those made at once, and right whatever happens between."""

from __future__ import annotations

import random
from collections.abc import Callable
from struct import pack

import pytest
from ticketing_server import inspection
from ticketing_server.engine import Page, TicketInfo, WaiterInfo
from ticketing_server.limits import Limits
from ticketing_server.lock_table import CONNECT_COMMAND, DISCONNECT_COMMAND, FORCE_RELEASE
from ticketing_server.queues import Link
from ticketing_server.session import Session
from ticketing_server.standalone import StandaloneEngine
from ticketing_server.wire import ACQUIRE, ACQUIRE_SET, CANCEL

FOREVER = 0xFFFFFFFF
LEASE_MS = 80_000_000


class Table:
    """An engine whose table is driven without sessions."""

    def __init__(self) -> None:
        self.engine = StandaloneEngine(1 << 40, {4: Session})
        self.engine.configure(Limits(), (), 0)
        self.link = Link(0, 1, b"\1" * 8)
        self._requests = 0
        self.apply(CONNECT_COMMAND)

    def apply(self, *commands: tuple[int, bytes, bytes, object]) -> None:
        self.engine.table.apply(1, [(self.link, commands)])  # type: ignore[list-item]
        self.link.out.clear()

    def acquire(self, *keys: str) -> bytes:
        """Ask for keys and return the request's id."""
        self._requests += 1
        request = self._requests.to_bytes(8, "big")
        names = tuple(sorted(key.encode() for key in keys))
        word = pack(">II", FOREVER, LEASE_MS)
        if len(names) == 1:
            self.apply((ACQUIRE, request, word, names[0]))
        else:
            self.apply((ACQUIRE_SET, request, word, names))
        return request

    def end(self, info: TicketInfo) -> None:
        self.apply((FORCE_RELEASE, b"", info.token.to_bytes(8, "big"), info.keys[0]))

    def tickets(self) -> list[TicketInfo]:
        infos = self.engine.inspect("tickets", None, 1_000)
        return [info for info in infos if isinstance(info, TicketInfo)]

    def waiters(self) -> list[WaiterInfo]:
        infos = self.engine.inspect("waiters", None, 1_000)
        return [info for info in infos if isinstance(info, WaiterInfo)]


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "LOOKS_PER_STEP", 7)
    monkeypatch.setattr(inspection, "INFOS_PER_STEP", 3)


def page_of(
    table: Table,
    what: str,
    after: int = 0,
    limit: int = 1_000,
    key: bytes | None = None,
    between: Callable[[], None] = lambda: None,
) -> tuple[Page, int]:
    """The page, and in how many steps it was made."""
    walk = table.engine.walk(what, after, limit, key)  # type: ignore[arg-type]
    for steps, page in enumerate(walk, start=1):
        if page is not None:
            return page, steps
        between()
    raise AssertionError("no page")


@pytest.fixture
def table() -> Table:
    made = Table()
    for n in range(40):
        made.acquire(f"key-{n * 17 % 40}")
    made.acquire("set-a", "set-b")
    for n in range(30):
        made.acquire(f"key-{n % 5}")
    made.acquire("key-1", "set-b")
    return made


@pytest.mark.parametrize("what", ["tickets", "waiters"])
@pytest.mark.parametrize("limit", [1, 3, 10, 1_000])
def test_pages_are_those_made_at_once(table: Table, what: str, limit: int) -> None:
    after, found = 0, []
    while True:
        page, steps = page_of(table, what, after, limit)
        assert steps > 1 or what == "waiters"
        assert page.infos == table.engine.inspect(what, after, limit)  # type: ignore[arg-type]
        found += page.infos
        if page.after is None:
            break
        after = page.after
    assert found == table.engine.inspect(what, None, 1_000)  # type: ignore[arg-type]


def test_a_key_is_looked_up(table: Table) -> None:
    for key in (b"key-1", b"set-a", b"set-b", b"nobody's"):
        for what in ("tickets", "waiters"):
            page, steps = page_of(table, what, key=key)
            expected = table.engine.inspect(what, None, 1_000, key=key)  # type: ignore[arg-type]
            assert page == Page(expected, None)
            assert what == "waiters" or steps == 1


def test_an_empty_table_has_one_empty_page() -> None:
    for what in ("tickets", "waiters"):
        assert page_of(Table(), what) == (Page([], None), 1)


@pytest.mark.parametrize("seed", range(30))
def test_what_happens_between_steps_does_no_harm(seed: int) -> None:
    draw = random.Random(seed)
    table = Table()
    requests: list[bytes] = []

    def change() -> None:
        for _ in range(draw.randrange(4)):
            kind = draw.randrange(10)
            if kind < 4:
                keys = draw.sample(range(25), draw.choice((1, 1, 2)))
                requests.append(table.acquire(*(f"key-{n}" for n in keys)))
            elif kind < 7 and (held := table.tickets()):
                table.end(draw.choice(held))
            elif kind < 9 and requests:
                request = requests.pop(draw.randrange(len(requests)))
                table.apply((CANCEL, request, b"", b""))
            elif kind == 9 and draw.random() < 0.1:
                table.apply(DISCONNECT_COMMAND)
                table.link = Link(0, table.link.number + 1, b"\1" * 8)
                table.apply(CONNECT_COMMAND)

    for _ in range(60):
        change()
    for _ in range(20):
        for what, all_of in (("tickets", table.tickets), ("waiters", table.waiters)):
            limit = draw.choice((1, 5, 1_000))
            before = {number_of(info): info for info in all_of()}
            after = draw.choice([0, *before])
            page, _ = page_of(table, what, after, limit, between=change)
            there = {number_of(info): info for info in all_of()}
            shown = [number_of(info) for info in page.infos]
            assert shown == sorted(set(shown))
            assert all(number > after for number in shown)
            assert len(shown) <= limit
            stayed = [number for number in before if number > after and number in there]
            end = page.after if page.after is not None else max(stayed, default=0)
            assert set(shown) >= {number for number in stayed if number <= end}


def number_of(info: TicketInfo | WaiterInfo) -> int:
    return info.token if isinstance(info, TicketInfo) else info.joined
