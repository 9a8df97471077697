"""What `ticketing-admin` does with the data directory of a stopped node: restore and recover.

Both found a new cluster whose only member is this node. The other slots start with empty
directories, and get everything from it.
"""

from __future__ import annotations

import json
import os
import shlex
import stat
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ticketing_server.admin.errors import DIRECTORY, DISK, USAGE, AdminError
from ticketing_server.cluster import snapshot_file
from ticketing_server.cluster.replica import Replica
from ticketing_server.entropy import secret_numbers
from ticketing_server.raft.configuration import CLUSTER_ID_BYTES, Configuration
from ticketing_server.raft.messages import HardState, Snapshot
from ticketing_server.raft.saves import Save
from ticketing_server.raft.state import Restored
from ticketing_server.setting_values import show_duration
from ticketing_server.storage.directory import Refused
from ticketing_server.storage.identity import NAME as IDENTITY
from ticketing_server.storage.real_directory import RealDirectory
from ticketing_server.storage.store import Opened, Store

_MS = 1_000_000
_NEVER = 1 << 63
_SAVE_NUMBER = 1


class _Founded(NamedTuple):
    """What a directory holds once it is the only one of its cluster."""

    snapshot: Snapshot
    replica: Replica
    node_id: int
    slot: int
    grace_ms: int


def restore(options: Namespace) -> str:
    """Make a directory of a backup: with a new cluster id, and a node id of its own."""
    path: Path = options.data_dir
    meta, replica = _read_backup(options.snapshot)
    slots = options.slots or meta.configuration.slots
    if options.slot >= slots:
        raise AdminError(
            f"--slot: got {options.slot}, and the cluster has slots 0 to {slots - 1}; another size"
            " is given with --slots",
            USAGE,
        )
    with _opened(path) as opened:
        if opened.restored != Restored() or opened.identity.cluster_id:
            raise AdminError(
                f"{str(path)!a} holds a node of cluster {opened.identity.cluster_id.hex()}"
                " already; name a directory that is empty or isn't there",
                DIRECTORY,
            )
        founded = _found(opened, meta, replica, options.slot, slots, options.restart_grace)
    return _report("restored", founded, path, is_json=options.json)


def recover(options: Namespace) -> str:
    """Found a cluster anew of what one node has, where a majority of the old one is lost."""
    path: Path = options.data_dir
    if not (path / IDENTITY).exists():
        raise AdminError(
            f"{str(path)!a} is no data directory; name that of a stopped node (--data-dir)",
            DIRECTORY,
        )
    with _opened(path) as opened:
        meta, replica = _replay(opened, path)
        slots = meta.configuration.slots
        if slots == 1:
            raise AdminError(
                f"{str(path)!a} is of a durable server alone, which has no majority to lose; just"
                " start it",
                DIRECTORY,
            )
        members = meta.configuration.members
        node_id = opened.identity.node_id
        slot = next((slot for slot, node in members if node == node_id), None)
        if slot is None:
            raise AdminError(
                f"{str(path)!a} is of a node that was no voter, and may lack what was granted; take"
                " the directory of a voter",
                DIRECTORY,
            )
        if not options.yes:
            raise AdminError(
                f"the node of slot {slot} has entry {meta.index} of term {meta.term}, with"
                f" {replica.table.tickets} tickets; take the node that has most. A new cluster is"
                " founded from it alone, so stop whatever is left of the old one: else both grant"
                " the same locks. Then add --yes",
                USAGE,
            )
        founded = _found(opened, meta, replica, slot, slots, options.restart_grace)
    return _report("recovered", founded, path, is_json=options.json)


def _found(
    opened: Opened,
    meta: Snapshot,
    replica: Replica,
    slot: int,
    slots: int,
    grace_ms: int | None,
) -> _Founded:
    """Make a directory's node the only member of a new cluster that begins with this table."""
    limits = replica.table.limits
    if grace_ms is None:
        # Whatever was granted since may go on for as long.
        grace_ms = max(limits.max_lease_ms, limits.restart_grace_ms)
    until = meta.stamp + grace_ms * _MS
    # One above, as it may have voted in the last one.
    term = max(opened.restored.hard_state.term, meta.term) + 1
    if max(until, term) >= _NEVER:
        raise AdminError(
            f"no clock goes on for {show_duration(grace_ms)} after the time in the snapshot; give a"
            " shorter --restart-grace, or take another backup",
            DIRECTORY,
        )
    if grace_ms:
        replica.table.hold_grants_until(until)
    node_id = opened.identity.node_id
    configuration = Configuration(os.urandom(CLUSTER_ID_BYTES), ((slot, node_id),), slots)
    snapshot = replace(meta, configuration=configuration)
    save = Save(_SAVE_NUMBER, HardState(term, None), snapshot, ())
    opened.store.write([save], install=snapshot_file.encode(snapshot, replica.dump()))
    return _Founded(snapshot, replica, node_id, slot, grace_ms)


