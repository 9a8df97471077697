"""What programs do with their clients: acquire, hold, extend, release, hand over, give up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ticketing._core.requests import Request
from ticketing._core.tickets import HeldTicket
from ticketing.errors import TicketingError

from ticketing_sim.client import Call, SimClient
from ticketing_sim.schedule import MS

if TYPE_CHECKING:
    from ticketing_sim.world import World

LEASES_S = (0.3, 0.6, 1.0, 2.0, 3.0, 6.0)
WAITS_S = (0.0, 0.1, 0.5, 1.5, 3.0, 6.0)
_THINK_MS = 300
_HOLDS_MS = (0, 0, 5, 20, 100, 300, 900)


class Worker:
    """Does one job after another on one client, until the world winds down."""

    def __init__(self, world: World, client: SimClient) -> None:
        self.world = world
        self.client = client
        self._pause()

    def _pause(self) -> None:
        if not self.world.is_winding_down:
            delay_ns = self.client.random.randrange(_THINK_MS * MS)
            self.client.later(delay_ns, "job", self._begin)

    def _begin(self) -> None:
        if not self.world.is_winding_down and not self.client.core.is_closed:
            Job(self.world, self.client, self._pause).begin()


class Job:
    """One acquisition, from its call to its end."""

    def __init__(self, world: World, client: SimClient, done: Any) -> None:
        self.world = world
        self.client = client
        self.random = client.random
        self._done = done
        self._request: Request | None = None
        self._call: Call | None = None

    def begin(self) -> None:
        """Ask for a key or a set."""
        random, client = self.random, self.client
        keys = self.world.keys
        wanted = [random.choice(keys)]
        if random.random() < 0.25:
            wanted = random.sample(keys, min(len(keys), random.choice((2, 2, 3))))
        waits = random.random() >= 0.2
        self._call = Call(client, f"acquire {wanted}", self._acquired)
        now_ns = client.clock.now_ns()
        self._request = client.core.acquire(
            wanted, lease=random.choice(LEASES_S), auto_extend=random.random() < 0.4,
            wait_timeout=random.choice(WAITS_S) if waits else None,
            waiter=self._call, now_ns=now_ns,
        )  # fmt: skip
        self.world.count("acquire")
        if random.random() < 0.1:
            client.later(random.randrange(800 * MS), "give up", self._give_up)
        client.settle()

    def _give_up(self) -> None:
        if self._call is not None and not self._call.is_settled:
            assert self._request is not None
            self._call.forget()
            self.world.count("given up")
            self.client.core.abandon(self._request, self.client.clock.now_ns())
            self.client.settle()
            self._done()

    def _acquired(self, ticket: HeldTicket | None, error: TicketingError | None) -> None:
        if ticket is None:
            assert error is not None
            self.world.count(type(error).__name__)
            self._done()
            return
        self.world.count("granted")
        self.client.begin_belief(ticket, is_adopted=False)
        self._hold(ticket)

    def _hold(self, ticket: HeldTicket) -> None:
        random, client = self.random, self.client
        hold_ns = 0 if self.world.is_winding_down else random.choice(_HOLDS_MS) * MS
        hold_ns += random.randrange(1, MS)
        chance = random.random()
        if chance < 0.15:
            client.later(hold_ns // 2, "extend", self._extend, ticket)
        if chance > 0.94 and not ticket.auto_extend and not self.world.is_winding_down:
            # The program forgets it: the lease ends by itself.
            self.world.count("forgotten")
            client.later(hold_ns, "forget", self._done)
        elif 0.9 < chance <= 0.94 and not self.world.is_winding_down:
            client.later(hold_ns, "hand over", self._hand_over, ticket)
        else:
            client.later(hold_ns, "release", self._release, ticket)

    def _extend(self, ticket: HeldTicket) -> None:
        client = self.client
        call = Call(client, f"extend {ticket.token}", lambda value, error: None)
        lease = self.random.choice(LEASES_S)
        client.core.extend(ticket, lease, call, client.clock.now_ns())
        client.settle()

    def _release(self, ticket: HeldTicket) -> None:
        client = self.client
        call = Call(client, f"release {ticket.token}", self._released)
        client.core.release(ticket, call, client.clock.now_ns())
        client.settle()

    def _released(self, value: None, error: TicketingError | None) -> None:
        self.world.count("released" if error is None else "release lost")
        self._done()

    def _hand_over(self, ticket: HeldTicket) -> None:
        client = self.client
        call = Call(client, f"hand over {ticket.token}", self._handed_over)
        client.core.hand_over(ticket, call, client.clock.now_ns())
        client.settle()

    def _handed_over(self, reference: str | None, error: TicketingError | None) -> None:
        if reference is not None:
            self.world.count("handed over")
            other = self.random.choice(self.world.living_clients())
            other.later(
                self.random.randrange(30 * MS), "adopt", _adopt, self.world, other, reference
            )
        self._done()


def _adopt(world: World, client: SimClient, reference: str) -> None:
    if client.core.is_closed:
        return
    job = Job(world, client, lambda: None)

    def adopted(ticket: HeldTicket | None, error: TicketingError | None) -> None:
        if ticket is not None:
            world.count("adopted")
            client.begin_belief(ticket, is_adopted=True)
            job._hold(ticket)

    call = Call(client, f"adopt {reference}", adopted)
    lease = client.random.choice(LEASES_S)
    client.core.adopt(reference, lease, client.random.random() < 0.5, call, client.clock.now_ns())
    client.settle()
