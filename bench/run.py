"""Measure the server beside Redis, and clusters beside etcd and ZooKeeper; print the tables.

A single server runs on one core, the load generator on the other; what makes up a cluster, and
what loads it, shares all cores. Results go to bench/results.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from measure import clusters, load, machine, servers, table
from measure.figure import Figure, Plan, Result
from measure.figures import FIGURES
from measure.servers import BenchError

RESULTS = Path(__file__).resolve().parent / "results"
ROUNDS_MIN = 5
KILLS_MIN = 20
MISSING = {
    "redis": servers.REDIS_MISSING,
    "etcd": clusters.ETCD_MISSING,
    "zookeeper": clusters.ZOOKEEPER_MISSING,
    "go": load.GO_MISSING,
}
VERSIONS = {
    "redis": servers.redis_version,
    "etcd": clusters.etcd_version,
    "zookeeper": clusters.zookeeper_version,
    "go": load.go_version,
}


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
    parser.add_argument(
        "--kills", type=int, default=KILLS_MIN, help="kills of a leader, for failover (20)"
    )
    parser.add_argument(
        "--disk",
        type=Path,
        default=Path(tempfile.gettempdir()),
        help="a folder on the disk that the data of all durable servers goes to (%(default)s)",
    )
    parser.add_argument("--only", nargs="+", metavar="FIGURE", help="measure these figures only")
    parser.add_argument(
        "--check-gates", action="store_true", help="exit with 1 if a gate is not met or undecided"
    )
    arguments = parser.parse_args()
    unknown = set(arguments.only or ()) - {figure.name for figure in FIGURES}
    if unknown:
        parser.error(f"no figure is called {', '.join(sorted(unknown))}; there are: {names}")
    if min(arguments.rounds, arguments.kills) < 1 or arguments.seconds <= 0:
        parser.error("--rounds, --kills and --seconds take more than 0")
    if not arguments.disk.is_dir():
        parser.error(f"--disk {arguments.disk} is no folder")
    return arguments


def measure(figure: Figure, plan: Plan) -> Result:
    """Every round of one figure, with a line on stderr as each ends."""
    result = Result(figure)
    rounds = plan.rounds if figure.limits is None else plan.kills
    for number, each in enumerate(figure.measure(plan), 1):
        result.rounds.append(each)
        first, second = (figure.value(each[name]) for name in (figure.first, figure.second))
        told = f"× {second / first:.2f}, {second:,.2f} {figure.unit}"
        print(f"{figure.name} {number}/{rounds}: {told}", file=sys.stderr, flush=True)
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
    needed = {name for figure in figures for name in figure.needs}
    versions = {name: VERSIONS[name]() for name in sorted(needed)}
    missing = {name for name, version in versions.items() if not version}
    notice = "\n\n".join(MISSING[name] for name in sorted(missing))
    if notice:
        print(f"\n{notice}\n", file=sys.stderr)
    figures = [figure for figure in figures if not missing.intersection(figure.needs)]
    if any("go" in figure.needs for figure in figures):
        load.build_cluster_program()
    if any(figure.on_disk for figure in figures):
        machine.check_disk(arguments.disk)
    where = machine.describe(arguments.python, arguments.disk)
    where |= {name: version or "missing" for name, version in versions.items()}
    plan = Plan(
        arguments.python, arguments.rounds, arguments.seconds, arguments.kills, arguments.disk
    )
    ceiling = load.ceiling(plan.seconds)
    where["generator"] = f"{ceiling / 1e6:.1f} M requests/s against a server that only answers"
    where["rounds"] = f"{plan.rounds} of {plan.seconds:g} s"
    results = [measure(figure, plan) for figure in figures]
    where["load_average"] += f" before, {machine.load_average()} after"
    write(where, results)
    if notice:
        print(f"\n{notice}\n", file=sys.stderr)
    undecided = missing or any(result.met is False for result in results)
    return 1 if arguments.check_gates and undecided else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchError as error:
        sys.exit(f"bench: {error}")
