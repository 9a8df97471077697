"""From flags and environment to `Settings`: everything is checked before anything is opened."""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path

from ticketing_server.addresses import Address
from ticketing_server.secret_file import (
    Secret,
    check_admin_secrets,
    read_admin_secret_file,
    read_secret_file,
    weak_secrets,
)
from ticketing_server.settings import BY_NAME, ENV_PREFIX, SETTINGS, ClusterSettings, Settings
from ticketing_server.settings_cluster import (
    CLUSTER_SECRET_ENV,
    check_cluster,
    check_data_dir,
    cluster_of,
    cluster_warnings,
    with_cluster_defaults,
)
from ticketing_server.settings_given import (
    Given,
    SettingsError,
    gather,
    make_secret,
    read_file,
    secrets_of,
    shown,
    tls_files,
    value_of,
)

__all__ = [
    "Given", "SettingsError", "gather", "load", "reread_admin_secrets", "reread_cluster_secrets",
    "reread_secrets",
]  # fmt: skip

SECRET_ENV = "TICKETING_SECRET"
ADMIN_SECRET_ENV = "TICKETING_ADMIN_SECRET"
ADMIN_ADDRESS_ENV = "TICKETING_ADMIN_ADDRESS"
_OTHER_ENV = {
    "TICKETING_URL", "TICKETING_NAME", SECRET_ENV, ADMIN_SECRET_ENV, ADMIN_ADDRESS_ENV,
    CLUSTER_SECRET_ENV,
}  # fmt: skip


def load(given: Given) -> Settings:
    """Check every value, read the files that hold secrets, and check what belongs together."""
    values = {name: value_of(given, name) for name in BY_NAME}
    limits = {s.limit: values[s.name] for s in SETTINGS if s.limit}
    settings = Settings(
        listen=values["listen"],
        listen_v3=values["listen-v3"],
        http_listen=_http_listen(given, values["listen"], values["http-listen"]),
        http_host=values["http-host"] or (),
        http_token=_read_token(given, values["http-token-file"]),
        secret_file=values["secret-file"],
        secrets=_read_secrets(given, values["secret-file"]),
        tls=tls_files(given, values),
        data_dir=values["data-dir"],
        cluster=cluster_of(given, values),
        failover_grace_ms=values["failover-grace"],
        admin_listen=values["admin-listen"],
        admin_secret_file=values["admin-secret-file"],
        admin_secrets=_read_admin_secrets(given, values["admin-secret-file"]),
        admin_tls=tls_files(given, values, "admin-"),
        limits=replace(Settings().limits, **limits),
        log_format=values["log-format"],
        log_level=values["log-level"],
        loop=values["loop"],
        ready_file=values["ready-file"],
    )
    settings = with_cluster_defaults(given, values, settings)
    check_data_dir(given, settings)
    check_cluster(given, settings)
    _check_reachable(given, settings)
    _check_admin(given, settings)
    if settings.ready_file is not None and not settings.ready_file.absolute().parent.is_dir():
        raise given.refusal(
            f"{given.called('ready-file')}: got {shown(str(settings.ready_file))}, whose folder"
            " does not exist; takes the path of a file in a folder that does",
            {"ready-file": settings.ready_file.name},
        )
    if settings.ready_file is not None and settings.ready_file.is_dir():
        raise given.refusal(
            f"{given.called('ready-file')}: got {shown(str(settings.ready_file))}, which can't be"
            " written (Is a directory); takes the path of a file in a folder that exists",
            {"ready-file": str(settings.ready_file / "ready")},
        )
    return replace(settings, warnings=tuple(_warnings(given, settings)))


def reread_secrets(settings: Settings) -> tuple[Secret, ...]:
    """Read the secrets of a running server again; OSError or ValueError where that fails."""
    if settings.secret_file is None:
        return settings.secrets
    return read_secret_file(settings.secret_file)


def reread_cluster_secrets(cluster: ClusterSettings) -> tuple[Secret, ...]:
    """Read the cluster's secrets again; OSError or ValueError where that fails."""
    if cluster.secret_file is None:
        return cluster.secrets
    return read_secret_file(cluster.secret_file)


def reread_admin_secrets(settings: Settings) -> tuple[Secret, ...]:
    """Read the secrets of administration again; OSError or ValueError where that fails."""
    if settings.admin_secret_file is None:
        return settings.admin_secrets
    return read_admin_secret_file(settings.admin_secret_file)


def _http_listen(
    given: Given, listen: tuple[Address, ...], http_listen: tuple[Address, ...]
) -> tuple[Address, ...]:
    """Several servers on free ports are not to fight for one default HTTP port."""
    tcp = [address for address in listen if not address.is_unix]
    if given.source("http-listen") == "default" and tcp and not any(a.port for a in tcp):
        return (replace(http_listen[0], port=0),)
    return http_listen


def _read_secrets(given: Given, path: Path | None) -> tuple[Secret, ...]:
    return secrets_of(given, path, "secret-file", SECRET_ENV, read_secret_file, tuple)


