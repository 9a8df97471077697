"""The command `ticketing-server`: reads settings, runs until a signal, says what went wrong.

Exit codes: 0 drained, 1 a bug, 2 wrong settings, 3 an address can't be listened on, 4 the data
directory is refused, 5 the disk failed.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

from ticketing_server import banner, service
from ticketing_server.addresses import Address
from ticketing_server.cluster_driver import EXIT_BUG, EXIT_DATA_DIR, EXIT_DISK
from ticketing_server.event_loop import loop_factory
from ticketing_server.log import EventLog, LineWriter
from ticketing_server.secret_file import new_secret
from ticketing_server.serve import BindError, DiskError, Service
from ticketing_server.setting_values import show_duration
from ticketing_server.settings import BY_NAME, SETTINGS, Settings
from ticketing_server.settings_load import SECRET_ENV, Given, SettingsError, gather, load
from ticketing_server.storage.directory import Refused
from ticketing_server.tls import TlsError

EXIT_DRAINED, EXIT_SETTINGS, EXIT_BIND = 0, 2, 3
_SWITCH_INTERVAL_S = 0.0005
"""How soon the thread that writes the log may go on while the event loop is busy: with Python's
own 5 ms, requests would wait longer for that than for the disk."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with `argv` (the process's own) and return its exit code."""
    _open_standard_streams()
    words = list(sys.argv[1:] if argv is None else argv)
    if words == ["secret"]:
        print(new_secret())
        return 0
    try:
        arguments = _parse(words)
        given = gather({s.name: getattr(arguments, s.name) or () for s in SETTINGS}, os.environ)
        settings = load(given)
        make_loop = loop_factory(settings)
    except SettingsError as error:
        return _refuse(error)
    if arguments.print_settings:
        print(_settings_text(given, settings), end="")
        return 0
    writer = LineWriter()
    log = EventLog(writer.write, style=settings.log_format, level=settings.log_level)
    try:
        with asyncio.Runner(loop_factory=make_loop) as runner:
            return runner.run(_run(settings, log, only_check=arguments.check))
    except (SettingsError, TlsError) as error:
        return _refuse(error)
    except BindError as error:
        _say(f"ticketing-server: {error}{_other_port(given, settings, error)}")
        return EXIT_BIND
    except (Refused, DiskError) as error:
        _say(f"ticketing-server: {error}")
        return EXIT_DATA_DIR if isinstance(error, Refused) else EXIT_DISK
    except Exception:
        _say(f"ticketing-server: this is a bug, please report it:\n{traceback.format_exc()}")
        return EXIT_BUG
    finally:
        writer.close()


