"""Comparisons of synthetic recordings: gain, confidence interval, and rejected comparisons."""

import csv
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import Host, Library, RankEnd, RunFolder, RunRecord
from hvscale.core.units import KIB, MIB, human_bytes
from hvscale.profiling import Events, Recording
from hvscale.profiling.analyze import bytes_per_step
from hvscale.profiling.analyze.bytes_per_step import (
    INFERRED,
    find_bytes_per_step,
    find_step_edges,
    known_or_inferred_edges,
)
from hvscale.profiling.analyze.exposed import exposed_communication
from hvscale.profiling.analyze.grouping import parse_bins
from hvscale.profiling.analyze.steps import LoggedSteps, step_edges
from hvscale.profiling.compare import (
    MIN_BLOCKS,
    Comparison,
    ProfiledRun,
    _gain,
    compare_profiled_runs,
    divide_into_steps,
    median_step,
    read_profiled_run,
    reject_files_of_another_run,
)
from hvscale.profiling.read.profile_file import StepSums
from hvscale.studies.run_report.compare_tables import write_comparison_csv
from tests.profiling import synthetic
from tests.profiling.conftest import MakeRun

NOW = datetime(2026, 1, 1, tzinfo=UTC)
START_NS = int(NOW.timestamp()) * 10**9
STEP_SECONDS, STEPS, NP = 0.1, 40, 2


def recorded(
    milliseconds: float = 5,
    *,
    sizes: tuple[int, ...] = (4 * MIB, 4 * MIB),
    ranks: int = NP,
    steps: int = STEPS,
    images: float = 8,
    log: bool = True,
    bitwise: bool = True,
    noise: float = 0.1,
    command: str = "program",
) -> ProfiledRun:
    """A run whose steps all-reduce `sizes` on each rank, each message in `milliseconds`.

    `bitwise`: a bitwise reduction precedes each message.
    """
    random = np.random.default_rng(int(milliseconds * 1000) + len(sizes))
    calls = []
    for step in range(steps):
        for rank in range(ranks):
            for place, size in enumerate(sizes):
                start = START_NS + int((step * STEP_SECONDS + 0.02 + place * 0.03) * 1e9)
                if bitwise:
                    calls.append((rank, 4, start - 2000, 1000, 1))
                lasts = milliseconds * 1e6 * (1 + noise * random.uniform(-1, 1))
                calls.append((rank, size, start, int(lasts), 0))
    columns = np.array(calls, np.int64)
    recording = Recording(
        "hvprof",
        Events(
            operations=("allreduce",),
            rank=columns[:, 0].astype(np.int32),
            operation=np.zeros(len(columns), np.uint8),
            bytes=columns[:, 1],
            start_ns=columns[:, 2],
            duration_ns=columns[:, 3],
            communicator_size=np.full(len(columns), ranks, np.int32),
            bitwise=columns[:, 4] == 1,
            thread=columns[:, 0] + 100,
        ),
        ranks,
        list(range(ranks)),
    )
    record = RunRecord(
        command=[command],
        np=ranks,
        library=Library(flavour="openmpi", version="1"),
        host=Host(name="here", kernel="k", cpu="c", cores=2, memory_bytes=1),
        working_directory="/",
        started_at=NOW,
        ended_at=NOW + timedelta(seconds=steps * STEP_SECONDS + 1),
        ranks=[RankEnd(rank=rank, host="here", pid=1) for rank in range(ranks)],
    )
    of_steps = LoggedSteps(np.full(steps, STEP_SECONDS), np.full(steps, images), np.full(steps, 0.01)) if log else None
    return ProfiledRun("run", record, recording, of_steps, step_edges(recording, of_steps))


def compared(before: ProfiledRun, after: ProfiledRun) -> Comparison:
    return compare_profiled_runs(before, after, parse_bins("study"))


def test_messages_before_the_first_step_belong_to_no_step() -> None:
    run = recorded()
    events = run.recording.load()
    early = replace(events, start_ns=np.append(events.start_ns, START_NS - 10**9))
    columns: dict[str, Any] = {
        name: np.append(getattr(events, name), getattr(events, name)[-1:])
        for name in ("rank", "operation", "duration_ns", "communicator_size", "bitwise", "thread")
    }
    early = replace(early, **columns, bytes=np.append(events.bytes, 16))
    more = replace(run, recording=replace(run.recording, events=early))
    more.edges_ns = step_edges(more.recording, more.log)
    assert compared(run, more).total.calls_after == compared(run, more).total.calls_before


