"""Measure the server beside Redis on this machine and print the table.

The server runs on one core, the load generator on the other. Results go to bench/results.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

from measure import load, machine, servers, table
from measure.figures import FIGURES, Figure, Plan, Result
from measure.servers import BenchError

RESULTS = Path(__file__).resolve().parent / "results"
ROUNDS_MIN = 5


def read_arguments() -> argparse.Namespace:
    names = ", ".join(figure.name for figure in FIGURES)
    parser = argparse.ArgumentParser(description=__doc__, epilog=f"Figures: {names}.")
    parser.add_argument(
        "--python",
        default=sys.executable,
        help="the Python that runs the server; it needs ticketing-server[fast] (default: this one)",
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS_MIN, help="rounds of each figure (5)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement (2)")
    parser.add_argument("--only", nargs="+", metavar="FIGURE", help="measure these figures only")
    parser.add_argument(
        "--check-gates", action="store_true", help="exit with 1 if a gate is not met or undecided"
    )
    arguments = parser.parse_args()
    unknown = set(arguments.only or ()) - {figure.name for figure in FIGURES}
    if unknown:
        parser.error(f"no figure is called {', '.join(sorted(unknown))}; there are: {names}")
    if arguments.rounds < 1 or arguments.seconds <= 0:
        parser.error("--rounds and --seconds take more than 0")
    return arguments


def measure(figure: Figure, plan: Plan) -> Result:
    """Every round of one figure, with a line on stderr as each ends."""
    result = Result(figure)
    for number, each in enumerate(figure.measure(plan), 1):
        result.rounds.append(each)
        ratio = figure.value(each[figure.second]) / figure.value(each[figure.first])
        print(f"{figure.name} {number}/{plan.rounds}: × {ratio:.2f}", file=sys.stderr, flush=True)
    return result


def write(where: dict[str, str], results: list[Result]) -> None:
    RESULTS.mkdir(exist_ok=True)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    as_json = json.dumps(table.as_json(where, results), indent=1, ensure_ascii=False)
    (RESULTS / f"{stamp}.json").write_text(as_json + "\n", encoding="utf-8")
    as_table = table.markdown(where, results)
    (RESULTS / f"{stamp}.md").write_text(as_table, encoding="utf-8")
    print(as_table)


def main() -> int:
    arguments = read_arguments()
    if len(os.sched_getaffinity(0)) < 2:
        raise BenchError("the bench needs two cores: one for the server, one for the generator")
    load.build()
    figures = [each for each in FIGURES if not arguments.only or each.name in arguments.only]
    peer = servers.redis_version()
    if not peer:
        print(f"\n{servers.REDIS_MISSING}\n", file=sys.stderr)
        figures = [figure for figure in figures if not figure.beside_redis]
    plan = Plan(arguments.python, arguments.rounds, arguments.seconds)
    where = machine.describe(arguments.python)
    where["redis"] = peer or "missing: nothing is compared with it"
    ceiling = load.ceiling(plan.seconds)
    where["generator"] = f"{ceiling / 1e6:.1f} M requests/s against a server that only answers"
    where["rounds"] = f"{plan.rounds} of {plan.seconds:g} s"
    results = [measure(figure, plan) for figure in figures]
    write(where, results)
    if not peer:
        print(f"\n{servers.REDIS_MISSING}\n", file=sys.stderr)
    undecided = not peer or any(result.met is False for result in results)
    return 1 if arguments.check_gates and undecided else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchError as error:
        sys.exit(f"bench: {error}")
