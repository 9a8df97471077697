"""TLS files: what is loaded, what is refused and why, what a reload changes."""

from __future__ import annotations

import os
import shutil
import ssl
import time
from datetime import timedelta
from pathlib import Path

import pytest
from ticketing_server.settings import TlsFiles
from ticketing_server.testing import Certificates, make_certificates
from ticketing_server.tls import TlsError, TlsReloader, not_after


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("others"))


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> ssl.SSLObject:
    """Shake hands in memory; raises what either side raises. Returns the client's end."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server_end = server.wrap_bio(to_server, to_client, server_side=True)
    client_end = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    for _ in range(4):
        for end in (client_end, server_end):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    server_end.do_handshake()
    return client_end


def client_context(trusted: Path, own: Certificates | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(trusted))
    if own is not None:
        context.load_cert_chain(own.client_cert, own.client_key)
    return context


class TestContext:
    def test_serves_its_certificate(self, certificates: Certificates) -> None:
        tls = TlsReloader(TlsFiles(certificates.server_cert, certificates.server_key))
        end = handshake(tls.context, client_context(certificates.ca))
        assert end.getpeercert()["subject"] == ((("commonName", "server"),),)  # type: ignore[index]
        assert end.version() == "TLSv1.3"

    def test_takes_tls_1_2_and_nothing_older(self, certificates: Certificates) -> None:
        tls = TlsReloader(TlsFiles(certificates.server_cert, certificates.server_key))
        client = client_context(certificates.ca)
        client.maximum_version = ssl.TLSVersion.TLSv1_2
        assert handshake(tls.context, client).version() == "TLSv1.2"
        assert tls.context.minimum_version == ssl.TLSVersion.TLSv1_2

    def test_asks_for_a_certificate_only_where_it_is_told_to(
        self, certificates: Certificates, others: Certificates
    ) -> None:
        files = TlsFiles(certificates.server_cert, certificates.server_key, certificates.ca)
        tls = TlsReloader(files)
        handshake(tls.context, client_context(certificates.ca, certificates))
        with pytest.raises(ssl.SSLError, match="did not return a certificate"):
            handshake(tls.context, client_context(certificates.ca))
        with pytest.raises(ssl.SSLError, match="certificate verify failed"):
            handshake(tls.context, client_context(certificates.ca, others))

    def test_knows_when_certificates_end(self, certificates: Certificates) -> None:
        files = TlsFiles(certificates.server_cert, certificates.server_key, certificates.ca)
        expected = time.time() + timedelta(days=30).total_seconds()
        ends = TlsReloader(files).expires_unix_s
        assert set(ends) == {"server", "client_ca"}
        assert all(abs(end - expected) < 3_600 for end in ends.values())


class TestRefusals:
    def refusal(self, cert: Path, key: Path, ca: Path | None = None) -> str:
        with pytest.raises(TlsError) as caught:
            TlsReloader(TlsFiles(cert, key, ca))
        return str(caught.value)

    def test_a_missing_file(self, certificates: Certificates) -> None:
        message = self.refusal(Path("/no/cert.pem"), certificates.server_key)
        assert message.startswith("--tls-cert: got '/no/cert.pem' (No such file or directory)")
        message = self.refusal(certificates.server_cert, Path("/no/key.pem"))
        assert message.startswith("--tls-key: got '/no/key.pem' (No such file or directory)")
        message = self.refusal(
            certificates.server_cert, certificates.server_key, Path("/no/ca.pem")
        )
        assert message.startswith("--tls-client-ca: got '/no/ca.pem' (No such file")

    def test_files_given_the_wrong_way_round(self, certificates: Certificates) -> None:
        message = self.refusal(certificates.server_key, certificates.server_cert)
        assert message.startswith("--tls-cert: ")
        assert "holds no certificate" in message

    def test_another_certificates_key(
        self, certificates: Certificates, others: Certificates
    ) -> None:
        message = self.refusal(certificates.server_cert, others.server_key)
        assert message.startswith("--tls-key: ")
        assert "is not the key of" in message

    def test_an_authority_without_a_certificate(
        self, certificates: Certificates, tmp_path: Path
    ) -> None:
        empty = tmp_path / "ca.pem"
        empty.touch()
        message = self.refusal(certificates.server_cert, certificates.server_key, empty)
        assert message.startswith("--tls-client-ca: ")

    def test_an_encrypted_key_does_not_ask_on_the_terminal(
        self, certificates: Certificates, tmp_path: Path
    ) -> None:
        from cryptography.hazmat.primitives import serialization as s

        key = s.load_pem_private_key(certificates.server_key.read_bytes(), None)
        path = tmp_path / "encrypted.key"
        encryption = s.BestAvailableEncryption(b"password")
        path.write_bytes(key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, encryption))
        assert "encrypted" in self.refusal(certificates.server_cert, path)


class TestReload:
    def copy(self, source: Certificates, folder: Path) -> TlsFiles:
        files = TlsFiles(folder / "cert.pem", folder / "key.pem", folder / "ca.pem")
        pairs = zip((source.server_cert, source.server_key, source.ca), files.paths(), strict=True)
        for old, new in pairs:
            shutil.copy(old, folder / "part")
            os.replace(folder / "part", new)
        return files

    def test_takes_certificate_key_and_authority(
        self, certificates: Certificates, others: Certificates, tmp_path: Path
    ) -> None:
        tls = TlsReloader(self.copy(certificates, tmp_path))
        old = tls.context
        assert not tls.changed()
        self.copy(others, tmp_path)
        assert tls.changed()
        assert tls.reload() is tls.context
        assert not tls.changed()
        handshake(tls.context, client_context(others.ca, others))
        with pytest.raises(ssl.SSLError):
            handshake(tls.context, client_context(others.ca, certificates))
        handshake(old, client_context(certificates.ca, certificates))

    def test_a_failed_one_keeps_what_was_there(
        self, certificates: Certificates, others: Certificates, tmp_path: Path
    ) -> None:
        files = self.copy(certificates, tmp_path)
        tls = TlsReloader(files)
        old = tls.context
        shutil.copy(others.server_cert, files.cert)
        with pytest.raises(TlsError):
            tls.reload()
        assert tls.context is old
        assert not tls.changed(), "it is tried again only when a file changes again"
        shutil.copy(others.server_key, files.key)
        assert tls.changed()
        tls.reload()

    def test_a_file_that_went_away_is_a_change(
        self, certificates: Certificates, tmp_path: Path
    ) -> None:
        files = self.copy(certificates, tmp_path)
        tls = TlsReloader(files)
        files.key.unlink()
        assert tls.changed()


class TestNotAfter:
    @pytest.mark.parametrize("days", [30, 365 * 60])
    def test_agrees_with_the_library_that_made_it(self, days: int, tmp_path: Path) -> None:
        from cryptography import x509

        made = make_certificates(tmp_path, valid_for=timedelta(days=days))
        pem = made.server_cert.read_text()
        expected = x509.load_pem_x509_certificate(pem.encode()).not_valid_after_utc.timestamp()
        assert not_after(ssl.PEM_cert_to_DER_cert(pem)) == expected

    @pytest.mark.parametrize("data", [b"", b"\x30", b"\x30\x00", b"\x31\x02\x30\x00", b"\0" * 99])
    def test_what_is_no_certificate(self, data: bytes) -> None:
        with pytest.raises((ValueError, IndexError)):
            not_after(data)
