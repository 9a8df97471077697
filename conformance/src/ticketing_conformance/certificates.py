"""Authorities and certificates for TLS cases: made once per process, in a folder that goes away."""

from __future__ import annotations

import datetime
import ipaddress
import tempfile
from functools import cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAY = datetime.timedelta(days=1)
_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []


_USES = {"server": ExtendedKeyUsageOID.SERVER_AUTH, "client": ExtendedKeyUsageOID.CLIENT_AUTH}


class _Authority:
    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name} authority")])
        now = datetime.datetime.now(datetime.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(self._name)
            .issuer_name(self._name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 2 * _DAY)
            .not_valid_after(now + 30 * _DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs=True), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        self.path = folder / f"{name}-ca.pem"
        self.path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, host: str, uses: str = "server", days: int = 30) -> None:
        """Write `<name>.pem` and `<name>.key`; with days below 0 it ended that long ago."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        usages = [_USES[use] for use in uses.split()]
        names: list[x509.GeneralName] = [x509.DNSName(host)]
        if host == "localhost":
            names += [
                x509.IPAddress(ipaddress.ip_address(address)) for address in ("127.0.0.1", "::1")
            ]
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 2 * _DAY if days > 0 else now + (days - 2) * _DAY)
            .not_valid_after(now + days * _DAY)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        pem = certificate.public_bytes(serialization.Encoding.PEM)
        (self._folder / f"{name}.pem").write_bytes(pem)
        (self._folder / f"{name}.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )


def _key_usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


@cache
def certificates() -> dict[str, Path]:
    """Paths by name.

    ca, other_ca; cert and key for localhost, 127.0.0.1 and ::1; expired, other_host and other (by
    other_ca) likewise; client, client_expired and client_other for mutual TLS; peer for nodes of
    a cluster, which are both to each other.
    """
    folder = tempfile.TemporaryDirectory(prefix="ticketing-certs-")
    _FOLDERS.append(folder)
    path = Path(folder.name)
    authority, other = _Authority(path, "good"), _Authority(path, "other")
    authority.issue("server", "localhost")
    authority.issue("expired", "localhost", days=-1)
    authority.issue("other_host", "elsewhere.example")
    other.issue("other", "localhost")
    authority.issue("client", "client.example", "client")
    authority.issue("peer", "localhost", "server client")
    authority.issue("client_expired", "client.example", "client", days=-1)
    other.issue("client_other", "client.example", "client")
    paths = {"ca": authority.path, "other_ca": other.path}
    for name in ("server", "expired", "other_host", "other"):
        short = "" if name == "server" else f"{name}_"
        paths[f"{short}cert"] = path / f"{name}.pem"
        paths[f"{short}key"] = path / f"{name}.key"
    for name in ("client", "client_expired", "client_other", "peer"):
        paths[f"{name}_cert"] = path / f"{name}.pem"
        paths[f"{name}_key"] = path / f"{name}.key"
    return paths
