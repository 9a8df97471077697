"""What a node proves itself with, read from files, and read again while it runs."""

from __future__ import annotations

from ticketing_server.peers.transport import PeerKeys
from ticketing_server.settings import ClusterSettings
from ticketing_server.settings_load import reread_cluster_secrets
from ticketing_server.tls import TlsReloader, dial_context

_NO_SECRET = b""


class Keyring:
    """The cluster's secrets and this node's certificates."""

    def __init__(self, settings: ClusterSettings) -> None:
        """Load the TLS files; TlsError where that fails."""
        self._settings = settings
        self._secrets = settings.secrets
        self._tls = TlsReloader(settings.tls) if settings.tls is not None else None
        self.keys = self._make()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the secrets, the one that is proved first."""
        return tuple(secret.name for secret in self._secrets)

    @property
    def expires_unix_s(self) -> dict[str, float]:
        """When certificates end, by their use."""
        found = self._tls.expires_unix_s if self._tls is not None else {}
        names = {"server": "peer", "client_ca": "peer_ca"}
        return {names[use]: end for use, end in found.items()}

    def reload(self) -> PeerKeys:
        """Read all files again; OSError, ValueError or TlsError leaves what there was."""
        secrets = reread_cluster_secrets(self._settings)
        if self._tls is not None:
            self._tls.reload()
        self._secrets = secrets
        self.keys = self._make()
        return self.keys

    def changed(self) -> bool:
        """Whether a TLS file is another one than at the last load."""
        return self._tls is not None and self._tls.changed()

    def _make(self) -> PeerKeys:
        values = [secret.value for secret in self._secrets] or [_NO_SECRET]
        if self._tls is None:
            return PeerKeys(values)
        return PeerKeys(values, dial_context(self._tls.files), self._tls.context)
