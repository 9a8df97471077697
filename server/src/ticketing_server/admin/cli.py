"""The command `ticketing-admin`: looks at servers and does what an operator may do.

Exit codes: 0 done, 1 a bug, 2 wrong use, 3 no answer, 4 data directory refused, 5 disk,
6 refused by the server.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

from ticketing_server.admin import offline
from ticketing_server.admin.errors import BUG, DONE, INTERRUPTED, USAGE, AdminError
from ticketing_server.admin.parsing import (
    DURATION,
    KEY,
    LIMIT,
    PATH,
    SLOT,
    SLOTS,
    TIMEOUT,
    TOKEN,
)
from ticketing_server.admin.target import DEFAULT_ADDRESS, SECRET_FILE_ENV
from ticketing_server.settings_load import ADMIN_ADDRESS_ENV, ADMIN_SECRET_ENV


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with `argv` (the process's own) and return its exit code."""
    try:
        arguments = _parser().parse_args(list(sys.argv[1:] if argv is None else argv))
        run: _Run = arguments.run
        print(run(arguments), end="", flush=True)
    except AdminError as error:
        print(f"ticketing-admin: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # Whoever read the output has seen enough; the interpreter is not to complain at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        print(f"ticketing-admin: this is a bug, please report it: {_blame(error)}", file=sys.stderr)
        return BUG
    return DONE


_Run = Callable[[argparse.Namespace], str]


def _online(name: str) -> _Run:
    """A command that calls a server; only here is gRPC imported."""

    def run(options: argparse.Namespace) -> str:
        try:
            from ticketing_server.admin import online
        except ImportError:
            raise AdminError(
                "the packages of gRPC are not installed; try: pip install"
                " 'ticketing-server[admin]'",
                USAGE,
            ) from None
        made: _Run = getattr(online, name)
        return made(options)

    return run


def _blame(error: Exception) -> str:
    where = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno},"
        f" version {version('ticketing-server')})"
    )


class _Parser(argparse.ArgumentParser):
    """Refuses in one line, without the whole usage."""

    def error(self, message: str) -> NoReturn:
        raise AdminError(f"{message}; try: {self.prog} --help", USAGE)


def _parser() -> _Parser:
    parser = _Parser(
        prog="ticketing-admin",
        description="Looks at Ticketing servers and does what an operator may do.",
        epilog=(__doc__ or "").partition("\n\n")[2].strip(),
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=version("ticketing-server"))
    parser.set_defaults(json=False)
    _add_common(parser)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def add(name: str, run: _Run, about: str) -> _Parser:
        made: _Parser = commands.add_parser(
            name, help=about, description=f"{about[0].upper()}{about[1:]}.", allow_abbrev=False
        )
        made.set_defaults(run=run)
        return made

    _add_online(add)
    _add_offline(add)
    return parser


_Add = Callable[[str, _Run, str], _Parser]


def _add_online(add: _Add) -> None:
    _add_common(add("status", _online("status"), "show a node, its counts and its cluster"))
    for name, run, paged_by in (
        ("tickets", _online("tickets"), "token"),
        ("waiters", _online("waiters"), "join number"),
    ):
        listing = add(name, run, f"list {name} in grant order")
        _add_common(listing)
        listing.add_argument(
            "--key", type=KEY, default=b"", metavar="KEY", help=f"only {name} of this key"
        )
        listing.add_argument(
            "--limit",
            type=LIMIT,
            default=100,
            metavar="N",
            help="list at most so many (default 100)",
        )
        listing.add_argument("--all", action="store_true", help="list all, page by page")
        listing.add_argument(
            "--after", type=TOKEN, default=0, metavar="N", help=f"begin after this {paged_by}"
        )
    release = add("force-release", _online("force_release"), "end a ticket and tell its holder")
    _add_common(release)
    release.add_argument("key", type=KEY, metavar="KEY", help=r"a key, \xNN as tables show it")
    release.add_argument("token", type=TOKEN, metavar="TOKEN", help="the ticket's token")
    transfer = add("transfer", _online("transfer"), "let another node of the cluster lead")
    _add_common(transfer)
    transfer.add_argument(
        "--to", type=SLOT, metavar="SLOT", help="to whom; else to the node that is furthest"
    )
    snapshot = add("snapshot", _online("snapshot"), "write a backup of a running node to a file")
    _add_common(snapshot)
    snapshot.add_argument("file", type=PATH, metavar="FILE", help="a file that isn't there yet")
    _add_common(
        add("drain", _online("drain"), "send clients on and end the server, as SIGTERM does")
    )


def _add_offline(add: _Add) -> None:
    restore = add("restore", offline.restore, "make a data directory of a backup, for a new start")
    restore.add_argument("--snapshot", type=PATH, required=True, metavar="FILE", help="the backup")
    recover = add("recover", offline.recover, "found a cluster anew when a majority is lost")
    for command in (restore, recover):
        command.add_argument(
            "--data-dir", type=PATH, required=True, metavar="DIR", help="of a stopped node"
        )
        command.add_argument(
            "--restart-grace",
            type=DURATION,
            metavar="DURATION",
            help="how long nothing is granted after the first start; by default as long as the"
            " longest lease that was allowed, so that every lease of before has ended",
        )
        command.add_argument(
            "--json", action="store_true", default=argparse.SUPPRESS, help="print JSON"
        )
    recover.add_argument(
        "--yes", action="store_true", help="do it; else only what would be done is said"
    )
    restore.add_argument(
        "--slot", type=SLOT, default=0, metavar="N", help="of the node (default 0)"
    )
    restore.add_argument(
        "--slots", type=SLOTS, metavar="N", help="of its cluster: 1, 3 or 5 (default: as before)"
    )


def _add_common(parser: argparse.ArgumentParser) -> None:
    """Options of every call; they may stand before the command or behind it."""

    def add(flag: str, **settings: object) -> None:
        parser.add_argument(flag, default=argparse.SUPPRESS, **settings)  # type: ignore[arg-type]

    add(
        "--address",
        metavar="ADDRESS",
        help=f"host:port, [v6]:port or unix:/path of the server's --admin-listen, or"
        f" {ADMIN_ADDRESS_ENV} (default {DEFAULT_ADDRESS})",
    )
    add(
        "--secret-file",
        type=PATH,
        metavar="FILE",
        help="the server's --admin-secret-file, whose first secret is sent, or"
        f" {SECRET_FILE_ENV}, or the secret in {ADMIN_SECRET_ENV}",
    )
    add("--tls", action="store_true", help="speak TLS, and trust the system's authorities")
    add("--tls-ca", type=PATH, metavar="FILE", help="speak TLS, and trust these authorities")
    add("--tls-cert", type=PATH, metavar="FILE", help="own certificate (with --tls-key)")
    add("--tls-key", type=PATH, metavar="FILE", help="own key")
    add("--tls-name", metavar="NAME", help="name in the server's certificate, if not the address")
    add(
        "--timeout",
        type=TIMEOUT,
        metavar="DURATION",
        help="how long to wait for an answer (default 10s, for a list 60s, for a snapshot 10m)",
    )
    add("--json", action="store_true", help="print JSON")
