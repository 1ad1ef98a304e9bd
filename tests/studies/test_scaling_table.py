"""The table of a scaling study."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvscale.studies.scaling.document import ScalingRun, tabulate


def runs(by_np: dict[int, list[float | None]]) -> list[ScalingRun]:
    return [
        ScalingRun(np=np, repeat=repeat, folder="", throughput=value)
        for np, values in by_np.items()
        for repeat, value in enumerate(values, 1)
    ]


@given(st.lists(st.tuples(st.floats(1, 100), st.floats(0.2, 2)), min_size=2, max_size=6))
def test_speed_up_is_independent_of_machine_speed_in_each_round(rounds: list[tuple[float, float]]) -> None:
    """A slowdown of both runs of a round cancels out; the efficiency is the same in all rounds."""
    table = tabulate(runs({1: [speed for speed, _ in rounds], 4: [4 * 0.8 * speed for speed, _ in rounds]}), base_np=1)
    assert table[1].scaling_efficiency == pytest.approx(0.8)
    assert table[1].scaling_efficiency_low == pytest.approx(0.8)
    assert table[1].scaling_efficiency_high == pytest.approx(0.8)


def test_a_round_without_a_baseline_counts_only_for_the_throughput() -> None:
    first, second = tabulate(runs({2: [10, None], 4: [15, 1000]}), base_np=2)
    assert (first.np, first.runs, first.speed_up, first.scaling_efficiency) == (2, 1, 1, 1)
    assert (second.runs, second.speed_up, second.speed_up_low) == (2, 1.5, None)
    assert second.scaling_efficiency == 0.75
    assert second.throughput == pytest.approx(math.sqrt(15_000))


def test_without_a_baseline_there_is_no_speed_up() -> None:
    (row,) = tabulate(runs({1: [None], 2: [20]}), base_np=1)
    assert (row.np, row.throughput, row.speed_up, row.scaling_efficiency) == (2, 20, None, None)
