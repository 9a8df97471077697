"""What was given as flags and environment, and how one value of it is read or refused."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ticketing_server.secret_file import Secret, check_secret
from ticketing_server.settings import BY_NAME, SETTINGS, TlsFiles

_SHOWN_BYTES_MAX = 200


class SettingsError(Exception):
    """A setting is wrong; the text says which, what it got, what it takes, and a right command."""


@dataclass(frozen=True, slots=True)
class Given:
    """What was given, before it is checked: per setting its text and `flag` or `env`."""

    values: Mapping[str, tuple[str, str]]
    env: Mapping[str, str] = field(repr=False)

    def text(self, name: str) -> str:
        """The value of a setting as text: what was given, else its default."""
        return self.values[name][0] if name in self.values else BY_NAME[name].default

    def source(self, name: str) -> str:
        """Where the value comes from: `flag`, `env` or `default`."""
        return self.values[name][1] if name in self.values else "default"

    def called(self, name: str) -> str:
        """What the one who gave the value calls the setting."""
        return BY_NAME[name].env if self.source(name) == "env" else BY_NAME[name].flag

    def corrected(self, changes: Mapping[str, str | None]) -> str:
        """The command with other values for some settings; None takes one out."""
        env: list[str] = []
        argv: list[str] = []
        for name, (text, source) in self.values.items():
            new = changes.get(name, text)
            if new is None:
                continue
            if source == "env":
                env.append(f"{BY_NAME[name].env}={shlex.quote(new)}")
            else:
                argv += [BY_NAME[name].flag, new]
        for name, new in changes.items():
            if new is not None and name not in self.values:
                argv += [BY_NAME[name].flag, new]
        return " ".join([*env, "ticketing-server", *map(shlex.quote, argv)])

    def refusal(
        self, what: str, changes: Mapping[str, str | None], before: str = ""
    ) -> SettingsError:
        """The error for `what`, ending with the command that would have been right."""
        return SettingsError(f"{what}\n  try: {before}{self.corrected(changes)}")


def gather(flags: Mapping[str, Sequence[str]], env: Mapping[str, str]) -> Given:
    """Join flags and environment (an empty variable counts as not set).

    SettingsError where a flag is repeated that takes one value.
    """
    values: dict[str, tuple[str, str]] = {}
    for setting in SETTINGS:
        texts = flags.get(setting.name, ())
        if len(texts) > 1 and not setting.several:
            raise SettingsError(f"{setting.flag} was given {len(texts)} times and takes one value")
        if texts:
            values[setting.name] = (",".join(texts), "flag")
        elif env.get(setting.env):
            values[setting.name] = (env[setting.env], "env")
    return Given(values, env)


def shown(text: str) -> str:
    """Return what was given as a refusal quotes it."""
    quoted = ascii(text)
    return quoted if len(quoted) <= _SHOWN_BYTES_MAX else quoted[:_SHOWN_BYTES_MAX] + "…'"


def value_of(given: Given, name: str) -> Any:
    """Return the checked value of one setting; None where there is neither value nor default."""
    setting, text = BY_NAME[name], given.text(name)
    if not text and name not in given.values:
        return None
    try:
        return setting.parse(text)
    except ValueError:
        raise given.refusal(
            f"{given.called(name)}: got {shown(text)}, takes {setting.takes}",
            {name: setting.example},
        ) from None


def read_file(given: Given, name: str, read: Callable[[Path], Any], path: Path, holds: str) -> Any:
    """Return what `read` makes of a setting's file, or refuse it saying what it has to hold."""
    try:
        return read(path)
    except OSError as error:
        why = f"which can't be read ({error.strerror})"
    except ValueError as error:
        why = f"of which {error}"
    raise given.refusal(
        f"{given.called(name)}: got {shown(str(path))}, {why}; takes a file that holds {holds}",
        {name: BY_NAME[name].example},
        before=make_secret(BY_NAME[name].example),
    )


def make_secret(path: str) -> str:
    """Return the begin of a command line that makes a secret file first."""
    return f"(umask 077; ticketing-server secret > {path}) && "


def secrets_of(
    given: Given,
    path: Path | None,
    setting: str,
    env: str,
    read: Callable[[Path], tuple[Secret, ...]],
    check: Callable[[tuple[Secret, ...]], tuple[Secret, ...]],
) -> tuple[Secret, ...]:
    """The secrets of a file or of the one variable that may stand in for it."""
    text = given.env.get(env, "")
    if path is not None:
        if text:
            raise given.refusal(
                f"{given.called(setting)} and {env} are both set, and one is enough",
                {},
                before=f"unset {env}; ",
            )
        found: tuple[Secret, ...] = read_file(given, setting, read, path, "lines of `name secret`")
        return found
    if not text:
        return ()
    try:
        return check((check_secret("default", os.fsencode(text)),))
    except ValueError as error:
        raise given.refusal(
            f"{env}: {error}", {}, before=f'{env}="$(ticketing-server secret)" '
        ) from None


def tls_files(given: Given, values: Mapping[str, Any], prefix: str = "") -> TlsFiles | None:
    """Return the TLS files of the settings with a prefix; peers need an authority too."""
    is_peer = prefix == "peer-"
    names = [f"{prefix}tls-{part}" for part in ("cert", "key", "ca" if is_peer else "client-ca")]
    cert, key, client_ca = (values[name] for name in names)
    if cert is None and key is None and client_ca is None:
        return None
    needed = names if is_peer else names[:2]
    missing = [name for name in needed if values[name] is None]
    if missing:
        *most, last = (BY_NAME[name].flag for name in needed)
        raise given.refusal(
            f"TLS takes {', '.join(most)} and {last} together; not given:"
            f" {', '.join(BY_NAME[name].flag for name in missing)}",
            {name: BY_NAME[name].example for name in missing},
        )
    return TlsFiles(cert, key, client_ca, prefix)
