"""What this machine lacks for cases that cut networks and fill disks."""

from __future__ import annotations

from ticketing_conformance.cluster import disk, network


def lacks() -> dict[str, str]:
    """Why a case that needs it can't run here, by `network` and `disk`."""
    found = {"network": network.missing(), "disk": disk.missing()}
    return {name: reason for name, reason in found.items() if reason}
