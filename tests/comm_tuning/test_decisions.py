"""Deciding: the table with the fewest rules, from synthetic and random points."""

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvscale.comm_tuning.collectives.decide.decide import (
    MAX_LOSS_RATIO,
    MAX_SLOWDOWN_RATIO,
    NOISE_RATIO,
    Decision,
    best_of,
    decide,
    decide_sizes,
    good_enough,
    proven,
)
from hvscale.comm_tuning.collectives.decide.measurements import (
    LIBRARY,
    LIBRARY_AUTO,
    AlgorithmChoice,
    Measurements,
    Point,
    Time,
)
from hvscale.comm_tuning.collectives.tables.table import Rule, read_table
from hvscale.core.errors import RequestError

CHAIN = AlgorithmChoice(algorithm="chain", chunk_bytes=32768, depth=8)
TREE = AlgorithmChoice(algorithm="k-nomial", chunk_bytes=65536, depth=8, radix=4)
RING = AlgorithmChoice(library_algorithm="scatter_ring_allgather")
KIB, MIB = 1 << 10, 1 << 20


def point(size: int, choice: AlgorithmChoice, seconds: float, spread: float = 0.002, **more: Any) -> Point:
    """Five samples up to `spread` around `seconds`."""
    samples = [seconds * (1 + spread * step) for step in (-1, -0.5, 0, 0.5, 1)]
    place = {"operation": "broadcast", "np": 4, "ranks_per_node": 1}
    return Point.model_validate({**place, "bytes": size, "choice": choice, "seconds": samples, **more})


def measured(*points: Point, mpi: str = "openmpi") -> Measurements:
    return Measurements(mpi=mpi, points=list(points))


def ranges(rules: list[Rule]) -> list[tuple[int, int | None, str]]:
    return [(rule.bytes_min, rule.bytes_max, rule.library_algorithm or rule.algorithm) for rule in rules]


def test_each_size_uses_the_fastest_choice_and_rules_end_between_sizes() -> None:
    found = decide(
        measured(
            *(point(size, LIBRARY, 1.0) for size in (KIB, 4 * KIB, 16 * KIB, 64 * KIB)),
            *(point(size, CHAIN, seconds) for size, seconds in ((KIB, 2.0), (16 * KIB, 0.5), (64 * KIB, 0.25))),
            point(4 * KIB, TREE, 0.9),
        )
    )
    assert ranges(found.table.rule) == [
        (1, 2 * KIB, "library"),
        (2 * KIB + 1, 8 * KIB, "k-nomial"),
        (8 * KIB + 1, None, "chain"),
    ]
    assert [row.gain for row in found.rows] == pytest.approx([1, 1 / 0.9, 2, 4])
    assert found.gain == pytest.approx((2 * 4 / 0.9) ** 0.25)
    assert [row.significant for row in found.rows] == [False, True, True, True]
    assert not any(row.undecided for row in found.rows)


def test_below_the_smallest_size_the_library_decides() -> None:
    found = decide(measured(point(KIB, LIBRARY, 1.0), point(KIB, CHAIN, 0.5)))
    assert ranges(found.table.rule) == [(KIB, None, "chain")]


def test_a_loss_of_three_percent_saves_a_rule_and_more_does_not() -> None:
    def rules_with(seconds: float) -> int:
        sizes = (KIB, 2 * KIB, 4 * KIB)
        chain = zip(sizes, (0.5, seconds, 0.5), strict=True)
        points = [*(point(size, LIBRARY, 1.0) for size in sizes), *(point(size, CHAIN, it) for size, it in chain)]
        return len(decide(measured(*points, *(point(size, TREE, 0.6) for size in sizes))).table.rule)

    assert rules_with(0.6 * 1.025) == 1
    assert rules_with(0.6 * 1.06) == 3


