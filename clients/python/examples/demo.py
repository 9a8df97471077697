"""Shows a queue at work: four clients take turns on one key of a server of their own.

Every line is one event and every client has a column, so that the ticket can be watched as it
goes round. Ends by itself.
"""

from __future__ import annotations

import asyncio
import sys
import time

import ticketing
from ticketing_server.testing import ServerThread

KEY = "orders/42"
NAMES = ("ana", "ben", "chris", "dora")
TURNS = 2
HOLD_SECONDS = 0.25
COLUMN = 10


class Board:
    """What each client is doing, printed as a table that grows by one line per event."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._queue: list[str] = []
        self._holder: str | None = None
        self.tokens: list[int] = []

    def header(self) -> None:
        """Print the names of the columns."""
        self._print("time", list(NAMES), "token")
        self._print("-------", ["-" * (COLUMN - 2)] * len(NAMES), "-" * 20)

    def waits(self, name: str) -> None:
        """A client joined the tail of the queue."""
        self._queue.append(name)
        self._row("")

    def holds(self, name: str, token: int) -> None:
        """A client was granted the key."""
        self._queue.remove(name)
        self._holder = name
        self.tokens.append(token)
        self._row(str(token))

    def released(self) -> None:
        """The holder is about to release; whoever is first in the queue will be next."""
        self._holder = None

    def _row(self, token: str) -> None:
        cells = []
        for name in NAMES:
            if name == self._holder:
                cells.append("HOLDS")
            elif name in self._queue:
                cells.append(f"waits {self._queue.index(name) + 1}")
            else:
                cells.append(".")
        self._print(f"{time.monotonic() - self._began:6.2f}s", cells, token)

    def _print(self, first: str, cells: list[str], last: str) -> None:
        columns = "".join(f"{cell:<{COLUMN}}" for cell in cells)
        line = f"{first:<9}{columns}{last}"
        if sys.stdout.isatty():
            line = line.replace("HOLDS", "\033[1;32mHOLDS\033[0m")
        print(line.rstrip(), flush=True)


async def take_turns(name: str, url: str, board: Board, head_start: float) -> None:
    """Acquire the key a few times, each time behind whoever queued before."""
    await asyncio.sleep(head_start)
    async with ticketing.connect(url, name=name) as client:
        for _ in range(TURNS):
            board.waits(name)
            async with client.acquire(KEY) as ticket:
                board.holds(name, ticket.token)
                await asyncio.sleep(HOLD_SECONDS)
                board.released()


async def queue_up(url: str) -> Board:
    """Run all clients to their end; the board has the tokens in the order of the grants."""
    board = Board()
    board.header()
    await asyncio.gather(
        *(take_turns(name, url, board, 0.05 * place) for place, name in enumerate(NAMES))
    )
    return board


def main() -> int:
    """Run the demo; 0 if every grant came with a higher token than the one before."""
    with ServerThread() as server:
        print(f"A server listens on {server.url}; {len(NAMES)} clients queue for {KEY!r}.\n")
        board = asyncio.run(queue_up(server.url))
    rising = all(a < b for a, b in zip(board.tokens, board.tokens[1:], strict=False))
    print(f"\n{len(board.tokens)} grants, one holder at a time, tokens rising: {rising}.")
    return 0 if rising and len(board.tokens) == TURNS * len(NAMES) else 1


if __name__ == "__main__":
    sys.exit(main())
