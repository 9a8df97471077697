"""Settings: every value, every refusal, and the command that each refusal ends with."""

from __future__ import annotations

import shlex
from dataclasses import fields
from pathlib import Path

import pytest
from ticketing_server import setting_values
from ticketing_server.addresses import Address, parse_address
from ticketing_server.limits import Limits
from ticketing_server.secret_file import new_secret, parse_secrets
from ticketing_server.settings import BY_NAME, SETTINGS, Settings
from ticketing_server.settings_load import SettingsError, gather, load, reread_secrets

GOOD_SECRET = "0123456789abcdef0123456789abcdef"


def settings_of(env: dict[str, str] | None = None, **flags: str | list[str]) -> Settings:
    """Load as the command line would."""
    texts = {k.replace("_", "-"): [v] if isinstance(v, str) else v for k, v in flags.items()}
    return load(gather(texts, env or {}))


def refusal_of(env: dict[str, str] | None = None, **flags: str | list[str]) -> str:
    """The text of the refusal of these settings."""
    with pytest.raises(SettingsError) as caught:
        settings_of(env, **flags)
    return str(caught.value)


def corrected(text: str) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Environment and flags of the command at the end of a refusal."""
    words = shlex.split(text.rpartition("try: ")[2].rpartition("&& ")[2])
    program = words.index("ticketing-server")
    env = dict(word.split("=", 1) for word in words[:program])
    flags: dict[str, list[str]] = {}
    for flag, value in zip(words[program + 1 :: 2], words[program + 2 :: 2], strict=True):
        flags.setdefault(flag.removeprefix("--"), []).append(value)
    return env, flags


class TestTable:
    def test_nothing_given_is_the_stated_default_of_every_setting(self) -> None:
        assert settings_of() == Settings()

    def test_every_default_and_every_example_passes_its_own_check(self) -> None:
        for setting in SETTINGS:
            setting.parse(setting.example)
            if setting.default:
                setting.parse(setting.default)

    def test_every_limit_has_exactly_one_setting(self) -> None:
        named = [setting.limit for setting in SETTINGS if setting.limit]
        assert sorted(named) == sorted(field.name for field in fields(Limits))

    def test_names_are_unique(self) -> None:
        assert len(BY_NAME) == len(SETTINGS)
        assert len({setting.env for setting in SETTINGS}) == len(SETTINGS)


class TestPrecedence:
    def test_a_flag_goes_before_the_environment(self) -> None:
        settings = settings_of({"TICKETING_KEEPALIVE": "9s"}, keepalive="7s")
        assert settings.limits.keepalive_s == 7

    def test_the_environment_goes_before_the_default(self) -> None:
        assert settings_of({"TICKETING_MAX_LEASE": "1h"}).limits.max_lease_ms == 3_600_000

    def test_an_empty_variable_counts_as_not_set(self) -> None:
        assert settings_of({"TICKETING_TLS_CERT": ""}) == Settings()

    def test_a_flag_that_takes_one_value_is_refused_twice(self) -> None:
        assert "--keepalive was given 2 times" in refusal_of(keepalive=["1s", "2s"])

    def test_addresses_come_by_comma_and_by_repeating(self) -> None:
        settings = settings_of(listen=["127.0.0.1:1,[::1]:2", "unix:/run/t.sock"])
        assert [str(a) for a in settings.listen] == ["127.0.0.1:1", "[::1]:2", "unix:/run/t.sock"]


WRONG = [
    ("listen", "127.0.0.1"),
    ("listen", ":5225"),
    ("listen", "127.0.0.1:65536"),
    ("listen", "::1:5225"),
    ("listen", "[127.0.0.1]:5225"),
    ("listen", "unix:relative"),
    ("listen", "unix:/" + "x" * 107),
    ("listen", "off"),
    ("listen", "127.0.0.1:5225,"),
    ("listen", "127.0.0.1:٣"),
    ("listen", "a..b:5225"),
    ("http-listen", "x" * 64 + ".example:5228"),
    ("listen-v3", "none"),
    ("http-listen", "unix:/run/http.sock"),
    ("http-host", "a b"),
    ("max-connections", "0"),
    ("max-connections", "-1"),
    ("max-connections", "1e3"),
    ("max-connections", ""),
    ("max-handshakes", "ten"),
    ("max-waiters-per-key", "0"),
    ("max-waiters", "100000001"),
    ("max-held-keys", "1.5"),
    ("max-unsent-bytes", "65535"),
    ("max-lease", "30"),
    ("max-lease", "0"),
    ("max-lease", "4294967295ms"),
    ("max-lease", "1 s"),
    ("keepalive", "1500ms"),
    ("keepalive", "0"),
    ("keepalive", "3601s"),
    ("reattach-grace", "2d"),
    ("restart-grace", "-1s"),
    ("log-format", "xml"),
    ("log-level", "INFO"),
    ("loop", "trio"),
]


class TestWrongValues:
    @pytest.mark.parametrize(("name", "text"), WRONG)
    def test_names_the_setting_what_it_got_and_what_it_takes(self, name: str, text: str) -> None:
        message = refusal_of(**{name: text})
        assert message.startswith(f"--{name}: got {text!a}, takes {BY_NAME[name].takes}\n")

    @pytest.mark.parametrize(("name", "text"), WRONG)
    def test_ends_with_a_command_that_is_accepted(self, name: str, text: str) -> None:
        kept = "log-format" if name != "log-format" else "keepalive"
        example = BY_NAME[kept].example
        env, flags = corrected(refusal_of(**{name: text, kept: example}))
        assert flags[kept] == [example]
        load(gather(flags, env))

    def test_names_the_variable_where_the_value_came_from_one(self) -> None:
        message = refusal_of({"TICKETING_KEEPALIVE": "5"})
        assert message.startswith("TICKETING_KEEPALIVE: got '5', takes ")
        assert message.endswith("try: TICKETING_KEEPALIVE=5s ticketing-server")

    def test_a_long_wrong_value_is_cut(self) -> None:
        assert len(refusal_of(listen="x" * 10_000).splitlines()[0]) < 400

    def test_control_characters_are_escaped(self) -> None:
        assert "got 'a\\x1b[31m:1'" in refusal_of(listen="a\x1b[31m:1")

    def test_a_ready_file_in_no_folder(self) -> None:
        assert "whose folder does not exist" in refusal_of(ready_file="/nowhere/at/all/ready")

    def test_a_ready_file_that_is_a_folder(self, tmp_path: Path) -> None:
        assert "Is a directory" in refusal_of(ready_file=str(tmp_path))

    def test_a_misspelt_variable_is_pointed_out(self) -> None:
        (warning,) = settings_of({"TICKETING_MAX_LEASES": "1h"}).warnings
        assert warning == "TICKETING_MAX_LEASES is not a setting; is TICKETING_MAX_LEASE meant?"

    def test_variables_of_clients_and_of_orchestrators_are_not(self) -> None:
        env = {"TICKETING_URL": "ticketing://h", "TICKETING_SERVICE_HOST": "10.0.0.1"}
        assert settings_of(env).warnings == ()


class TestReachable:
    def test_other_addresses_are_refused_without_secret_and_restart_grace(self) -> None:
        message = refusal_of(listen="0.0.0.0:5225")
        assert message.startswith("--listen: got 0.0.0.0:5225, which other machines may reach;")
        assert message.endswith(
            "try: (umask 077; ticketing-server secret > ticketing.secret) && ticketing-server"
            " --listen 0.0.0.0:5225 --secret-file ticketing.secret --restart-grace 30s"
        )

    @pytest.mark.parametrize("address", ["10.1.2.3:1", "[::]:1", "example.org:1"])
    def test_without_a_secret(self, address: str) -> None:
        message = refusal_of(listen=address, restart_grace="0")
        assert "--secret-file" in message
        assert "restart forgets" not in message

    def test_without_a_chosen_restart_grace(self) -> None:
        message = refusal_of({"TICKETING_SECRET": GOOD_SECRET}, listen="0.0.0.0:1")
        assert "restart forgets" in message
        assert "anyone could" not in message
        _, flags = corrected(message)
        settings = load(gather(flags, {"TICKETING_SECRET": GOOD_SECRET}))
        assert settings.limits.restart_grace_ms == 30_000

    def test_both_chosen(self) -> None:
        env = {"TICKETING_SECRET": GOOD_SECRET}
        settings = settings_of(env, listen="0.0.0.0:1", restart_grace="0")
        assert settings.limits.restart_grace_ms == 0
        assert any("does not speak TLS" in warning for warning in settings.warnings)

    def test_the_listener_for_version_3_too(self) -> None:
        assert refusal_of(listen_v3="0.0.0.0:1").startswith("--listen-v3: got 0.0.0.0:1, ")

    @pytest.mark.parametrize(
        "address", ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1", "unix:/t"]
    )
    def test_loopback_and_unix_sockets_need_neither(self, address: str) -> None:
        assert settings_of(listen=address).secrets == ()


class TestSecrets:
    def test_names_and_bare_ones(self, tmp_path: Path) -> None:
        path = tmp_path / "secrets"
        path.write_bytes(
            b"old 0123456789abcdef\r\n\nnew a secret with spaces\nbare-bare-bare-bare\n"
        )
        path.chmod(0o600)
        settings = settings_of(secret_file=str(path))
        assert [(s.name, s.value) for s in settings.secrets] == [
            ("old", b"0123456789abcdef"),
            ("new", b"a secret with spaces"),
            ("default", b"bare-bare-bare-bare"),
        ]
        assert settings.warnings == ()
        path.write_bytes(b"new 0123456789abcdef\n")
        assert [s.name for s in reread_secrets(settings)] == ["new"]

    @pytest.mark.parametrize(
        ("data", "why"),
        [
            (b"", "there is no secret"),
            (b"\n\n", "there is no secret"),
            (b"bad/name hidden-hidden-hidden", "line 1: a name is"),
            (b"a x\na y", "line 2: the name 'a' is there already"),
            (b"a " + b"x" * 1_025, "1 to 1024 bytes, this one 1025"),
            (b"a hid\0den", "no NUL"),
            (b"a ", "1 to 1024 bytes, this one 0"),
        ],
    )
    def test_what_a_file_may_not_hold(self, data: bytes, why: str, tmp_path: Path) -> None:
        path = tmp_path / "secrets"
        path.write_bytes(data)
        message = refusal_of(secret_file=str(path))
        assert message.startswith(f"--secret-file: got {str(path)!r}, of which ")
        assert why in message
        assert "hid" not in message

    def test_a_file_that_is_not_there(self) -> None:
        message = refusal_of(secret_file="/no/such/file")
        assert "can't be read (No such file or directory)" in message
        assert "ticketing-server secret > ticketing.secret" in message

    def test_file_and_variable_are_one_too_many(self, tmp_path: Path) -> None:
        path = tmp_path / "secrets"
        path.write_text(GOOD_SECRET)
        message = refusal_of({"TICKETING_SECRET": GOOD_SECRET}, secret_file=str(path))
        assert "are both set" in message
        assert GOOD_SECRET not in message

    def test_a_short_one_is_warned_about_without_showing_it(self) -> None:
        (warning,) = settings_of({"TICKETING_SECRET": "hunter2"}).warnings
        assert "fewer than 16 bytes" in warning
        assert "hunter2" not in warning

    def test_a_file_that_everybody_reads_is_warned_about(self, tmp_path: Path) -> None:
        path = tmp_path / "secrets"
        path.write_text(GOOD_SECRET)
        path.chmod(0o644)
        assert any("every user" in w for w in settings_of(secret_file=str(path)).warnings)

    def test_no_representation_shows_one(self) -> None:
        shown = repr(settings_of({"TICKETING_SECRET": GOOD_SECRET}))
        assert GOOD_SECRET not in shown
        assert GOOD_SECRET not in repr(gather({}, {"TICKETING_SECRET": GOOD_SECRET}))

    def test_a_new_one_is_good_and_can_be_read_back(self) -> None:
        first, second = new_secret(), new_secret()
        assert first != second
        (secret,) = parse_secrets(first.encode() + b"\n")
        assert secret.name == "default"
        assert len(secret.value) == 43


class TestTlsAndToken:
    @pytest.mark.parametrize(
        ("given", "missing"),
        [("tls-cert", "--tls-key"), ("tls-key", "--tls-cert"), ("tls-client-ca", "--tls-cert")],
    )
    def test_files_belong_together(self, given: str, missing: str) -> None:
        message = refusal_of(**{given: "x.pem"})
        assert f"not given: {missing}" in message
        _, flags = corrected(message)
        assert load(gather(flags, {})).tls is not None

    def test_tls_on_unix_sockets_only_is_warned_about(self) -> None:
        settings = settings_of(listen="unix:/t", tls_cert="a", tls_key="b")
        assert any("no effect" in warning for warning in settings.warnings)

    def test_a_token_is_read_without_its_line_end(self, tmp_path: Path) -> None:
        path = tmp_path / "token"
        path.write_text("0123456789abcdef\n")
        assert settings_of(http_token_file=str(path)).http_token == "0123456789abcdef"

    @pytest.mark.parametrize("text", ["", "short", "two words of a sentence", "x" * 1_025])
    def test_what_is_no_token(self, text: str, tmp_path: Path) -> None:
        path = tmp_path / "token"
        path.write_text(text)
        assert "one token of 16 to 1,024" in refusal_of(http_token_file=str(path))

    def test_http_beyond_loopback_without_a_token_is_warned_about(self) -> None:
        (warning,) = settings_of(http_listen="0.0.0.0:1").warnings
        assert "--http-token-file" in warning


class TestHttpListen:
    def test_off(self) -> None:
        assert settings_of(http_listen="off").http_listen == ()

    def test_free_ports_for_clients_mean_a_free_port_for_http(self) -> None:
        assert settings_of(listen="127.0.0.1:0").http_listen == (Address("127.0.0.1", 0),)

    def test_unless_one_was_chosen(self) -> None:
        settings = settings_of(listen="127.0.0.1:0", http_listen="127.0.0.1:5228")
        assert settings.http_listen == (Address("127.0.0.1", 5228),)


@pytest.mark.parametrize("text", ["127.0.0.1:0", "[::1]:65535", "unix:/a b", "example.org:1"])
def test_an_address_shows_as_it_was_written(text: str) -> None:
    assert str(parse_address(text)) == text


@pytest.mark.parametrize("text", ["0", "1ms", "1500ms", "7s", "90s", "5m", "1h", "36h", "1d"])
def test_a_duration_shows_as_it_was_written(text: str) -> None:
    milliseconds = setting_values.parse_duration_ms(text)
    assert setting_values.parse_duration_ms(setting_values.show_duration(milliseconds)) == (
        milliseconds
    )
