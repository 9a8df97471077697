"""Who a directory is: made and synced before anything else is done with it."""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple
from zlib import crc32

from ticketing_server.storage.directory import Directory, Refused, put

NAME = "identity"
_MAGIC = b"TKID\x00\x00\x00\x01"
_FIELDS = Struct(">8sQQ?16s?")
_CRC = Struct(">I")


class Identity(NamedTuple):
    """What the file `identity` holds."""

    node_id: int
    """Drawn with the directory, never configured, not 0."""
    cluster_id: bytes = b""
    """The cluster this node is in or has met; one that has met any never founds one."""
    has_log: bool = False
    """Whether a log or a snapshot of that cluster was here; then it has to be here."""
    log_id: int = 0
    """Marks this directory's groups; told to nobody."""


def read_identity(directory: Directory) -> Identity | None:
    """Return who a directory is, None if it's nobody yet; `Refused` if it can't be told."""
    if NAME not in directory.list():
        return None
    data = directory.read(NAME)
    if len(data) != _FIELDS.size + _CRC.size or not data.startswith(_MAGIC):
        raise _refusal(directory, "has not the form of one")
    if _CRC.unpack_from(data, _FIELDS.size)[0] != crc32(data[: _FIELDS.size]):
        raise _refusal(directory, "is damaged")
    _, node_id, log_id, has_cluster, cluster_id, has_log = _FIELDS.unpack_from(data)
    return Identity(node_id, cluster_id if has_cluster else b"", has_log, log_id)


def write_identity(directory: Directory, identity: Identity) -> None:
    """Write and sync it."""
    fields = _FIELDS.pack(
        _MAGIC, identity.node_id, identity.log_id, bool(identity.cluster_id),
        identity.cluster_id, identity.has_log,
    )  # fmt: skip
    put(directory, NAME, fields + _CRC.pack(crc32(fields)))


def _refusal(directory: Directory, what: str) -> Refused:
    return Refused(
        f"{directory.label}/{NAME} {what}, so this node doesn't know who it is. Move the "
        "directory away and start with an empty one"
    )
