"""Heartbeat rounds: what proves that a leader was still followed, and since when.

An acknowledgement says when its round was *sent*, not when it was read: one that lay in a socket
while the leader was stopped proves nothing about now.
"""

from __future__ import annotations

from collections import deque


class Rounds:
    """The rounds of one term."""

    def __init__(self, now_ns: int) -> None:
        """Begin at an election, which counts as round 0."""
        self.last = 0
        """Number of the last round begun."""
        self.confirmed_sent_ns = now_ns
        """When the newest round was sent that a majority acknowledged."""
        self.confirmed = 0
        """Its number."""
        self.begun_ns = now_ns
        """When the last round was begun."""
        self._sent: deque[tuple[int, int]] = deque()

    def begin(self, now_ns: int) -> int:
        """Begin a round and return its number."""
        self.last += 1
        self.begun_ns = now_ns
        self._sent.append((self.last, now_ns))
        return self.last

    def confirm(self, number: int) -> None:
        """Take that a majority acknowledged this round; older ones say nothing new."""
        while self._sent and self._sent[0][0] <= number:
            self.confirmed, self.confirmed_sent_ns = self._sent.popleft()
