"""Numbers that nobody can foretell, for what is pure and takes them as an argument."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator


def secret_numbers() -> Iterator[int]:
    """Yield whole numbers of 0 to 2^64 - 1 from the system: for identities."""
    while True:
        yield int.from_bytes(os.urandom(8), "big")


def cheap_numbers() -> Iterator[int]:
    """As `secret_numbers`, but without a system call each: for delays, which nobody gains by."""
    draw = random.Random(os.urandom(32)).getrandbits
    while True:
        yield draw(64)
