"""What recorded runs say of a job's computing, from files whose times are known."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from hvscale.core.documents import to_json
from hvscale.core.run_folder import Host, Library, RunFolder, RunRecord
from hvscale.prediction.model.job import read_job
from hvscale.prediction.model.slowed_computing import (
    RecordedComputing,
    alone,
    measured_computing,
    recorded_computing,
    same_job,
    why_unused,
)
from hvscale.profiling.read.profile_file import RECORD
from hvscale.profiling.record.rank_side.gradient_recorder import STEP, StepLog
from tests.profiling.synthetic import START_NS, head, signed
from tests.profiling.test_gradients import frame, header, tensor

MS = 1_000_000  # nanoseconds
ALLREDUCE = 13
TRAINING = ["python", "train.py"]


class StepTimes(NamedTuple):
    """A step in milliseconds: its last gradient, the time in `synchronize()`, and the computing."""

    last: int
    blocked: int
    computing: int


# A step's shorter wait is 1, 2 and 6 ms after the first step: 3 ms on average. The computing of
# both ranks is 70 ms on average, and the last gradient follows the first one after 20 ms.
RANK_0 = [StepTimes(20, 9, 99), StepTimes(20, 1, 60), StepTimes(40, 4, 70), StepTimes(30, 6, 80)]
RANK_1 = [StepTimes(20, 9, 99), StepTimes(40, 3, 70), StepTimes(20, 2, 60), StepTimes(30, 8, 80)]
RANK_1.append(StepTimes(20, 0, 50))  # a step that rank 0 did not record
# Milliseconds of two messages: when each rank calls, and how long its call takes. The first message
# moves for 65 ms after the last call, the second one for 50 ms: 23 ms in each of five steps.
CALLS = [[(0, 75), (100, 50)], [(10, 60), (100, 50)]]


def gradients(rank: int, steps: list[StepTimes], names: str, more_computing: int, settings: dict[str, str]) -> bytes:
    """A recording in which a wait begins 50 ms after a step's start."""
    frames = [header(rank=rank, settings=settings), tensor(names[0]), tensor(names[1], 9)]
    for number, times in enumerate(steps):
        start = 1000 * MS * number
        step, begin = StepLog(), start + 50 * MS
        step.add(0, start + 10 * MS)
        step.add(1, start + times.last * MS)
        step.wait(begin, begin)
        step.wait(begin, begin + times.blocked * MS)
        end = start + (times.blocked + times.computing + more_computing) * MS
        frames.append(frame(b"STEP", STEP.pack(number, start, end, 2, 1) + step.take(2, 1)))
    return b"".join(frames)


def profile(rank: int, calls: list[tuple[int, int]]) -> bytes:
    """All-reduces of two ranks."""
    made = np.zeros(len(calls), RECORD)
    starts, durations = np.array(calls).T
    made["sequence"], made["ordinal"] = np.arange(len(calls)) + 1, np.arange(len(calls))
    made["start_ns"], made["duration_ns"] = START_NS + MS * starts, MS * durations
    made["bytes"], made["communicator"], made["operation"] = 1 << 20, 1, ALLREDUCE
    made = signed(made)
    return head(len(made), 1 << 20, rank, made) + made.tobytes()


def make_run(
    folder: Path,
    np_: int,
    steps: list[float] | None = None,
    command: list[str] = TRAINING,
    cores: int = 2,
    env: Sequence[str] = (),
) -> RunFolder:
    """A run of `command`; `steps`: the seconds in its step log. `cores`: of its machine."""
    run = RunFolder(folder)
    run.hvprof.mkdir(parents=True)
    record = RunRecord(
        state="finished",
        command=command,
        np=np_,
        launch={"env": [*env]},
        library=Library(flavour="openmpi", version="5.0.11"),
        host=Host(name="here", kernel="k", cpu="c", cores=cores, memory_bytes=1),
        working_directory="/",
        started_at=datetime(2026, 11, 23, tzinfo=UTC),
    )
    run.run_json.write_text(to_json(record))
    if steps is not None:
        run.steps.write_text("".join(f'{{"seconds": {seconds}}}\n' for seconds in steps))
    return run


