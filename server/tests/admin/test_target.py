"""Where the command line calls, and the secret that it shows there."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest
from ticketing_server.addresses import Address
from ticketing_server.admin.errors import USAGE, AdminError
from ticketing_server.admin.target import Target, target

SECRET = "a-secret-of-administration"


def refusal(env: dict[str, str], **options: object) -> str:
    with pytest.raises(AdminError) as refused:
        target(Namespace(**options), env)
    assert refused.value.exit_code == USAGE
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_nothing_given_means_this_machine_without_a_secret() -> None:
    assert target(Namespace(), {}) == Target(Address("127.0.0.1", 5229))


def test_options_go_before_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "secrets"
    path.write_text(f"ops {SECRET}\nold another-secret-of-it\n")
    env = {
        "TICKETING_ADMIN_ADDRESS": "[::1]:7",
        "TICKETING_ADMIN_SECRET": "the-secret-of-the-environment",
    }
    made = target(Namespace(), env)
    assert (made.address, made.secret) == (Address("::1", 7), "the-secret-of-the-environment")
    made = target(Namespace(address="unix:/a", secret_file=path, timeout=1_500), env)
    assert (made.address, made.secret, made.timeout_s) == (Address(path="/a"), SECRET, 1.5)
    assert target(Namespace(), {"TICKETING_ADMIN_SECRET_FILE": str(path)}).secret == SECRET


def test_a_secret_is_never_shown() -> None:
    made = target(Namespace(), {"TICKETING_ADMIN_SECRET": SECRET})
    assert SECRET not in repr(made)
    bad = "with a space, and long enough"
    assert bad not in refusal({"TICKETING_ADMIN_SECRET": bad})


def test_a_secret_leaves_this_machine_with_tls_only() -> None:
    env = {"TICKETING_ADMIN_SECRET": SECRET}
    assert refusal(env, address="locks.example.com:5229") == (
        "without TLS everybody on the way to locks.example.com:5229 could read the secret; try:"
        " --tls-ca FILE, with the authority that signed the server's certificate"
    )
    assert target(Namespace(address="locks.example.com:5229", tls=True), env).is_tls
    assert target(Namespace(address="locks.example.com:5229", tls_ca=Path("ca")), env).is_tls


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    assert refusal({}, address="localhost") == (
        "--address: got 'localhost' (a host and a port are needed), takes host:port, [v6]:port or"
        " unix:/path"
    )
    assert refusal({"TICKETING_ADMIN_ADDRESS": "x"}).startswith("TICKETING_ADMIN_ADDRESS: got 'x'")
    assert refusal({}, tls_cert=Path("c")) == "--tls-cert and --tls-key go together; give both"
    missing = tmp_path / "missing"
    assert refusal({}, secret_file=missing) == (
        f"--secret-file: got {str(missing)!a}, which can't be read (No such file or directory);"
        " takes the server's --admin-secret-file"
    )
    assert refusal({"TICKETING_ADMIN_SECRET": "short"}) == (
        "TICKETING_ADMIN_SECRET: the secret 'default' is not of 16 to 1,024 printable ASCII"
        " characters without space; takes what the server was given"
    )
