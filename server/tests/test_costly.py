"""What is costly is remembered for as long as it cost, what is cheap is not."""

from __future__ import annotations

import pytest
from ticketing_server.costly import CHEAP_S, FRESH_FOR_COSTS, Costly


class Source:
    """Something that costs `cost_s` each time it is asked, on clocks set by hand."""

    def __init__(self, cost_s: float) -> None:
        self.cost_s = cost_s
        self.asked = 0
        self.now_s = 1_000.0
        self.cpu_s = 5.0
        self.value = Costly(self.make, lambda: self.now_s, lambda: self.cpu_s)

    def make(self) -> int:
        self.asked += 1
        self.cpu_s += self.cost_s
        return self.asked


@pytest.mark.parametrize("cost_s", [0.0, CHEAP_S / 2])
def test_what_is_cheap_is_made_anew(cost_s: float) -> None:
    source = Source(cost_s)
    assert [source.value() for _ in range(3)] == [1, 2, 3]


def test_what_is_costly_is_told_again_for_a_while() -> None:
    source = Source(0.25)
    assert [source.value() for _ in range(100)] == [1] * 100
    source.now_s += 0.25 * FRESH_FOR_COSTS - 0.001
    assert source.value() == 1
    source.now_s += 0.002
    assert source.value() == 2


def test_its_share_of_the_time_is_bounded() -> None:
    source = Source(0.01)
    begun_s = source.now_s
    for _ in range(10_000):
        source.value()
        source.now_s += 0.005
    assert source.asked * source.cost_s <= (source.now_s - begun_s) * 0.021


def test_what_failed_is_not_remembered() -> None:
    answers = iter([ZeroDivisionError()])

    def make() -> str:
        for error in answers:
            raise error
        return "made"

    value = Costly(make)
    with pytest.raises(ZeroDivisionError):
        value()
    assert value() == "made"
