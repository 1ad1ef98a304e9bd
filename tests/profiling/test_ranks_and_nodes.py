"""The figures by rank and by node, and the ranks to look at first, of jobs with known faults."""

from collections import Counter
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvscale.core.errors import RequestError
from hvscale.core.numbers import choose_ranks
from hvscale.core.statistics import modified_z_scores
from hvscale.profiling.analyze.breakdown import tabulate
from hvscale.profiling.analyze.explanation import explained_breakdown
from hvscale.profiling.analyze.grouping import parse_bins
from hvscale.profiling.analyze.rank_comparison import LOOK_AT, ByRank, compare_ranks, timeline_ranks
from hvscale.profiling.analyze.ranks_and_nodes import RankSums, TimeMap, TimeMapSums
from hvscale.profiling.analyze.waiting import waiting
from hvscale.profiling.read.events import Events
from hvscale.studies.run_report.rank_figures import map_rows, rows_are
from tests.profiling.large_job import SIZES, LargeJob

STEP_CALLS = len(SIZES)


def compared(job: LargeJob, without: Collection[int] = ()) -> ByRank:
    recording = job.recording()
    sums = RankSums(job.ranks)
    waiting(recording.events, recording.clock_error_ns, [sums], without=without)
    rows = tabulate(recording, parse_bins("study"), "run").rank_rows
    nodes = {rank: job.node(rank) for rank in range(job.ranks)}
    return compare_ranks(rows, recording.ranks, nodes, sums.result(), {}, {})


def late(found: ByRank) -> list[int]:
    return [one.rank for one in found.look_at_first if one.reasons[0].startswith("arrives last")]


def slow(found: ByRank) -> list[int]:
    return [one.rank for one in found.look_at_first if one.reasons[0].startswith("moves data slowly")]