@pytest.mark.parametrize("overwritten", [0, 1])
def test_the_messages_of_each_rank_belong_to_its_own_steps(overwritten: int) -> None:
    run = recorded(log=False)
    events = run.recording.load()
    # Rank 1 is ahead, so its messages begin before rank 0's step. It was killed before it marked
    # the end of the last step.
    ahead = np.where(events.rank == 1, int(0.04e9), 0)
    marks = START_NS + (np.arange(STEPS + 1) * STEP_SECONDS * 1e9).astype(np.int64)
    recording = replace(
        run.recording,
        events=replace(events, start_ns=events.start_ns - ahead),
        steps={0: marks, 1: marks[:-1] - int(0.04e9)},
        overwritten=overwritten,
    )
    early = replace(run, recording=recording, edges_ns=step_edges(recording, None))
    (small, large) = compared(early, early).rows
    assert (small.calls_before, large.calls_before) == (2 * NP, 2 * NP)


@pytest.mark.parametrize("log", [True, False])
def test_the_interval_contains_the_gain(log: bool) -> None:
    comparison = compared(recorded(10, log=log), recorded(5, log=log))
    assert comparison.per == ("step" if log else "run")
    units = 1 if log else STEPS
    (small, large) = comparison.rows
    assert (small.bytes_min, small.bytes_max) == (1, 128 * KIB)
    assert small.verdict == "no difference"
    assert large.calls_before == large.calls_after == 2 * NP * units
    assert large.seconds_before == pytest.approx(0.010 * 2 * NP * units, rel=0.02)
    assert large.gain_percent is not None
    assert large.gain_percent_low is not None
    assert large.gain_percent_high is not None
    assert 45 < large.gain_percent_low <= large.gain_percent <= large.gain_percent_high < 55
    assert large.verdict == comparison.total.verdict == "less"
    assert comparison.total.seconds_after == pytest.approx(sum(row.seconds_after for row in comparison.rows))
    assert compared(recorded(5, log=log), recorded(10, log=log)).total.verdict == "more"


@pytest.mark.parametrize("log", [True, False])
def test_the_interval_of_equal_runs_contains_0(log: bool) -> None:
    comparison = compared(recorded(5, log=log), recorded(5, log=log))
    assert {gain.verdict for gain in (*comparison.rows, comparison.total)} == {"no difference"}
    assert comparison.total.gain_percent == pytest.approx(0)


def test_the_interval_has_its_nominal_coverage() -> None:
    """About one in twenty pairs of equal runs may show a difference."""
    random = np.random.default_rng(3)
    run = recorded(noise=0)
    wrong = 0
    for _ in range(100):
        pair = []
        for _ in range(2):
            events = run.recording.load()
            noisy = replace(events, duration_ns=random.exponential(5e6, len(events)).astype(np.int64))
            pair.append(replace(run, recording=replace(run.recording, events=noisy)))
        wrong += compared(*pair).total.verdict != "no difference"
    assert wrong <= 15


@pytest.mark.parametrize("filled", [[0], [0, 1], [0, 1, 2, 3, 4]])
@pytest.mark.parametrize("total", [0.5, 0.99, 1, 2])
@pytest.mark.parametrize("blocks", [16, 64])
def test_a_row_with_calls_in_a_few_blocks_shows_no_change(filled: list[int], total: float, blocks: int) -> None:
    """One fused message among 64 steps before, the same time in all steps after."""
    rare, every, weights = np.zeros(blocks), np.full(blocks, total / blocks), np.ones(blocks)
    rare[filled] = 1 / len(filled)
    for before, after in ((rare, every), (every, rare), (rare, total * rare), (rare, 0 * every)):
        found = _gain(before, weights, after, weights)
        assert (found.gain_percent_low, found.gain_percent_high, found.verdict) == (None, None, "unknown")
        assert found.gain_percent == pytest.approx(100 * (1 - after.sum() / before.sum()))


def test_calls_in_many_blocks_that_are_gone_are_less() -> None:
    found = _gain(np.ones(6), np.ones(6), np.zeros(6), np.ones(6))
    assert (found.gain_percent_low, found.gain_percent_high, found.verdict) == (100, 100, "less")
    assert _gain(np.ones(6), np.ones(6), np.zeros(5), np.ones(5)).verdict == "unknown"


BLOCKS_OF_SECONDS = st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 10)), min_size=1, max_size=64).map(np.array)


