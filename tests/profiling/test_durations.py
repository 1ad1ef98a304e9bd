"""The percentiles of durations that are kept, counted in fine classes, or counted by the ranks."""

from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvscale.profiling.analyze.durations import CountedDurations, DurationHistogram, ExactDurations
from hvscale.profiling.read.counters import LATENCIES

SECOND_NS = 10**9
NS = 1e-9


def histogram(*durations: int) -> DurationHistogram:
    return DurationHistogram.of(np.array(durations, np.int64))


def exactly(*seconds: float) -> object:
    return pytest.approx(seconds, rel=1e-12, abs=0)


def test_percentiles_of_all_durations_lie_between_the_two_nearest_calls() -> None:
    one, three = (ExactDurations([np.array([seconds * SECOND_NS])]) for seconds in (1, 3))
    assert one.with_(three).percentiles() == exactly(2, 2.98)


def test_a_histogram_has_the_exact_percentiles_of_the_calls_it_was_made_from() -> None:
    assert histogram(1 * SECOND_NS, 3 * SECOND_NS).percentiles() == exactly(2, 2.98)


def test_calls_are_in_the_middle_of_their_class() -> None:
    """From 4096 ns on, a class is 4 ns wide."""
    joined = histogram(4096, 4099).with_(histogram(4096, 4098))
    assert (joined.counts.tolist(), joined.exact) == ([4], None)
    assert joined.percentiles() == exactly(4097.5 * NS, 4097.5 * NS)


@pytest.mark.parametrize("swapped", [False, True])
def test_histograms_add_up_class_by_class(swapped: bool) -> None:
    parts = [histogram(1024), histogram(1027, 1027, 1027)]
    first, second = reversed(parts) if swapped else parts
    joined = first.with_(second)
    assert joined.counts.tolist() == [1, 0, 0, 3]
    assert joined.percentiles() == exactly(1027 * NS, 1027 * NS)


def test_a_histogram_within_the_classes_of_another_adds_up() -> None:
    joined = histogram(1024, 1027).with_(histogram(1025)).with_(histogram(1027))
    assert joined.counts.tolist() == [1, 1, 0, 2]


@pytest.mark.parametrize("largest", [0, 1, 2, 2047])
def test_durations_below_2048_ns_are_exact(largest: int) -> None:
    joined = histogram(0, largest).with_(histogram(largest, 0)).with_(histogram(largest))
    assert joined.percentiles() == exactly(largest * NS, largest * NS)


MILLISECOND_NS = 10**6
FEW_OR_BIMODAL = [
    ([[1], [1], [1], [1], [10], [10], [10], [10]], (5.5, 10)),  # eight ranks, of which four come late
    ([[1, 1, 1, 1]] * 24 + [[1, 1, 1, 1000]], (1, 10.99)),  # one slow of 100 calls
    ([[1, 1, 1]] * 200 + [[1, 1000]] * 10, (1, 1000)),
    ([[7]] * 3, (7, 7)),
]


@pytest.mark.parametrize(("milliseconds", "known"), FEW_OR_BIMODAL)
def test_percentiles_of_few_or_bimodal_calls(milliseconds: list[list[int]], known: tuple[float, float]) -> None:
    made = joined([[MILLISECOND_NS * one for one in group] for group in milliseconds])
    assert made.percentiles() == pytest.approx([one / 1e3 for one in known], rel=2**-11)


FAST = st.integers(0, 5000)
SLOW = st.integers(10**6, 10**13)
GROUPS = st.lists(st.lists(st.one_of(FAST, SLOW), min_size=1, max_size=40), min_size=2, max_size=12)


@given(GROUPS)
def test_a_histogram_is_at_most_a_two_thousandth_off(groups: list[list[int]]) -> None:
    exact = ExactDurations([np.array(group) for group in groups]).percentiles()
    assert joined(groups).percentiles() == pytest.approx(exact, rel=2**-11, abs=1e-15)


def joined(groups: list[list[int]]) -> DurationHistogram:
    return reduce(DurationHistogram.with_, (histogram(*group) for group in groups))


def test_latency_histograms_of_counters_add_up() -> None:
    """The second class is that from 64 to 80 ns."""
    one = np.zeros(LATENCIES, np.int64)
    one[1] = 2
    both = CountedDurations(one).with_(CountedDurations(one))
    assert both.latencies[:3].tolist() == [0, 4, 0]
    assert both.percentiles() == exactly(72 * NS, (64 + 0.99 * 16) * NS)
