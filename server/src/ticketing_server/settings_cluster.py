"""What belongs together in the settings of durable mode and of a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ticketing_server.addresses import Address
from ticketing_server.constants_gen import KEEPALIVE_S_CLUSTER
from ticketing_server.secret_file import read_secret_file, weak_secrets
from ticketing_server.settings import BY_NAME, ClusterSettings, Settings
from ticketing_server.settings_given import (
    Given,
    make_secret,
    secrets_of,
    shown,
    tls_files,
)

CLUSTER_SECRET_ENV = "TICKETING_CLUSTER_SECRET"
SIZES = (3, 5)
_ONLY_IN_CLUSTERS = (
    "slot", "peer-listen", "advertise", "cluster-secret-file", "peer-tls-cert", "peer-tls-key",
    "peer-tls-ca",
)  # fmt: skip


def cluster_of(given: Given, values: Mapping[str, Any]) -> ClusterSettings | None:
    """Return a node's place in its cluster, None where there is no cluster."""
    nodes: tuple[tuple[Address, Address], ...] | None = values["cluster"]
    if nodes is None:
        _refuse_without_cluster(given)
        return None
    _check_nodes(given, nodes)
    slot = _slot(given, values["slot"], len(nodes))
    if values["data-dir"] is None:
        raise given.refusal(
            f"{given.called('cluster')}: takes --data-dir too, as a node has to remember what it"
            " voted and acknowledged",
            {"data-dir": BY_NAME["data-dir"].example},
        )
    peers = tuple(peer for peer, _ in nodes)
    clients = tuple(client for _, client in nodes)
    if (advertised := values["advertise"]) is not None:
        clients = (*clients[:slot], advertised, *clients[slot + 1 :])
    path = values["cluster-secret-file"]
    return ClusterSettings(
        slot=slot,
        peers=peers,
        clients=clients,
        peer_listen=values["peer-listen"] or (peers[slot],),
        secret_file=path,
        secrets=secrets_of(
            given, path, "cluster-secret-file", CLUSTER_SECRET_ENV, read_secret_file, tuple
        ),
        tls=tls_files(given, values, "peer-"),
    )


def _refuse_without_cluster(given: Given) -> None:
    for name in _ONLY_IN_CLUSTERS:
        if name in given.values:
            raise given.refusal(
                f"{given.called(name)}: got {shown(given.text(name))} without --cluster, where it"
                " has no effect; takes --cluster too, or to be left out",
                {name: None},
            )


def _check_nodes(given: Given, nodes: tuple[tuple[Address, Address], ...]) -> None:
    called, text = given.called("cluster"), shown(given.text("cluster"))
    if len(nodes) not in SIZES:
        why = "; 2 or 4 nodes survive no more failures than 1 or 3" if len(nodes) < 5 else ""
        raise given.refusal(
            f"{called}: got {text}, which has {len(nodes)} nodes; takes 3 or 5{why}",
            {"cluster": BY_NAME["cluster"].example},
        )
    seen: dict[Address, str] = {}
    for slot, (peer, client) in enumerate(nodes):
        for address, use in ((peer, "peers"), (client, "clients")):
            what = f"slot {slot} for {use}"
            if address in seen:
                raise given.refusal(
                    f"{called}: got {text}, where {address} is the address of {seen[address]} and"
                    f" of {what}; takes {2 * len(nodes)} different addresses",
                    {"cluster": BY_NAME["cluster"].example},
                )
            seen[address] = what


def _slot(given: Given, slot: int | None, slots: int) -> int:
    if slot is None:
        raise given.refusal(
            f"{given.called('cluster')}: takes --slot too, this node's place in it,"
            f" 0 to {slots - 1}",
            {"slot": "0"},
        )
    if slot >= slots:
        raise given.refusal(
            f"{given.called('slot')}: got {slot}, takes 0 to {slots - 1}, as --cluster has"
            f" {slots} nodes",
            {"slot": str(slots - 1)},
        )
    return slot


def check_cluster(given: Given, settings: Settings) -> None:
    """Refuse peers that others could pose as, and addresses that lead nobody here."""
    cluster = settings.cluster
    if cluster is None:
        return
    reachable = (*cluster.peers, *cluster.peer_listen)
    exposed = [address for address in reachable if not address.is_loopback]
    if exposed and not cluster.secrets:
        example = BY_NAME["cluster-secret-file"].example
        raise given.refusal(
            f"{given.called('cluster')}: got the peer address {exposed[0]}, which other machines"
            " may reach; takes loopback, or in addition a secret that all nodes share"
            f" (--cluster-secret-file or {CLUSTER_SECRET_ENV}), as anyone could pose as a node",
            {"cluster-secret-file": example},
            make_secret(example),
        )


def check_data_dir(given: Given, settings: Settings) -> None:
    """Refuse a folder that can't be one, and what has no meaning with or without it."""
    path = settings.data_dir
    if path is None:
        if "failover-grace" in given.values:
            raise given.refusal(
                f"{given.called('failover-grace')}: got {shown(given.text('failover-grace'))}"
                " without --data-dir, where it has no effect; takes --data-dir too, or to be left"
                " out",
                {"failover-grace": None},
            )
        return
    if settings.limits.restart_grace_ms:
        raise given.refusal(
            f"{given.called('restart-grace')}: got {shown(given.text('restart-grace'))} with"
            " --data-dir, which forgets nothing over a restart; takes 0 or to be left out",
            {"restart-grace": None},
        )
    problem = _problem_of_folder(path)
    if problem:
        raise given.refusal(
            f"{given.called('data-dir')}: got {shown(str(path))}, {problem}; takes the path of a"
            " folder, which is made if its parent is there",
            {"data-dir": BY_NAME["data-dir"].example},
        )


def _problem_of_folder(path: Path) -> str:
    try:
        if path.exists():
            return "" if path.is_dir() else "which is no folder"
        return "" if path.absolute().parent.is_dir() else "whose parent folder does not exist"
    except OSError as error:
        return f"which can't be looked at ({error.strerror})"


def cluster_warnings(settings: Settings) -> list[str]:
    """What an operator should know of a cluster's settings that is no reason to refuse them."""
    cluster = settings.cluster
    if cluster is None:
        return []
    found = [f"of the cluster's: {warning}" for warning in weak_secrets(cluster.secrets)]
    path = cluster.secret_file
    if path is not None and path.stat().st_mode & 0o007:
        found.append(f"every user of this machine can read or write {path}")
    if cluster.tls is None and not all(address.is_loopback for address in cluster.peers):
        found.append(
            "nodes prove the cluster secret to each other and encrypt nothing: there is no"
            " --peer-tls-cert"
        )
    return found


def with_cluster_defaults(given: Given, values: Mapping[str, Any], settings: Settings) -> Settings:
    """Return settings with the defaults that differ in a cluster."""
    if settings.cluster is None:
        return settings
    limits = settings.limits
    if given.source("keepalive") == "default":
        limits = replace(limits, keepalive_s=KEEPALIVE_S_CLUSTER)
    listen = settings.listen
    if given.source("listen") == "default":
        listen = (values["cluster"][settings.cluster.slot][1],)
    return replace(settings, limits=limits, listen=listen)
