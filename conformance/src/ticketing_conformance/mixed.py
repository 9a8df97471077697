"""The suites `mixed` and `cluster`: all clients at hand, each in a process of its own.

A case is run once, whatever languages there are. Its steps name the members by their number:
`@1` to `@{members}`; which language has which number is nothing that a case can know.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ticketing_conformance.adapters import Language

CLUSTER_SUITE = "cluster"
SUITES = ("mixed", CLUSTER_SUITE)
COLUMN = "together"
# One language alone still competes with other processes of its own.
MEMBERS_MIN = 4


def seats(able: Sequence[tuple[Language, str]]) -> dict[str, tuple[Language, str]]:
    """Every client and API once, and again from the first where they are fewer than four."""
    count = max(MEMBERS_MIN, len(able))
    return {
        str(number): member
        for number, member in zip(range(1, count + 1), itertools.cycle(able), strict=False)
    }
