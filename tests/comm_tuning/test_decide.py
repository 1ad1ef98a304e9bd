"""The parts of a decision in small exact cases: limits, ties, interpolation and noise."""

import math
from collections.abc import Mapping

import pytest

from hvscale.comm_tuning.collectives.decide.decide import (
    AtSize,
    EagerLimitOutcome,
    SizeRow,
    best_limit,
    best_of,
    decide_sizes,
    good_enough,
    half_width,
    noise_between,
    proven,
    rows_of,
    rules_of,
)
from hvscale.comm_tuning.collectives.decide.measurements import LIBRARY, AlgorithmChoice, CollectiveCase, Time

CHAIN = AlgorithmChoice(algorithm="chain", chunk_bytes=32768, depth=8)
TREE = AlgorithmChoice(algorithm="k-nomial", chunk_bytes=65536, depth=8, radix=4)
CASE, LARGER_CASE = CollectiveCase("broadcast", 4, 1), CollectiveCase("broadcast", 8, 1)


def precise(median: float) -> Time:
    """A time with little noise."""
    return Time(median, 0.999 * median, 1.001 * median)


def times(chain: float, tree: float) -> AtSize:
    """Two proven choices."""
    return {LIBRARY: precise(100), CHAIN: precise(chain), TREE: precise(tree)}


@pytest.mark.parametrize(
    ("time", "is_proven"),
    [
        (Time(8, 7, 8.9), True),
        (Time(8, 7, 9), False),  # the intervals touch
        (Time(8, 7, 10), False),
        (Time(10, 7, 8), False),  # the medians are equal
        (Time(12, 7, 8), False),
    ],
)
def test_a_choice_is_proven_below_the_librarys_median_and_interval(time: Time, is_proven: bool) -> None:
    assert proven({CHAIN: time, LIBRARY: Time(10, 9, 11)}) == ([CHAIN, LIBRARY] if is_proven else [LIBRARY])


def test_the_best_choice_is_the_fastest_that_is_proven() -> None:
    base = {LIBRARY: Time(100, 90, 110)}
    assert best_of(base) == LIBRARY
    assert best_of({**base, TREE: Time(40, 30, 90), CHAIN: Time(50, 49, 51)}) == CHAIN
    assert best_of({**base, TREE: precise(50), CHAIN: precise(50)}) == CHAIN  # the first in order


@pytest.mark.parametrize(
    ("time", "is_good_enough"),
    [
        (Time(103, 102, 104), True),
        (Time(103.1, 102, 104), False),
        (Time(105, 101, 109), True),  # the intervals touch
        (Time(105, 101.1, 109), False),
        (Time(105.1, 101, 109), False),
    ],
)
def test_a_choice_may_lose_three_percent_or_five_within_the_noise(time: Time, is_good_enough: bool) -> None:
    found = good_enough({LIBRARY: Time(100, 99, 101), CHAIN: time})
    assert found == ([LIBRARY, CHAIN] if is_good_enough else [LIBRARY])


@pytest.mark.parametrize(
    ("middle", "expected"),
    [(times(chain=50, tree=51), [CHAIN, CHAIN, TREE]), (times(chain=51, tree=50), [CHAIN, TREE, TREE])],
)
def test_of_tables_with_equally_many_rules_the_fastest_is_chosen(
    middle: AtSize, expected: list[AlgorithmChoice]
) -> None:
    series = {1: times(chain=50, tree=80), 2: middle, 4: times(chain=80, tree=50)}
    assert decide_sizes(series) == dict(zip(series, expected, strict=True))


def test_a_table_that_is_proven_at_more_sizes_is_better_than_a_faster_one() -> None:
    noisy = {**times(chain=50, tree=51), CHAIN: Time(50, 1, 200)}
    for series in ({1: times(chain=50, tree=50.5), 2: noisy}, {1: noisy, 2: times(chain=50, tree=50.5)}):
        assert decide_sizes(series) == {1: TREE, 2: TREE}