def _replay(opened: Opened, path: Path) -> tuple[Snapshot, Replica]:
    """What a node has in snapshot and log, committed or not."""
    restored = opened.restored
    last = restored.snapshot.index if restored.snapshot is not None else 0
    if restored.entries:
        last = restored.entries[-1].index
    if not last:
        raise AdminError(
            f"{str(path)!a} has no log: its node was in no cluster; just start it", DIRECTORY
        )
    try:
        file, _ = snapshot_file.make(opened.snapshot_file, restored.entries, last)
        return snapshot_file.read(file)
    except ValueError as error:
        raise AdminError(
            f"{str(path)!a} can't be replayed ({error}); take another node, or a backup"
            " (ticketing-admin restore)",
            DIRECTORY,
        ) from None


def _read_backup(path: Path) -> tuple[Snapshot, Replica]:
    try:
        return snapshot_file.read(path.read_bytes())
    except OSError as error:
        raise AdminError(
            f"--snapshot: got {str(path)!a}, which can't be read ({error.strerror}); takes a file"
            " that `ticketing-admin snapshot` wrote",
            USAGE,
        ) from None
    except ValueError as error:
        raise AdminError(
            f"--snapshot: got {str(path)!a} ({error}); takes a file that `ticketing-admin snapshot`"
            " wrote",
            DIRECTORY,
        ) from None


@contextmanager
def _opened(path: Path) -> Iterator[Opened]:
    """Hold a directory; every failure is an AdminError."""
    try:
        directory = RealDirectory(path)
        try:
            yield Store.open(directory, secret_numbers())
        finally:
            directory.close()
            _keep_owner(path)
    except Refused as error:
        raise AdminError(str(error), DIRECTORY) from None
    except OSError as error:
        raise AdminError(
            f"data directory {str(path)!a} can't be read or written ({error.strerror}); nothing of"
            " it is used until this works",
            DISK,
        ) from None


def _keep_owner(path: Path) -> None:
    """Give what root made in another user's directory to that user, who starts the server."""
    if os.geteuid() != 0:
        return
    owner = path.stat()
    for file in path.iterdir():
        found = file.lstat()
        # Never what a link leads to: that user may have put the link there.
        if stat.S_ISREG(found.st_mode) and found.st_uid == 0 and found.st_nlink == 1:
            os.chown(file, owner.st_uid, owner.st_gid, follow_symlinks=False)


def _report(verb: str, founded: _Founded, path: Path, *, is_json: bool) -> str:
    snapshot, table = founded.snapshot, founded.replica.table
    waiters = table.attached + table.held_back + table.detached
    configuration = snapshot.configuration
    if is_json:
        return (
            json.dumps(
                {
                    "index": snapshot.index,
                    "term": snapshot.term,
                    "tickets": table.tickets,
                    "waiters": waiters,
                    "node_id": f"{founded.node_id:016x}",
                    "cluster_id": configuration.cluster_id.hex(),
                    "slot": founded.slot,
                    "slots": configuration.slots,
                    "restart_grace_ms": founded.grace_ms,
                },
                indent=2,
            )
            + "\n"
        )
    start = f"start it: ticketing-server --data-dir {shlex.quote(str(path))}"
    if configuration.slots > 1:
        start += (
            f" --slot {founded.slot} --cluster …\n"
            f"{verb} on this node only: the other slots start with empty directories and join it"
        )
    return (
        f"{verb}: {table.tickets} tickets and {waiters} waiters as of entry {snapshot.index} of"
        f" term {snapshot.term}\n"
        f"node {founded.node_id:016x} of slot {founded.slot} is the only member of the new cluster"
        f" {configuration.cluster_id.hex()}\n" + f"{_grace(founded)}\n" + f"{start}\n"
    )


def _grace(founded: _Founded) -> str:
    longest_ms = founded.replica.table.limits.max_lease_ms
    text = "it grants from its start on"
    if founded.grace_ms:
        text = f"it grants nothing for {show_duration(founded.grace_ms)} after its start"
    if founded.grace_ms >= longest_ms:
        return f"{text}: as long as the longest lease that may go on"
    return f"{text}; a lease of up to {show_duration(longest_ms)} of before may still go on then"
