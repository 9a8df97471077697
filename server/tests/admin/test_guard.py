"""Who may call."""

from __future__ import annotations

from ticketing_server.admin.guard import Guard, bearer
from ticketing_server.secret_file import Secret

METHOD = "/ticketing.admin.v1.Admin/Status"
OPS, NIGHT = Secret("ops", b"a-secret-of-the-operators"), Secret("night", b"a-secret-of-the-night")


def metadata(secret: Secret) -> list[tuple[str, str]]:
    return [("user-agent", "test"), bearer(secret.value.decode())]


def test_without_secrets_whoever_connects_may_call() -> None:
    assert Guard(()).refusal(METHOD, []) == ""
    assert Guard(()).caller(metadata(OPS), {}) == ""


def test_each_of_the_secrets_is_good_and_named() -> None:
    guard = Guard((OPS, NIGHT))
    for secret in (OPS, NIGHT):
        assert guard.refusal(METHOD, metadata(secret)) == ""
        assert guard.caller(metadata(secret), {}) == secret.name


def test_a_call_without_or_with_another_secret_is_told_what_to_do() -> None:
    guard = Guard((OPS,))
    assert guard.refusal(METHOD, []) == (
        "this server takes calls with a secret of administration only; try: --secret-file FILE or"
        " TICKETING_ADMIN_SECRET"
    )
    assert guard.refusal(METHOD, [("authorization", "Basic b3Bz")]) == guard.refusal(METHOD, [])
    assert guard.refusal(METHOD, metadata(NIGHT)) == (
        "the secret is not one of this server's secrets of administration; look at its"
        " --admin-secret-file, and whether it was reloaded (SIGHUP) since"
    )
    assert guard.refusal(METHOD, [bearer("")]) == guard.refusal(METHOD, metadata(NIGHT))


def test_a_probe_needs_none_but_may_only_check() -> None:
    guard = Guard((OPS,))
    assert guard.refusal("/grpc.health.v1.Health/Check", []) == ""
    assert guard.refusal("/grpc.health.v1.Health/Watch", []) != ""
    assert guard.refusal("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", []) != ""


def test_rotation_takes_effect_at_once() -> None:
    guard = Guard((OPS,))
    guard.replace((NIGHT,))
    assert guard.refusal(METHOD, metadata(OPS)) != ""
    assert guard.refusal(METHOD, metadata(NIGHT)) == ""


def test_a_certificate_names_who_has_no_secret() -> None:
    identity = {"x509_common_name": [b"alice"]}
    assert Guard(()).caller([], identity) == "alice"
    assert Guard((OPS,)).caller(metadata(OPS), identity) == "ops"
