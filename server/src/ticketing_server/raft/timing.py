"""How long everything takes, and how much is on its way at once."""

from __future__ import annotations

from dataclasses import dataclass

MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Timing:
    """All in nanoseconds. The rule that a leader which answers is alone rests on
    `confirmed_for_ns` < `refusal_ns` <= `election_min_ns`."""

    heartbeat_ns: int = 50 * MS
    election_min_ns: int = 400 * MS
    election_span_ns: int = 400 * MS
    """Drawn on top of the minimum, or …"""
    gone_span_ns: int = 100 * MS
    """… where the connection to the leader broke, which rarely means anything but its end."""
    retry_min_ns: int = 50 * MS
    """A refused or split (pre-)vote is repeated after this, doubling each time, …"""
    retry_span_ns: int = 100 * MS
    """… and what is drawn on top of it, doubling too."""
    refusal_ns: int = 400 * MS
    """No votes for so long after a leader was heard, and after the start."""
    confirmed_for_ns: int = 350 * MS
    """A leader applies for so long after a round was *sent* that a majority acknowledged."""
    step_down_ns: int = 800 * MS
    """A leader without such a round for so long gives up, …"""
    sync_hangs_ns: int = 800 * MS
    """… and so does one whose save takes so long."""
    stall_ns: int = 200 * MS
    """A gap between two calls that counts as a stall."""
    transfer_ns: int = 400 * MS
    """How long a transfer may wait for the target, and then how long its election may take."""
    snapshot_again_ns: int = 60_000 * MS
    """A snapshot that isn't answered for so long, by a peer that is heard, is sent again."""
    replace_ns: int = 10_000 * MS
    """How long a member is unheard before a learner takes its slot."""


@dataclass(frozen=True, slots=True)
class Windows:
    """What a leader has on its way at most."""

    append_bytes: int = 512 * 1024
    """One `Append`; a single entry may be larger."""
    messages: int = 64
    """Appends to one follower that it hasn't answered."""
    bytes: int = 4 * 1024 * 1024
    """Entries in those."""
    unsynced_entries: int = 2
    """Entries of the leader's own that its disk has yet to take."""
    uncommitted_bytes: int = 8 * 1024 * 1024
    """Above this nothing more is proposed."""
