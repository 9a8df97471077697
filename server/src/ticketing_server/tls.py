"""TLS for the listener: contexts from files, loaded again when the files change.

A reload makes a new context and leaves the old one to the connections that began with it, so
nothing that is live is disturbed. A reload that fails keeps what was there.
"""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path

from ticketing_server.settings import TlsFiles

_SEQUENCE, _INTEGER, _UTC_TIME, _GENERALIZED_TIME, _EXPLICIT_0 = 0x30, 0x02, 0x17, 0x18, 0xA0


class TlsError(Exception):
    """A TLS file can't be used; the text names setting, file and reason."""


class TlsReloader:
    """Holds the present context and knows whether the files are newer."""

    def __init__(self, files: TlsFiles) -> None:
        """Load `files`; TlsError where that fails."""
        self.files = files
        self._seen = self._signature()
        self.context, self.expires_unix_s = _load(files)

    def reload(self) -> ssl.SSLContext:
        """Load the files again and return the new context; on TlsError the old one stays."""
        self._seen = self._signature()
        self.context, self.expires_unix_s = _load(self.files)
        return self.context

    def changed(self) -> bool:
        """Whether a file is another one than at the last load, whether or not that succeeded."""
        return self._signature() != self._seen

    def _signature(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_identity(path) for path in self.files.paths())


def _identity(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _load(files: TlsFiles) -> tuple[ssl.SSLContext, dict[str, float]]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    # A resumed session skips the check of the client's certificate, so a certificate authority
    # that was taken out of the file would go on to be trusted; connections are long-lived here
    # and gain nothing from resumption.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    try:
        context.load_cert_chain(files.cert, files.key, password=_no_password)
    except (OSError, ValueError) as error:
        raise TlsError(_blame(files, error)) from None
    expires = {"server": _expiry(files.cert)}
    if files.client_ca is not None:
        try:
            context.load_verify_locations(cafile=files.client_ca)
        except (OSError, ValueError) as error:
            raise TlsError(
                f"{files.ca_flag}: got {str(files.client_ca)!r} ({_reason(error)}),"
                " takes a file of certificates in PEM"
            ) from None
        context.verify_mode = ssl.CERT_REQUIRED
        expires["client_ca"] = _expiry(files.client_ca)
    return context, expires


def dial_context(files: TlsFiles) -> ssl.SSLContext:
    """Return what a node dials its peers with, from files that `TlsReloader` has loaded."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(files.cert, files.key, password=_no_password)
        context.load_verify_locations(cafile=files.client_ca)
    except (OSError, ValueError) as error:
        raise TlsError(_blame(files, error)) from None
    return context


def _no_password() -> str:
    # OpenSSL would else ask for one on the terminal.
    raise ValueError("the key is encrypted")


def _blame(files: TlsFiles, error: Exception) -> str:
    """Say which of the two files is at fault, as OpenSSL reports one error for both."""
    cert_flag, key_flag = f"--{files.prefix}tls-cert", f"--{files.prefix}tls-key"
    for flag, path in ((cert_flag, files.cert), (key_flag, files.key)):
        try:
            data = path.read_bytes()
        except OSError as unreadable:
            return f"{flag}: got {str(path)!r} ({unreadable.strerror}), takes a file in PEM"
        kind = b"CERTIFICATE-----" if flag == cert_flag else b"PRIVATE KEY-----"
        if kind not in data:
            return f"{flag}: got {str(path)!r}, which holds no {kind.rstrip(b'-').decode().lower()}"
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        return f"{key_flag}: got {str(files.key)!r}, which is not the key of {str(files.cert)!r}"
    return (
        f"{cert_flag}, {key_flag}: got {str(files.cert)!r} and {str(files.key)!r}"
        f" ({_reason(error)}), take a certificate chain and its key in PEM"
    )


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "not PEM").lower().replace("_", " ")
    return getattr(error, "strerror", None) or str(error)


def _expiry(path: Path) -> float:
    """The earliest end of the certificates in a file, as unix seconds."""
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    try:
        text = path.read_text(encoding="ascii", errors="replace")
        blocks = [begin + part.split(end)[0] + end for part in text.split(begin)[1:]]
        return min(not_after(ssl.PEM_cert_to_DER_cert(block)) for block in blocks)
    except (OSError, ValueError, IndexError):
        raise TlsError(f"{str(path)!r} holds a certificate that can't be read") from None


def not_after(certificate: bytes) -> float:
    """The end of a DER certificate's validity as unix seconds; ValueError where it has none.

    The standard library shows it only of a verified peer's certificate.
    """
    tbs = _content(_content(certificate, _SEQUENCE)[0], _SEQUENCE)[0]
    if tbs[0] == _EXPLICIT_0:
        tbs = _content(tbs, _EXPLICIT_0)[1]
    for tag in (_INTEGER, _SEQUENCE, _SEQUENCE):  # serial number, algorithm, issuer
        tbs = _content(tbs, tag)[1]
    validity = _content(tbs, _SEQUENCE)[0]
    after = _content(validity, validity[0])[1]
    text = _content(after, after[0])[0].decode("ascii")
    if after[0] == _UTC_TIME:  # two digits of a year: 50 to 99 are of the last century
        text = ("19" if text[:2] >= "50" else "20") + text
    elif after[0] != _GENERALIZED_TIME:
        raise ValueError("not a time")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _content(data: bytes, tag: int) -> tuple[bytes, bytes]:
    """Split DER into the content of its first element and what follows that."""
    if data[0] != tag:
        raise ValueError("not a certificate")
    length, start = data[1], 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(data[2:start], "big")
    return data[start : start + length], data[start + length :]
