"""Samples of running jobs: counters that change while they are read, logs, steps, 512 ranks."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hvscale.core.errors import RequestError
from hvscale.core.folder_lock import FolderLock
from hvscale.core.run_folder import RunFolder
from hvscale.profiling.read.counters import COUNTER, COUNTERS, LIMITS_NS, counter_checks
from hvscale.profiling.read.profile_file import COMMUNICATOR, COMMUNICATORS, COUNTERS_START, RECORD, RECORDS_START, STEP
from hvscale.profiling.read.ring_file import check_words
from hvscale.profiling.watch.document import Watch
from hvscale.profiling.watch.job_counters import STARTED_BY_A_RANK, JobCounters
from hvscale.profiling.watch.log_tail import LINES_KEPT, LOGS_READ, LONGEST_CHARACTERS, TAIL_BYTES, LogTail
from hvscale.profiling.watch.running import newest_running
from hvscale.profiling.watch.sampler import WatchSampler
from hvscale.profiling.watch.step_tail import read_newest_steps
from tests.profiling import synthetic
from tests.profiling.conftest import MakeRun, Mpi

RANKS = 512
CAPACITY = 1024
LATE_RANK = 77
PERIOD_NS, CALL_NS, LATE_NS = 1_000_000, 600_000, 500_000
SIZE = 4096
ALLREDUCE = 13


def world(np_of_job: int, rank: int) -> NDArray[Any]:
    made = np.zeros(COMMUNICATORS, COMMUNICATOR)
    made["identity"][0], made["size"][0], made["rank"][0] = 4711, np_of_job, rank
    made[:1] = synthetic.signed(made[:1])
    return made


def counter(calls: int, np_of_job: int) -> NDArray[Any]:
    made = np.zeros(1, COUNTER)
    made["key"] = ALLREDUCE | synthetic.size_class(SIZE) << 6 | 1 << 15 | np_of_job << 32
    made["calls"], made["bytes"], made["duration_ns"] = calls, calls * SIZE, calls * CALL_NS
    made["latencies"][0, int(np.searchsorted(LIMITS_NS, CALL_NS, side="right")) - 1] = calls
    made["check"] = counter_checks(made)
    return made


def newest(calls: int, rank: int) -> NDArray[Any]:
    """A full ring after `calls` all-reduces, for which everybody waits for the late rank."""
    made = np.zeros(CAPACITY, RECORD)
    sequence = np.arange(calls - CAPACITY + 1, calls + 1)
    made["sequence"], made["ordinal"] = sequence, sequence - 1
    late = LATE_NS if rank == LATE_RANK else 0
    made["start_ns"], made["duration_ns"] = 10**9 + sequence * PERIOD_NS + late, CALL_NS - late
    made["bytes"], made["operation"] = SIZE, ALLREDUCE
    synthetic.signed(made)
    return np.roll(made, calls % CAPACITY)


def write_rank(run: RunFolder, rank: int, calls: int, np_of_job: int, job: int = 99) -> None:
    """Write or update the file of a rank; most of it stays a hole."""
    header = synthetic.header(calls, CAPACITY, rank)
    header["world_size"], header["job"], header["pid"] = np_of_job, job, 1000 + rank
    synthetic.signed_header(header)
    path = run.hvprof / f"rank-{rank:05d}.hvp"
    path.touch()
    with path.open("r+b") as stream:
        stream.write(header.tobytes() + world(np_of_job, rank)[:4].tobytes())
        stream.seek(COUNTERS_START)
        stream.write(counter(calls, np_of_job).tobytes())
        stream.seek(RECORDS_START)
        stream.write(newest(calls, rank).tobytes())


def running(run: RunFolder) -> RunFolder:
    """Make the run look like one that another process holds."""
    record = run.read()
    record.state = "running"
    record.started_at = datetime.now(UTC) - timedelta(seconds=10)
    run.write(record)
    return run


def test_512_full_rings(make_run: MakeRun) -> None:
    run = running(make_run(RANKS))
    for rank in range(RANKS):
        write_rank(run, rank, 5000, RANKS)
    sampler = WatchSampler(run)
    first = sampler.sample()
    assert (first.state, first.period, first.ranks_recorded, first.ranks_missing) == ("running", "run", RANKS, [])
    assert first.warnings == []
    assert first.rows[0].total_calls == 5000 * RANKS
    for rank in range(RANKS):
        write_rank(run, rank, 5400, RANKS)
    sample = sampler.sample()
    (row,) = sample.rows
    assert (sample.period, row.operation, row.total_calls) == ("interval", "allreduce", 5400 * RANKS)
    # Each rank made 400 calls in the period.
    assert row.calls_per_second * sample.period_seconds == pytest.approx(400)
    assert row.gigabytes_per_second * 1e9 == pytest.approx(row.calls_per_second * SIZE)
    assert row.share_of_time == pytest.approx(row.calls_per_second * CALL_NS / 1e9)
    assert row.mean_seconds == pytest.approx(CALL_NS / 1e9)
    assert sample.late_ranks is not None
    (late,) = sample.late_ranks.late_ranks
    assert (late.rank, late.share_last) == (LATE_RANK, 1.0)
    assert late.mean_seconds == pytest.approx(LATE_NS / 1e9)
    assert sample.late_ranks.matched == late.times_last > 100
    assert sampler.sample().rows[0].calls_per_second == 0


@pytest.mark.parametrize("without_job", [range(0), range(79, 80), range(80)])
def test_late_ranks_without_the_profile_of_a_rank(make_run: MakeRun, without_job: range) -> None:
    """A rank does not know its job if its clock was not aligned."""
    run = running(make_run(80))
    for rank in set(range(80)) - {5}:
        write_rank(run, rank, 2000, 80, job=0 if rank in without_job else 99)
    sample = WatchSampler(run).sample()
    assert sample.ranks_missing == [5]
    assert sample.late_ranks is not None, sample.unavailable
    (late,) = sample.late_ranks.late_ranks
    assert (late.rank, late.share_last) == (LATE_RANK, 1.0)


def test_files_that_are_cut_or_damaged_meanwhile_keep_their_last_figures(make_run: MakeRun) -> None:
    run = running(make_run(8))
    for rank in range(8):
        write_rank(run, rank, 2000, 8)
    sampler = WatchSampler(run)
    assert sampler.sample().warnings == []
    os.truncate(run.hvprof / "rank-00003.hvp", 100_000)
    os.truncate(run.hvprof / "rank-00004.hvp", 0)
    (run.hvprof / "rank-00005.hvp").unlink()
    with (run.hvprof / "rank-00006.hvp").open("r+b") as stream:
        stream.write(b"nonsense")
    os.truncate(run.hvprof / "rank-00007.hvp", RECORDS_START + 1000)
    for rank in (0, 1, 2):
        write_rank(run, rank, 2100, 8)
    sample = sampler.sample()
    assert sample.ranks_recorded == 8
    assert sample.rows[0].total_calls == 5 * 2000 + 3 * 2100
    assert all(f"rank-0000{rank}.hvp" in text for rank, text in zip((3, 4, 5), sample.warnings, strict=False))
    assert sample.warnings[3:] == ["1 more profiles cannot be read"]
    # Four ranks could be read; three of them made 100 calls.
    assert sample.rows[0].calls_per_second * sample.period_seconds == pytest.approx(75)
    assert sample.late_ranks is None
    assert "no collective" in sample.unavailable["late_ranks"]


def test_a_damaged_counter_gives_no_negative_rate(make_run: MakeRun) -> None:
    run = running(make_run(1))
    write_rank(run, 0, 2000, 1)
    sampler = WatchSampler(run)
    sampler.sample()
    with (run.hvprof / "rank-00000.hvp").open("r+b") as stream:
        stream.seek(COUNTERS_START + 8)
        stream.write(bytes(8))
    sample = sampler.sample()
    assert "1 counters are ignored" in sample.warnings[0]
    assert all(row.calls_per_second >= 0 for row in sample.rows)


@pytest.mark.parametrize(
    "places",
    [
        *map(range, (31, 32, 33, 200, 1000)),
        (*range(54), COUNTERS - 64 + ALLREDUCE),  # on a full disk
        (*range(960), COUNTERS - 1),
    ],
)
def test_many_kinds_of_calls(make_run: MakeRun, places: Sequence[int]) -> None:
    run = running(make_run(1))
    write_rank(run, 0, 2000, 1)
    made = np.zeros(COUNTERS, COUNTER)
    for place in places:
        made[place] = counter(place + 1, 1)[0]
        made["key"][place] = ALLREDUCE | 1 << 15 | synthetic.size_class(SIZE) << 6 | place % 50 << 16 | place << 32
    made["check"] = np.where(made["key"] != 0, counter_checks(made), 0)
    with (run.hvprof / "rank-00000.hvp").open("r+b") as stream:
        stream.seek(COUNTERS_START)
        stream.write(made.tobytes())
    counters = JobCounters(run)
    for _ in range(2):
        counted, problems = counters.look()
        assert problems == []
        assert counted.total["calls"].sum() == sum(places) + len(places)
    assert counted.new["calls"].sum() == 0


def test_an_mpi_program_that_a_rank_started_is_left_out(make_run: MakeRun) -> None:
    """It may be the first one to write a file."""
    run = running(make_run(2))
    counters = JobCounters(run)
    write_rank(run, 0, 3000, 1, job=7)
    (run.hvprof / "rank-00000.hvp").rename(run.hvprof / "rank-00000.77.hvp")
    counters.look()
    for rank in range(2):
        write_rank(run, rank, 2000, 2)
    counted, problems = counters.look()
    assert counted.total["calls"].sum() == 2 * 2000
    assert [f"rank-00000.77.hvp: {STARTED_BY_A_RANK}" in one for one in problems] == [True]


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_counters_that_change_while_they_are_read(open_mpi: Mpi, make_run: MakeRun, tmp_path: Path, end: str) -> None:
    """Each look counts at least the calls that had returned before it, at most those after it."""
    program = str(open_mpi.compile("until_killed"))
    run = make_run(1)
    returned = tmp_path / "returned"
    returned.write_bytes(bytes(16 * 64))
    environment = open_mpi.environment({**open_mpi.preload(run), "HVPROF_MIB": "1"})
    counters = JobCounters(run)
    with subprocess.Popen([program, str(returned), "2"], env=environment, stderr=subprocess.DEVNULL) as job:
        try:
            while not np.fromfile(returned, "<u8")[:16:8].all():
                assert job.poll() is None
                time.sleep(0.01)
            for look in range(300):
                if look == 290:
                    job.kill() if end == "kill" else os.kill(job.pid, 19)
                    time.sleep(0.1)
                before = int(np.fromfile(returned, "<u8")[::8].sum())
                counted, problems = counters.look()
                after = int(np.fromfile(returned, "<u8")[::8].sum())
                assert problems == []
                of_allreduce = counted.total[(counted.total["key"] & np.uint64(63)) == ALLREDUCE]
                # Each thread may have counted one call that has not returned.
                assert before <= int(of_allreduce["calls"].sum()) <= after + 2
                records = [file.newest_records(reading.header, 512) for file, reading in counters.readable()]
                assert all(np.isin(one["operation"], [ALLREDUCE]).all() for one in records)
                assert len(records[0]) > 400
        finally:
            job.kill()


def steps_file(run: RunFolder, count: int, **more: Any) -> None:
    lines = [
        json.dumps({"schema": "hvscale/steps/1", "step": step, "steps": 900, "images": 64, "seconds": 0.5, **more})
        for step in range(1, count + 1)
    ]
    run.steps.write_text("\n".join([*lines, '{"step": 77777, "seco']))


def test_the_newest_steps(make_run: MakeRun) -> None:
    run = running(make_run(2))
    steps_file(run, 5000, communication_seconds=0.1, loss=0.25)
    sample = WatchSampler(run, steps_seconds=2.0).sample()
    assert sample.steps is not None
    assert (sample.steps.step, sample.steps.steps, sample.steps.counted, sample.steps.loss) == (5000, 900, 4, 0.25)
    assert sample.steps.images_per_second == pytest.approx(128)
    assert sample.exposed_communication is not None
    assert sample.exposed_communication.basis == "measured"
    assert sample.exposed_communication.share_at_least == pytest.approx(0.2)
    assert "hvscale profile" in sample.unavailable["rows"]


def test_steps_without_numbers_are_numbered_by_their_lines(make_run: MakeRun) -> None:
    run = running(make_run(2))
    run.steps.write_text('{"seconds": 0.5}\n' * 20_000)  # more than the tail that is read
    steps, _ = read_newest_steps(run, 2.0)
    assert steps is not None
    assert (steps.step, steps.counted, steps.step_seconds) == (20_000, 4, 0.5)


@pytest.mark.parametrize("has_ended", [False, True])
def test_steps_of_the_whole_run_do_not_include_its_start(make_run: MakeRun, has_ended: bool) -> None:
    run = make_run(2) if has_ended else running(make_run(2))
    write_steps(run, marks=5)
    sampler = WatchSampler(run)
    steps = sampler.sample().steps
    assert steps is not None
    assert (steps.step, steps.counted, steps.seconds, steps.step_seconds) == (4, 4, 1.0, 0.25)
    if not has_ended:
        write_steps(run, marks=8)
        sample = sampler.sample()
        assert sample.steps is not None
        assert (sample.steps.step, sample.steps.counted, sample.steps.seconds) == (7, 3, sample.period_seconds)


def test_the_steps_are_those_of_the_last_program_of_a_rank_that_marked_any(make_run: MakeRun) -> None:
    run = running(make_run(1))
    for second, (suffix, marks) in enumerate([("", 3), (".10", 5), (".9", 7), (".11", 1)]):
        write_steps(run, marks, suffix, second)
    sample = WatchSampler(run).sample()
    assert sample.steps is not None
    assert sample.exposed_communication is not None
    assert (sample.steps.step, sample.exposed_communication.basis) == (6, "counters")


def write_steps(run: RunFolder, marks: int, suffix: str = "", second: int = 0) -> None:
    """Write or update the profile of a rank that marked steps of 0.25 s."""
    header = synthetic.header(0, 0)
    header["realtime_ns"] += second * 10**9
    words = np.array([marks - 1, (marks - 1) * 250_000_000, 0, 0, 0, 0], np.uint64)
    words[-1] = check_words(words[None, :-1])[0]
    header["step_sums"] = words if marks > 1 else 0
    entries = np.zeros(COUNTERS, COUNTER)
    entries["key"][0], entries["calls"][0] = STEP | 1 << 15, marks
    entries["latencies"][0, 0] = marks
    entries["check"][:1] = counter_checks(entries[:1])
    file = synthetic.signed_header(header).tobytes() + synthetic.communicators().tobytes() + entries.tobytes()
    (run.hvprof / f"rank-00000{suffix}.hvp").write_bytes(file)


@settings(max_examples=50)
@given(st.binary(max_size=3000))
def test_any_bytes_as_steps_and_log(content: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder))
        run.logs.mkdir()
        run.steps.write_bytes(content)
        run.log(0).write_bytes(content)
        read_newest_steps(run, 1.0)
        logs = LogTail(run)
        logs.poll()
        logs.poll()
        assert all("\n" not in line.text and "\x1b[" not in line.text for line in logs.lines)


def test_logs_are_followed_in_any_pieces(make_run: MakeRun) -> None:
    run = make_run(600)
    logs = LogTail(run)
    logs.poll()
    for rank in range(40):
        run.log(rank).write_text("the same on each\n")
    logs.poll()
    (line,) = logs.lines
    assert line.text == "the same on each"
    assert len(line.ranks) == LOGS_READ
    with run.log(3).open("a") as log:
        log.write("half a li")
        log.flush()
        logs.poll()
        assert len(logs.lines) == 1
        log.write("ne\n\x1b[31mWARNING\x1b[0m: 10 %\r 50 %\rError at 99 %\n")
        log.flush()
        logs.poll()
        assert [line.text for line in logs.lines][1:] == ["half a line", "Error at 99 %"]
        assert [(line.ranks, line.text) for line in logs.warnings] == [([3], "Error at 99 %")]
        log.write("x" * 5 * TAIL_BYTES)
        log.flush()
        logs.poll()
        log.write("".join(f"\nline {number}" for number in range(20_000)) + "\n")
        log.flush()
        logs.poll()
        assert [line.text for line in logs.lines] == [f"line {number}" for number in range(20_000 - LINES_KEPT, 20_000)]
    assert all(len(line.text) <= LONGEST_CHARACTERS for line in logs.lines)


def test_logs_that_are_not_files_are_not_read(make_run: MakeRun) -> None:
    run = make_run(2)
    os.mkfifo(run.log(0))
    run.log(1).symlink_to("/dev/zero")
    logs = LogTail(run)
    logs.poll()
    assert not logs.lines


def test_the_newest_running_run(make_run: MakeRun, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"no run in .*/runs is running: give the folder"):
        newest_running(tmp_path / "runs")
    old = running(make_run(2))
    root = tmp_path / "runs"
    for name, minutes, state in (
        ("a", 3, "running"),
        ("study/inner", 1, "running"),
        ("b", 2, "starting"),
        ("z", 0, "finished"),
    ):
        record = old.read()
        record.state, record.started_at = state, datetime.now(UTC) - timedelta(minutes=minutes)  # type: ignore[assignment]
        (root / name).mkdir(parents=True)
        RunFolder(root / name).write(record)
    locks = [FolderLock(root / name) for name in ("a", "study", "study/inner", "b", "z")]
    assert newest_running(root).path == root / "study/inner"
    is_file = Path.is_file

    def refuse(path: Path) -> bool:
        if path.parent == root / "a":  # as in another user's own folder
            raise PermissionError
        return is_file(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "is_file", refuse)
        assert newest_running(root).path == root / "study/inner"
    locks[2].close()
    assert newest_running(root).path == root / "b"
    for lock in locks:
        lock.close()
    with pytest.raises(RequestError):
        newest_running(root)


def test_a_run_that_is_removed_meanwhile(make_run: MakeRun) -> None:
    run = running(make_run(1))
    sampler = WatchSampler(run)
    sampler.sample()
    shutil.rmtree(run.path)
    with pytest.raises(RequestError, match="does not exist any more: it was moved or removed"):
        sampler.sample()


def test_the_document_is_read_back(make_run: MakeRun) -> None:
    run = running(make_run(2))
    sample = WatchSampler(run).sample()
    assert Watch.model_validate_json(sample.model_dump_json(by_alias=True)) == sample