def test_without_a_significant_gain_the_library_decides() -> None:
    """Half the time, but within the noise: the size is undecided."""
    found = decide(measured(point(KIB, LIBRARY, 1.0, spread=0.9), point(KIB, CHAIN, 0.5, spread=0.9)))
    assert ranges(found.table.rule) == [(1, None, "library")]
    assert [row.undecided for row in found.rows] == [True]
    once = Point(operation="broadcast", np=4, ranks_per_node=1, bytes=KIB, choice=CHAIN, seconds=[0.1])
    assert decide(measured(point(KIB, LIBRARY, 1.0), once)).table.rule[0].algorithm == "library"


def test_within_the_noise_the_neighbouring_rule_continues() -> None:
    sizes = (KIB, 2 * KIB, 4 * KIB)
    chain = (point(KIB, CHAIN, 0.5), point(2 * KIB, CHAIN, 0.99, spread=0.2), point(4 * KIB, CHAIN, 0.5))
    found = decide(measured(*(point(size, LIBRARY, 1.0) for size in sizes), *chain))
    assert ranges(found.table.rule) == [(KIB, None, "chain")]
    assert [row.significant for row in found.rows] == [True, False, True]
    # At the end of the range no later size needs the rule.
    found = decide(measured(*(point(size, LIBRARY, 1.0) for size in sizes), *chain[:2], point(4 * KIB, CHAIN, 1.3)))
    assert ranges(found.table.rule) == [
        (KIB, isqrt_of(KIB, 2 * KIB), "chain"),
        (isqrt_of(KIB, 2 * KIB) + 1, None, "library"),
    ]


def test_a_choice_that_is_proven_nowhere_gets_no_rule() -> None:
    """Its median equals the proven choices' at both sizes, but its noise is large."""
    flat = AlgorithmChoice(algorithm="flat", chunk_bytes=4096, depth=2)
    points = [
        point(size, choice, seconds, spread)
        for size in (KIB, 4 * KIB)
        for choice, seconds, spread in ((LIBRARY, 1.0, 0.002), (flat, 0.5, 0.9))
    ]
    found = decide(measured(*points, point(KIB, CHAIN, 0.5), point(4 * KIB, TREE, 0.5)))
    assert [rule.algorithm for rule in found.table.rule] == ["chain", "k-nomial"]


def isqrt_of(one: int, other: int) -> int:
    return math.isqrt(one * other)


def test_a_choice_with_wrong_results_is_never_used() -> None:
    found = decide(measured(point(KIB, LIBRARY, 1.0), point(KIB, CHAIN, 0.1, wrong=1)))
    assert ranges(found.table.rule) == [(1, None, "library")]


def test_a_choice_that_was_wrong_at_one_size_is_not_used_at_others() -> None:
    """Other choices are, and so is the library where its own results are right."""
    sizes = (KIB, 4 * KIB, 16 * KIB)
    library = [point(size, LIBRARY, 1.0, wrong=3 if size == 4 * KIB else 0) for size in sizes]
    chain = [point(size, CHAIN, 0.1, wrong=5 if size == 4 * KIB else 0) for size in sizes]
    assert ranges(decide(measured(*library, *chain)).table.rule) == [(1, None, "library")]
    tree = [point(size, TREE, 0.5) for size in sizes]
    assert ranges(decide(measured(*library, *chain, *tree)).table.rule) == [(KIB, None, "k-nomial")]
    wrong_limit = point(KIB, CHAIN, 0.1, eager_limit_bytes=MIB, wrong=1)
    assert ranges(decide(measured(point(KIB, LIBRARY, 1.0), point(KIB, CHAIN, 0.1), wrong_limit)).table.rule) == [
        (1, None, "library")
    ]


def test_samples_of_the_same_choice_are_pooled() -> None:
    twice = decide(measured(point(KIB, LIBRARY, 1.0), point(KIB, CHAIN, 0.5), point(KIB, CHAIN, 1.5)))
    assert ranges(twice.table.rule) == [(1, None, "library")]


