"""Golden vectors by what they are about, so that one test covers a group of them."""

from __future__ import annotations

from ticketing_spec.vectors import Vector


def groups(of: list[Vector]) -> dict[str, list[Vector]]:
    """Vectors by frame, malformed ones by frame and case, as `frame-case`."""
    found: dict[str, list[Vector]] = {}
    for vector in of:
        name = f"{vector.what}-{vector.error}" if vector.error else vector.what
        found.setdefault(name, []).append(vector)
    return found
