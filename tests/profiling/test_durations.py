"""The percentiles of durations that are kept, counted in fine classes, or counted by the ranks."""

import math
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


def test_calls_are_spread_evenly_within_a_class() -> None:
    """From 1024 ns on, a class is 1 ns wide."""
    joined = histogram(1024, 1024).with_(histogram(1024, 1024))
    assert (joined.counts.tolist(), joined.exact) == ([4], None)
    assert joined.percentiles() == exactly(1024.5 * NS, 1024.99 * NS)


@pytest.mark.parametrize("swapped", [False, True])
def test_histograms_add_up_class_by_class(swapped: bool) -> None:
    parts = [histogram(1024), histogram(1027, 1027, 1027)]
    first, second = reversed(parts) if swapped else parts
    joined = first.with_(second)
    assert joined.counts.tolist() == [1, 0, 0, 3]
    # The median is the second of four calls, and the first of the three in the class of 1027 ns.
    assert joined.percentiles() == exactly((1027 + 1 / 3) * NS, (1027 + 2.96 / 3) * NS)


def test_a_histogram_within_the_classes_of_another_adds_up() -> None:
    joined = histogram(1024, 1027).with_(histogram(1025)).with_(histogram(1027))
    assert joined.counts.tolist() == [1, 1, 0, 2]


def test_durations_of_0_ns_have_a_class_up_to_1_ns() -> None:
    assert histogram(0, 0).with_(histogram(0, 0)).percentiles() == exactly(0.5 * NS, 0.99 * NS)


def test_durations_of_1_ns_are_in_the_next_class() -> None:
    joined = histogram(0).with_(histogram(1))
    assert joined.counts.tolist() == [1, 1]
    # A class of 1 ns is 2^-10 ns wide.
    assert joined.percentiles() == exactly(1 * NS, (1 + 0.98 / 1024) * NS)


@given(st.lists(st.lists(st.integers(0, 10**13), min_size=1, max_size=20), min_size=2, max_size=5))
def test_a_histogram_is_at_most_a_thousandth_off(groups: list[list[int]]) -> None:
    made = reduce(DurationHistogram.with_, (histogram(*group) for group in groups))
    every = sorted(duration for group in groups for duration in group)
    for percent, found in zip((50, 99), made.percentiles(), strict=True):
        calls = len(every) * percent / 100  # so many calls are shorter
        below, above = every[math.ceil(calls) - 1], every[min(math.floor(calls), len(every) - 1)]
        assert 0.999 * below - 1 <= found / NS <= 1.001 * above + 1


def test_latency_histograms_of_counters_add_up() -> None:
    """The second class is that from 64 to 80 ns."""
    one = np.zeros(LATENCIES, np.int64)
    one[1] = 2
    both = CountedDurations(one).with_(CountedDurations(one))
    assert both.latencies[:3].tolist() == [0, 4, 0]
    assert both.percentiles() == exactly(72 * NS, (64 + 0.99 * 16) * NS)
