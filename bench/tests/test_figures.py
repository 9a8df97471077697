"""Ratios, gates and tables, from rounds made up for the purpose."""

from __future__ import annotations

from typing import Any

import pytest
from measure import machine, servers, table
from measure.figure import Result, Spread
from measure.figures import FIGURES

BY_NAME = {figure.name: figure for figure in FIGURES}


def run(requests_per_s: float, cpu_us: float = 1.0) -> dict[str, Any]:
    return {
        "requests_per_s": requests_per_s,
        "server_cpu_us_per_request": cpu_us,
        "latency": {"p99_us": 1500.0},
    }


def result(name: str, pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> Result:
    figure = BY_NAME[name]
    rounds = [{figure.first: first, figure.second: second} for first, second in pairs]
    return Result(figure, rounds)


def test_the_ratio_is_the_median_of_the_rounds_own_ratios() -> None:
    """Not the quotient of the medians: that would be 2.0 here."""
    measured = result(
        "one-length", [(run(100), run(300)), (run(200), run(200)), (run(50), run(100))]
    )
    assert measured.ratio == Spread(2.0, 1.0, 3.0)
    measured = result(
        "one-length", [(run(100), run(500)), (run(200), run(800)), (run(400), run(400))]
    )
    assert measured.ratio.median == 4.0
    assert measured.side("ticketing").median / measured.side("redis").median == 2.5


@pytest.mark.parametrize(
    ("name", "first", "second", "met"),
    [
        ("one-length", run(100), run(200), True),
        ("one-length", run(100), run(199), False),
        ("lease-spread", run(1, 1.0), run(1, 1.5), True),
        ("lease-spread", run(1, 1.0), run(1, 1.6), False),
        ("one-connection", run(100), run(1), None),
    ],
)
def test_gates_decide_from_the_right_side(
    name: str, first: dict[str, Any], second: dict[str, Any], met: bool | None
) -> None:
    assert result(name, [(first, second)]).met is met


def test_the_table_says_what_is_not_met() -> None:
    results = [
        result("one-length", [(run(100_000), run(150_000))]),
        result("lease-spread", [(run(1, 1.0), run(1, 1.2))]),
    ]
    text = table.markdown({"cpu": "a fast one"}, results)
    assert "- cpu: a fast one" in text
    assert "| 100 (100–100) | 150 (150–150) | 1.50 (1.50–1.50) |" in text
    assert "≥ 2 NOT MET" in text
    assert "≤ 1.5 met" in text


def test_failover_is_judged_by_its_p50_and_p95() -> None:
    def killed(*seconds: float) -> Result:
        figure = BY_NAME["failover"]
        return Result(
            figure, [{"etcd": {"seconds": 1.5}, "ticketing": {"seconds": each}} for each in seconds]
        )

    measured = killed(*[0.6] * 19, 2.0)
    assert measured.p95("ticketing") == 0.6
    assert measured.met
    assert "| 20 | 1.50 / 1.50 (1.50–1.50) | 0.60 / 0.60 (0.60–2.00) |" in table.markdown(
        {}, [measured]
    )
    assert not killed(*[0.6] * 18, 2.0, 2.0).met
    assert not killed(*[0.8] * 20).met


def test_each_pair_of_sides_has_a_table_of_its_own() -> None:
    text = table.markdown(
        {},
        [
            result("one-length", [(run(100_000), run(200_000))]),
            result("cluster", [(run(7_240), run(160_000))]),
            result("cluster-one", [(run(5_000), run(15_000))]),
            result("durable", [(run(1e6), run(2e5))]),
        ],
    )
    assert text.count("\n| --- |") == 3
    assert "| etcd, k requests/s | Ticketing, k requests/s |" in text
    assert "| 7.2 (7.2–7.2) | 160 (160–160) | 22.10 (22.10–22.10) |" in text


def test_a_missing_redis_is_said_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert servers.redis_version() == ""
    with pytest.raises(servers.BenchError, match="apt-get install redis-server"), servers.redis():
        pass


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ("'--enable-optimizations' '--with-lto'", "PGO"),
        ("'--with-wheel-pkg-dir=/usr/share/python-wheels/'", "PGO (the distribution's package)"),
        ("'--enable-shared'", "plain (configured without --enable-optimizations)"),
    ],
)
def test_builds_are_told_apart(arguments: str, kind: str) -> None:
    assert machine.kind_of_build(arguments) == kind
