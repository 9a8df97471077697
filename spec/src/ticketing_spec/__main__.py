"""`python -m ticketing_spec`: check, diff, generate, show."""

from __future__ import annotations

import argparse
import os
import sys

from ticketing_spec.generate import generate
from ticketing_spec.model import SpecError


def main() -> int:
    parser = argparse.ArgumentParser(prog="ticketing_spec", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("generate", help="rewrite stale generated files; with CI set, fail instead")
    arguments = parser.parse_args()
    try:
        if arguments.command == "generate":
            return 0 if generate(print, check_only=bool(os.environ.get("CI"))) else 1
    except SpecError as error:
        print(error, file=sys.stderr)
        return 2
    return 2


if __name__ == "__main__":
    sys.exit(main())