def make_recording(
    folder: Path,
    calls: list[list[tuple[int, int]]] = CALLS,
    names: str = "ab",
    more_computing: int = 0,
    settings: dict[str, str] | None = None,
    **changes: Any,
) -> RunFolder:
    """A run on two ranks that had the variables `settings`. `changes`: as `make_run` takes them."""
    run = make_run(folder, 2, **changes)
    for rank, steps in enumerate((RANK_0, RANK_1)):
        recorded = gradients(rank, steps, names, more_computing, settings or {})
        (run.hvprof / f"gradients-{rank:05}.hvg").write_bytes(recorded)
        (run.hvprof / f"rank-{rank:05}.hvp").write_bytes(profile(rank, calls[rank]))
    return run


def remove(run: RunFolder, pattern: str) -> None:
    for path in list(run.hvprof.glob(pattern)):
        path.unlink()


def times(found: RecordedComputing | None) -> tuple[float, float]:
    assert found is not None
    return found.computing, found.hidden


def test_a_recorded_step_hides_the_messages_for_which_no_rank_waits(tmp_path: Path) -> None:
    """The messages of a step take 23 ms, and the rank that computes longest waits for 3 ms."""
    assert times(recorded_computing(make_recording(tmp_path / "job"))) == pytest.approx((0.070, 0.020))


def test_waits_longer_than_the_messages_hide_nothing(tmp_path: Path) -> None:
    """Two messages of 5 ms in five steps: 2 ms a step."""
    calls = [(0, 5), (100, 5)]
    assert times(recorded_computing(make_recording(tmp_path / "job", [calls, calls]))) == pytest.approx((0.070, 0))


@pytest.mark.parametrize("missing", ["gradients-*.hvg", "rank-*.hvp"])
def test_a_run_without_gradients_or_messages_shows_nothing(tmp_path: Path, missing: str) -> None:
    run = make_recording(tmp_path / "job")
    remove(run, missing)
    assert recorded_computing(run) is None


def test_a_run_whose_files_are_damaged_shows_nothing(tmp_path: Path) -> None:
    run, recorded = make_recording(tmp_path / "job"), make_recording(tmp_path / "other")
    job = read_job(recorded)
    for path in run.hvprof.glob("rank-*.hvp"):
        path.write_bytes(b"nothing")
    assert recorded_computing(run) is None
    for path in run.hvprof.glob("gradients-*.hvg"):
        path.write_bytes(b"nothing")
    assert same_job(job, recorded, run) is None


def test_only_a_recording_of_the_same_tensors_is_of_the_same_job(tmp_path: Path) -> None:
    recorded = make_recording(tmp_path / "job")
    job = read_job(recorded)
    assert times(same_job(job, recorded, make_recording(tmp_path / "again"))) == pytest.approx((0.070, 0.020))
    assert same_job(job, recorded, make_recording(tmp_path / "other", names="ac")) is None
    assert same_job(job, recorded, make_run(tmp_path / "without", 2)) is None


def test_a_rank_alone_computes_without_messages(tmp_path: Path) -> None:
    """The first step does not count."""
    recorded = make_run(tmp_path / "job", 2)
    assert times(alone(recorded, make_run(tmp_path / "alone", 1, [9.0, 1.0, 2.0]))) == (1.5, 0.0)
    assert times(alone(recorded, make_run(tmp_path / "short", 1, [9.0, 1.0]))) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("np_", "steps", "command"),
    [(2, [9.0, 1.0, 2.0], TRAINING), (1, [9.0, 1.0, 2.0], ["python", "other.py"]), (1, None, TRAINING)],
)
def test_another_run_is_not_the_job_alone(
    tmp_path: Path, np_: int, steps: list[float] | None, command: list[str]
) -> None:
    assert alone(make_run(tmp_path / "job", 2), make_run(tmp_path / "other", np_, steps, command)) is None


