"""`python -m ticketing_conformance.cluster.load OPTIONS`: clients that take and give back tickets.

It writes a history to a file as it goes, says `ready` on stdout once all clients are open, and
ends with its stdin. The secret comes from TICKETING_SECRET.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import ticketing

from ticketing_conformance.cluster.history import Failure, Holding, to_line

CLOSE_SECONDS = 5.0


@dataclass(frozen=True)
class Manner:
    """How workers use the lock; all numbers are the same for each."""

    keys: int
    lease_s: float
    hold_s: float
    """The longest that a ticket is held."""
    rest_s: float
    """The longest pause between two tickets of a worker."""
    sets: float
    tries: float
    """Which part of the acquires takes two keys, and which part does not wait."""


def now_ns() -> int:
    """The clock that tickets are counted on."""
    return round(ticketing.monotonic() * 1e9)


class Worker:
    """One caller: acquires, holds, releases, and writes down what it believed."""

    def __init__(
        self, name: str, client: ticketing.Client, manner: Manner, seed: str, out: TextIO
    ) -> None:
        self._name = name
        self._client = client
        self._manner = manner
        self._random = random.Random(seed)
        self._out = out

    async def run(self) -> None:
        """Go on until cancelled."""
        while True:
            await asyncio.sleep(self._random.uniform(0, self._manner.rest_s))
            ticket = await self._acquire()
            if ticket is not None:
                await self._use(ticket)

    async def _acquire(self) -> ticketing.Ticket | None:
        manner, draw = self._manner, self._random
        names = [f"load-{number}" for number in range(manner.keys)]
        wait = 0 if draw.random() < manner.tries else ticketing.FOREVER
        try:
            if manner.keys > 1 and draw.random() < manner.sets:
                keys = draw.sample(names, 2)
                return await self._client.acquire_set(keys, lease=manner.lease_s, wait_timeout=wait)
            return await self._client.acquire(
                draw.choice(names), lease=manner.lease_s, wait_timeout=wait
            )
        except ticketing.HeldError:
            return None
        except ticketing.LostError:
            return None  # It came too late to be used, and was given back.
        except ticketing.TicketingError as error:
            self._failed("acquire", error)
            await asyncio.sleep(0.05)
            return None

    async def _use(self, ticket: ticketing.Ticket) -> None:
        began_ns = now_ns()
        until_ns = round(ticket.expires_at * 1e9)
        await asyncio.sleep(self._random.uniform(0, self._manner.hold_s))
        reason = ticket.lost_reason
        # Up to here the holder was entitled to act, whatever becomes of the release.
        ended_ns = min(now_ns(), until_ns)
        lost, was_released = "", False
        if reason is None:
            try:
                await ticket.release()
                was_released = True
            except ticketing.LostError:
                reason = ticket.lost_reason or ticketing.LostReason.NOT_HELD
            except ticketing.TicketingError as error:
                self._failed("release", error)
        if reason is not None and now_ns() < until_ns:
            lost = reason.value
        if ended_ns > began_ns:
            holding = Holding(
                who=self._name,
                keys=tuple(str(key) for key in ticket.keys),
                token=ticket.token,
                began_ns=began_ns,
                ended_ns=ended_ns,
                lost=lost,
                was_released=was_released,
            )
            self._out.write(f"{to_line(holding)}\n")

    def _failed(self, call: str, error: ticketing.TicketingError) -> None:
        failure = Failure(self._name, call, f"{error.kind}: {error}", now_ns())
        self._out.write(f"{to_line(failure)}\n")


async def wait_for_end_of_stdin() -> None:
    """Return at EOF."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()


async def load(options: argparse.Namespace) -> None:
    """Open the clients, let the workers run, and close."""
    manner = Manner(
        options.keys,
        options.lease_ms / 1000,
        options.hold_ms / 1000,
        options.rest_ms / 1000,
        options.sets / 100,
        options.tries / 100,
    )
    with Path(options.history).open("w", encoding="utf-8", buffering=1) as out:
        clients = [
            ticketing.connect(options.url, name=f"load-{number}", connect_for=30)
            for number in range(options.clients)
        ]
        for client in clients:
            await client
        tasks = [
            asyncio.create_task(
                Worker(f"load-{c}.{w}", client, manner, f"{options.seed}.{c}.{w}", out).run()
            )
            for c, client in enumerate(clients)
            for w in range(options.workers)
        ]
        print("ready", flush=True)
        ending = asyncio.create_task(wait_for_end_of_stdin())
        done, _ = await asyncio.wait([ending, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in clients:
            with suppress(TimeoutError, ticketing.TicketingError):
                await asyncio.wait_for(client.close(), CLOSE_SECONDS)
        for task in done - {ending}:
            task.result()  # A worker never ends by itself: this raises what went wrong.


def parser() -> argparse.ArgumentParser:
    """The options, for the harness and for people."""
    found = argparse.ArgumentParser(prog="ticketing_conformance.cluster.load", description=__doc__)
    found.add_argument("--url", required=True)
    found.add_argument("--history", required=True, help="the file to write")
    for name, default in (
        ("clients", 4),
        ("workers", 8),
        ("keys", 8),
        ("lease-ms", 10_000),
        ("hold-ms", 10),
        ("rest-ms", 10),
        ("sets", 20),
        ("tries", 10),
        ("seed", 1),
    ):
        found.add_argument(f"--{name}", type=int, default=default, help=f"default {default}")
    return found


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    asyncio.run(load(parser().parse_args()))
