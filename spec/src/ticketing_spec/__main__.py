"""`python -m ticketing_spec`: check, diff, freeze, generate, show."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from ticketing_spec import diff
from ticketing_spec.check import check_file
from ticketing_spec.generate import generate
from ticketing_spec.model import SPEC_DIR, SPEC_FILES, SpecError, load_spec
from ticketing_spec.show import show


def main(argv: list[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except SpecError as error:
        print(error, file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ticketing_spec", description="The Ticketing protocol as data."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="tell what is wrong in the spec files")
    check.add_argument("files", nargs="*", type=Path, help="instead of the spec's own files")
    check.set_defaults(run=_check)
    compare = commands.add_parser("diff", help="tell what changed since the frozen copy")
    compare.add_argument("--spec", type=Path, default=SPEC_DIR / SPEC_FILES["ticketing"])
    compare.add_argument("--frozen", type=Path, default=diff.FROZEN)
    compare.set_defaults(run=_diff)
    freeze = commands.add_parser("freeze", help="write the frozen copy")
    freeze.add_argument("--spec", type=Path, default=SPEC_DIR / SPEC_FILES["ticketing"])
    freeze.add_argument("--frozen", type=Path, default=diff.FROZEN)
    freeze.add_argument("--released", action="store_true", help="for good: refuse breaking edits")
    freeze.set_defaults(run=_freeze)
    make = commands.add_parser("generate", help="rewrite what is stale; with CI set, fail instead")
    make.set_defaults(run=_generate)
    view = commands.add_parser("show", help="explain every byte of a frame")
    view.add_argument("what", help="name of a frame, or bytes of a stream in hex")
    view.add_argument("--from", dest="direction", choices=("client", "server"))
    view.add_argument("--version", type=int, choices=(3, 4), default=4)
    view.set_defaults(run=_show)
    return parser


def _check(arguments: argparse.Namespace) -> int:
    paths = arguments.files or [SPEC_DIR / name for name in SPEC_FILES.values()]
    problems = [line for path in paths for line in check_file(path)]
    for line in problems:
        print(line, file=sys.stderr)
    if not problems:
        print(f"{', '.join(path.name for path in paths)}: sound")
    return 1 if problems else 0


def _diff(arguments: argparse.Namespace) -> int:
    lines, acceptable = diff.report(arguments.spec, arguments.frozen)
    print("\n".join(lines))
    return 0 if acceptable else 1


def _freeze(arguments: argparse.Namespace) -> int:
    diff.freeze(arguments.spec, arguments.frozen, released=arguments.released)
    print(f"wrote {arguments.frozen.name}")
    return 0


def _generate(_: argparse.Namespace) -> int:
    in_ci = bool(os.environ.get("CI"))
    fresh = generate(print, check_only=in_ci)
    if not fresh:
        print("generated files are stale; run: python -m ticketing_spec generate", file=sys.stderr)
    return 0 if fresh else 1


def _show(arguments: argparse.Namespace) -> int:
    spec = load_spec("version3" if arguments.version == 3 else "ticketing")
    print(show(spec, arguments.what, arguments.direction), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