def test_a_rank_alone_that_is_not_used_has_a_reason(tmp_path: Path) -> None:
    recorded = make_run(tmp_path / "job", 2)
    used = make_run(tmp_path / "used", 1, [9.0, 1.0])
    assert why_unused(recorded, used) is None
    assert why_unused(recorded, make_run(tmp_path / "two", 2, command=["other"])) is None
    other = why_unused(recorded, make_run(tmp_path / "other", 1, [9.0, 1.0], ["python", "other.py"]))
    assert str(other).startswith("one rank with another command")
    for name, steps in (("unknown", None), ("short", [9.0])):
        why = why_unused(recorded, make_run(tmp_path / name, 1, steps))
        assert str(why).startswith("one rank whose steps are unknown")
        assert "`hvscale train`" in str(why)


def test_a_rank_alone_shows_how_much_messages_slow_a_job(tmp_path: Path) -> None:
    """20 ms of messages make 10 ms of the difference: computing loses half of its speed."""
    recorded = make_recording(tmp_path / "job")
    job = read_job(recorded)
    found = measured_computing(job, recorded, [make_run(tmp_path / "alone", 1, [9.0, 0.05, 0.07])])
    assert found.recorded is job
    assert found.lost_speed == pytest.approx(0.5)
    assert found.alone.compute_seconds == pytest.approx(0.060)


def test_a_recording_with_more_messages_shows_how_much_they_slow_a_job(tmp_path: Path) -> None:
    """100 ms more of messages in five steps hide 20 ms more, and take 10 ms of computing."""
    recorded = make_recording(tmp_path / "job")
    slower = make_recording(tmp_path / "more", [[calls[0], (100, 150)] for calls in CALLS], more_computing=10)
    found = measured_computing(read_job(recorded), recorded, [make_run(tmp_path / "unused", 1), slower])
    assert found.lost_speed == pytest.approx(0.5)
    assert found.alone.compute_seconds == pytest.approx(0.060)


@pytest.mark.parametrize(
    ("command", "cores", "why"),
    [
        ([*TRAINING, "--batch-size", "8"], 2, "2 ranks with another command than the recorded job: not used"),
        (TRAINING, 1, "2 ranks at 2 per core, the recorded job at 1: it does not show how messages slow computing"),
    ],
)
def test_a_recording_with_another_command_or_share_of_a_core_shows_nothing(
    tmp_path: Path, command: list[str], cores: int, why: str
) -> None:
    recorded = make_recording(tmp_path / "job")
    longer = [[calls[0], (100, 150)] for calls in CALLS]
    other = make_recording(tmp_path / "other", longer, more_computing=10, command=command, cores=cores)
    job = read_job(recorded)
    found = measured_computing(job, recorded, [other])
    assert found.alone is job
    assert found.lost_speed is None
    assert why_unused(recorded, other) == why


def test_a_rank_with_its_own_core_shows_nothing_of_ranks_that_share_one(tmp_path: Path) -> None:
    recorded = make_recording(tmp_path / "job", cores=1)
    own_core = make_run(tmp_path / "alone", 1, [9.0, 0.05, 0.07], cores=1)
    assert measured_computing(read_job(recorded), recorded, [own_core]).lost_speed is None
    assert str(why_unused(recorded, own_core)).startswith("one rank at 1 per core, the recorded job at 2: ")


def test_without_comparable_runs_a_job_computes_as_recorded(tmp_path: Path) -> None:
    recorded = make_recording(tmp_path / "job")
    job = read_job(recorded)
    others = [make_recording(tmp_path / "other", names="ac"), make_run(tmp_path / "two", 2, [9.0, 1.0])]
    for found in (measured_computing(job, recorded, []), measured_computing(job, recorded, others)):
        assert (found.recorded, found.alone, found.lost_speed) == (job, job, None)
    remove(recorded, "rank-*.hvp")
    found = measured_computing(job, recorded, [make_run(tmp_path / "alone", 1, [9.0, 0.05, 0.07])])
    assert (found.recorded, found.alone, found.lost_speed) == (job, job, None)
