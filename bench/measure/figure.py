"""What a figure is: rounds in which two sides run, and what is divided by what.

In each round the two sides run one after the other, so that whatever the machine does meanwhile
meets both. The ratio that counts is the median of the rounds' own ratios.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

Round = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how often, with which Python, and on which disk."""

    python: str
    rounds: int
    seconds: float
    kills: int
    disk: Path


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of a table; `measure` yields a round at a time, each side under its name."""

    name: str
    title: str
    first: str
    second: str
    value: Callable[[dict[str, Any]], float]
    unit: str
    gate: float | None
    at_least: bool
    measure: Callable[[Plan], Iterator[Round]]
    needs: tuple[str, ...] = ()
    """Programs besides the server's: "redis", "etcd", "zookeeper", "go"."""
    on_disk: bool = False
    """Whether a server keeps its data on the plan's disk."""
    limits: tuple[float, float] | None = None
    """Instead of a gate for the ratio: the second side's p50 and p95 at most."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A median with the least and the most."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """The spread of one value per round."""
        return cls(median(values), min(values), max(values))


@dataclass(slots=True)
class Result:
    """A figure measured."""

    figure: Figure
    rounds: list[Round] = field(default_factory=list)

    def side(self, name: str, value: Callable[[dict[str, Any]], float] | None = None) -> Spread:
        """The spread of one side's value, the figure's own unless another is given."""
        return Spread.of([(value or self.figure.value)(each[name]) for each in self.rounds])

    def p95(self, name: str) -> float:
        """The value that 95 % of the rounds of one side do not pass."""
        values = sorted(self.figure.value(each[name]) for each in self.rounds)
        return values[math.ceil(0.95 * len(values)) - 1]

    @property
    def ratio(self) -> Spread:
        """Second side over first, round by round."""
        figure = self.figure
        return Spread.of(
            [
                figure.value(each[figure.second]) / figure.value(each[figure.first])
                for each in self.rounds
            ]
        )

    @property
    def met(self) -> bool | None:
        """Whether the gate or the limits are kept; None where the figure has neither."""
        figure = self.figure
        if figure.limits is not None:
            p50, p95 = figure.limits
            return self.side(figure.second).median <= p50 and self.p95(figure.second) <= p95
        if figure.gate is None:
            return None
        if figure.at_least:
            return self.ratio.median >= figure.gate
        return self.ratio.median <= figure.gate


def requests_per_s(run: dict[str, Any]) -> float:
    """Verified requests per second, an acquire and a release being two."""
    return float(run["requests_per_s"])


def server_cpu_us(run: dict[str, Any]) -> float:
    """The servers' CPU per request, kernel included."""
    return float(run["server_cpu_us_per_request"])


def p99_ms(run: dict[str, Any]) -> float:
    """The time that 99 % of the requests do not pass."""
    return float(run["latency"]["p99_us"]) / 1e3
