"""Messages of administration, made of what engine and host say."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from ticketing_server.admin import admin_pb2 as pb
from ticketing_server.admin.host import Host, MemberInfo, Standing
from ticketing_server.engine import Page, TicketInfo, WaiterInfo

PAGE_BYTES_MAX = 1 << 20
"""A page ends at the item that goes over it; gRPC takes messages of up to four times as much."""
_MS, _US = 1_000_000, 1_000
_MODES = {"memory": pb.MODE_MEMORY, "durable": pb.MODE_DURABLE, "cluster": pb.MODE_CLUSTER}
_ROLES = {
    "alone": pb.ROLE_ALONE,
    "leader": pb.ROLE_LEADER,
    "follower": pb.ROLE_FOLLOWER,
    "candidate": pb.ROLE_CANDIDATE,
    "learner": pb.ROLE_LEARNER,
}
_KINDS = {
    "voter": pb.Member.KIND_VOTER,
    "learner": pb.Member.KIND_LEARNER,
    "vacant": pb.Member.KIND_VACANT,
}
_STATES = {
    "attached": pb.Waiter.STATE_ATTACHED,
    "held_back": pb.Waiter.STATE_HELD_BACK,
    "detached": pb.Waiter.STATE_DETACHED,
}
_Item = TypeVar("_Item", pb.Ticket, pb.Waiter)


def applied_state(standing: Standing) -> pb.AppliedState:
    """Say whose state an answer shows, and as of when."""
    return pb.AppliedState(
        mode=_MODES[standing.mode],
        role=_ROLES[standing.role],
        slot=standing.slot,
        term=standing.term,
        index=standing.applied,
        cluster_time_ms=standing.cluster_time_ns // _MS,
        leader=_text(standing.leader),
    )


def status(host: Host) -> pb.StatusResponse:
    """Say what the node is, how much it holds, and who its cluster is."""
    counters, state = host.counters(), host.state
    response = pb.StatusResponse(
        state=applied_state(host.standing()),
        version=state.version,
        engine=state.engine,
        uptime_ms=int(host.uptime_s() * 1_000),
        draining=state.draining,
        tickets=counters.tickets,
        held_keys=counters.held_keys,
        waiters_attached=counters.waiters_attached,
        waiters_held_back=counters.waiters_held_back,
        waiters_detached=counters.waiters_detached,
        longest_queue=counters.longest_queue,
        oldest_waiter_age_ms=counters.oldest_waiter_age_ns // _MS,
        connections=sum(counters.connections.values()),
        grants=counters.grants_immediate + counters.grants_handoff,
        loop_lag_us=int(state.loop_lag_s * 1_000_000),
    )
    if host.keeper is not None:
        info = host.keeper.cluster_info()
        response.node_id = info.node_id
        response.cluster_id = info.cluster_id
        response.commit_index = info.commit
        response.checksum = info.checksum
        response.members.extend(map(_member, info.members))
    return response


def tickets(standing: Standing, page: Page) -> pb.ListTicketsResponse:
    """Show a page of tickets."""
    found = _fitting(ticket(info) for info in page.infos if isinstance(info, TicketInfo))
    after = page.after if len(found) == len(page.infos) else found[-1].token
    return pb.ListTicketsResponse(state=applied_state(standing), tickets=found, next_after=after)


def waiters(standing: Standing, page: Page) -> pb.ListWaitersResponse:
    """Show a page of waiters."""
    found = _fitting(_waiter(info) for info in page.infos if isinstance(info, WaiterInfo))
    after = page.after if len(found) == len(page.infos) else found[-1].joined
    return pb.ListWaitersResponse(state=applied_state(standing), waiters=found, next_after=after)


def ticket(info: TicketInfo) -> pb.Ticket:
    """Show one ticket."""
    return pb.Ticket(
        token=info.token,
        keys=info.keys,
        owner=info.owner,
        connected=info.connection is not None,
        name=_text(info.label),
        peer=_text(info.peer),
        held_ms=info.held_ns // _MS,
        left_ms=info.left_ns // _MS,
    )


def _waiter(info: WaiterInfo) -> pb.Waiter:
    return pb.Waiter(
        joined=info.joined,
        keys=info.keys,
        owner=info.owner,
        state=_STATES[info.state],
        name=_text(info.label),
        peer=_text(info.peer),
        waited_ms=info.waited_ns // _MS,
        left_ms=None if info.left_ns is None else info.left_ns // _MS,
    )


def _member(info: MemberInfo) -> pb.Member:
    return pb.Member(
        slot=info.slot,
        kind=_KINDS[info.kind],
        node_id=info.node_id,
        address=_text(info.address),
        is_leader=info.is_leader,
        lag_entries=info.lag_entries,
        heard_ms_ago=None if info.heard_ns_ago is None else info.heard_ns_ago // _MS,
    )


def _fitting(items: Iterable[_Item]) -> list[_Item]:
    """As many items as a message takes, at least one where there are any."""
    fitting: list[_Item] = []
    size = 0
    for item in items:
        fitting.append(item)
        size += item.ByteSize()
        if size > PAGE_BYTES_MAX:
            break
    return fitting


def _text(value: str) -> str:
    """Text that a message may carry, whatever bytes it was made of."""
    return value.encode("utf-8", "backslashreplace").decode()
