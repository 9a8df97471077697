"""`python -m ticketing_conformance.cluster.demo`: shows a queue that outlives its leaders.

Three nodes on this machine, six clients that queue for one key, and a leader that is killed every
few seconds. It ends by itself; the exit code is 0 if nobody was passed and tokens rose.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import ticketing

from ticketing_conformance.cluster.history import TOKEN_FLOOR_SHIFT, Mark
from ticketing_conformance.cluster.nodes import Cluster, Plan, now_ns

NAMES = ("anna", "ben", "carla", "david", "emma", "felix")
KEY = "printer"
SECRET = "the-secret-of-the-demo"
HOLD_S = 0.35
FIRST_KILL_S = 3.0
KILL_EVERY_S = 5.0
DOWN_S = 1.5
"""How long a killed node stays away."""
FOLLOW_S = 0.05


@dataclass
class Queue:
    """What the clients know, and how it is shown."""

    say: Callable[[str], None]
    waiting: list[str] = field(default_factory=list)
    holder: str = ""
    granted: list[tuple[str, int]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    lead: str = ""
    killed: Mark | None = None

    def joined(self, name: str) -> None:
        """A client's acquire is on its way."""
        self.waiting.append(name)

    def took(self, name: str, token: int) -> None:
        """A client has the key."""
        if self.holder:
            self.faults.append(f"{name} holds while {self.holder} does")
        if self.granted and token <= self.granted[-1][1]:
            self.faults.append(f"token {token} of {name} does not rise")
        if self.waiting[0] != name:
            self.faults.append(f"{name} passed {self.waiting[0]}")
        self.waiting.remove(name)
        self.holder = name
        self.granted.append((name, token))
        gap = ""
        # A ticket of the leader before may still have been on its way.
        if self.killed is not None and token >= self.killed.unix_ms << TOKEN_FLOOR_SHIFT:
            gap = f"   first grant {(now_ns() - self.killed.at_ns) / 1e9:.2f} s after the kill"
            self.killed = None
        row = " ".join(f"{one:<6}" for one in self.waiting)
        self.say(f"{self.lead:<7} {name:<6} token {token}   waiting: {row}{gap}")

    def gave_back(self) -> None:
        """The holder is about to release."""
        self.holder = ""


async def customer(name: str, url: str, queue: Queue) -> None:
    """Queue, hold for a moment, give back, queue again."""
    async with ticketing.connect(url, secret=SECRET, name=name, connect_for=30) as client:
        while True:
            queue.joined(name)
            ticket = await client.acquire(KEY, lease=30)
            queue.took(name, ticket.token)
            await asyncio.sleep(HOLD_S)
            queue.gave_back()
            await ticket.release()


class Keeper:
    """Watches who leads, and kills leaders; the cluster's calls block, so they have a thread."""

    def __init__(self, cluster: Cluster, queue: Queue) -> None:
        self._cluster = cluster
        self._queue = queue
        self._thread = ThreadPoolExecutor(1)
        self.kills = 0

    async def _do(self, call: Callable[[], int | None]) -> int | None:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def run(self) -> None:
        """Kill the leader every few seconds, and start the node again a little later."""
        queue, cluster = self._queue, self._cluster
        await asyncio.sleep(FIRST_KILL_S)
        while True:
            dead = await self._do(cluster.leader)
            assert dead is not None
            await self._do(partial(cluster.kill, dead))
            queue.killed = cluster.marks[-1]
            self.kills += 1
            queue.say(f"--- node {dead}, which led, is killed (kill -9)")
            queue.lead = "no one"
            began_s = time.monotonic()
            new = await self._do(cluster.leader)
            queue.lead = f"node {new}"
            queue.say(f"--- node {new} leads")
            await asyncio.sleep(max(0, DOWN_S - (time.monotonic() - began_s)))
            await self._do(partial(cluster.again, dead))
            queue.say(f"--- node {dead} starts again on its files, and follows")
            await self._do(cluster.wait_whole)
            await asyncio.sleep(max(0, KILL_EVERY_S - (time.monotonic() - began_s)))

    def close(self) -> None:
        """Wait for what the thread is at."""
        self._thread.shutdown(cancel_futures=True)


async def show(cluster: Cluster, seconds: float) -> int:
    """Let clients and keeper run; returns the exit code."""
    began_s = time.monotonic()
    queue = Queue(lambda text: print(f"{time.monotonic() - began_s:5.1f} s  {text}", flush=True))
    queue.lead = f"node {cluster.leader()}"
    keeper = Keeper(cluster, queue)
    tasks = [asyncio.create_task(keeper.run())]
    for name in NAMES:
        tasks.append(asyncio.create_task(customer(name, cluster.url, queue)))
        await asyncio.sleep(FOLLOW_S)
    done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    keeper.close()
    for task in done:
        task.result()  # None ends by itself: this raises what went wrong.
    for fault in queue.faults:
        print(f"FAILED: {fault}")
    count = len(queue.granted)
    verdict = "FAILED" if queue.faults or not count else "nobody was passed, and tokens rose"
    print(f"\n{count} tickets to {len(NAMES)} clients over {keeper.kills} kills: {verdict}")
    return 1 if queue.faults or not count or not keeper.kills else 0


def main() -> int:
    """Start nodes, show them, and end them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=30, help="how long it runs (30)")
    options = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    print("starting three nodes …", flush=True)
    cluster = Cluster(Plan(environment={"TICKETING_SECRET": SECRET}))
    try:
        cluster.wait_whole()
        print(f"clients connect to {cluster.url}\n", flush=True)
        return asyncio.run(show(cluster, options.seconds))
    except KeyboardInterrupt:
        return 130
    finally:
        cluster.close()


if __name__ == "__main__":
    sys.exit(main())
