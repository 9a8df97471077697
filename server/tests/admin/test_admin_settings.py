"""Settings of administration: what is refused, and the command that would have been right."""

from __future__ import annotations

from pathlib import Path

import pytest
from ticketing_server import settings_load
from ticketing_server.addresses import Address
from ticketing_server.settings import Settings
from ticketing_server.settings_load import ADMIN_SECRET_ENV, SettingsError, gather, load

SECRET = "a-secret-of-administration"


def given(flags: dict[str, str], env: dict[str, str] | None = None) -> Settings:
    return load(gather({name: [text] for name, text in flags.items()}, env or {}))


def refusal(flags: dict[str, str], env: dict[str, str] | None = None) -> str:
    with pytest.raises(SettingsError) as refused:
        given(flags, env)
    return str(refused.value)


def test_it_is_off_unless_asked_for() -> None:
    assert given({}).admin_listen == ()


def test_loopback_and_unix_sockets_need_nothing_more() -> None:
    settings = given({"admin-listen": "127.0.0.1:5229,unix:/tmp/admin.sock"})
    assert settings.admin_listen == (Address("127.0.0.1", 5229), Address(path="/tmp/admin.sock"))
    assert settings.admin_secrets == ()
    assert settings.admin_tls is None


def test_other_addresses_need_tls_and_a_secret_or_client_certificates() -> None:
    assert refusal({"admin-listen": "0.0.0.0:5229"}) == (
        "--admin-listen: got 0.0.0.0:5229, which other machines may reach; takes loopback or a"
        " Unix socket, or in addition TLS (--admin-tls-cert, --admin-tls-key); and a secret"
        " (--admin-secret-file) or client certificates (--admin-tls-client-ca), as anyone could"
        " end others' tickets\n"
        "  try: (umask 077; ticketing-server secret > admin.secret) && ticketing-server"
        " --admin-listen 0.0.0.0:5229 --admin-tls-cert admin.pem --admin-tls-key admin.key"
        " --admin-secret-file admin.secret"
    )
    exposed = {"admin-listen": "0.0.0.0:5229"}
    assert "TLS" in refusal(exposed, {ADMIN_SECRET_ENV: SECRET})
    tls = {"admin-tls-cert": "c.pem", "admin-tls-key": "c.key"}
    assert "in addition a secret" in refusal(exposed | tls)
    settings = given(exposed | tls | {"admin-tls-client-ca": "ca.pem"})
    assert settings.admin_tls is not None
    assert settings.admin_tls.client_ca == Path("ca.pem")
    assert given(exposed | tls, {ADMIN_SECRET_ENV: SECRET}).admin_secrets[0].value == (
        SECRET.encode()
    )


def test_a_certificate_needs_its_key() -> None:
    assert refusal({"admin-listen": "127.0.0.1:0", "admin-tls-cert": "c.pem"}) == (
        "TLS takes --admin-tls-cert and --admin-tls-key together; not given: --admin-tls-key\n"
        "  try: ticketing-server --admin-listen 127.0.0.1:0 --admin-tls-cert c.pem"
        " --admin-tls-key admin.key"
    )


@pytest.mark.parametrize("secret", ["short", "with a space in it, long", "ümläüt-ümläüt-ümläüt"])
def test_a_secret_has_to_fit_into_a_header(secret: str, tmp_path: Path) -> None:
    text = refusal({}, {ADMIN_SECRET_ENV: secret})
    assert text == (
        "TICKETING_ADMIN_SECRET: the secret 'default' is not of 16 to 1,024 printable ASCII"
        " characters without space\n"
        '  try: TICKETING_ADMIN_SECRET="$(ticketing-server secret)" ticketing-server'
    )
    path = tmp_path / "admin.secret"
    path.write_bytes(b"ops " + secret.encode())
    text = refusal({"admin-secret-file": str(path)})
    assert "of which the secret 'ops' is not of 16 to 1,024 printable" in text
    assert secret not in text


def test_a_secret_is_given_once(tmp_path: Path) -> None:
    path = tmp_path / "admin.secret"
    path.write_text(f"ops {SECRET}\nnight another-{SECRET}\n")
    settings = given({"admin-secret-file": str(path)})
    assert [secret.name for secret in settings.admin_secrets] == ["ops", "night"]
    assert refusal({"admin-secret-file": str(path)}, {ADMIN_SECRET_ENV: SECRET}) == (
        "--admin-secret-file and TICKETING_ADMIN_SECRET are both set, and one is enough\n"
        f"  try: unset TICKETING_ADMIN_SECRET; ticketing-server --admin-secret-file {path}"
    )


def test_what_has_no_effect_is_said(tmp_path: Path) -> None:
    path = tmp_path / "admin.secret"
    path.write_text(SECRET)
    warning = "--admin-secret-file has no effect, as --admin-listen is off"
    assert warning in given({"admin-secret-file": str(path)}).warnings


def test_without_grpc_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_load, "find_spec", lambda name: None)
    assert refusal({"admin-listen": "127.0.0.1:0"}) == (
        "--admin-listen: takes the packages of gRPC, which are not installed\n"
        "  try: pip install 'ticketing-server[admin]'"
    )