@pytest.mark.parametrize("ranks", [9, 16, 128, 512])
@pytest.mark.parametrize("seed", range(3))
def test_no_rank_of_a_healthy_job_is_named(ranks: int, seed: int) -> None:
    found = compared(LargeJob(ranks, nodes=-(-ranks // 8), seed=seed))
    assert (found.outliers, found.look_at_first) == ([], [])
    assert len(found.by_rank) == ranks
    assert len(timeline_ranks(found)) <= LOOK_AT


@pytest.mark.parametrize("ranks", [16, 128, 512])
def test_a_late_and_a_slow_rank_are_named_first(ranks: int) -> None:
    first, second = ranks // 3, ranks // 2 + 1
    found = compared(LargeJob(ranks, nodes=ranks // 8, late=frozenset({first}), slow=frozenset({second})))
    assert (late(found), slow(found)) == ([first], [second])
    assert [one.rank for one in found.look_at_first] == [first, second]
    assert found.look_at_first[0].node == f"node{first // 8:03d}"
    assert found.look_at_first[0].local_rank == first % 8
    assert {one.rank for one in found.outliers} == {first, second}
    assert list(timeline_ranks(found))[:2] == [first, second]
    assert "typical" in list(timeline_ranks(found).values())[2]


def test_a_rank_with_unknown_waiting_is_not_typical() -> None:
    without = range(8, 24)
    found = compared(LargeJob(64, nodes=8, late=frozenset({50})), without)
    assert {row.rank for row in found.by_rank if row.waiting_seconds is None} == set(without)
    (typical,) = [rank for rank, label in timeline_ranks(found).items() if label.endswith("typical")]
    assert typical not in without


def test_a_slow_node_is_named_by_its_worst_rank_alone() -> None:
    found = compared(LargeJob(64, nodes=8, slow=frozenset(range(24, 32)), late=frozenset({50})))
    assert late(found) == [50]
    (rank,) = slow(found)
    assert 24 <= rank < 32
    assert "most ranks of node003" in found.look_at_first[1].reasons[0]
    assert {one.node for one in found.outliers if one.figure == "transfer_seconds" and one.rank is None} == {"node003"}
    assert len(found.look_at_first) == 2


def test_a_late_local_rank_is_named_once() -> None:
    found = compared(LargeJob(128, nodes=16, late=frozenset(range(0, 128, 8)), steps=200))
    assert len(found.look_at_first) == 1
    assert found.look_at_first[0].local_rank == 0
    assert "most ranks with local rank 0" in found.look_at_first[0].reasons[0]


def test_a_late_node_is_named_once() -> None:
    found = compared(LargeJob(512, nodes=64, late=frozenset(range(24, 32)), steps=100))
    assert len(found.look_at_first) == 1
    assert found.look_at_first[0].node == "node003"
    assert "most ranks of node003" in found.look_at_first[0].reasons[0]


def test_one_bad_rank_is_no_bad_node() -> None:
    found = compared(LargeJob(16, nodes=8, slow=frozenset({5})))
    assert {one.node for one in found.outliers} == {None}
    assert slow(found) == [5]


def test_the_figures_add_up() -> None:
    job = LargeJob(32, nodes=4, late=frozenset({7}), steps=10)
    found = compared(job)
    for rows in (found.by_rank, found.by_node, found.by_local_rank):
        assert sum(row.calls for row in rows) == 32 * 10 * STEP_CALLS
        assert sum(row.times_last or 0 for row in rows) == 10 * STEP_CALLS
        assert sum(row.expected_times_last or 0 for row in rows) == pytest.approx(10 * STEP_CALLS)
        waited, caused = (
            sum(getattr(row, name) for row in rows) for name in ("waiting_seconds", "caused_waiting_seconds")
        )
        assert waited == pytest.approx(caused)
        assert waited + sum(row.transfer_seconds or 0 for row in rows) == pytest.approx(
            sum(row.seconds for row in rows)
        )
    starts, durations = job.times()
    waits = starts.max(axis=0) - starts
    assert found.by_rank[3].waiting_seconds == pytest.approx(waits[3].sum() / 1e9)
    moved = (durations - waits)[3].sum()
    assert found.by_rank[3].algbw_gigabytes_per_second == pytest.approx(10 * sum(SIZES) / moved)
    assert [row.ranks for row in found.by_node] == [list(range(first, first + 8)) for first in range(0, 32, 8)]
    assert found.by_local_rank[2].ranks == [2, 10, 18, 26]


def test_a_rank_without_a_profile_is_named(tmp_path: Path) -> None:
    run = LargeJob(12, nodes=3, steps=10, late=frozenset({2})).write(tmp_path / "run", missing=frozenset({5, 6}))
    found = explained_breakdown(run)
    assert [(one.rank, one.node, one.local_rank) for one in found.look_at_first][:3] == [
        (2, "node000", 2),
        (5, "node001", 1),
        (6, "node001", 2),
    ]
    assert found.look_at_first[1].reasons == ["has no profile"]
    assert [row.rank for row in found.by_rank] == [0, 1, 2, 3, 4, 7, 8, 9, 10, 11]
    assert found.by_rank[5].steps == 10
    assert 5 not in timeline_ranks(found)


def time_map(events: Events, ranks: int, bins: int = 16) -> TimeMap:
    sums = TimeMapSums(ranks, bins)
    waiting(events, {}, [sums])
    found = sums.result()
    assert found is not None
    return found


@given(st.integers(2, 4), st.integers(1, 6), st.integers(0, 2**32), st.integers(0, 40))
def test_the_time_map_spreads_each_call_over_its_bins(ranks: int, steps: int, seed: int, power: int) -> None:
    events = LargeJob(ranks, steps=steps, seed=seed, late_ns=2**power, late=frozenset({1})).recording().load()
    found = time_map(events, ranks)
    last_start = np.full(steps * STEP_CALLS, 0)
    np.maximum.at(last_start, events.ordinal, events.start_ns)
    turn = np.minimum(last_start[events.ordinal], events.start_ns + events.duration_ns)
    assert 1 <= len(found) <= 16
    assert found.start_ns <= events.start_ns.min() < found.start_ns + found.bin_ns
    edges = found.start_ns + np.arange(len(found) + 1) * found.bin_ns
    assert edges[-1] >= (events.start_ns + events.duration_ns).max()
    for seconds, begin, end in (
        (found.waiting_seconds, events.start_ns, turn),
        (found.transfer_seconds, turn, events.start_ns + events.duration_ns),
    ):
        overlap = np.clip(np.minimum.outer(end, edges[1:]) - np.maximum.outer(begin, edges[:-1]), 0, None)
        for rank in range(ranks):
            expected = overlap[events.rank == rank].sum(axis=0) / 1e9
            assert seconds[rank] == pytest.approx(expected, abs=1e-9 * max(1.0, expected.max()))


def test_earlier_calls_may_come_later() -> None:
    job = LargeJob(4, steps=40).recording().load()
    sums, in_order = TimeMapSums(4, 16), time_map(job, 4)
    for ordinal in np.random.default_rng(0).permutation(40 * STEP_CALLS):
        waiting(job.take(job.ordinal == ordinal), {}, [sums])
    found = sums.result()
    assert found is not None
    # Where the first call came from decides nothing but the width of the bins.
    assert (found.start_ns, found.bin_ns) == (in_order.start_ns, in_order.bin_ns)
    assert found.waiting_seconds == pytest.approx(in_order.waiting_seconds)
    assert found.transfer_seconds == pytest.approx(in_order.transfer_seconds)


@pytest.mark.parametrize(
    ("ranks", "nodes", "rows", "first", "what"),
    [
        (16, 1, 16, "0", "rank"),
        (64, 8, 64, "0 (node000)", "rank"),
        (128, 1, 64, "0 to 1", "group of 2 neighbouring ranks"),
        (200, 1, 50, "0 to 3", "group of 4 neighbouring ranks"),
        (128, 16, 16, "node000", "node"),
        (300, 100, 50, "node000 to node001", "group of 2 neighbouring nodes"),
    ],
)
def test_the_rows_of_a_heat_map(ranks: int, nodes: int, rows: int, first: str, what: str) -> None:
    found = compared(LargeJob(ranks, nodes=nodes, steps=2))
    made = map_rows(found)
    assert (len(made), made[0].label, rows_are(found)) == (rows, first, what)
    assert sorted(rank for row in made for rank in row.ranks) == list(range(ranks))


def test_modified_z_scores() -> None:
    assert modified_z_scores(np.array([1.0, 2, 3, 4, 100])) == pytest.approx(np.array([-2, -1, 0, 1, 97]) * 0.6745)
    # More than half are equal: the mean absolute deviation counts.
    assert modified_z_scores(np.array([1.0] * 9 + [11]))[-1] == pytest.approx(10 / 1.253314)
    assert not modified_z_scores(np.ones(5)).any()
    assert len(modified_z_scores(np.empty(0))) == 0


def test_chosen_ranks() -> None:
    recorded = list(range(40))
    assert choose_ranks(None, recorded) == recorded
    assert choose_ranks("0, 7,32-34,33", recorded) == [0, 7, 32, 33, 34]
    for text in ("", "a", "3-", "-3", "5-2", "1,,2", "1.5", "0-99999999999999999999"):
        with pytest.raises(RequestError, match=r"not a rank or a range.*example: 0,7,32-39"):
            choose_ranks(text, recorded)
    for text, unknown in (("40", 40), ("38-99", 40)):
        with pytest.raises(
            RequestError, match=f"rank {unknown} has no profile; the run recorded 40 ranks, from 0 to 39"
        ):
            choose_ranks(text, recorded)
    assert Counter(choose_ranks("0-3,2", recorded)) == Counter(range(4))
