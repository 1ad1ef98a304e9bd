"""Jobs over NCCL: messages and computation from files whose times are known, and predictions."""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from hvscale.core.documents import to_json
from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder
from hvscale.prediction.document import PredictionDocument
from hvscale.prediction.model.computation import Computation
from hvscale.prediction.model.costs import HorovodSettings
from hvscale.prediction.model.horovod_loop import Simulation, simulate
from hvscale.prediction.model.job import PredictedJob, read_job
from hvscale.prediction.model.measured_costs import fit_costs
from hvscale.prediction.model.samples import Samples, run_samples
from hvscale.profiling.read import nccl_file, profile_file
from hvscale.profiling.record.rank_side.gradient_recorder import STEP, StepLog
from tests.conftest import Run
from tests.prediction.model.jobs import Floats, SimpleCosts, make_job
from tests.prediction.model.test_slowed_computing_runs import ALLREDUCE, MS, make_run
from tests.profiling.synthetic import START_NS, signed, signed_header
from tests.profiling.test_explanation import write
from tests.profiling.test_gradients import frame, header, on_gpu

MIB = 1 << 20
FLOAT = 4  # bytes
WORLD = 1  # communicator of both ranks in MPI profiles
REALTIME_NS = 10**18  # when the profiles begin
BOOT_NS = 10**9  # the hosts' monotonic clocks differ by this much a rank


class Call(NamedTuple):
    """A call of NCCL: milliseconds since the profiles begin, and elements."""

    start: int
    duration: int
    elements: int = MIB
    algorithm: str = "RING"
    function: str = "AllReduce"
    ranks: int = 2
    datatype: str = "ncclFloat32"
    timing: int = nccl_file.ON_DEVICE


def nccl_profile(rank: int, calls: Sequence[Call], capacity: int = 1024) -> bytes:
    """The profile of a rank; its ring keeps the last `capacity` calls."""
    monotonic_ns = START_NS + rank * BOOT_NS
    made = np.zeros(len(calls), nccl_file.RECORD)
    made["sequence"] = np.arange(len(calls)) + 1
    made["start_ns"] = [monotonic_ns + MS * call.start for call in calls]
    made["duration_ns"] = [MS * call.duration for call in calls]
    made["count"] = [call.elements for call in calls]
    made["function"], made["algorithm"] = [call.function for call in calls], [call.algorithm for call in calls]
    made["communicator"] = made["communicator_size"] = [call.ranks for call in calls]
    made["datatype"], made["timing"] = [call.datatype for call in calls], [call.timing for call in calls]
    made["communicator_rank"], made["protocol"] = rank, b"SIMPLE"
    kept = made[-capacity:]
    kept = kept[np.argsort((kept["sequence"] - 1) % capacity)]
    start = np.zeros(1, nccl_file.HEADER)
    fields = start[0]
    fields["magic"], fields["version"], fields["interface"] = np.void(nccl_file.MAGIC), nccl_file.VERSION, 6
    fields["header_bytes"], fields["record_bytes"] = nccl_file.HEADER.itemsize, nccl_file.RECORD.itemsize
    fields["rank"], fields["world_size"], fields["host"] = rank, 2, b"node1"
    fields["capacity"], fields["recorded"] = capacity, len(calls)
    fields["monotonic_ns"], fields["realtime_ns"] = monotonic_ns, REALTIME_NS
    return signed_header(start).tobytes() + signed(kept).tobytes()


class MpiCall(NamedTuple):
    """A call of MPI_Allreduce: milliseconds since the profiles begin, and bytes."""

    start: int
    duration: int
    bytes: int = 16
    bitwise: bool = True


def write_mpi_profile(run: RunFolder, rank: int, calls: Sequence[MpiCall], marks: Sequence[int]) -> None:
    """Write hvprof's profile of a rank; `marks`: the milliseconds at which its steps begin."""
    made = np.zeros(len(calls) + len(marks), profile_file.RECORD)
    made["sequence"] = np.arange(len(made)) + 1
    of_calls, of_marks = made[: len(calls)], made[len(calls) :]
    of_calls["ordinal"], of_calls["communicator"], of_calls["operation"] = np.arange(len(calls)), WORLD, ALLREDUCE
    of_calls["start_ns"] = [START_NS + MS * call.start for call in calls]
    of_calls["duration_ns"] = [MS * call.duration for call in calls]
    of_calls["bytes"] = [call.bytes for call in calls]
    of_calls["flags"] = [profile_file.BITWISE * call.bitwise for call in calls]
    of_marks["operation"], of_marks["communicator"] = profile_file.STEP, profile_file.NO_COMMUNICATOR
    of_marks["start_ns"] = [START_NS + MS * mark for mark in marks]
    write(run, rank, signed(made))


