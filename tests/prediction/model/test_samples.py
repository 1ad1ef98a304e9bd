"""What counts as an agreement, and what as Horovod's work before a message, in MPI profiles."""

from pathlib import Path

import pytest

from hvscale.prediction.model.samples import asked_algorithm, place, run_samples
from tests.prediction.model.test_over_nccl import MIB, MpiCall, write_mpi_profile
from tests.prediction.model.test_slowed_computing_runs import make_recording, make_run
from tests.profiling.test_horovod_timeline import Writer

MESSAGE, NEXT_MESSAGE = 4 * MIB, 2 * MIB


def test_a_late_return_from_an_agreement_belongs_to_the_message_that_follows(tmp_path: Path) -> None:
    """Rank 1 returns after 6 ms, while rank 0 copies on its core; alone an agreement takes 1 ms."""
    run = make_run(tmp_path / "job", 2)
    of_both = [MpiCall(10, 1)]
    calls = [
        [*of_both, MpiCall(20, 1), MpiCall(22, 15, MESSAGE, False), MpiCall(40, 10, NEXT_MESSAGE, False)],
        [*of_both, MpiCall(20, 6), MpiCall(27, 10, MESSAGE, False), MpiCall(41, 9, NEXT_MESSAGE, False)],
    ]
    for rank, of_rank in enumerate(calls):
        write_mpi_profile(run, rank, of_rank, ())
    found = run_samples(run)
    assert found is not None
    assert found.before_seconds is not None
    assert found.agreements.tolist() == pytest.approx([0.001])
    before = dict(zip(found.bytes.tolist(), found.before_seconds.tolist(), strict=True))
    assert before == pytest.approx({MESSAGE: 0.006, NEXT_MESSAGE: 0.004})


def test_agreements_that_are_all_followed_by_messages_still_count(tmp_path: Path) -> None:
    run = make_run(tmp_path / "job", 2)
    for rank in range(2):
        write_mpi_profile(run, rank, [MpiCall(20, 2), MpiCall(25, 9, MESSAGE, False)], ())
    found = run_samples(run)
    assert found is not None
    assert found.agreements.tolist() == pytest.approx([0.002])


class CopyingWriter(Writer):
    """Copies into the buffer take 301 us, and out of it 101 us."""

    def event(self, tensor: str, phase: str, name: str = "", args: str = "") -> None:
        super().event(tensor, phase, name, args)
        if phase == "B" and tensor in "bdf":  # the last to begin
            self.time += {"MEMCPY_IN_FUSION_BUFFER": 300, "MEMCPY_OUT_FUSION_BUFFER": 100}.get(name, 0)


def test_a_timeline_shows_how_long_one_rank_copied_into_the_buffer_and_out_of_it(tmp_path: Path) -> None:
    run = make_run(tmp_path / "job", 2)
    timeline = CopyingWriter()
    timeline.message("ALLREDUCE", "GLOO_ALLREDUCE", {"a": [1000, 10], "b": [1000, 30]}, 5000)
    timeline.message("ALLREDUCE", "GLOO_ALLREDUCE", {"c": [2000, 10], "d": [2000, 30]}, 9000)
    timeline.message("BROADCAST", "GLOO_BCAST", {"e": [8000, 10], "f": [8000, 30]}, 2000)
    (run.hvprof / "horovod-timeline.json").write_text(timeline.text)
    found = run_samples(run)
    assert found is not None
    assert found.before_seconds is None
    assert found.copies is not None
    assert found.copies[0].tolist() == [160_000, 320_000]
    assert found.copies[1].tolist() == pytest.approx([201e-6, 201e-6])


@pytest.mark.parametrize(
    ("flavour", "asked", "algorithm", "in_ring"),
    [
        ("gloo", [], "ring", True),
        ("openmpi", [], None, False),
        ("openmpi", ["allreduce_algorithm=ring"], "ring", False),
    ],
)
def test_only_a_library_that_has_nothing_else_agrees_in_a_ring(
    tmp_path: Path, flavour: str, asked: list[str], algorithm: str | None, in_ring: bool
) -> None:
    """Open MPI takes another algorithm than the ring for so few bytes."""
    record = make_run(tmp_path / "job", 2).read()
    library = record.library.model_copy(update={"flavour": flavour})
    record = record.model_copy(update={"library": library, "launch": {"set": asked}})
    assert asked_algorithm(record) == algorithm
    assert place(record)["agrees_in_ring"] is in_ring


@pytest.mark.parametrize(
    ("cores", "exposed", "enqueueing"),
    [
        (1, 0.01, 0.8 * 0.016),  # of 50 ms, 10 are exposed
        (1, 0.0, 0.016),
        (1, 0.06, 0.0),
        (2, 0.01, 0.0),  # each rank has a core
    ],
)
def test_ranks_of_a_replay_that_share_cores_take_time_from_hidden_messages_to_enqueue(
    tmp_path: Path, cores: int, exposed: float, enqueueing: float
) -> None:
    """The recorded rank enqueues two tensors in 15 ms, and two ranks need 0.24 ms of a core."""
    make_recording(tmp_path / "job")
    replay = make_run(tmp_path / "replay", 2, command=["hvscale", "replay", str(tmp_path / "job")], cores=cores)
    lines = (f'{{"seconds": 0.1, "communication_seconds": {seconds}}}\n' for seconds in (5.0, exposed))
    replay.steps.write_text("".join(lines))
    for rank in range(2):
        calls = [MpiCall(10, 40, MESSAGE, False), MpiCall(110, 50, MESSAGE, False)]
        write_mpi_profile(replay, rank, calls, (0, 100))
    found = run_samples(replay)
    assert found is not None
    assert found.enqueueing == pytest.approx(enqueueing)


def test_a_training_s_computing_contains_what_its_ranks_took_to_enqueue(tmp_path: Path) -> None:
    run = make_recording(tmp_path / "job", cores=1)
    run.steps.write_text('{"seconds": 0.1, "communication_seconds": 0.0}\n' * 2)
    found = run_samples(run)
    assert found is not None
    assert found.enqueueing == 0
