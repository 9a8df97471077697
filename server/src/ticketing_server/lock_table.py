"""The lock table: keys, tickets, queues, leases and tokens, as one deterministic state machine.

It has no clock, does no I/O and draws nothing: what it does follows from the commands and times it
is given, in their order, so that replicas that apply the same input have the same state. Limits
and graces are such input too (`configure`, `begin_term`).

Input is runs: a `Link` and the commands read from it (wire.py), applied at one time; what is due
then is done first. Replies are appended to the links' `out`, and links that got any through
another link's doing are put into `dirty`.

A **link** is what the table knows of a connection: (term, number), its client id, and whether its
waiters detach or leave when it ends. It enters and leaves through the internal commands below,
that no frame of a client can be:

- `CONNECT`: the link is its client's connection from now on: drops go to it.
- `DISCONNECT`: its waiters detach (or leave at once where `link.leaves`). Its tickets stay. A link
  of an earlier term has ended with it, so this does nothing to its waiters.
- `RELEASE_KEYS`: the release of version 3. Word is the token, tail the tuple of *all* keys of the
  ticket. Where the token is live but its ticket has other keys than these, it answers
  `wire.OTHER_KEYS` and changes nothing; else as a release.
- `FORCE_RELEASE`: an operator's release: word is the token, tail the key.

For a version 3 session: give each connection a `Link` with `leaves=True` under a drawn client id,
send acquires as `ACQUIRE` (tail: key) or `ACQUIRE_SET` (tail: rising tuple of 2 to 16 keys), with
word = wait_ms:u32 lease_ms:u32, releases as `RELEASE_KEYS`, and translate the reply frames of
version 4 that end up in `link.out` (A, T, B, R, N, E, `OTHER_KEYS`; a D is to be left out).

A **term** begins with the table's knowing no connection (`begin_term`). Who was attached is **held
back**: it counts as attached for those behind it and can't be granted, until its acquire is sent
again, which attaches it, or the failover grace is over, when it is detached. No lease ends before
that time either. Waiters of version 3 can't come back, and leave. All of them are looked at a slice
at a time, one in each `apply`: a term begins at the same cost however many there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Any

from ticketing_server import constants_gen as c
from ticketing_server.deadlines import BUCKET_BITS, NEVER, Deadlines
from ticketing_server.limits import TOKEN_FLOOR_END, Limits, Term
from ticketing_server.queues import Link
from ticketing_server.table_state import MS, Lease, TableState, keys_of
from ticketing_server.wire import (
    ACQUIRE,
    ACQUIRE_SET,
    CANCEL,
    CANCELLED,
    EXTEND,
    EXTENDED,
    GRANTED,
    NOT_HELD,
    NOT_WAITED,
    OTHER_KEYS,
    RELEASE,
    RELEASED,
    TIMED_OUT,
    Command,
)

CONNECT = 1
DISCONNECT = 2
RELEASE_KEYS = 3
FORCE_RELEASE = 4

CONNECT_COMMAND: Command = (CONNECT, b"", b"", b"")
DISCONNECT_COMMAND: Command = (DISCONNECT, b"", b"", b"")

LOOKS_PER_SLICE = 16_384
"""How many waiters are looked at in one `apply`, to see whether they depart."""
LOOKS_PER_DEPARTURE = 16
"""How many such looks one that departs costs, so that no slice takes longer than a full turn."""

# What is to come of the departures that a term brings.
NO_DEPARTURES = 0
LEAVERS_LEAVE = 1
GRACE_RUNS = 2
HELD_BACK_DETACH = 3

_RESTART_GRACE = object()
_DEPARTURES = object()
_HOLD_SAMPLE_NS = 10 * MS
"""One hold each so often is counted in the histogram: each would cost every release."""
_U32 = Struct(">I")
_WAIT_AND_LEASE = Struct(">II")
_LEASE_BYTES = 4
INTERNAL = frozenset((CONNECT, DISCONNECT, FORCE_RELEASE))
"""Commands that no frame of a client is; each is a run of its own."""

Run = tuple[Link, Sequence[Command]]


class LockTable(TableState):
    """Every key that is held or waited for. `first_token` must be above all tokens ever given."""

    def __init__(self, first_token: int) -> None:
        super().__init__(first_token)
        self._departures = NO_DEPARTURES
        self._departs_at = NEVER
        """When the next slice of departures is due."""
        self._held_until = 0
        self._older_below = 0
        """No waiter with this join number or a higher one can be of an earlier term."""

    # Input

    def configure(self, limits: Limits, now_ns: int) -> None:
        """Take limits and graces; the first time begins the restart grace."""
        if not self._configured:
            self._configured = True
            if limits.restart_grace_ms:
                self._grace_until = now_ns + limits.restart_grace_ms * MS
        self._limits = limits

    @property
    def limits(self) -> Limits:
        """The limits and graces that hold now."""
        return self._limits

    @property
    def grants_held_until(self) -> int | None:
        """Until when nothing is granted, as leases of before may still run; None if they don't."""
        return self._grace_until

    def hold_grants_until(self, until_ns: int) -> None:
        """Grant nothing until then, as after a start: leases that are in no table end first.

        For a table that was restored from a backup, or from a node that lost its majority.
        """
        self._grace_until = until_ns

    def begin_term(self, term: Term, now_ns: int) -> None:
        """End every connection of the terms before, and let their clients come back for a while.

        Touches no ticket and no waiter, and does nothing that is due: the next `apply` does.
        """
        if term.number <= self.term:
            raise ValueError(f"term {term.number} after term {self.term}")
        self.term = term.number
        self.configure(term.limits, now_ns)
        self.links = {}
        self.connections = {}
        self.held_back += self.attached
        self.attached = 0
        self._held_until = now_ns + term.failover_grace_ms * MS
        # Never lower than before: an extend may have told of the old one.
        self._leases.floor_ns = max(self._leases.floor_ns, self._held_until)
        if term.token_floor < TOKEN_FLOOR_END:
            self._skip_tokens(term.token_floor)
        self._older_below = self._next_join
        self._plan_departures(LEAVERS_LEAVE if self.held_back else NO_DEPARTURES)

    def apply(self, now_ns: int, runs: Iterable[Run]) -> None:
        """Do what is due until now, then the commands of each run in order."""
        if now_ns >= self.wake_at():
            self.advance(now_ns)
        slots = self.slots
        find = slots.get
        bucket_at = self._leases.by_place.get
        new_bucket = self._leases.bucket
        unpack_lease = _U32.unpack_from
        # No lease begins on the fast path while no key is free.
        lease_ms_max = self._limits.max_lease_ms if self._grace_until is None else 0
        self._places = None
        self._looks = 0
        last_word = b""
        lease: Lease | None = None
        held_keys_max = self._limits.held_keys
        next_token = self._tokens.pop
        ended: Any = None
        for link, commands in runs:
            if link.broken:
                commands = [command for command in commands if command[0] in INTERNAL]
            client = link.client
            out = link.out
            # There are as many slots as held keys at least, so this errs on the safe side.
            has_room = len(slots) + len(commands) <= held_keys_max
            for op, request_id, word, tail in commands:
                if op == ACQUIRE:
                    if has_room and tail not in slots:
                        if word != last_word:
                            last_word = word
                            lease = None
                            (lease_ms,) = unpack_lease(word, 4)
                            if 0 < lease_ms <= lease_ms_max:
                                deadline = now_ns + lease_ms * MS
                                bucket = bucket_at(deadline >> BUCKET_BITS)
                                lease = (bucket or new_bucket(deadline), deadline, now_ns)
                        if lease is not None:
                            try:
                                token = next_token()
                            except IndexError:
                                self._mint()
                                token = next_token()
                            slots[tail] = lease[0][token] = (
                                token, client, request_id, tail, lease, client,
                            )  # fmt: skip
                            out += GRANTED, request_id, token, NOT_WAITED
                            continue
                elif op == RELEASE:
                    ended = find(tail)
                    # A plain ticket is never a set's, and nobody waits for its key.
                    if ended.__class__ is tuple and ended[0] == word and ended[5] == client:
                        del slots[tail], ended[4][0][word]
                        out += RELEASED, request_id
                        continue
                if not self._one(link, op, request_id, word, tail, now_ns):
                    break
                # A set takes more slots than the one that was counted for it.
                has_room = has_room and op != ACQUIRE_SET
        if now_ns >= self._sample_at and ended.__class__ is tuple:
            bucket, _, began = ended[4]
            if ended[0] not in bucket:
                self._sample_at = now_ns + _HOLD_SAMPLE_NS
                self.hold.add(now_ns - began)

    def advance(self, now_ns: int) -> None:
        """Do what is due: by deadline; at the same one leases, waits, graces."""
        leases, waits, graces = self._leases, self._waits, self._graces
        kinds: tuple[Deadlines[Any, Any], ...] = (leases, waits, graces)
        for kind in kinds:
            kind.open(now_ns)
        departs_at = self._departs_at
        while True:
            first, kind_due = now_ns + 1, None
            for due, what in (
                (leases.first_due(), leases),
                (waits.first_due(), waits),
                (graces.first_due(), graces),
                (self._grace_until, _RESTART_GRACE),
                (departs_at, _DEPARTURES),
            ):
                if due is not None and due < first:
                    first, kind_due = due, what
            if kind_due is leases:
                self._lease_over(leases.take_first(), now_ns)
            elif kind_due is waits:
                self._wait_over(waits.take_first(), now_ns)
            elif kind_due is graces:
                self._leave(graces.take_first())
            elif kind_due is _RESTART_GRACE:
                self._grace_until = None
                self._hand_on(self.slots, now_ns)
            elif kind_due is _DEPARTURES:
                self._depart(now_ns)
                departs_at = NEVER
            else:
                break
        for kind in kinds:
            kind.look_ahead()

    def wake_at(self) -> int:
        """Return when to call `apply` again at the latest, `NEVER` if nothing is pending."""
        return min(
            self._leases.earliest_ns,
            self._waits.earliest_ns,
            self._graces.earliest_ns,
            self._grace_until or NEVER,
            self._departs_at,
        )

    # Commands that are not on the fast path of `apply`

    def _one(
        self, link: Link, op: int, request_id: bytes, word: bytes, tail: Any, now: int
    ) -> bool:
        """Do one command; False where nothing more of this run may be applied."""
        if op == ACQUIRE:
            return self._acquire(link, request_id, word, (tail,), now)
        if op == ACQUIRE_SET:
            return self._acquire(link, request_id, word, tail, now)
        if op == RELEASE:
            self._release(link, request_id, word, tail, now)
        elif op == EXTEND:
            return self._extend(link, request_id, word, tail, now)
        elif op == CANCEL:
            self._cancel(link, request_id, word, tail, now)
        elif op == RELEASE_KEYS:
            self._release_keys(link, request_id, word, tail, now)
        elif op == CONNECT:
            self.links[link.client] = link
            self.connections[link.number] = link
        elif op == DISCONNECT:
            self._disconnect(link, now)
        else:
            self._force_release(word, tail, now)
        return True

    def _acquire(
        self, link: Link, request_id: bytes, word: bytes, keys: tuple[bytes, ...], now: int
    ) -> bool:
        op = "acquire" if len(keys) == 1 else "acquire_set"
        wait_ms, lease_ms = _WAIT_AND_LEASE.unpack(word)
        if not c.LEASE_MS_MIN <= lease_ms <= c.LEASE_MS_MAX:
            return self._refuse_lease(link, op, request_id, lease_ms)
        held = self.ticket_of(keys[0])
        if held and held[1] == link.client and held[2] == request_id and keys_of(held) == keys:
            self._lease_again(held, lease_ms, now)
            link.out += GRANTED, request_id, held[0], NOT_WAITED
            self._results[op, "granted"] += 1
            return True
        for waiter in self.waiting.get(link.client + request_id, ()):
            if waiter.keys == keys:
                self._attach(waiter, link, wait_ms, lease_ms, now)
                return True
        if lease_ms > self._limits.max_lease_ms:
            # Not before: one that was taken under another limit, and is sent again, is still there.
            return self._refuse_lease(link, op, request_id, lease_ms)
        if self._grace_until is None and self._are_free(keys):
            if self.held_keys + len(keys) > self._limits.held_keys:
                self._overloaded(link, op, request_id, "held_keys")
                return True
            token = self._hold(keys, link.client, request_id, self._lease(lease_ms, now))
            link.out += GRANTED, request_id, token, NOT_WAITED
            self._results[op, "granted"] += 1
        elif wait_ms == c.WAIT_MS_TRY:
            link.out += TIMED_OUT, request_id
            self._results[op, "timed_out"] += 1
        else:
            self._join(link, op, request_id, keys, wait_ms, lease_ms, now)
        return True

    def _release(self, link: Link, request_id: bytes, token: bytes, key: bytes, now: int) -> None:
        ticket = self.ticket_of(key)
        if ticket is None or ticket[0] != token:
            link.out += NOT_HELD, request_id
            self._results["release", "not_held"] += 1
            return
        link.out += RELEASED, request_id
        self._results["release", "released"] += 1
        self._end_by(link, ticket, now)

    def _release_keys(
        self, link: Link, request_id: bytes, token: bytes, keys: tuple[bytes, ...], now: int
    ) -> None:
        op = "release" if len(keys) == 1 else "release_set"
        ticket = self.ticket_of(keys[0])
        if ticket is not None and ticket[0] == token and keys_of(ticket) == keys:
            link.out += RELEASED, request_id
            self._results[op, "released"] += 1
            self._end_by(link, ticket, now)
        elif self._is_live(token):
            link.out += OTHER_KEYS, request_id
            self._results[op, "error"] += 1
        else:
            link.out += NOT_HELD, request_id
            self._results[op, "not_held"] += 1

    def _is_live(self, token: bytes) -> bool:
        """Whether a ticket has this token, whatever its keys.

        Tickets are found by key, so each look goes over all buckets of leases, until the looks of
        a turn have cost as much as one over all tickets. The others cost nothing after that: else
        one link with many stale tokens would hold up everybody.
        """
        if self._places is None:
            self._looks += self._leases.bucket_count
            if self._looks < self.tickets:
                return self._leases.has(token)
            self._places = self._leases.places()
        bucket = self._places.get(token)
        # One that is not there any more has ended in this turn, or has another lease.
        return bucket is not None and (token in bucket or self._leases.has(token))

    def _extend(self, link: Link, request_id: bytes, token: bytes, tail: bytes, now: int) -> bool:
        (lease_ms,) = _U32.unpack_from(tail)
        if not c.LEASE_MS_MIN <= lease_ms <= self._limits.max_lease_ms:
            return self._refuse_lease(link, "extend", request_id, lease_ms)
        ticket = self.ticket_of(tail[_LEASE_BYTES:])
        if ticket is None or ticket[0] != token:
            link.out += NOT_HELD, request_id
            self._results["extend", "not_held"] += 1
            return True
        deadline, began = self.lease_end(ticket), ticket[4][2]
        ended = max(deadline, now + lease_ms * MS)
        self._replace(ticket, ended, began, link.client)
        link.out += EXTENDED, request_id, _U32.pack((ended - now) // MS)
        self._results["extend", "extended"] += 1
        return True

    def _cancel(
        self, link: Link, request_id: bytes, acquire_id: bytes, key: bytes, now: int
    ) -> None:
        link.out += CANCELLED, request_id
        self._results["cancel", "cancelled"] += 1
        freed: set[bytes] = set()
        for waiter in list(self.waiting.get(link.client + acquire_id, ())):
            if key in waiter.keys:
                self.wait["cancelled"].add(now - waiter.arrived_ns)
                self._leave(waiter)
                freed.update(waiter.keys)
        ticket = self.ticket_of(key)
        if ticket is not None and ticket[1] == link.client and ticket[2] == acquire_id:
            self._end_by(link, ticket, now, freed)
        else:
            # Only now: one that leaves must not be granted by the leaving of another.
            self._hand_on(freed, now)

    def _disconnect(self, link: Link, now: int) -> None:
        """Pass its waiters over from now on; only then hand on, never to the link that ended."""
        if link.term != self.term:
            return
        if self.connections.get(link.number) is link:
            del self.connections[link.number]
        if self.links.get(link.client) is link:
            del self.links[link.client]
        keys: set[bytes] = set()
        for waiter in list(link.waiters.values()):
            keys.update(waiter.keys)
            if link.leaves:
                self._leave(waiter)
            else:
                self._detach(waiter, now)
        self._hand_on(keys, now)

    def _force_release(self, token: bytes, key: bytes, now: int) -> None:
        ticket = self.ticket_of(key)
        if ticket is not None and ticket[0] == token:
            self._tell("force_released", ticket, now)
            self._end(ticket, "operator", now)
            self._drop(ticket, c.DROP_OPERATOR)
            self._hand_on(keys_of(ticket), now)

    # What a term brings

    def _plan_departures(self, departures: int) -> None:
        """Say which departures come next; those that are ready begin with the oldest waiter."""
        self._departures = departures
        self._next_to_depart = self.line.end
        if departures == NO_DEPARTURES:
            self._departs_at = NEVER
        elif departures == GRACE_RUNS:
            self._departs_at = self._held_until
        else:
            self._departs_at = 0
            self._next_to_depart = self.line.end.after

    def _depart(self, now: int) -> None:
        """Look at the next slice of waiters, and let those of earlier terms leave or detach."""
        if self._departures == GRACE_RUNS:
            self._plan_departures(HELD_BACK_DETACH)
        waiter = self._next_to_depart
        keys: set[bytes] = set()
        looks = LOOKS_PER_SLICE
        while looks > 0 and self.held_back and waiter.joined < self._older_below:
            looks -= 1
            looked_at, waiter = waiter, waiter.after
            if not self.is_held_back(looked_at):
                continue
            leaves = looked_at.link is not None and looked_at.link.leaves
            if leaves:
                self._leave(looked_at)
            elif self._departures == HELD_BACK_DETACH:
                self._detach(looked_at, now)
            else:
                continue
            keys.update(looked_at.keys)
            looks -= LOOKS_PER_DEPARTURE
        if self.held_back and waiter.joined < self._older_below:
            self._next_to_depart = waiter
        elif self.held_back and self._departures == LEAVERS_LEAVE:
            self._plan_departures(GRACE_RUNS)
        else:
            self._plan_departures(NO_DEPARTURES)
        self._hand_on(keys, now)