def test_gains_are_interpolated_between_measured_sizes() -> None:
    """A gain of 2 at 1 byte and of 8 at 16 bytes is 4 at 4 bytes, and 8 above.

    Half of the intervals' widths is a factor of 2 and of 4.
    """
    base = {CASE: {size: precise(8) for size in (1, 4, 16, 64)}, LARGER_CASE: {1: precise(8)}}
    not_in_base = {2: {CHAIN: precise(1)}}
    series = {
        CASE: {1: {CHAIN: Time(4, 2, 8)}, **not_in_base, 16: {CHAIN: Time(1, 0.25, 4)}},
        LARGER_CASE: {1: {CHAIN: Time(8, 1, 64)}},
    }
    chosen = {case: dict.fromkeys(sizes, CHAIN) for case, sizes in series.items()}
    found = EagerLimitOutcome.of(base, series, chosen)
    assert (found.series, found.chosen) == (series, chosen)
    assert [math.exp(gain) for gain in found.log_gains] == pytest.approx([2, 4, 8, 8, 1])
    assert [math.exp(width) for width in found.half_widths] == pytest.approx([2, 2**1.5, 4, 4, 8])
    assert found.gain == pytest.approx((2 * 4 * 8 * 8) ** (1 / 5))
    assert found.min_gain == pytest.approx(1)


def test_an_unknown_interval_is_very_wide() -> None:
    assert half_width(Time(2, 1, 4)) == pytest.approx(math.log(2))
    for unknown in (Time(2, 0, math.inf), Time(2, 0, 4), Time(2, 1, math.inf)):
        assert 1e6 < half_width(unknown) < math.inf


def outcome(*gains: float, width: float = 0.0) -> EagerLimitOutcome:
    """`gains`: at each size; `width`: half of each interval."""
    return EagerLimitOutcome({}, {}, tuple(map(math.log, gains)), (width,) * len(gains))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({None: outcome(1), 64: outcome(2), 128: outcome(3)}, 128),
        ({None: outcome(1), 128: outcome(2), 64: outcome(2)}, 64),  # of equal limits the smallest
        ({None: outcome(2), 64: outcome(2)}, None),
        ({None: outcome(4), 64: outcome(2)}, None),
        ({None: outcome(1, 1), 64: outcome(4, 0.96)}, 64),
        ({None: outcome(1, 1), 64: outcome(4, 0.94)}, None),  # one size is too slow
        ({None: outcome(1, 1), 64: outcome(9, 0.5), 128: outcome(2, 2)}, 128),
        # The noise is sqrt(0.3**2 + 0.4**2) = 0.5.
        ({None: outcome(1, width=0.3), 64: outcome(math.exp(0.51), width=0.4)}, 64),
        ({None: outcome(1, width=0.3), 64: outcome(math.exp(0.49), width=0.4)}, None),
    ],
)
def test_the_best_limit_is_faster_beyond_the_noise_and_slows_no_size(
    found: Mapping[int | None, EagerLimitOutcome], expected: int | None
) -> None:
    assert best_limit(found) == expected


def test_independent_noise_adds_up_by_squares() -> None:
    one, other = (EagerLimitOutcome({}, {}, (0, 0), widths) for widths in ((3, 0), (4, 0)))
    assert noise_between(one, other) == 2.5


def test_a_rule_ends_at_the_geometric_mean_of_two_sizes() -> None:
    rules = rules_of(CASE, {4: LIBRARY, 16: CHAIN, 64: CHAIN, 256: TREE})
    assert [(rule.algorithm, rule.bytes_min, rule.bytes_max) for rule in rules] == [
        ("library", 1, 8),
        ("chain", 9, 128),
        ("k-nomial", 129, None),
    ]
    assert [(rule.operation, rule.np, rule.ranks_per_node) for rule in rules] == [CASE] * 3


def test_a_row_compares_the_table_with_the_library_and_the_best_choice() -> None:
    """The table's choice loses exactly 3 % to the best, which is not undecided yet."""
    at_eight = {LIBRARY: precise(150), CHAIN: Time(103, 102, 104), TREE: Time(100, 1, 1000)}
    series = {CASE: {8: at_eight, 16: at_eight}}
    found = EagerLimitOutcome(series, {CASE: {8: CHAIN, 16: CHAIN}}, (), ())
    [row] = rows_of(CASE, {8: Time(206, 205, 207)}, found)  # 16 bytes are not in the baseline
    assert row == SizeRow(
        operation="broadcast",
        np=4,
        ranks_per_node=1,
        bytes=8,
        choice=CHAIN,
        library_seconds=206,
        table_seconds=103,
        best_seconds=100,
        gain=2,
        significant=True,
        undecided=False,
    )
    at_eight[CHAIN] = Time(103.1, 102, 205)
    [row] = rows_of(CASE, {8: Time(206, 205, 207)}, found)
    assert (row.significant, row.undecided) == (False, True)