def _open_standard_streams() -> None:
    """Put the null device where one was closed: else a socket gets its number, and our lines."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is given, and those below are taken.
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


def _refuse(error: Exception) -> int:
    _say(f"ticketing-server: {error}")
    return EXIT_SETTINGS


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _other_port(given: Given, settings: Settings, error: BindError) -> str:
    """What to do where somebody else has a port; "" where that is not the reason.

    A free one would not help other nodes, which have to find this one.
    """
    is_named_to_others = settings.cluster is not None and error.setting in ("listen", "peer-listen")
    if not error.is_taken or error.setting not in BY_NAME or is_named_to_others:
        return ""
    addresses: tuple[Address, ...] = getattr(settings, error.setting.replace("-", "_"))
    if all(address.is_unix for address in addresses):
        return ""
    free = ",".join(str(a if a.is_unix else replace(a, port=0)) for a in addresses)
    return f"\n  port 0 takes a free one; try: {given.corrected({error.setting: free})}"


class _Parser(argparse.ArgumentParser):
    """Refuses like every other check of settings: without the whole usage."""

    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{message}\n  try: ticketing-server --help")


def _parse(words: list[str]) -> argparse.Namespace:
    arguments, unknown = _parser().parse_known_args(words)
    if unknown:
        known = [setting.flag for setting in SETTINGS]
        close = get_close_matches(unknown[0].partition("=")[0], known, n=1)
        meant = f"; is {close[0]} meant?" if close else ""
        raise SettingsError(
            f"got {unknown[0]!a}, which is no flag{meant}\n  try: ticketing-server --help"
        )
    return arguments


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="ticketing-server",
        usage="ticketing-server [--SETTING VALUE ...] | ticketing-server secret",
        description="A lock server. Without any setting it serves this machine only;"
        " 'ticketing-server secret' prints a new, good secret.",
        epilog="Each setting is also an environment variable: --max-lease is TICKETING_MAX_LEASE."
        " Exit codes: 0 drained, 1 bug, 2 wrong settings, 3 can't listen, 4 data directory"
        " refused, 5 disk.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=version("ticketing-server"))
    parser.add_argument(
        "--check", action="store_true", help="say whether the server would start, and end"
    )
    parser.add_argument(
        "--print-settings",
        action="store_true",
        help="print every setting with its value and where that comes from, and end",
    )
    for setting in SETTINGS:
        default = f" (default {setting.default})" if setting.default else ""
        parser.add_argument(
            setting.flag,
            dest=setting.name,
            action="append",
            metavar="VALUE",
            help=f"{setting.about}; takes {setting.takes}{default}".replace("%", "%%"),
        )
    return parser


def _settings_text(given: Given, settings: Settings) -> str:
    """A line per setting: name, value, where it comes from; never a secret."""
    rows = [(s.name, given.text(s.name) or "-", given.source(s.name)) for s in SETTINGS]
    names = ",".join(secret.name for secret in settings.secrets)
    rows.append(("secrets", names or "-", "env" if given.env.get(SECRET_ENV) else "secret-file"))
    effective = {
        "listen": ",".join(map(str, settings.listen)),
        "http-listen": ",".join(map(str, settings.http_listen)) or "off",
        "keepalive": show_duration(settings.limits.keepalive_s * 1_000),
    }
    if settings.cluster is not None:
        effective["peer-listen"] = ",".join(map(str, settings.cluster.peer_listen))
        effective["advertise"] = str(settings.cluster.clients[settings.cluster.slot])
    rows = [
        (name, value if source != "default" else effective.get(name, value), source)
        for name, value, source in rows
    ]
    return "".join(f"{name:<20} {value:<28} {source}\n" for name, value, source in rows)


async def _run(settings: Settings, log: EventLog, *, only_check: bool) -> int:
    for warning in (*settings.warnings, service.raise_file_limit(settings.limits)):
        if warning:
            log.always("warning", "settings", text=warning)
    running = Service(settings, log, only_check=only_check)
    if only_check:
        await running.start()
        await running.stop()
        print("ticketing-server would start")
        return EXIT_DRAINED
    if running.driver is not None:
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
    stop_asked = running.stop_asked
    notify_socket = service.notify_socket()
    _handle_signals(running, stop_asked, notify_socket)
    asyncio.get_running_loop().set_exception_handler(running.log_bug)
    await running.start()
    try:
        gc.collect()
        # What lives as long as the process need not be looked at by each collection.
        gc.freeze()
        if service.leaves_no_cycles(asyncio.get_running_loop()):
            gc.callbacks.append(service.freeze_what_stays)
        if settings.ready_file is not None:
            _write_ready_file(settings.ready_file, running)
        _announce(running, log)
        service.notify("READY=1", notify_socket)
        await stop_asked.wait()
        service.notify("STOPPING=1", notify_socket)
        if not running.exit_code:
            await running.drain()
    finally:
        if service.freeze_what_stays in gc.callbacks:
            gc.callbacks.remove(service.freeze_what_stays)
        await running.stop()
        if settings.ready_file is not None and settings.ready_file.is_file():
            settings.ready_file.unlink()
    log.always("info", "stopped")
    return running.exit_code


def _announce(running: Service, log: EventLog) -> None:
    if running.settings.log_format == "json":
        log.always("info", "started", banner.fields(running))
    else:
        log.raw(banner.text(running))


def _write_ready_file(path: Path, running: Service) -> None:
    """Write it whole or not at all, so that a script that sees it can read it."""
    lines = [f"{name}={value}\n" for name, value in banner.ready_lines(running)]
    part = path.with_name(path.name + ".part")
    try:
        part.write_text("".join(lines))
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise SettingsError(
            f"--ready-file: got {str(path)!a}, which can't be written ({error.strerror});"
            " takes the path of a file in a folder where the server may write"
        ) from None


def _handle_signals(running: Service, stop_asked: asyncio.Event, notify_socket: str) -> None:
    loop = asyncio.get_running_loop()

    def stop(number: signal.Signals) -> None:
        if stop_asked.is_set():
            # Whoever asks twice doesn't want to wait; the exit status names the signal.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        stop_asked.set()

    def reload() -> None:
        if not running.addresses:
            return  # It has yet to start, with what is in the files now.
        service.notify_reloading(notify_socket)
        running.reload()
        service.notify("READY=1", notify_socket)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    loop.add_signal_handler(signal.SIGHUP, reload)
