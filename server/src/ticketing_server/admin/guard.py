"""Who may call: a secret of administration in each call, or TLS with client certificates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from hmac import compare_digest

from ticketing_server.secret_file import Secret

HEADER = "authorization"
OPEN_METHOD = "/grpc.health.v1.Health/Check"
"""Needs no secret: a probe has none, and learns nothing but whether the server is ready."""
_SCHEME = "bearer"


class Guard:
    """Compares what calls carry with the secrets that are good now."""

    def __init__(self, secrets: Sequence[Secret]) -> None:
        """Begin with these; none means that whoever can connect may call."""
        self.replace(secrets)

    def replace(self, secrets: Sequence[Secret]) -> None:
        """Take these instead, for calls from now on."""
        # Digests, as a comparison in constant time tells the length of what differs in length.
        self._secrets = [(secret.name, sha256(secret.value).digest()) for secret in secrets]

    def refusal(self, method: str, metadata: Iterable[tuple[str, str | bytes]]) -> str:
        """Return "" where a call may go on, else what it lacks."""
        if not self._secrets or method == OPEN_METHOD:
            return ""
        given = _bearer(metadata)
        if given is None:
            return (
                "this server takes calls with a secret of administration only; try:"
                " --secret-file FILE or TICKETING_ADMIN_SECRET"
            )
        if not self._match(given):
            return (
                "the secret is not one of this server's secrets of administration; look at its"
                " --admin-secret-file, and whether it was reloaded (SIGHUP) since"
            )
        return ""

    def caller(
        self,
        metadata: Iterable[tuple[str, str | bytes]],
        identity: Mapping[str, Iterable[bytes]],
    ) -> str:
        """Name who calls for the log: of its secret, else of its certificate, else ""."""
        given = _bearer(metadata)
        if given is not None and (name := self._match(given)):
            return name
        return b",".join(identity.get("x509_common_name", ())).decode("utf-8", "backslashreplace")

    def _match(self, given: bytes) -> str:
        digest, found = sha256(given).digest(), ""
        for name, wanted in self._secrets:
            if compare_digest(digest, wanted):
                found = name
        return found


def bearer(secret: str) -> tuple[str, str]:
    """Return the metadata that carries a secret."""
    return HEADER, f"Bearer {secret}"


def _bearer(metadata: Iterable[tuple[str, str | bytes]]) -> bytes | None:
    for name, value in metadata:
        if name == HEADER:
            text = value.encode() if isinstance(value, str) else value
            scheme, _, given = text.partition(b" ")
            if scheme.lower() == _SCHEME.encode():
                return given.strip()
    return None
