"""Measurements of collectives: the names of choices, and times."""

import math

import pytest

from hvscale.comm_tuning.collectives.decide.measurements import (
    LIBRARY,
    AlgorithmChoice,
    Time,
)
from hvscale.comm_tuning.collectives.document import TuneCollectivesDocument, TuningJob
from hvscale.comm_tuning.collectives.measure.job import JobResults, job_options
from hvscale.comm_tuning.collectives.measure.request import Checked, RankReport
from hvscale.launch.options import LaunchOptions
from hvscale.launch.placement_options import PlacementOptions
from tests.comm_tuning.collective_studies import LARGE, SIZES, study


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        (LIBRARY, "library"),
        (AlgorithmChoice(algorithm="chain", chunk_bytes=32768, depth=8), "chain chunk_bytes=32768 depth=8"),
        (
            AlgorithmChoice(library_algorithm="ring", segment_bytes=65536),
            "library's ring segment_bytes=65536",
        ),
    ],
)
def test_a_choice_is_named_by_its_algorithm_and_fields(choice: AlgorithmChoice, words: str) -> None:
    assert str(choice) == words


def test_a_time_is_the_median_with_the_interval_of_the_geometric_mean() -> None:
    """The logarithms of 1 and 4 are log 2 from that of 2, and Student's t for two is 12.7062."""
    assert Time.of([7]) == Time(7, 0, math.inf)
    found = Time.of([4, 1])
    assert found.median == 2.5
    assert found.low == pytest.approx(2 * 2**-12.7062, rel=1e-4)
    assert found.high == pytest.approx(2 * 2**12.7062, rel=1e-4)


@pytest.mark.parametrize(
    ("other", "expected"), [(Time(5, 3, 6), True), (Time(5, 3.1, 6), False), (Time(2, 0, math.inf), True)]
)
def test_intervals_that_touch_overlap(other: Time, expected: bool) -> None:
    one = Time(2, 1, 3)
    assert one.overlaps(other) == other.overlaps(one) == expected


@pytest.mark.parametrize(
    ("np", "asked", "nodes"),
    [(6, 4, 4), (4, 4, 2), (2, 4, 1), (3, 4, 2), (6, None, None), (4, None, 2), (3, None, 1)],
)
def test_a_job_on_all_ranks_has_the_nodes_that_were_asked_for(np: int, asked: int | None, nodes: int | None) -> None:
    """Six ranks on four nodes are 2, 2, 1 and 1. Fewer ranks are two on a node.

    netns has two nodes by default, so three ranks each.
    """
    options = LaunchOptions(np=6, placement=PlacementOptions(placement="netns", nodes=asked))
    job = TuningJob(np=np, operation="allreduce", eager_limit_bytes=None, run="run")
    made = job_options(job, options, {})
    assert (made.np, made.placement.nodes) == (np, nodes)


class Silent:
    """Shows no progress."""

    def job(self, document: TuneCollectivesDocument, job: TuningJob, sizes: list[int]) -> None:
        pass

    def report(self, report: RankReport) -> None:
        pass


def test_a_wrong_result_of_a_choice_that_only_an_earlier_start_has_measured() -> None:
    """The table does not use the choice. A later check without wrong elements changes nothing."""
    document, job = study(), TuningJob(np=4, operation="broadcast", eager_limit_bytes=None, run="run")

    def parts() -> set[int | None]:
        document.tabulate()
        assert document.decision is not None
        return {rule.chunk_bytes for rule in document.decision.table.rule}

    assert LARGE.chunk_bytes in parts()
    results = JobResults(document, job, Silent(), pytest.fail)
    for wrong in (3, 0):
        results.add(Checked(bytes=SIZES[-1], choices=[LARGE], wrong=wrong))
        results.merge()
        found = [point for point in document.measurements.points if point.wrong]
        assert [(one.np, one.bytes, one.choice, one.wrong) for one in found] == [(4, SIZES[-1], LARGE, 3)]
        assert LARGE.chunk_bytes not in parts()