def _read_admin_secrets(given: Given, path: Path | None) -> tuple[Secret, ...]:
    read, check = read_admin_secret_file, check_admin_secrets
    return secrets_of(given, path, "admin-secret-file", ADMIN_SECRET_ENV, read, check)


def _parse_token(path: Path) -> str:
    token = path.read_bytes().strip()
    if not 16 <= len(token) <= 1_024 or any(not 0x21 <= byte <= 0x7E for byte in token):
        raise ValueError("the content is not one token")
    return token.decode("ascii")


def _read_token(given: Given, path: Path | None) -> str:
    if path is None:
        return ""
    token: str = read_file(
        given,
        "http-token-file",
        _parse_token,
        path,
        "one token of 16 to 1,024 printable ASCII characters without space",
    )
    return token


def _check_reachable(given: Given, settings: Settings) -> None:
    """Refuse an address that others can reach until its dangers were thought about."""
    for name, addresses in (("listen", settings.listen), ("listen-v3", settings.listen_v3)):
        exposed = [address for address in addresses if not address.is_loopback]
        if not exposed:
            continue
        reasons: list[str] = []
        changes: dict[str, str | None] = {}
        before = ""
        if not settings.secrets:
            reasons.append("a secret (--secret-file), as anyone could take and release locks")
            changes["secret-file"] = BY_NAME["secret-file"].example
            before = make_secret(BY_NAME["secret-file"].example)
        if settings.data_dir is None and given.source("restart-grace") == "default":
            reasons.append(
                "a choice of --restart-grace, as a restart forgets who holds what: the longest"
                " lease that clients ask for is safe, 0 grants at once; or --data-dir, which"
                " forgets nothing"
            )
            changes["restart-grace"] = BY_NAME["restart-grace"].example
        if reasons:
            raise given.refusal(
                f"{given.called(name)}: got {exposed[0]}, which other machines may reach; takes"
                f" loopback or a Unix socket, or in addition {'; and '.join(reasons)}",
                changes,
                before,
            )


def _check_admin(given: Given, settings: Settings) -> None:
    """Refuse administration that others could reach, or that can't be served."""
    if not settings.admin_listen:
        return
    modules = ("grpc", "grpc_health", "grpc_reflection", "google.protobuf")
    if not all(map(_is_installed, modules)):
        raise SettingsError(
            f"{given.called('admin-listen')}: takes the packages of gRPC, which are not installed"
            "\n  try: pip install 'ticketing-server[admin]'"
        )
    exposed = [address for address in settings.admin_listen if not address.is_loopback]
    if not exposed:
        return
    reasons: list[str] = []
    changes: dict[str, str | None] = {}
    before = ""
    tls = settings.admin_tls
    if tls is None:
        reasons.append("TLS (--admin-tls-cert, --admin-tls-key)")
        changes |= {name: BY_NAME[name].example for name in ("admin-tls-cert", "admin-tls-key")}
    if not settings.admin_secrets and (tls is None or tls.client_ca is None):
        reasons.append(
            "a secret (--admin-secret-file) or client certificates (--admin-tls-client-ca),"
            " as anyone could end others' tickets"
        )
        changes["admin-secret-file"] = BY_NAME["admin-secret-file"].example
        before = make_secret(BY_NAME["admin-secret-file"].example)
    if reasons:
        raise given.refusal(
            f"{given.called('admin-listen')}: got {exposed[0]}, which other machines may reach;"
            f" takes loopback or a Unix socket, or in addition {'; and '.join(reasons)}",
            changes,
            before,
        )


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _warnings(given: Given, settings: Settings) -> list[str]:
    found = weak_secrets(settings.secrets) + cluster_warnings(settings)
    if settings.secret_file is not None and settings.secret_file.stat().st_mode & 0o007:
        found.append(f"every user of this machine can read or write {settings.secret_file}")
    exposed = [a for a in settings.listen if not a.is_loopback] if settings.tls is None else []
    exposed += [a for a in settings.listen_v3 if not a.is_loopback]
    found += [f"{a} can be reached from outside and does not speak TLS" for a in exposed]
    if settings.tls is not None and all(address.is_unix for address in settings.listen):
        found.append("--tls-cert has no effect, as no address of --listen is TCP")
    if not settings.admin_listen:
        unused = ("admin-secret-file", "admin-tls-cert")
        found += [
            f"{given.called(name)} has no effect, as --admin-listen is off"
            for name in unused
            if given.source(name) != "default"
        ]
    if not settings.http_token and not all(a.is_loopback for a in settings.http_listen):
        found.append("/status is refused to other machines, as there is no --http-token-file")
    known = {setting.env for setting in SETTINGS} | _OTHER_ENV
    for name in sorted(given.env):
        if name.startswith(ENV_PREFIX) and name not in known:
            close = get_close_matches(name, known, n=1, cutoff=0.85)
            found += [f"{name} is not a setting; is {near} meant?" for near in close]
    return found