def test_the_eager_limit_with_the_greatest_mean_gain_is_chosen() -> None:
    def found(small: float, large: float) -> int | None:
        sizes = (KIB, MIB)
        plain = [point(size, LIBRARY, 1.0) for size in sizes] + [point(MIB, CHAIN, 0.8)]
        limit = {"eager_limit_bytes": MIB}
        other = [
            point(KIB, LIBRARY, small, **limit),
            point(MIB, LIBRARY, 0.9, **limit),
            point(MIB, CHAIN, large, **limit),
        ]
        decision = decide(measured(*plain, *other))
        [taken] = [row for row in decision.eager_limits if row.chosen]
        assert taken.eager_limit_bytes == decision.table.eager_limit_bytes
        return decision.table.eager_limit_bytes

    assert found(1.0, 0.4) == MIB
    assert found(1.04, 0.4) == MIB
    assert found(1.2, 0.4) is None  # one size is too slow
    assert found(1.0, 0.9) is None
    assert found(1.0, 0.7999) is None  # within the noise


def test_each_eager_limit_has_its_mean_gain_and_that_of_the_worst_size() -> None:
    """Gains of 2 and 8 have a geometric mean of 4."""
    own = [point(KIB, LIBRARY, 1.0), point(MIB, LIBRARY, 1.0)]
    raised = [point(size, LIBRARY, seconds, eager_limit_bytes=MIB) for size, seconds in ((KIB, 0.5), (MIB, 0.125))]
    rows = decide(measured(*raised, *own)).eager_limits
    assert [(row.eager_limit_bytes, row.chosen) for row in rows] == [(None, False), (MIB, True)]
    assert [row.gain for row in rows] == pytest.approx([1, 4])
    assert [row.min_gain for row in rows] == pytest.approx([1, 2])


def test_a_limit_not_measured_for_every_case_is_no_candidate() -> None:
    other = point(KIB, LIBRARY, 1.0, np=2)
    limit = [point(KIB, choice, 0.1, eager_limit_bytes=MIB) for choice in (LIBRARY, CHAIN)]
    decision = decide(measured(point(KIB, LIBRARY, 1.0), other, *limit))
    assert decision.table.eager_limit_bytes is None
    assert [row.gain for row in decision.eager_limits] == [pytest.approx(1), None]


def test_auto_is_a_separate_choice() -> None:
    def found(auto: float) -> list[tuple[int, int | None, str]]:
        sizes = (KIB, MIB)
        points = [*(point(size, LIBRARY, 1.0) for size in sizes), *(point(size, LIBRARY_AUTO, auto) for size in sizes)]
        return ranges(decide(measured(*points, point(MIB, RING, 0.3))).table.rule)

    assert found(1.5) == [(1, 32 * KIB, "library"), (32 * KIB + 1, None, "scatter_ring_allgather")]
    assert found(0.5) == [(KIB, 32 * KIB, "auto"), (32 * KIB + 1, None, "scatter_ring_allgather")]


def test_a_decision_needs_the_baseline() -> None:
    with pytest.raises(RequestError, match="measure that first"):
        decide(measured(point(KIB, CHAIN, 1.0)))


def test_measurements_round_trip() -> None:
    document = measured(point(KIB, RING, 1.0, eager_limit_bytes=MIB), point(MIB, TREE, 2.0, wrong=3))
    assert Measurements.model_validate_json(document.model_dump_json(by_alias=True)) == document
    with pytest.raises(ValueError, match="openmpi has no broadcast algorithm magic"):
        measured(point(KIB, AlgorithmChoice(library_algorithm="magic"), 1.0))


CHOICES = [LIBRARY, CHAIN, TREE, RING, AlgorithmChoice(algorithm="flat", chunk_bytes=4096, depth=2)]
SAMPLES = st.lists(st.floats(0.5, 2.0), min_size=1, max_size=4)