@given(BLOCKS_OF_SECONDS, BLOCKS_OF_SECONDS)
def test_the_interval_contains_the_gain_or_is_unknown(before: Any, after: Any) -> None:
    found = _gain(before, np.ones(len(before)), after, np.ones(len(after)))
    if min(np.count_nonzero(before), np.count_nonzero(after) or len(after)) < MIN_BLOCKS:
        assert (found.gain_percent_low, found.gain_percent_high, found.verdict) == (None, None, "unknown")
        return
    gain, low, high = found.gain_percent, found.gain_percent_low, found.gain_percent_high
    assert gain is not None
    assert low is not None
    assert high is not None
    rounding = 1e-12 * (100 + abs(gain))
    assert np.isfinite([low, high]).all()
    assert low - rounding <= gain <= high + rounding
    if after.any() and (np.ptp(before) > 1e-3 * before.mean() or np.ptp(after) > 1e-3 * after.mean()):
        assert low < gain < high


def test_one_step_gives_no_interval() -> None:
    comparison = compared(recorded(10, steps=1), recorded(5, steps=1))
    assert comparison.total.gain_percent is not None
    assert comparison.total.gain_percent_low is None
    assert comparison.total.verdict == "unknown"
    assert "1 and 1 steps are too few for intervals, which need 6" in comparison.warnings


def test_runs_of_different_length_are_compared_by_step() -> None:
    comparison = compared(recorded(5), recorded(5, steps=2 * STEPS))
    assert (comparison.steps_before, comparison.steps_after) == (STEPS, 2 * STEPS)
    assert comparison.total.calls_before == comparison.total.calls_after


def test_another_fusion_buffer_means_the_same_work() -> None:
    comparison = compared(recorded(5), recorded(10, sizes=(8 * MIB,)))
    assert [row.calls_after for row in comparison.rows] == [NP, NP]
    comparison = compared(recorded(5, sizes=(12 * MIB, 12 * MIB)), recorded(10, sizes=(24 * MIB,)))
    small, medium, large = comparison.rows
    assert (medium.seconds_after, large.seconds_before) == (0, 0)
    assert medium.gain_percent == pytest.approx(100)
    assert (large.gain_percent, large.verdict) == (None, "unknown")
    assert small.calls_before == 2 * small.calls_after


OTHER_WORK: dict[str, tuple[Callable[[], ProfiledRun], str]] = {
    "np": (lambda: recorded(ranks=4), "np 2 against 4"),
    "model": (lambda: recorded(sizes=(4 * MIB, 5 * MIB)), "allreduce of 16 MiB per step against 18 MiB"),
    "a little": (lambda: recorded(sizes=(4 * MIB, 4 * MIB + 100 * KIB)), "allreduce of 16777216 B|allreduce of 16 MiB"),
    "images": (lambda: recorded(images=16), "8 images per step against 16"),
    "length without steps": (lambda: recorded(steps=50, log=False), "per run"),
}


@pytest.mark.parametrize("what", OTHER_WORK)
def test_different_work_is_rejected_with_the_difference(what: str) -> None:
    make, difference = OTHER_WORK[what]
    with pytest.raises(RequestError, match=f"did different work: .*({difference})") as error:
        compared(recorded(), make())
    assert "\n" not in str(error.value)


def test_images_that_only_one_run_recorded_are_not_compared() -> None:
    known, unknown = recorded(images=8), recorded(images=float("nan"))
    marked = replace(known, log=None)
    for before, after in ((known, unknown), (unknown, known), (unknown, unknown), (known, marked), (marked, known)):
        comparison = compared(before, after)
        assert (comparison.per, comparison.total.verdict) == ("step", "no difference")


def test_different_calls_are_rejected_without_horovod() -> None:
    with pytest.raises(RequestError, match="160 allreduce calls per run against 80"):
        compared(recorded(bitwise=False, log=False), recorded(bitwise=False, log=False, sizes=(8 * MIB,)))


def of_rank(run: ProfiledRun, rank: int, ranks_per_event: int = 1) -> ProfiledRun:
    """The run as if only `rank` had been recorded."""
    events = run.recording.load()
    mine = events.take(events.rank == rank)
    return replace(run, recording=replace(run.recording, ranks=[rank], ranks_per_event=ranks_per_event, events=mine))


def test_ranks_that_one_run_lacks_are_left_out_and_another_source_warns() -> None:
    run = recorded()
    half = compared(run, of_rank(run, 1))
    assert half.total.calls_before == half.total.calls_after == compared(run, run).total.calls_before / NP
    assert half.total.seconds_before == half.total.seconds_after > 0
    assert "the comparison leaves out rank 0, which only one of the runs has recorded" in half.warnings
    assert not any("leaves out" in text for text in compared(run, run).warnings)
    with pytest.raises(RequestError, match="did different work: profiles of rank 0 against rank 1"):
        compared(of_rank(run, 0), of_rank(run, 1))
    one = of_rank(run, 0, NP)
    comparison = compared(run, replace(one, recording=replace(one.recording, source="horovod-timeline")))
    assert comparison.total.calls_before == comparison.total.calls_after
    assert any("horovod-timeline" in text for text in comparison.warnings)


