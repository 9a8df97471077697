"""What a start prints, and what the ready file holds."""

from __future__ import annotations

import os
import shlex

from ticketing_server.addresses import Address
from ticketing_server.log import Value
from ticketing_server.serve import Service
from ticketing_server.setting_values import show_duration


def client_url(running: Service) -> str:
    """A URL with which a client on this machine connects."""
    address = next((a for a in running.addresses if not a.is_unix), running.addresses[0])
    if address.is_unix:
        return f"ticketing+unix://{address.path}"
    scheme = "ticketings" if running.tls is not None else "ticketing"
    return f"{scheme}://{_reachable(address)}"


def dashboard_url(running: Service) -> str:
    """The dashboard's URL on this machine, or "" where HTTP is off."""
    if not running.http_addresses:
        return ""
    return f"http://{_reachable(running.http_addresses[0])}/"


def ready_lines(running: Service) -> list[tuple[str, str]]:
    """Names and values of the ready file; a name may come several times."""
    return [
        ("url", client_url(running)),
        *(("listen", str(address)) for address in running.addresses),
        *(("listen-v3", str(address)) for address in running.v3_addresses),
        *(("http-listen", str(address)) for address in running.http_addresses),
        *(("admin-listen", str(address)) for address in running.admin_addresses),
        *(("peer", str(address)) for address in running.peer_addresses),
        *_slot(running),
        ("mode", running.settings.mode),
        ("pid", str(os.getpid())),
    ]


def _slot(running: Service) -> list[tuple[str, str]]:
    cluster = running.settings.cluster
    return [] if cluster is None else [("slot", str(cluster.slot))]


def fields(running: Service) -> dict[str, Value]:
    """The start as fields of one log event."""
    settings = running.settings
    return {
        "version": running.state.version,
        "mode": settings.mode,
        "data_dir": str(settings.data_dir or ""),
        "slot": settings.cluster.slot if settings.cluster is not None else None,
        "peers": tuple(map(str, running.peer_addresses)),
        "url": client_url(running),
        "listen": tuple(map(str, running.addresses)),
        "listen_v3": tuple(map(str, running.v3_addresses)),
        "dashboard": dashboard_url(running),
        "admin_listen": tuple(map(str, running.admin_addresses)),
        "restart_grace_s": settings.limits.restart_grace_ms / 1_000,
        "secrets": tuple(secret.name for secret in settings.secrets),
        "tls": running.tls is not None,
        "client_certificates": settings.tls is not None and settings.tls.client_ca is not None,
    }


def text(running: Service) -> str:
    """The start for people: what listens where, what a restart forgets, what to try."""
    settings = running.settings
    kind = "TLS" if running.tls is not None else "no TLS"
    if settings.tls is not None and settings.tls.client_ca is not None:
        kind = "TLS with client certificates"
    shown = [f"{a} (no TLS)" if a.is_unix else f"{a} ({kind})" for a in running.addresses]
    rows = [("clients", ", ".join(shown))]
    if running.v3_addresses:
        rows.append(("version 3", ", ".join(map(str, running.v3_addresses))))
    rows += [
        *_mode(running),
        ("secret", _secrets(running)),
        ("try it", _client_line(running)),
        ("dashboard", dashboard_url(running) or "off"),
    ]
    if running.admin_addresses:
        rows.append(("admin", ", ".join(map(str, running.admin_addresses))))
    lines = "".join(f"  {name:<10} {value}\n" for name, value in rows)
    return f"Ticketing {running.state.version} is ready\n{lines}"


def _mode(running: Service) -> list[tuple[str, str]]:
    settings = running.settings
    cluster = settings.cluster
    if cluster is not None:
        text = f"cluster: slot {cluster.slot} of {len(cluster.peers)}, data in {settings.data_dir}"
        return [("mode", text), ("peers", ", ".join(map(str, running.peer_addresses)))]
    if settings.data_dir is not None:
        return [("mode", f"durable: a restart forgets nothing, data in {settings.data_dir}")]
    return [("mode", f"memory: a restart forgets tickets and queues; {_grace(running)}")]


def _grace(running: Service) -> str:
    grace_ms = running.settings.limits.restart_grace_ms
    if not grace_ms:
        return "it grants from now on"
    return f"it grants nothing for the first {show_duration(grace_ms)}"


def _secrets(running: Service) -> str:
    names = [secret.name for secret in running.settings.secrets]
    if not names:
        return "none: every program on this machine may take and release locks"
    return f"set ({', '.join(names)})"


def _client_line(running: Service) -> str:
    code = (
        f"import ticketing.sync as t; c = t.connect('{client_url(running)}');"
        " k = c.acquire('first-lock'); print(k); k.release(); c.close()"
    )
    line = f'python -c "{code}"'
    path = running.settings.secret_file
    if path is not None:
        # Any line will do; what comes before the first space of it is only a name.
        line = f'TICKETING_SECRET="$(head -n1 {shlex.quote(str(path))} | cut -d" " -f2-)" {line}'
    return line


def _reachable(address: Address) -> str:
    """The address, with loopback in place of a wildcard."""
    if not address.is_wildcard:
        return str(address)
    return str(Address("::1" if ":" in address.host else "127.0.0.1", address.port))
