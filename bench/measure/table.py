"""The results as Markdown tables, and as JSON with every round in it."""

from __future__ import annotations

from typing import Any

from measure.figures import Result, Spread, server_cpu_us


def _p99_ms(run: dict[str, Any]) -> float:
    return float(run["latency"]["p99_us"]) / 1e3


def _span(spread: Spread, digits: int = 2, scale: float = 1.0) -> str:
    middle, least, most = (
        f"{value * scale:,.{digits}f}" for value in (spread.median, spread.least, spread.most)
    )
    return f"{middle} ({least}–{most})"


def _gate(result: Result) -> str:
    gate = result.figure.gate
    if gate is None:
        return "–"
    sign = "≥" if result.figure.at_least else "≤"
    return f"{sign} {gate:g} {'met' if result.met else 'NOT MET'}"


def _redis_row(result: Result) -> str:
    cells = [
        result.figure.title,
        _span(result.side("redis"), 0, 1e-3),
        _span(result.side("ticketing"), 0, 1e-3),
        _span(result.ratio),
        f"{result.side('redis', server_cpu_us).median:.2f}"
        f" / {result.side('ticketing', server_cpu_us).median:.2f}",
        f"{result.side('redis', _p99_ms).median:.2f}"
        f" / {result.side('ticketing', _p99_ms).median:.2f}",
        _gate(result),
    ]
    return f"| {' | '.join(cells)} |"


def _own_row(result: Result) -> str:
    figure = result.figure
    cells = [
        figure.title,
        figure.unit,
        _span(result.side(figure.first)),
        _span(result.side(figure.second)),
        _span(result.ratio),
        _gate(result),
    ]
    return f"| {' | '.join(cells)} |"


def markdown(machine: dict[str, str], results: list[Result]) -> str:
    """Both tables under the description of the machine."""
    peers = [_redis_row(result) for result in results if result.figure.beside_redis]
    own = [_own_row(result) for result in results if not result.figure.beside_redis]
    lines = [f"- {name.replace('_', ' ')}: {value}" for name, value in machine.items()]
    lines += ["", "Medians of the rounds, with the least and the most in brackets."]
    if peers:
        lines += [
            "",
            "| job | Redis, k requests/s | Ticketing, k requests/s | × | CPU µs per request"
            " | p99 ms | gate |",
            "| --- | --- | --- | --- | --- | --- | --- |",
            *peers,
        ]
    if own:
        lines += [
            "",
            "| job | unit | first | second | × | gate |",
            "| --- | --- | --- | --- | --- | --- |",
            *own,
        ]
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
                "met": result.met,
                "rounds": result.rounds,
            }
            for result in results
        ],
    }