def test_the_csv_file_has_the_rows_of_the_table(tmp_path: Path) -> None:
    comparison = compared(recorded(milliseconds=5), recorded(milliseconds=4))
    assert comparison.step is not None
    write_comparison_csv(comparison, tmp_path / "table.csv")
    with (tmp_path / "table.csv").open() as stream:
        *_, total, step = csv.DictReader(stream)
    assert (total["operation"], step["operation"], step["calls_before"]) == ("total", "whole step", "")
    assert float(step["seconds_before"]) == comparison.step.seconds_before


def test_another_command_warns() -> None:
    comparison = compared(recorded(), recorded(command="other"))
    assert any("program against other" in text for text in comparison.warnings)


def test_files_of_another_run_are_rejected(tmp_path: Path) -> None:
    run = recorded()
    folder = RunFolder(tmp_path / "job")
    reject_files_of_another_run(folder, run.record, run.recording)
    events = run.recording.load()
    for hours in (-1, 1):
        moved = replace(events, start_ns=events.start_ns + (events.rank == 1) * hours * 3600 * 10**9)
        with pytest.raises(RequestError, match="mixes files of different runs: rank 1's"):
            reject_files_of_another_run(folder, run.record, replace(run.recording, events=moved))


def test_a_run_at_the_ends_of_the_calendar_is_of_its_time(tmp_path: Path) -> None:
    run = recorded()
    record = run.record.model_copy(
        update={"started_at": datetime.min.replace(tzinfo=UTC), "ended_at": datetime.max.replace(tzinfo=UTC)}
    )
    known = [*run.recording.warnings]
    reject_files_of_another_run(RunFolder(tmp_path / "job"), record, run.recording)
    assert run.recording.warnings == known


def test_the_median_step() -> None:
    assert median_step(np.cumsum([0, 3, 1, 2])) == 2
    assert median_step(np.cumsum([0, 4, 1, 2, 3])) == 2


