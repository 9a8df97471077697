"""What `ticketing-admin` prints: tables that line up, and JSON. Keys and names are escaped."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from ticketing_server.admin import admin_pb2 as pb
from ticketing_server.log import escape

MODES = {pb.MODE_MEMORY: "memory", pb.MODE_DURABLE: "durable", pb.MODE_CLUSTER: "cluster"}
ROLES = {
    pb.ROLE_ALONE: "alone",
    pb.ROLE_LEADER: "leader",
    pb.ROLE_FOLLOWER: "follower",
    pb.ROLE_CANDIDATE: "candidate",
    pb.ROLE_LEARNER: "learner",
}
KINDS = {
    pb.Member.KIND_VOTER: "voter",
    pb.Member.KIND_LEARNER: "learner",
    pb.Member.KIND_VACANT: "vacant",
}
STATES = {
    pb.Waiter.STATE_ATTACHED: "attached",
    pb.Waiter.STATE_HELD_BACK: "held_back",
    pb.Waiter.STATE_DETACHED: "detached",
}


def align(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Lay out rows in columns; the last column may be of any length."""
    lines = [head, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head) - 1)]
    return "".join(
        "  ".join(
            [*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[-1]]
        ).rstrip()
        + "\n"
        for line in lines
    )


def duration(milliseconds: int) -> str:
    """Show a duration in at most two units: `250ms`, `12.3s`, `5m03s`, `2h10m`, `3d04h`."""
    if milliseconds < 1_000:
        return f"{milliseconds}ms"
    seconds = milliseconds // 1_000
    if seconds < 60:
        return f"{milliseconds // 100 / 10:.1f}s"
    if seconds < 3_600:
        return f"{seconds // 60}m{seconds % 60:02}s"
    if seconds < 86_400:
        return f"{seconds // 3_600}h{seconds // 60 % 60:02}m"
    return f"{seconds // 86_400}d{seconds // 3_600 % 24:02}h"


def keys(values: Iterable[bytes]) -> str:
    """Show keys as the log does: a comma of a key is escaped, as commas part them."""
    return ",".join(escape(value).replace(",", "\\x2c") for value in values)


def as_json(value: object) -> str:
    """Return JSON as it is printed."""
    return json.dumps(value, indent=2) + "\n"


def state_line(state: pb.AppliedState) -> str:
    """Say in one line whose state it is, and as of when."""
    role, mode = ROLES.get(state.role, "?"), MODES.get(state.mode, "?")
    where = f", slot {state.slot}" if state.HasField("slot") else ""
    leader = f", leader {escape(state.leader)}" if state.leader else ""
    return (
        f"{mode}: {role}{where}, term {state.term}, index {state.index},"
        f" cluster time {state.cluster_time_ms}ms{leader}\n"
    )


def state_json(state: pb.AppliedState) -> dict[str, Any]:
    """Whose state it is, and as of when; numbers beyond 2^53 never come here."""
    return {
        "mode": MODES.get(state.mode),
        "role": ROLES.get(state.role),
        "slot": state.slot if state.HasField("slot") else None,
        "term": state.term,
        "index": state.index,
        "cluster_time_ms": state.cluster_time_ms,
        "leader": escape(state.leader),
    }


# Tickets and waiters


def tickets_table(tickets: Iterable[pb.Ticket]) -> str:
    """A line per ticket."""
    head = ("TOKEN", "HELD", "LEFT", "NAME", "PEER", "CLIENT", "KEYS")
    rows = (
        (
            str(ticket.token),
            duration(ticket.held_ms),
            duration(ticket.left_ms),
            escape(ticket.name) or "-",
            escape(ticket.peer) or "-",
            str(ticket.owner),
            keys(ticket.keys),
        )
        for ticket in tickets
    )
    return align(head, rows)


def ticket_json(ticket: pb.Ticket) -> dict[str, Any]:
    """One ticket; tokens and ids are text, as they go beyond what many readers of JSON hold."""
    return {
        "token": str(ticket.token),
        "keys": [escape(key) for key in ticket.keys],
        "client_id": str(ticket.owner),
        "connected": ticket.connected,
        "name": escape(ticket.name),
        "peer": escape(ticket.peer),
        "held_ms": ticket.held_ms,
        "left_ms": ticket.left_ms,
    }


