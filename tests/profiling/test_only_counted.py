"""Profiles with counters and no single calls (HVPROF_RECORD=counters), in real ranks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder
from hvscale.profiling.analyze.breakdown import breakdown
from hvscale.profiling.analyze.explanation import explained_breakdown
from hvscale.profiling.compare import compare, read_profiled_run
from hvscale.profiling.read.profile_file import BUFFER_BITS, STEP, ProfileFile
from tests.conftest import Run
from tests.profiling.conftest import MakeRun, Mpi

COUNTERS = {"HVPROF_RECORD": "counters"}
KINDS, CALLS = 80, 80 + 300  # of many_kinds.c with 300 communicators
# (operation, size range, calls, bytes) identify a row; times differ from run to run.
COUNTED = ("operation", "bytes_min", "bytes_max", "calls", "bytes", "bitwise_calls")


@pytest.fixture
def run_as(make_run: MakeRun, tmp_path: Path) -> Callable[..., RunFolder]:
    """`run_as(NAME, np)`: an empty run in a folder of that name."""

    def make(name: str, np: int = 2) -> RunFolder:
        run = make_run(np)
        run.unlock()
        run.path.rename(tmp_path / name)
        return RunFolder(tmp_path / name)

    return make


def figures(rows: list[Any]) -> list[tuple[Any, ...]]:
    return sorted(tuple(getattr(row, name) for name in COUNTED) for row in rows)


@pytest.mark.parametrize("program", ["every_collective", "every_nonblocking", "point_to_point"])
def test_counters_alone_give_the_same_table(any_mpi: Mpi, run_as: Callable[..., RunFolder], program: str) -> None:
    calls, counters = run_as("calls"), run_as("counters")
    command = [str(any_mpi.compile(program))]
    any_mpi.record(calls, 2, command)
    any_mpi.record(counters, 2, command, **COUNTERS)
    expected, found = breakdown(calls, "pow2"), breakdown(counters, "pow2")
    assert figures(found.rows) == figures(expected.rows)
    assert figures(found.rank_rows) == figures(expected.rank_rows)
    assert figures(found.point_to_point) == figures(expected.point_to_point)
    assert (found.warnings, found.incomplete) == (expected.warnings, None)
    assert all(row.p50_seconds <= row.p99_seconds for row in found.rows)


def test_a_file_without_calls_takes_a_few_hundred_kib(open_mpi: Mpi, make_run: MakeRun) -> None:
    run = make_run(2)
    open_mpi.record(run, 2, [str(open_mpi.compile("many_kinds")), "300"], **COUNTERS)
    for path in run.hvprof.glob("rank-*.hvp"):
        assert path.stat().st_blocks * 512 <= 300 << 10
    table = breakdown(run, "pow2")
    assert sum(row.calls for row in table.rows) == 2 * CALLS
    assert len(table.rows) == KINDS + 1
    assert table.warnings == []


def test_a_kind_of_calls_takes_one_counter_however_many_there_are(open_mpi: Mpi, make_run: MakeRun) -> None:
    run, rounds, kinds = make_run(1), 40, 240
    open_mpi.record(run, 1, [str(open_mpi.compile("kinds_in_turn")), str(rounds)], **COUNTERS)
    table = breakdown(run, "pow2")
    assert [row.calls for row in table.rows] == [rounds] * kinds
    assert table.warnings == []


@pytest.mark.parametrize("size", ["164k", "224k"])
def test_a_disk_that_becomes_full_costs_sizes_and_not_the_job(
    open_mpi: Mpi, make_run: MakeRun, small_disk: Callable[..., Path], size: str
) -> None:
    """A write to a page without disk space would end the process with SIGBUS."""
    disk, run = small_disk(size), make_run(1)
    command = [str(open_mpi.compile("many_kinds")), "300"]
    done = open_mpi.start(1, command, {**open_mpi.preload(run), **COUNTERS, "HVPROF_DIRECTORY": str(disk)})
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    full = [line.partition(" than ")[2].split()[1] for line in lines if line.startswith("hvprof: no space for more ")]
    assert full, done.stderr
    assert len(full) == len(set(full)), done.stderr
    assert len(lines) <= 4, done.stderr
    (profile,) = disk.iterdir()
    (run.hvprof / profile.name).write_bytes(profile.read_bytes())
    table = breakdown(run, "pow2")
    assert sum(row.calls for row in table.rows) == CALLS
    unsized = ["calls were counted without their sizes" in warning for warning in table.warnings]
    assert unsized == ([True] if size == "164k" else [])


def step_sums_of_records(path: Path) -> tuple[int, ...]:
    """The step sums, from the records of the same file."""
    profile = ProfileFile(path)
    records = np.sort(np.concatenate(list(profile.chunks())), order="start_ns")
    marks = records["start_ns"][records["operation"] == STEP]
    thread = records["buffer_and_thread"] >> np.uint64(BUFFER_BITS)
    calls = (records["operation"] != STEP) & (records["start_ns"] > marks[0]) & (records["start_ns"] < marks[-1])
    own = calls & (thread == thread[records["operation"] == STEP][0])
    return (
        len(marks) - 1,
        int(marks[-1] - marks[0]),
        *(int(records["duration_ns"][chosen].sum()) for chosen in (own, calls)),
        int(records["bytes"][calls].sum()),
    )


def test_steps_are_summed_exactly(open_mpi: Mpi, make_run: MakeRun) -> None:
    run = make_run(2)
    open_mpi.record(run, 2, [str(open_mpi.compile("steps")), "20"])
    for path in sorted(run.hvprof.glob("rank-*.hvp")):
        sums = ProfileFile(path).header.steps
        assert sums is not None
        found = (sums.steps, sums.duration_ns, sums.blocking_ns, sums.collectives_ns, sums.collectives_bytes)
        assert found == step_sums_of_records(path)


def test_steps_that_are_only_counted_bound_exposed_communication(
    open_mpi: Mpi, make_run: MakeRun, hvscale: Run
) -> None:
    run = make_run(2)
    open_mpi.record(run, 2, [str(open_mpi.compile("steps")), "20"], **COUNTERS)
    found = explained_breakdown(run)
    exposed = found.exposed_communication
    assert exposed is not None
    assert (exposed.basis, exposed.ranks, exposed.step_count, exposed.steps) == ("counters", [0, 1], 19, [])
    assert 0 < exposed.mean_share_at_least < exposed.mean_share_at_most <= 1
    assert exposed.mean_step_seconds > 0.002
    assert [row.steps for row in found.by_rank] == [19, 19]
    assert sum(row.step_seconds or 0 for row in found.by_rank) == pytest.approx(2 * exposed.mean_step_seconds)
    for part in ("waiting", "buffer_reuse"):
        assert "hvscale profile --record calls" in found.unavailable[part]
    shown = hvscale("breakdown", run.path)
    assert "waiting, late ranks and buffer reuse are left out: calls were only counted" in shown.stderr


def test_runs_of_another_number_of_steps_are_compared_by_step(open_mpi: Mpi, run_as: Callable[..., RunFolder]) -> None:
    """Whether or not a program marks the end of its last step."""
    short, closed, calls = (run_as(name) for name in ("short", "closed", "calls"))
    program = str(open_mpi.compile("steps"))
    open_mpi.record(short, 2, [program, "5"], **COUNTERS)
    open_mpi.record(closed, 2, [program, "7", "1"], **COUNTERS)
    open_mpi.record(calls, 2, [program, "9", "1"])
    for other in (closed, calls):
        found = compare(short, other)
        assert (found.per, found.steps_before) == ("step", 4)
        assert [(row.operation, row.calls_before, row.calls_after) for row in found.rows] == [("allreduce", 8, 8)]
        assert (found.total.gain_percent_low, found.total.verdict) == (None, "unknown")
        assert found.step is not None
        assert found.step.seconds_before > 0.002
        assert [text for text in found.warnings if "--record calls" in text]
    assert not [text for text in found.warnings if "power of two" in text]
    split = [text for text in compare(short, calls, "5K").warnings if "a bin edge that is not a power of two" in text]
    assert [text.partition(": ")[0] for text in split] == [str(short.path)]


def test_other_work_is_found_in_counters(open_mpi: Mpi, run_as: Callable[..., RunFolder]) -> None:
    some, more = run_as("some"), run_as("more")
    open_mpi.record(some, 2, [str(open_mpi.compile("many_kinds")), "1"], **COUNTERS)
    open_mpi.record(more, 2, [str(open_mpi.compile("many_kinds")), "9"], **COUNTERS)
    with pytest.raises(RequestError, match="did different work: 2 barrier calls per run against 18"):
        compare(some, more)


def test_single_calls_are_missed_in_one_line(open_mpi: Mpi, make_run: MakeRun) -> None:
    run = make_run(1)
    open_mpi.record(run, 1, [str(open_mpi.compile("many_kinds"))], **COUNTERS)
    with pytest.raises(RequestError, match="has no single calls, only counters: record it again with"):
        read_profiled_run(run)


def test_an_unknown_kind_of_record_is_reported(open_mpi: Mpi, make_run: MakeRun) -> None:
    run = make_run(1)
    variables = {**open_mpi.preload(run), "HVPROF_RECORD": "all", "HVPROF_MIB": "1"}
    done = open_mpi.start(1, [str(open_mpi.compile("many_kinds"))], variables)
    assert "hvprof: HVPROF_RECORD=all is neither calls nor counters" in done.stderr
    assert ProfileFile(run.hvprof / "rank-00000.hvp").header.capacity > 0