def make_nccl_run(folder: Path, *ranks: Sequence[Call], capacities: Sequence[int] = (1024, 1024)) -> RunFolder:
    """A run of two ranks. `ranks`: the calls in their profiles; `capacities`: of their rings."""
    run = make_run(folder, 2)
    for rank, calls in enumerate(ranks):
        (run.hvprof / f"nccl-{rank:05}.hvn").write_bytes(nccl_profile(rank, calls, capacities[rank]))
    return run


def samples(run: RunFolder) -> Samples:
    found = run_samples(run)
    assert found is not None
    return found


def by_size(found: Samples) -> dict[float, float]:
    """The seconds of messages that all have different bytes."""
    return dict(zip(found.bytes.tolist(), found.seconds.tolist(), strict=True))


# Three messages: rank 1 is last to start the first one, rank 0 the second one, and both the third.
# The last one's times are 5, 4 and 2 ms.
RANK_0 = [Call(0, 9, 100), Call(24, 4, 300), Call(40, 3, 200)]
RANK_1 = [Call(5, 5, 100), Call(20, 10, 300), Call(40, 2, 200)]
SECONDS = {400.0: 0.005, 1200.0: 0.004, 800.0: 0.002}


def test_a_message_takes_as_long_as_on_the_rank_that_comes_last(tmp_path: Path) -> None:
    found = samples(make_nccl_run(tmp_path / "job", RANK_0, RANK_1))
    assert by_size(found) == pytest.approx(SECONDS)
    assert found.total_seconds == pytest.approx(0.011)
    # Since the end of the message before.
    idle = dict(zip(found.bytes.tolist(), found.idle_seconds.tolist(), strict=True))
    assert idle == pytest.approx({400.0: 0.0, 1200.0: 0.016, 800.0: 0.011})
    assert (found.library, found.algorithm, found.over_nccl, found.from_training) == ("nccl", "ring", True, True)
    assert len(found.agreements) == 0


def test_only_all_reduces_between_all_ranks_are_messages(tmp_path: Path) -> None:
    """Nor are those without bytes."""
    others, empty = [Call(12, 5, 7, function="Broadcast"), Call(14, 5, 7, ranks=1)], Call(34, 5, 0)
    run = make_nccl_run(tmp_path / "job", [*RANK_0, *others, *others, empty], [*others, empty, *RANK_1])
    assert by_size(samples(run)) == pytest.approx(SECONDS)


