"""What the process has from the system: open files, and the service manager's notices."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import socket
import time
from collections.abc import Mapping

from ticketing_server.limits import Limits

_FILES_BESIDE_CONNECTIONS = 256


def files_needed(limits: Limits) -> int:
    """How many descriptors the server may have open at once."""
    return limits.connections + limits.handshakes + _FILES_BESIDE_CONNECTIONS


def raise_file_limit(limits: Limits) -> str:
    """Raise RLIMIT_NOFILE to what `limits` need; return "" or what the operator has to know."""
    needed = files_needed(limits)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return ""
    if hard == resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
        return ""
    # Only root may raise the hard limit; everybody may go up to it.
    for new_hard in (max(hard, needed), hard):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(needed, new_hard), new_hard))
        except (OSError, ValueError):
            continue
        soft = min(needed, new_hard)
        break
    if soft >= needed:
        return ""
    return (
        f"the limits need {needed} open files and the system allows {soft}: raise LimitNOFILE"
        f" (ulimit -n) or lower --max-connections and --max-handshakes"
        f" (now {limits.connections} and {limits.handshakes})"
    )


def freeze_what_stays(phase: str, info: Mapping[str, int]) -> None:
    """Let no later collection look at what a full one has just found alive; for `gc.callbacks`.

    Else each full collection goes over all tickets: half a second with a million of them, which is
    longer than a leader may be silent. Only for a loop that `leaves_no_cycles`.
    """
    if phase == "stop" and info["generation"] == 2:
        gc.freeze()


def leaves_no_cycles(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether nothing that ends is left to the collector, and so would stay where it was frozen.

    The server's own objects leave none, nor do uvloop's; each of asyncio's own transports does.
    """
    return type(loop).__module__.partition(".")[0] == "uvloop"


def notify(state: str, env_socket: str) -> None:
    """Tell systemd `state` ("READY=1", …) where NOTIFY_SOCKET (`env_socket`) names a socket."""
    if not env_socket:
        return
    address = "\0" + env_socket[1:] if env_socket.startswith("@") else env_socket
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.settimeout(1.0)
            sock.sendto(state.encode(), address)
    except OSError:
        # A service manager that went away is no reason to stop serving locks.
        return


def notify_reloading(env_socket: str) -> None:
    """Tell systemd that a reload began; READY=1 ends it."""
    notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1_000}", env_socket)


def notify_socket() -> str:
    """The socket that the service manager gave, or ""."""
    return os.environ.get("NOTIFY_SOCKET", "")
