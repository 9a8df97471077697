"""The calls of `spec/admin.proto`, apart from how they arrive: requests in, answers out."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator
from typing import Literal

from ticketing_server.admin import admin_pb2 as pb
from ticketing_server.admin import answers
from ticketing_server.admin.host import CantDo, Host, Standing
from ticketing_server.constants_gen import KEY_BYTES_MAX
from ticketing_server.engine import Page, TicketInfo
from ticketing_server.log import Value, escape

LIMIT_DEFAULT, LIMIT_MAX = 100, 5_000
CHUNK_BYTES = 256 * 1024
COMMIT_TIMEOUT_S = 5.0
_COMMIT_POLL_S = 0.005


class Refusal(Exception):
    """A call that is not done; `code` is the name of a gRPC status."""

    def __init__(self, code: str, text: str) -> None:
        """`text` says what to do instead."""
        super().__init__(text)
        self.code = code


class AdminService:
    """Answers calls; `caller` is who calls, as the log shows it."""

    def __init__(self, host: Host) -> None:
        """Answer for `host`."""
        self._host = host
        self._listing = asyncio.Lock()

    async def status(self, request: pb.StatusRequest, caller: str) -> pb.StatusResponse:
        """What the node is, how much it holds, and who its cluster is."""
        await self._turn()
        return answers.status(self._host)

    async def list_tickets(
        self, request: pb.ListTicketsRequest, caller: str
    ) -> pb.ListTicketsResponse:
        """A page of tickets in grant order."""
        page = await self._page("tickets", request)
        return answers.tickets(self._host.standing(), page)

    async def list_waiters(
        self, request: pb.ListWaitersRequest, caller: str
    ) -> pb.ListWaitersResponse:
        """A page of waiters in grant order."""
        page = await self._page("waiters", request)
        return answers.waiters(self._host.standing(), page)

    async def force_release(
        self, request: pb.ForceReleaseRequest, caller: str
    ) -> pb.ForceReleaseResponse:
        """End one ticket and say which; returns when that is applied."""
        key, token = _filter(request.key), request.token
        if key is None:
            raise Refusal("INVALID_ARGUMENT", "the key is empty; name a key of the ticket")
        await self._turn()
        self._expect_leader("end tickets")
        before = self._ticket(key, token)
        self._log("force_release", caller, key=key, token=token)
        engine = self._host.engine
        self._host.begin_turn()
        if not engine.force_release(key, token):
            raise Refusal("ABORTED", f"the node can't take it now; {_look(key)}")
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + COMMIT_TIMEOUT_S
        await self._turn()
        while self._is_held(key, token):
            if loop.time() > give_up_s:
                raise Refusal(
                    "ABORTED",
                    f"it was not committed within {COMMIT_TIMEOUT_S:.0f} s and may still be;"
                    f" {_look(key)}",
                )
            await asyncio.sleep(_COMMIT_POLL_S)
        return pb.ForceReleaseResponse(state=self._state(), released=answers.ticket(before))

    async def transfer_lead(
        self, request: pb.TransferLeadRequest, caller: str
    ) -> pb.TransferLeadResponse:
        """Begin to hand the lead over."""
        keeper = self._host.keeper
        if keeper is None or keeper.standing().mode != "cluster":
            raise Refusal("FAILED_PRECONDITION", "this server is no cluster: nobody else can lead")
        self._expect_leader("hand the lead over")
        slot = request.slot if request.HasField("slot") else None
        self._host.begin_turn()
        try:
            keeper.transfer(slot)
        except CantDo as error:
            raise Refusal("FAILED_PRECONDITION", str(error)) from None
        self._log("transfer_lead", caller, slot=slot)
        return pb.TransferLeadResponse(state=self._state())

    async def take_snapshot(
        self, request: pb.TakeSnapshotRequest, caller: str
    ) -> AsyncIterator[pb.TakeSnapshotResponse]:
        """Send the file of a snapshot that is made now."""
        keeper = self._host.keeper
        if keeper is None:
            raise Refusal(
                "FAILED_PRECONDITION",
                "memory mode keeps nothing that a backup could hold; start the server with"
                " --data-dir",
            )
        self._log("take_snapshot", caller)
        try:
            file = await keeper.snapshot()
        except CantDo as error:
            raise Refusal("ABORTED", str(error)) from None
        yield pb.TakeSnapshotResponse(state=self._state(), size=len(file), data=file[:CHUNK_BYTES])
        for begin in range(CHUNK_BYTES, len(file), CHUNK_BYTES):
            yield pb.TakeSnapshotResponse(data=file[begin : begin + CHUNK_BYTES])

    async def drain(self, request: pb.DrainRequest, caller: str) -> pb.DrainResponse:
        """Begin to send clients on and to end."""
        self._log("drain", caller)
        response = pb.DrainResponse(state=self._state())
        self._host.ask_stop()
        return response

    async def _turn(self) -> None:
        """Let a turn pass, so that ages are as of now and what was told to the engine is done."""
        self._host.begin_turn()
        await asyncio.sleep(0)

    async def _page(
        self,
        what: Literal["tickets", "waiters"],
        request: pb.ListTicketsRequest | pb.ListWaitersRequest,
    ) -> Page:
        """Make a page in steps that take half of the time, one page at a time."""
        limit, key = _limit(request.limit), _filter(request.key)
        loop = asyncio.get_running_loop()
        async with self._listing:
            await self._turn()
            begun_s = loop.time()
            for page in self._host.engine.walk(what, request.after, limit, key):
                if page is not None:
                    return page
                await asyncio.sleep(loop.time() - begun_s)
                begun_s = loop.time()
        raise AssertionError("the engine made no page")

    def _state(self) -> pb.AppliedState:
        return answers.applied_state(self._host.standing())

    def _holder(self, key: bytes) -> TicketInfo | None:
        infos = self._host.engine.inspect("tickets", None, 1, key=key)
        return next((info for info in infos if isinstance(info, TicketInfo)), None)

    def _is_held(self, key: bytes, token: int) -> bool:
        holder = self._holder(key)
        return holder is not None and holder.token == token

    def _ticket(self, key: bytes, token: int) -> TicketInfo:
        """The ticket that has key and token; a Refusal that says what there is instead."""
        holder = self._holder(key)
        if holder is None:
            raise Refusal("NOT_FOUND", f"nobody holds the key {escape(key)}; {_look(key)}")
        if holder.token != token:
            raise Refusal(
                "NOT_FOUND",
                f"the key {escape(key)} is held with token {holder.token}, not with {token}, and"
                f" nothing was ended; {_look(key)}",
            )
        return holder

    def _expect_leader(self, what: str) -> None:
        standing = self._host.standing()
        if standing.role not in ("alone", "leader"):
            raise Refusal("FAILED_PRECONDITION", _not_leader(standing, what))

    def _log(self, call: str, caller: str, **fields: Value) -> None:
        self._host.log.always("info", "admin_call", {"call": call, "caller": caller, **fields})


def _limit(asked: int) -> int:
    return min(asked or LIMIT_DEFAULT, LIMIT_MAX)


def _filter(key: bytes) -> bytes | None:
    if len(key) > KEY_BYTES_MAX:
        raise Refusal(
            "INVALID_ARGUMENT", f"a key has at most {KEY_BYTES_MAX} bytes, this one {len(key)}"
        )
    return key or None


def _look(key: bytes) -> str:
    return f"look at: ticketing-admin tickets --key {shlex.quote(escape(key))}"


def _not_leader(standing: Standing, what: str) -> str:
    if not standing.leader:
        return f"only a leader can {what}, and this node knows none now; try again in a second"
    return (
        f"only the leader can {what}, and this node is a {standing.role}; ask the node whose"
        f" clients connect to {standing.leader} (--address)"
    )