def test_runs_without_steps_are_divided_by_bytes_per_step() -> None:
    longer, shorter = recorded(10, log=False), recorded(5, steps=STEPS // 2, log=False)
    share, unit = find_bytes_per_step(longer.recording)
    assert unit == "steps/s"
    assert share is not None
    comparison = compared(divide_into_steps(longer, share), divide_into_steps(shorter, share))
    assert comparison.per == "step"
    assert comparison.total.verdict == "less"
    units = share / (8 * MIB)  # two equal steps may count as one
    (_, large) = comparison.rows
    assert large.calls_before == pytest.approx(2 * NP * units, rel=1e-6)
    assert large.seconds_before == pytest.approx(0.010 * 2 * NP * units, rel=0.05)
    assert f"a step is taken to be {human_bytes(share)} sent by each rank" in comparison.warnings[0]
    assert divide_into_steps(shorter, 1e12).edges_ns is None


def test_inferred_steps_are_used_if_those_of_both_runs_send_as_much() -> None:
    runs = [recorded(milliseconds, sizes=(MIB, 3 * MIB), log=False) for milliseconds in (10, 5)]
    before, after = (replace(run, edges_ns=find_step_edges(run.recording), inferred_steps=True) for run in runs)
    comparison = compared(before, after)
    # Nothing shows when the first step began.
    assert (comparison.per, comparison.steps_before, comparison.steps_after) == ("step", STEPS - 1, STEPS - 1)
    assert (comparison.total.verdict, comparison.total.calls_before) == ("less", 4 * NP)
    assert comparison.step is not None
    assert comparison.step.seconds_before == pytest.approx(STEP_SECONDS, rel=0.01)
    assert sum(warning.endswith(INFERRED) for warning in comparison.warnings) == 2
    assert after.edges_ns is not None
    for other in (after.edges_ns[::2], None):
        whole = compared(before, replace(after, edges_ns=other, inferred_steps=other is not None))
        assert (whole.per, whole.step, whole.total.calls_before) == ("run", None, 4 * NP * STEPS)
        assert not any(warning.endswith(INFERRED) for warning in whole.warnings)


def test_steps_are_inferred_without_marks_and_log_if_all_rings_hold_them(monkeypatch: pytest.MonkeyPatch) -> None:
    run = recorded(sizes=(MIB, 3 * MIB))
    edges, inferred = known_or_inferred_edges(run.recording, run.log)
    assert edges is not None
    assert (inferred, edges.tolist()) == (False, run.edges_ns.tolist() if run.edges_ns is not None else None)
    edges, inferred = known_or_inferred_edges(run.recording, None)
    assert edges is not None
    assert (inferred, len(edges)) == (True, STEPS)
    events = run.recording.load()
    begin = int(edges[9]) - 1  # of rank 1's ring
    shorter = replace(run.recording, events=events.take((events.rank == 0) | (events.start_ns > begin)), overwritten=1)
    later, inferred = known_or_inferred_edges(shorter, None)
    assert later is not None
    assert (inferred, later.tolist()) == (True, edges[10:].tolist()), "rank 1's ring begins in the tenth step"
    monkeypatch.setattr(bytes_per_step, "MOST_CALLS", len(run.recording.events) // NP - 1)
    assert known_or_inferred_edges(run.recording, None) == (None, False)


def test_a_job_stopped_between_two_ranks_marks_did_the_same_work() -> None:
    """Rank 0 marked the end of its last step; rank 1 was killed within that step's last message."""
    run = recorded(log=False)
    marks = START_NS + (np.arange(STEPS + 1) * STEP_SECONDS * 1e9).astype(np.int64)
    whole = replace(run.recording, steps={0: marks, 1: marks})
    events = run.recording.load()
    kept = np.ones(len(events.rank), np.bool_)
    kept[np.flatnonzero(events.rank == 1)[-1]] = False
    columns: dict[str, Any] = {
        name: getattr(events, name)[kept]
        for name in (
            "rank",
            "operation",
            "bytes",
            "start_ns",
            "duration_ns",
            "communicator_size",
            "bitwise",
            "thread",
        )
    }
    threads = {rank: np.full(STEPS + 1, rank + 100) for rank in range(NP)}
    stopped = replace(whole, events=replace(events, **columns), steps={0: marks, 1: marks[:-1]}, step_threads=threads)
    edges = step_edges(stopped, None)
    assert edges is not None
    comparison = compared(
        replace(run, recording=whole, edges_ns=step_edges(whole, None)), replace(run, recording=stopped, edges_ns=edges)
    )
    assert (comparison.steps_before, comparison.steps_after) == (STEPS, STEPS - 1)
    assert comparison.total.calls_after == comparison.total.calls_before
    exposed = exposed_communication(stopped, None, edges)
    assert exposed is not None
    assert (exposed.ranks, exposed.step_count) == ([0, 1], STEPS - 1)


def test_runs_that_lost_calls_say_which_steps_are_missing() -> None:
    run = recorded(log=False)
    marks = START_NS + np.arange(STEPS, dtype=np.int64) * int(STEP_SECONDS * 1e9)
    sums = {0: StepSums(STEPS - 1, int(marks[-1] - marks[0]), 0, 0, 0)}
    unmarked = replace(run, recording=replace(run.recording, overwritten=5))
    overwritten = replace(run, recording=replace(unmarked.recording, step_sums=sums))
    marked = replace(overwritten, edges_ns=marks)
    ring = r"record it again with a larger ring \(--env HVPROF_MIB=N\)"
    for before, after, why in (
        (unmarked, unmarked, f"run has no step marks to compare the others by: {ring} or mark its steps$"),
        (overwritten, overwritten, f"no marked step of run is in all its rings: {ring}$"),
        (marked, replace(run, path="other"), f"other has no step marks to compare the others by: {ring} or "),
    ):
        with pytest.raises(RequestError, match=f"^run lost 5 single calls, and {why}"):
            compared(before, after)


def test_marked_steps_are_taken_as_they_are() -> None:
    run = recorded(log=False)
    marks = START_NS + np.arange(STEPS, dtype=np.int64) * int(STEP_SECONDS * 1e9)
    marked = replace(run.recording, steps={0: marks, 1: marks + 1000})
    assert step_edges(marked, None) is marks
    run = replace(run, recording=marked, edges_ns=marks)
    comparison = compared(run, run)
    assert (comparison.per, comparison.steps_before) == ("step", STEPS - 1)
    assert comparison.step is not None
    assert comparison.step.seconds_before == pytest.approx(STEP_SECONDS)
    assert comparison.total.calls_before == 4 * NP


def test_a_profile_without_a_collective_is_not_called_missing(make_run: MakeRun) -> None:
    run = make_run(1)
    (run.hvprof / "rank-00000.hvp").write_bytes(synthetic.head(0, 1 << 20))
    with pytest.raises(RequestError, match=r"the profile of .* has no collective"):
        read_profiled_run(run)
