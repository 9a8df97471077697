"""Every setting once: its name, default, unit, check and one line of about.

A setting called `max-lease` is the flag `--max-lease` and the variable `TICKETING_MAX_LEASE`;
`settings_load` makes `Settings` of what was given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ticketing_server.addresses import Address
from ticketing_server.constants_gen import (
    DEFAULT_HTTP_PORT,
    DEFAULT_PORT,
    FAILOVER_GRACE_MS,
)
from ticketing_server.limits import Limits
from ticketing_server.secret_file import Secret
from ticketing_server.setting_values import (
    choice,
    count,
    duration,
    parse_addresses,
    parse_advertise,
    parse_cluster,
    parse_host_names,
    parse_http_listen,
    parse_keepalive,
    parse_listen,
    parse_path,
    parse_peer_listen,
    show_duration,
)

ENV_PREFIX = "TICKETING_"
DEFAULT_ADMIN_PORT = 5229
"""Where `ticketing-admin` looks for a server; a server listens there only when told to."""
_DEFAULTS = Limits()
_LISTEN = f"127.0.0.1:{DEFAULT_PORT}"
_HTTP_LISTEN = f"127.0.0.1:{DEFAULT_HTTP_PORT}"


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table; `limit` is the field of `Limits` that it fills, if any."""

    name: str
    default: str
    takes: str
    about: str
    parse: Callable[[str], Any] = field(repr=False)
    example: str
    several: bool = False
    limit: str = ""

    @property
    def flag(self) -> str:
        """The command line's name for it."""
        return "--" + self.name

    @property
    def env(self) -> str:
        """The environment's name for it."""
        return ENV_PREFIX + self.name.upper().replace("-", "_")


_COUNT_TAKES = "a whole number, {low:,} to {high:,}".format
_DURATION_TAKES = "a duration with its unit (ms, s, m, h, d), {low} to {high}".format
_FILE_TAKES = "the path of a file"


def _limit_setting(limit: str, low: int, high: int, about: str) -> Setting:
    name, default = "max-" + limit.replace("_", "-"), str(getattr(_DEFAULTS, limit))
    takes = _COUNT_TAKES(low=low, high=high)
    return Setting(name, default, takes, about, count(low, high), default, limit=limit)


