"""A durable server or a member of a cluster, as administration sees it."""

from __future__ import annotations

from typing import Literal

from ticketing_server.admin.host import CantDo, ClusterInfo, MemberInfo, Standing
from ticketing_server.cluster.values import ClusterStatus, MemberStatus
from ticketing_server.cluster_driver import ClusterDriver
from ticketing_server.listener import clock_ns
from ticketing_server.raft.state import FOLLOWER, LEADER

_Role = Literal["alone", "leader", "follower", "candidate", "learner"]


class DriverKeeper:
    """See `host.Keeper`."""

    def __init__(self, driver: ClusterDriver, *, is_alone: bool) -> None:
        """Speak for the node that `driver` moves; `is_alone` in durable mode."""
        self._driver = driver
        self._is_alone = is_alone

    def standing(self) -> Standing:
        """Where it stands now."""
        status = self._driver.node.cluster_status()
        return Standing(
            mode="durable" if self._is_alone else "cluster",
            role="alone" if self._is_alone else _role(status),
            slot=None if self._is_alone else status.slot,
            term=status.term,
            applied=status.applied,
            cluster_time_ns=status.cluster_time_ns,
            leader="" if self._is_alone else _leader(status),
        )

    def cluster_info(self) -> ClusterInfo:
        """Who its cluster is, as far as it knows."""
        status = self._driver.node.cluster_status()
        members = () if self._is_alone else tuple(_member(m, status) for m in status.members)
        return ClusterInfo(
            status.node_id, status.cluster_id, status.commit, status.checksum, members
        )

    def transfer(self, slot: int | None) -> None:
        """Begin to hand the lead over."""
        if not self._driver.node.transfer(slot, clock_ns()):
            whom = "no other voter" if slot is None else f"slot {slot}"
            raise CantDo(
                f"{whom} can take the lead now: it takes a voter other than the leader that was"
                " heard just now; look at: ticketing-admin status"
            )

    async def snapshot(self) -> bytes:
        """Make a snapshot of what is applied now, and return its file."""
        try:
            return await self._driver.snapshot_now()
        except TimeoutError:
            raise CantDo("no snapshot was made in time; look at the server's log") from None
        except RuntimeError as error:
            raise CantDo(f"{error}; look at the server's log") from None


def _role(status: ClusterStatus) -> _Role:
    is_voter = any(m.node_id == status.node_id and m.kind == "voter" for m in status.members)
    if status.role == LEADER:
        return "leader"
    if not is_voter:
        return "learner"
    return "follower" if status.role == FOLLOWER else "candidate"


def _leader(status: ClusterStatus) -> str:
    return next(
        (
            member.address.decode("utf-8", "backslashreplace")
            for member in status.members
            if member.slot == status.leader_slot and member.kind == "voter"
        ),
        "",
    )


def _member(member: MemberStatus, status: ClusterStatus) -> MemberInfo:
    return MemberInfo(
        member.slot,
        member.kind,
        member.node_id or 0,
        member.address.decode("utf-8", "backslashreplace"),
        member.kind == "voter" and member.slot == status.leader_slot,
        member.lag,
        member.heard_ns_ago,
    )