def waiters_table(waiters: Iterable[pb.Waiter]) -> str:
    """A line per waiter."""
    head = ("JOINED", "STATE", "WAITED", "LEFT", "NAME", "PEER", "CLIENT", "KEYS")
    rows = (
        (
            str(waiter.joined),
            STATES.get(waiter.state, "?"),
            duration(waiter.waited_ms),
            duration(waiter.left_ms) if waiter.HasField("left_ms") else "no end",
            escape(waiter.name) or "-",
            escape(waiter.peer) or "-",
            str(waiter.owner),
            keys(waiter.keys),
        )
        for waiter in waiters
    )
    return align(head, rows)


def waiter_json(waiter: pb.Waiter) -> dict[str, Any]:
    """One waiter."""
    return {
        "joined": str(waiter.joined),
        "keys": [escape(key) for key in waiter.keys],
        "client_id": str(waiter.owner),
        "state": STATES.get(waiter.state),
        "name": escape(waiter.name),
        "peer": escape(waiter.peer),
        "waited_ms": waiter.waited_ms,
        "left_ms": waiter.left_ms if waiter.HasField("left_ms") else None,
    }


# Status


def status_table(status: pb.StatusResponse) -> str:
    """The node and its counts, then a line per slot of the cluster."""
    waiters = f"{status.waiters_attached} attached, {status.waiters_held_back} held back,"
    rows = [
        ("version", f"{escape(status.version)} ({escape(status.engine)})"),
        ("up", duration(status.uptime_ms)),
        ("draining", "yes" if status.draining else "no"),
        ("tickets", f"{status.tickets} of {status.held_keys} keys"),
        ("waiters", f"{waiters} {status.waiters_detached} detached"),
        ("longest queue", str(status.longest_queue)),
        ("oldest waiter", duration(status.oldest_waiter_age_ms)),
        ("connections", str(status.connections)),
        ("grants", str(status.grants)),
        ("loop lag", f"{status.loop_lag_us / 1_000:.1f}ms"),
    ]
    if status.node_id:
        rows += [
            ("node id", f"{status.node_id:016x}"),
            ("cluster id", status.cluster_id.hex() or "none yet"),
            ("committed", str(status.commit_index)),
            ("checksum", status.checksum.hex()),
        ]
    text = state_line(status.state) + align(rows[0], rows[1:])
    if status.members:
        text += "\n" + members_table(status.members)
    return text


def members_table(members: Iterable[pb.Member]) -> str:
    """A line per slot."""
    head = ("SLOT", "KIND", "ROLE", "NODE", "LAG", "HEARD", "ADDRESS")
    rows = (
        (
            str(member.slot),
            KINDS.get(member.kind, "?"),
            "leader" if member.is_leader else "-",
            f"{member.node_id:016x}" if member.node_id else "-",
            str(member.lag_entries) if member.HasField("lag_entries") else "-",
            f"{duration(member.heard_ms_ago)} ago" if member.HasField("heard_ms_ago") else "-",
            escape(member.address) or "-",
        )
        for member in members
    )
    return align(head, rows)


def status_json(status: pb.StatusResponse) -> dict[str, Any]:
    """The node, its counts and its cluster."""
    return {
        "state": state_json(status.state),
        "version": escape(status.version),
        "engine": escape(status.engine),
        "uptime_ms": status.uptime_ms,
        "draining": status.draining,
        "tickets": status.tickets,
        "held_keys": status.held_keys,
        "waiters": {
            "attached": status.waiters_attached,
            "held_back": status.waiters_held_back,
            "detached": status.waiters_detached,
        },
        "longest_queue": status.longest_queue,
        "oldest_waiter_age_ms": status.oldest_waiter_age_ms,
        "connections": status.connections,
        "grants": status.grants,
        "loop_lag_ms": status.loop_lag_us / 1_000,
        "node_id": f"{status.node_id:016x}" if status.node_id else None,
        "cluster_id": status.cluster_id.hex() or None,
        "commit_index": status.commit_index,
        "checksum": status.checksum.hex() or None,
        "members": [_member_json(member) for member in status.members],
    }


def _member_json(member: pb.Member) -> dict[str, Any]:
    return {
        "slot": member.slot,
        "kind": KINDS.get(member.kind),
        "is_leader": member.is_leader,
        "node_id": f"{member.node_id:016x}" if member.node_id else None,
        "address": escape(member.address),
        "lag_entries": member.lag_entries if member.HasField("lag_entries") else None,
        "heard_ms_ago": member.heard_ms_ago if member.HasField("heard_ms_ago") else None,
    }