@pytest.mark.parametrize(("ring", "tree", "algorithm"), [(500, 300, "ring"), (300, 500, None)])
def test_the_algorithm_is_that_of_most_bytes(tmp_path: Path, ring: int, tree: int, algorithm: str | None) -> None:
    """Calls by tree are more, and a large broadcast by ring is no all-reduce."""
    calls = [Call(0, 1, ring), Call(10, 1, tree // 2, "TREE"), Call(20, 1, tree // 2, "TREE")]
    calls.append(Call(30, 1, 10_000, function="Broadcast"))
    assert samples(make_nccl_run(tmp_path / "job", calls, calls)).algorithm == algorithm


def test_elements_of_more_bytes_count_more(tmp_path: Path) -> None:
    calls = [Call(0, 1, 100, "RING", datatype="ncclFloat64"), Call(10, 1, 150, "TREE", datatype="ncclFloat16")]
    assert samples(make_nccl_run(tmp_path / "job", calls, calls)).algorithm == "ring"


def test_calls_without_times_of_the_gpu_are_refused(tmp_path: Path) -> None:
    """Before release 2.26, NCCL says only when the host enqueued them."""
    calls = [call._replace(timing=nccl_file.ENQUEUED) for call in RANK_0]
    run = make_nccl_run(tmp_path / "job", calls, calls)
    with pytest.raises(RequestError, match=r"does not report to a profiler when its kernels run.*NCCL 2\.26 or later"):
        run_samples(run)
    seen = [call._replace(timing=nccl_file.SEEN_BY_HOST) for call in RANK_0]
    assert len(samples(make_nccl_run(tmp_path / "seen", seen, seen)).bytes) == len(RANK_0)


@pytest.mark.parametrize(
    "rank_1", [[*RANK_1[:2], RANK_1[2]._replace(elements=201)], [Call(0, 1, function="Broadcast")]]
)
def test_ranks_whose_calls_differ_are_not_compared(tmp_path: Path, rank_1: list[Call]) -> None:
    assert run_samples(make_nccl_run(tmp_path / "job", RANK_0, rank_1)) is None


def test_ranks_without_a_profile_are_not_compared(tmp_path: Path) -> None:
    assert run_samples(make_nccl_run(tmp_path / "job", RANK_0)) is None


@pytest.mark.parametrize("capacities", [(1024, 2), (2, 1024)])
def test_calls_that_one_rank_overwrote_are_left_out(tmp_path: Path, capacities: tuple[int, int]) -> None:
    """The ring of one rank holds only its last two calls."""
    run = make_nccl_run(tmp_path / "job", RANK_0, RANK_1, capacities=capacities)
    assert by_size(samples(run)) == pytest.approx({1200.0: 0.004, 800.0: 0.002})


def test_mpi_s_profile_has_the_agreements_and_the_end_of_the_first_step(tmp_path: Path) -> None:
    """The last rank begins its second step after the first message."""
    run = make_nccl_run(tmp_path / "job", RANK_0, RANK_1)
    # In the first step, an agreement takes 4 ms. Rank 1 calls 2 ms after rank 0, then at once.
    calls = [
        [MpiCall(1, 4), MpiCall(20, 3), MpiCall(30, 2), MpiCall(35, 7, bitwise=False)],
        [MpiCall(1, 4), MpiCall(22, 1), MpiCall(30, 2), MpiCall(35, 7, bitwise=False)],
    ]
    for rank, marks in enumerate(([0, 4, 39], [0, 15, 39])):
        write_mpi_profile(run, rank, calls[rank], marks)
    found = samples(run)
    assert by_size(found) == pytest.approx({1200.0: 0.004, 800.0: 0.002})
    assert sorted(found.agreements) == pytest.approx([0.001, 0.002])


def test_nccl_does_not_block_the_loop_and_the_gpu_copies(tmp_path: Path) -> None:
    found = samples(make_nccl_run(tmp_path / "job", RANK_0, RANK_1))
    costs, over_mpi = (fit_costs([one], cores=None) for one in (found, replace(found, over_nccl=False)))
    assert (costs.blocking, over_mpi.blocking) == (False, True)
    assert costs.formula.algorithm == "ring"
    # Each of 450 MB is read and written in 1 ms, before the message and after it.
    copies = np.array([450e6])
    assert costs.copy_seconds(copies, 2) == pytest.approx(0.002)
    assert over_mpi.copy_seconds(copies, 2) > 0.02


class GpuStep(NamedTuple):
    """A step in milliseconds, of the host and then of the GPU.

    `enqueued`: when the host enqueues both tensors. After `gap` it waits for `blocked` and needs
    `after_on_host` to the step's end. `ready`: when the GPU has computed them, None if unknown;
    `after`: from the last wait to the step's end.
    """

    enqueued: tuple[int, int]
    blocked: int
    after_on_host: int
    ready: tuple[int, int] | None
    after: int = 0
    gap: int = 0


def gpu_gradients(rank: int, steps: Sequence[GpuStep], size: int = MIB, device: str = "cuda") -> bytes:
    """A recording of two tensors of `size` bytes each."""
    frames = [header(rank=rank)]
    for name in "ab":
        described = {"name": name, "dtype": "float32", "bytes": size, "group": None, "process_set": 0, "device": device}
        frames.append(frame(b"TNSR", json.dumps(described).encode()))
    for number, times in enumerate(steps):
        start = 1000 * MS * number
        begin = start + MS * (times.enqueued[1] + times.gap)
        step = StepLog()
        for index, moment in enumerate(times.enqueued):
            step.add(index, start + MS * moment)
        step.wait(begin, begin)
        step.wait(begin, begin + MS * times.blocked)
        end = begin + MS * (times.blocked + times.after_on_host)
        frames.append(frame(b"STEP", STEP.pack(number, start, end, 2, 1) + step.take(2, 1)))
        if times.ready is not None:
            frames.append(on_gpu(number, [*times.ready], times.after))
    return b"".join(frames)


def recorded_job(folder: Path, *ranks: Sequence[GpuStep], device: str = "cuda") -> PredictedJob:
    run = make_run(folder, 2)
    for rank, steps in enumerate(ranks):
        (run.hvprof / f"gradients-{rank:05}.hvg").write_bytes(gpu_gradients(rank, steps, device=device))
    return read_job(run)


def milliseconds(seconds: Floats | None) -> list[list[list[float]]]:
    """By rank, step and tensor."""
    assert seconds is not None
    found: list[list[list[float]]] = np.round(1e3 * seconds, 9).tolist()
    return found


FIRST = GpuStep((1, 2), 70, 50, (30, 40), 20)  # does not count
# From the last wait to a step's end, the host needs 2, 3 and 4 ms longer than the GPU.
SLOWER_HOST = [
    GpuStep((1, 2), 70, 4, (30, 40), 2),
    GpuStep((1, 3), 70, 6, (31, 41), 3),
    GpuStep((1, 2), 70, 9, (32, 42), 5),
]
EQUAL_HOST = [step._replace(after_on_host=step.after) for step in SLOWER_HOST]


def test_the_host_enqueues_ahead_of_the_gpu(tmp_path: Path) -> None:
    """Both are at the same point when a wait ends, so the difference after it moves the next step.

    The last step precedes the first one.
    """
    job = recorded_job(tmp_path / "job", [FIRST, *SLOWER_HOST], [FIRST, *EQUAL_HOST])
    assert milliseconds(job.ready) == [[[30, 40], [31, 41], [32, 42]]] * 2
    assert milliseconds(job.enqueued) == [[[1 + 4, 2 + 4], [1 + 2, 3 + 2], [1 + 3, 2 + 3]], [[1, 2], [1, 3], [1, 2]]]


def test_a_host_that_is_behind_enqueues_when_the_gpu_is_ready(tmp_path: Path) -> None:
    late = [step._replace(enqueued=(1, 90), blocked=5) for step in EQUAL_HOST]
    job = recorded_job(tmp_path / "job", [FIRST, *late], [FIRST, *EQUAL_HOST])
    assert milliseconds(job.enqueued) == [[[1, 40], [1, 41], [1, 42]], [[1, 2], [1, 3], [1, 2]]]


def test_without_the_gpu_s_times_of_all_ranks_tensors_are_enqueued_when_ready(tmp_path: Path) -> None:
    untimed = [step._replace(ready=None) for step in (FIRST, *EQUAL_HOST)]
    for device, rank_0 in (("cpu", untimed), ("cuda", [FIRST, *EQUAL_HOST])):
        job = recorded_job(tmp_path / device, rank_0, untimed, device=device)
        assert job.enqueued is None
        assert milliseconds(job.ready) == [[[1, 2], [1, 3], [1, 2]]] * 2


def random_job(tensors: int = 6) -> PredictedJob:
    generator = np.random.default_rng(4)
    return make_job(np.sort(generator.uniform(0, 0.05, (3, 5, tensors)), axis=2), [MIB] * tensors)


def test_what_the_host_does_before_a_wait_does_not_count_as_after_it(tmp_path: Path) -> None:
    """Such as clipping gradients."""
    clips = [step._replace(gap=10) for step in SLOWER_HOST]
    found = [
        recorded_job(tmp_path / name, *[[FIRST, *one]] * 2) for name, one in (("clips", clips), ("no", SLOWER_HOST))
    ]
    assert milliseconds(found[0].enqueued) == milliseconds(found[1].enqueued)


def test_a_replay_enqueues_ahead_as_the_recorded_ranks_did() -> None:
    job = random_job()
    replayed = replace(job, enqueued=job.ready / 2).replayed(7, 4)
    assert replayed.enqueued is not None
    assert (replayed.enqueued == replayed.ready / 2).all()
    assert job.replayed(7, 4).enqueued is None


def test_the_last_rank_to_enqueue_may_compute_faster() -> None:
    ready, enqueued = np.array([[[0.03]], [[0.05]]]), np.array([[[0.02]], [[0.01]]])
    job = replace(make_job(ready, [MIB], after=0.1), enqueued=enqueued)
    drawn = Computation(job, 2).draw(1, np.random.default_rng(0))
    assert drawn.enqueued is not None
    assert (drawn.ready[0, 0], drawn.enqueued[0, 0]) == pytest.approx((0.15, 0.12))
    assert drawn.compute == pytest.approx(0.14)


# One rank, the recorded ones, part of them again, and more than were recorded.
@pytest.mark.parametrize("np_", [1, 3, 5, 200])
def test_a_host_that_is_never_ahead_changes_nothing(np_: int) -> None:
    job = random_job()
    drawn, same = (
        Computation(one, np_).draw(50, np.random.default_rng(0)) for one in (job, replace(job, enqueued=job.ready))
    )
    assert drawn.enqueued is None
    assert same.enqueued is not None
    for found in (same.ready, same.enqueued):
        assert (found == drawn.ready).all()
    assert (same.compute == drawn.compute).all()
    for blocking, enqueued in ((False, job.ready), (True, job.ready / 10)):
        costs = SimpleCosts(start_seconds=1e-4, bytes_per_second=1e9, copy=1e-10, blocking=blocking)
        assert_same(loop(job, costs, np_), loop(replace(job, enqueued=enqueued), costs, np_))


def loop(job: PredictedJob, costs: SimpleCosts, np_: int) -> Simulation:
    return simulate(job, HorovodSettings(), costs, np_, chains=4, steps=6)


def assert_same(one: Simulation, other: Simulation) -> None:
    for name in ("step", "compute", "slowest_rank", "agreement", "wire", "copies", "hidden"):
        assert (getattr(one, name) == getattr(other, name)).all()
    assert (one.traffic.bytes.tolist(), one.timeline.messages) == (
        other.traffic.bytes.tolist(),
        other.timeline.messages,
    )


# A step of the trained job: the GPU computes its tensors in 30 and 60 ms. The host enqueues both
# long before, so that NCCL averages them in one message, of 10 ms. The step ends 2 ms later.
TRAINED = GpuStep((1, 1), 69, 2, (30, 60), 2)
SIZE = 4 * MIB
STEPS, STEP_MS, SETUP_MS = 12, 72, 1000


def make_trained_run(folder: Path) -> RunFolder:
    """A job of two ranks, with all that `hvscale profile --gradients` records of it."""
    begins = [0, *(SETUP_MS + STEP_MS * number for number in range(STEPS))]
    run = make_run(folder, 2, [(end - begin) / 1e3 for begin, end in pairwise(begins)])
    started_at = datetime.fromtimestamp(REALTIME_NS / 1e9, UTC)
    run.run_json.write_text(to_json(run.read().model_copy(update={"started_at": started_at})))
    messages = [Call(begin + 60, 10 if begin else 400, 2 * SIZE // FLOAT) for begin in begins[:-1]]
    agreements = [MpiCall(begin + 5, 1 if begin else 300) for begin in begins[:-1]]
    for rank in range(2):
        (run.hvprof / f"nccl-{rank:05}.hvn").write_bytes(nccl_profile(rank, messages))
        write_mpi_profile(run, rank, agreements, begins)
        (run.hvprof / f"gradients-{rank:05}.hvg").write_bytes(gpu_gradients(rank, [TRAINED] * STEPS, SIZE))
    return run


def test_a_job_over_nccl_is_predicted_from_its_own_run(hvscale: Run, tmp_path: Path) -> None:
    run = make_trained_run(tmp_path / "job")
    done = hvscale("predict", run.path, "--np", "2,8", "--run", "prediction", "--json")
    assert done.returncode == 0, done.stderr
    document = PredictionDocument.model_validate_json(done.stdout)
    assert (document.measured_np, document.gradient_bytes) == ([2], 2 * SIZE)
    assert document.compute_seconds == pytest.approx(0.062)
    rows = {row.np: row for row in document.rows}
    assert {np_: row.source for np_, row in rows.items()} == {2: "measured", 8: "predicted"}
    assert rows[2].step_seconds == pytest.approx(STEP_MS / 1e3)
    (row,) = document.predicted_beside
    assert row.step_seconds == pytest.approx(STEP_MS / 1e3, rel=0.01)
    assert rows[8].step_seconds > row.step_seconds
    for one in (row, rows[8]):
        assert [(size.calls, size.bytes) for size in one.messages] == [(1, 2 * SIZE)]
    assert not any("agreements" in warning for warning in document.warnings)
    assert [timeline.source for timeline in document.timelines] == ["measured", "predicted"]
    for timeline in document.timelines:
        (message,) = timeline.messages
        assert (message.start_seconds, message.end_seconds) == pytest.approx((0.062, 0.072), abs=1e-4)
