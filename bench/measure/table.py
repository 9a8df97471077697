"""The results as Markdown tables, and as JSON with every round in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from measure.figure import Figure, Result, Spread, p99_ms, requests_per_s, server_cpu_us

NAMES = {
    "redis": "Redis",
    "zookeeper": "ZooKeeper",
    "ticketing": "Ticketing",
    "memory": "Memory mode",
    "durable": "Durable",
}


def _span(spread: Spread, digits: int = 2, scale: float = 1.0) -> str:
    middle, least, most = (
        f"{value * scale:,.{digits}f}" for value in (spread.median, spread.least, spread.most)
    )
    return f"{middle} ({least}–{most})"


def _thousands(spread: Spread) -> str:
    return _span(spread, 0 if spread.median >= 50_000 else 1, 1e-3)


def _gate(result: Result) -> str:
    figure, said = result.figure, "met" if result.met else "NOT MET"
    if figure.limits is not None:
        return f"≤ {figure.limits[0]:g} / {figure.limits[1]:g} {said}"
    if figure.gate is None:
        return "–"
    sign = "≥" if figure.at_least else "≤"
    return f"{sign} {figure.gate:g} {said}"


def _throughput_row(result: Result) -> list[str]:
    sides = (result.figure.first, result.figure.second)
    cpu, p99 = (
        [result.side(name, value).median for name in sides] for value in (server_cpu_us, p99_ms)
    )
    return [
        result.figure.title,
        *(_thousands(result.side(name)) for name in sides),
        _span(result.ratio),
        f"{cpu[0]:.2f} / {cpu[1]:.2f}",
        f"{p99[0]:.2f} / {p99[1]:.2f}",
        _gate(result),
    ]


def _failover_row(result: Result) -> list[str]:
    figure = result.figure
    sides = [
        f"{spread.median:.2f} / {result.p95(name):.2f} ({spread.least:.2f}–{spread.most:.2f})"
        for name in (figure.first, figure.second)
        for spread in [result.side(name)]
    ]
    return [figure.title, str(len(result.rounds)), *sides, _gate(result)]


def _own_row(result: Result) -> list[str]:
    figure = result.figure
    return [
        figure.title,
        figure.unit,
        _span(result.side(figure.first)),
        _span(result.side(figure.second)),
        _span(result.ratio),
        _gate(result),
    ]


def _header(figure: Figure) -> tuple[str, ...]:
    """The header of the table that a figure's row goes into; rows of one header are one table."""
    sides = [NAMES.get(name, name) for name in (figure.first, figure.second)]
    if figure.limits is not None:
        spans = (f"{name}, p50 / p95 {figure.unit}" for name in sides)
        return ("what", "times", *spans, "gate")
    if figure.value is requests_per_s:
        rates = (f"{name}, k requests/s" for name in sides)
        return ("job", *rates, "×", "CPU µs per request", "p99 ms", "gate")
    return ("job", "unit", "first", "second", "×", "gate")


def _row_of(figure: Figure) -> Callable[[Result], list[str]]:
    if figure.limits is not None:
        return _failover_row
    return _throughput_row if figure.value is requests_per_s else _own_row


def _line(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def markdown(machine: dict[str, str], results: list[Result]) -> str:
    """The tables under the description of the machine."""
    lines = [f"- {name.replace('_', ' ')}: {value}" for name, value in machine.items()]
    lines += ["", "Medians of the rounds, with the least and the most in brackets."]
    tables: dict[tuple[str, ...], list[Result]] = {}
    for result in results:
        tables.setdefault(_header(result.figure), []).append(result)
    for header, rows in tables.items():
        lines += ["", _line(header), _line(["---"] * len(header))]
        lines += [_line(_row_of(result.figure)(result)) for result in rows]
    return "\n".join(lines) + "\n"


def as_json(machine: dict[str, str], results: list[Result]) -> dict[str, Any]:
    """Everything that was measured, for `json.dump`."""
    return {
        "machine": machine,
        "figures": [
            {
                "name": result.figure.name,
                "title": result.figure.title,
                "unit": result.figure.unit,
                "ratio": {
                    "median": result.ratio.median,
                    "least": result.ratio.least,
                    "most": result.ratio.most,
                },
                "gate": result.figure.gate,
                "limits": result.figure.limits,
                "met": result.met,
                "rounds": result.rounds,
            }
            for result in results
        ],
    }