def _file_setting(name: str, about: str, example: str, takes: str = _FILE_TAKES) -> Setting:
    return Setting(name, "", takes, about, parse_path, example)


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "listen",
        _LISTEN,
        "addresses as host:port, [v6]:port or unix:/path, by comma or by repeating the flag",
        "where clients connect; port 0 takes a free one",
        parse_listen,
        _LISTEN,
        several=True,
    ),
    Setting(
        "listen-v3",
        "off",
        "off, or addresses as host:port, [v6]:port or unix:/path",
        "where clients of protocol version 3 connect; never TLS",
        parse_addresses,
        "127.0.0.1:5226",
        several=True,
    ),
    Setting(
        "http-listen",
        _HTTP_LISTEN,
        "off, or addresses as host:port or [v6]:port",
        "metrics, probes and dashboard; by default a free port where --listen has only port 0",
        parse_http_listen,
        _HTTP_LISTEN,
        several=True,
    ),
    Setting(
        "http-host",
        "",
        "host names, by comma or by repeating the flag",
        "names beside localhost, this host's and plain IP addresses that a Host header may have",
        parse_host_names,
        "locks.example.com",
        several=True,
    ),
    _file_setting(
        "http-token-file",
        "holds the bearer token that /status and the dashboard need on an address beyond loopback",
        "http-token",
    ),
    _file_setting(
        "secret-file",
        "secrets shared with clients, a line each: `name secret`, or a bare secret; or put one"
        " secret into TICKETING_SECRET (never into the command line); SIGHUP reads it again",
        "ticketing.secret",
    ),
    _file_setting(
        "tls-cert",
        "certificate chain (PEM); with it every TCP address of --listen speaks TLS",
        "server.pem",
    ),
    _file_setting("tls-key", "private key of --tls-cert (PEM, not encrypted)", "server.key"),
    _file_setting(
        "tls-client-ca",
        "certificate authorities (PEM), one of which has to have signed a client's certificate",
        "clients-ca.pem",
    ),
    _file_setting(
        "data-dir",
        "folder of this server's own (made if need be) that keeps tickets, queues and tokens over"
        " restarts; without it a restart forgets them",
        "data",
        takes="the path of a folder",
    ),
    Setting(
        "cluster",
        "",
        "3 or 5 times peer_host:port/client_host:port, by comma or by repeating the flag",
        "every node's addresses for peers and for clients, in the order of their slots, the same"
        " on all; needs --slot and --data-dir",
        parse_cluster,
        "n0:5227/n0:5225,n1:5227/n1:5225,n2:5227/n2:5225",
        several=True,
    ),
    Setting(
        "slot", "", "a whole number, 0 to 4", "this node's place in --cluster", count(0, 4), "0"
    ),
    Setting(
        "peer-listen",
        "",
        "addresses as host:port or [v6]:port",
        "where other nodes connect; by default this node's peer address in --cluster",
        parse_peer_listen,
        "0.0.0.0:5227",
        several=True,
    ),
    Setting(
        "advertise",
        "",
        "one address as host:port or [v6]:port",
        "where clients are told to find this node; by default its client address in --cluster",
        parse_advertise,
        "n0.example.com:5225",
    ),
    _file_setting(
        "cluster-secret-file",
        "secrets shared by the nodes, as in --secret-file, the first being the one that this node"
        " proves; or put one into TICKETING_CLUSTER_SECRET; SIGHUP reads it again",
        "cluster.secret",
    ),
    _file_setting(
        "peer-tls-cert",
        "certificate chain (PEM) with which this node both serves and dials its peers",
        "peer.pem",
    ),
    _file_setting("peer-tls-key", "private key of --peer-tls-cert (PEM)", "peer.key"),
    _file_setting(
        "peer-tls-ca",
        "certificate authorities (PEM), one of which has to have signed each peer's certificate",
        "peers-ca.pem",
    ),
    Setting(
        "failover-grace",
        show_duration(FAILOVER_GRACE_MS),
        _DURATION_TAKES(low="0", high="1h"),
        "how long after a change of the leader, or a restart, waiters and holders have to come"
        " back; only with --data-dir",
        duration(0, 3_600_000),
        "5s",
    ),
    Setting(
        "admin-listen",
        "off",
        "off, or addresses as host:port, [v6]:port or unix:/path",
        "where `ticketing-admin` connects (gRPC); beyond loopback it needs TLS, and a secret or"
        " client certificates",
        parse_addresses,
        f"127.0.0.1:{DEFAULT_ADMIN_PORT}",
        several=True,
    ),
    _file_setting(
        "admin-secret-file",
        "secrets of administration, as in --secret-file, each of 16 to 1,024 printable ASCII"
        " characters without space; or put one into TICKETING_ADMIN_SECRET; SIGHUP reads it again",
        "admin.secret",
    ),
    _file_setting(
        "admin-tls-cert",
        "certificate chain (PEM); with it every TCP address of --admin-listen speaks TLS",
        "admin.pem",
    ),
    _file_setting("admin-tls-key", "private key of --admin-tls-cert (PEM)", "admin.key"),
    _file_setting(
        "admin-tls-client-ca",
        "certificate authorities (PEM), one of which has to have signed an administrator's"
        " certificate",
        "admins-ca.pem",
    ),
    _limit_setting(
        "connections",
        1,
        10_000_000,
        "welcomed connections; more get too_many_connections",
    ),
    _limit_setting(
        "handshakes",
        1,
        1_000_000,
        "connections that are not yet welcomed; over it the oldest is closed",
    ),
    _limit_setting(
        "waiters_per_key",
        1,
        100_000_000,
        "waiters in the queue of one key; more get overloaded",
    ),
    _limit_setting(
        "waiters",
        1,
        100_000_000,
        "waiters in all; more get overloaded",
    ),
    _limit_setting(
        "held_keys",
        1,
        100_000_000,
        "keys held by all tickets together; more get overloaded",
    ),
    _limit_setting(
        "unsent_bytes",
        65_536,
        1_073_741_824,
        "output in bytes over which a connection is no longer read; at a quarter of it it is again",
    ),
    Setting(
        "max-lease",
        show_duration(_DEFAULTS.max_lease_ms),
        _DURATION_TAKES(low="1ms", high="4294967294ms"),
        "the longest lease; more gets lease_too_long",
        duration(1, 4_294_967_294),
        "1d",
        limit="max_lease_ms",
    ),
    Setting(
        "keepalive",
        show_duration(_DEFAULTS.keepalive_s * 1_000),
        "whole seconds as a duration, 1s to 1h",
        "clients ping as often; one that is silent three times as long is disconnected",
        parse_keepalive,
        "5s",
        limit="keepalive_s",
    ),
    Setting(
        "reattach-grace",
        show_duration(_DEFAULTS.reattach_grace_ms),
        _DURATION_TAKES(low="0", high="1d"),
        "how long a waiter keeps its place without a connection",
        duration(0, 86_400_000),
        "40s",
        limit="reattach_grace_ms",
    ),
    Setting(
        "restart-grace",
        "0",
        _DURATION_TAKES(low="0", high="30d"),
        "how long after a start nothing is granted, so that the leases of the run before end first;"
        " has to be chosen (0 too) for an address beyond loopback; not with --data-dir, which"
        " forgets none",
        duration(0, 30 * 86_400_000),
        "30s",
        limit="restart_grace_ms",
    ),
    Setting(
        "log-format", "text", "text or json", "how log lines look", choice("text", "json"), "text"
    ),
    Setting(
        "log-level",
        "info",
        "debug, info, warning or error",
        "the least important line that is written",
        choice("debug", "info", "warning", "error"),
        "info",
    ),
    Setting(
        "loop",
        "auto",
        "auto, uvloop or asyncio",
        "the event loop; auto is uvloop where it is installed",
        choice("auto", "uvloop", "asyncio"),
        "auto",
    ),
    _file_setting(
        "ready-file",
        "gets the bound addresses as name=value lines when clients can connect; removed at the end",
        "ready",
    ),
)
BY_NAME = {setting.name: setting for setting in SETTINGS}


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The files of a TLS listener; `client_ca` only for mutual TLS."""

    cert: Path
    key: Path
    client_ca: Path | None = None
    prefix: str = ""
    """What the names of its settings begin with, before `tls-cert`."""

    @property
    def ca_flag(self) -> str:
        """The flag that named `client_ca`."""
        return "--peer-tls-ca" if self.prefix == "peer-" else f"--{self.prefix}tls-client-ca"

    def paths(self) -> tuple[Path, ...]:
        """Every file that is named."""
        return (self.cert, self.key, *([self.client_ca] if self.client_ca else []))


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """A node's place among the others; addresses are by slot."""

    slot: int
    peers: tuple[Address, ...]
    clients: tuple[Address, ...]
    peer_listen: tuple[Address, ...]
    secret_file: Path | None = None
    secrets: tuple[Secret, ...] = ()
    tls: TlsFiles | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """What the server runs with; every field has a checked value."""

    listen: tuple[Address, ...] = (Address("127.0.0.1", DEFAULT_PORT),)
    listen_v3: tuple[Address, ...] = ()
    http_listen: tuple[Address, ...] = (Address("127.0.0.1", DEFAULT_HTTP_PORT),)
    http_host: tuple[str, ...] = ()
    http_token: str = field(default="", repr=False)
    secret_file: Path | None = None
    secrets: tuple[Secret, ...] = ()
    tls: TlsFiles | None = None
    data_dir: Path | None = None
    cluster: ClusterSettings | None = None
    failover_grace_ms: int = FAILOVER_GRACE_MS
    admin_listen: tuple[Address, ...] = ()
    admin_secret_file: Path | None = None
    admin_secrets: tuple[Secret, ...] = ()
    admin_tls: TlsFiles | None = None
    limits: Limits = _DEFAULTS
    log_format: str = "text"
    log_level: str = "info"
    loop: str = "auto"
    ready_file: Path | None = None
    warnings: tuple[str, ...] = ()

    @property
    def mode(self) -> str:
        """What a restart forgets: `memory`, `durable` or `cluster`."""
        if self.cluster is not None:
            return "cluster"
        return "memory" if self.data_dir is None else "durable"