@st.composite
def all_points(draw: st.DrawFn) -> list[Point]:
    """The library and some other choices for each case and size, with similar times."""
    points = []
    for np, sizes in draw(
        st.dictionaries(
            st.integers(2, 5), st.sets(st.integers(1, 1 << 30), min_size=1, max_size=6), min_size=1, max_size=2
        )
    ).items():
        for size in sizes:
            for choice in CHOICES:
                if choice != LIBRARY and not draw(st.booleans()):
                    continue
                about, noise = (
                    draw(st.sampled_from([0.5, 0.51, 0.9, 1.0, 1.02])),
                    draw(st.sampled_from([0.0, 0.001, 0.05, 0.5])),
                )
                samples = [about * it**noise for it in draw(SAMPLES)]
                points.append(point(size, choice, 1.0, np=np).model_copy(update={"seconds": samples}))
    return points


@given(points=all_points())
def test_no_size_loses_more_than_the_limits(points: list[Point]) -> None:
    found = decide(measured(*points))
    times = {(it.np, it.bytes, it.choice): Time.of(it.seconds) for it in points}
    assert len(found.rows) == len({(it.np, it.bytes) for it in points})
    for row in found.rows:
        at_size = {choice: time for (np, size, choice), time in times.items() if (np, size) == (row.np, row.bytes)}
        best, taken = at_size[best_of(at_size)], at_size[row.choice]
        apart = not taken.overlaps(best)
        assert taken.median <= (MAX_LOSS_RATIO if apart else NOISE_RATIO) * best.median
        assert taken.median <= MAX_SLOWDOWN_RATIO * at_size[LIBRARY].median
        assert row.undecided or taken.median <= MAX_LOSS_RATIO * min(time.median for time in at_size.values())


@given(points=all_points())
def test_the_number_of_rules_is_minimal_and_each_is_proven(points: list[Point]) -> None:
    """Compares with all possible tables for cases with few sizes."""
    for np in {it.np for it in points}:
        series = {
            size: {it.choice: Time.of(it.seconds) for it in points if (it.np, it.bytes) == (np, size)}
            for size in sorted({it.bytes for it in points if it.np == np})
        }
        found = runs_of(list(decide_sizes(series).values()))
        assert all_proven(found, list(series.values()))
        trivial = runs_of([best_of(times) for times in series.values()])
        assert len(found) <= len(trivial)
        if len(series) <= 4:
            tables = itertools.product(*(good_enough(times) for times in series.values()))
            valid = [runs for table in tables if all_proven(runs := runs_of(list(table)), list(series.values()))]
            assert len(found) == min(map(len, valid))


def runs_of(choices: list[AlgorithmChoice]) -> list[tuple[AlgorithmChoice, int]]:
    return [(choice, len(list(same))) for choice, same in itertools.groupby(choices)]


def all_proven(runs: list[tuple[AlgorithmChoice, int]], sizes: list[dict[AlgorithmChoice, Time]]) -> bool:
    """Whether each rule's choice is proven at one of its sizes."""
    left = iter(sizes)
    return all(any(choice in proven(times) for times in list(itertools.islice(left, count))) for choice, count in runs)


@given(points=all_points(), data=st.data())
def test_the_order_of_points_does_not_matter(points: list[Point], data: st.DataObject) -> None:
    mixed = [it.model_copy(update={"seconds": data.draw(st.permutations(it.seconds))}) for it in points]
    assert decide(measured(*data.draw(st.permutations(mixed)))) == decide(measured(*points))


@given(points=all_points())
def test_the_table_is_valid(tmp_path_factory: pytest.TempPathFactory, points: list[Point]) -> None:
    """It round-trips, and its rules give each size its choice."""
    found = decide(measured(*points))
    path = tmp_path_factory.mktemp("table") / "table.toml"
    path.write_text(found.table.toml())
    assert read_table(path) == found.table
    assert Decision.model_validate_json(found.model_dump_json(by_alias=True)) == found
    for row in found.rows:
        [rule] = [it for it in found.table.rule if it.np == row.np and it.bytes_min <= row.bytes <= it.last]
        assert row.choice.fields().items() <= rule.model_dump().items()
