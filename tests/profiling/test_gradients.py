"""Reading recorded gradients from complete, truncated and damaged files."""

import json
import tempfile
import zlib
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder
from hvscale.prediction.model.job import computation
from hvscale.profiling.analyze.gradients import read_job_gradients
from hvscale.profiling.read.gradients_file import RankGradients, read_gradients
from hvscale.profiling.record.rank_side.gradient_recorder import CUDA, FRAME, MAGIC, NOT_ON_GPU, VERSION, StepLog
from hvscale.profiling.record.rank_side.gradient_recorder import STEP as HEAD

NS = 1_000_000


def frame(kind: bytes, payload: bytes) -> bytes:
    return FRAME.pack(kind, len(payload), zlib.crc32(payload)) + payload


def header(**changes: object) -> bytes:
    words = {"version": VERSION, "rank": 0, "size": 2, "local_size": 2, "horovod": "0.28.1", "torch": None, **changes}
    return frame(b"HEAD", MAGIC + json.dumps(words).encode())


def tensor(name: str, count: int = 4) -> bytes:
    words = {"name": name, "dtype": "float32", "bytes": 4 * count, "group": None, "process_set": 0, "device": "cpu"}
    return frame(b"TNSR", json.dumps(words).encode())


def step(number: int, tensors: list[int], start: int = 0) -> bytes:
    """A step whose tensors are enqueued 1, 2, ... ms after its start and then waited for."""
    made = StepLog()
    for index, one in enumerate(tensors):
        made.add(one, start + NS * (index + 1))
    for _ in tensors:
        made.wait(start + 100 * NS, start + 103 * NS)
    made.blocked[:] = [2 * NS]
    payload = HEAD.pack(number, start, start + 200 * NS, len(tensors), 1) + made.take(len(tensors), 1)
    return frame(b"STEP", payload)


def on_gpu(number: int, ready_ms: list[int | None], after_ms: int = 5) -> bytes:
    times = array("Q", (NOT_ON_GPU if one is None else NS * one for one in ready_ms))
    return frame(b"CUDA", CUDA.pack(number, NS * after_ms, len(ready_ms)) + times.tobytes())


FRAMES = [header(), tensor("a"), tensor("b", 9), *(step(number, [0, 1], 1000 * NS * number) for number in range(5))]
WHOLE = b"".join(FRAMES)


def read(content: bytes) -> RankGradients:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "gradients-00000.hvg")
        path.write_bytes(content)
        return read_gradients(path)


def job(folder: Path, *ranks: bytes) -> RunFolder:
    run = RunFolder(folder)
    run.hvprof.mkdir()
    for number, content in enumerate(ranks):
        (run.hvprof / f"gradients-{number:05}.hvg").write_bytes(content)
    return run


def test_times_are_seconds_since_the_start_of_a_step() -> None:
    found = read(WHOLE)
    assert found.warning is None
    assert [(one.name, one.bytes) for one in found.tensors] == [("a", 16), ("b", 36)]
    last = found.steps[4]
    assert (last.number, last.seconds, last.tensors.tolist()) == (4, 0.2, [0, 1])
    assert last.enqueued.tolist() == [0.001, 0.002]
    assert (last.begins.tolist(), last.ends.tolist(), last.blocked.tolist()) == ([0.1], [0.103], [0.002])


@given(st.integers(len(FRAMES[0]), len(WHOLE)))
def test_a_truncated_file_keeps_its_complete_steps_with_a_warning(length: int) -> None:
    found = read(WHOLE[:length])
    ends = [sum(map(len, FRAMES[: 4 + number])) for number in range(5)]
    whole = sum(end <= length for end in ends)
    assert [one.number for one in found.steps] == list(range(whole))
    at_a_frame = length in {sum(map(len, FRAMES[:number])) for number in range(1, len(FRAMES) + 1)}
    assert (found.warning is None) == at_a_frame
    assert at_a_frame or f"{whole} steps are used" in str(found.warning)


@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255))
def test_a_damaged_byte_loses_only_the_steps_from_there_on(position: int, change: int) -> None:
    content = bytearray(WHOLE)
    content[position] ^= change
    try:
        found = read(bytes(content))
    except RequestError:
        assert position < len(FRAMES[0])
        return
    before = sum(sum(map(len, FRAMES[: 4 + number])) <= position for number in range(5))
    assert [one.number for one in found.steps] == list(range(before))
    assert found.warning is not None


@given(st.binary(max_size=200), st.sampled_from([b"STEP", b"TNSR", b"HEAD", b"CUDA", b"????"]))
def test_a_frame_of_arbitrary_content_keeps_the_steps_before_it(payload: bytes, kind: bytes) -> None:
    """The checksum of the frame is correct, its content is arbitrary."""
    found = read(WHOLE + frame(kind, payload))
    assert len(found.steps) == 5


def test_times_on_the_gpu_replace_the_host_s_if_all_ranks_have_them(tmp_path: Path) -> None:
    times = b"".join(on_gpu(number, [30 + number, 40]) for number in range(5))
    ranks = [header(rank=rank) + WHOLE[len(FRAMES[0]) :] + times for rank in range(2)]
    ready, after = computation(read_job_gradients(job(tmp_path, *ranks)))
    # The first step is excluded.
    assert ready[0].tolist() == ready[1].tolist() == [[0.03 + 0.001 * number, 0.04] for number in range(1, 5)]
    assert (after == 0.005).all()


@pytest.mark.parametrize("other", [b"", on_gpu(1, [30, 40]), b"".join(on_gpu(one, [30, None]) for one in range(5))])
def test_incomplete_times_on_the_gpu_are_not_used(tmp_path: Path, other: bytes) -> None:
    times = b"".join(on_gpu(number, [30, 40]) for number in range(5))
    ranks = [header(rank=rank) + WHOLE[len(FRAMES[0]) :] + one for rank, one in enumerate((times, other))]
    ready, _ = computation(read_job_gradients(job(tmp_path, *ranks)))
    assert ready.shape == (2, 4, 2)
    assert (ready == [0.001, 0.002]).all()


def test_steps_that_all_ranks_timed_on_the_gpu_are_used_alone(tmp_path: Path) -> None:
    """Rank 0 times every step and rank 1 every 2nd."""
    times = [b"".join(on_gpu(number, [30 + number, 40]) for number in range(0, 5, every)) for every in (1, 2)]
    ranks = [header(rank=rank) + WHOLE[len(FRAMES[0]) :] + one for rank, one in enumerate(times)]
    found = read_job_gradients(job(tmp_path, *ranks)).timed_on_gpu
    assert found.numbers == [2, 4]
    assert computation(found)[0].tolist() == [[[0.032, 0.04], [0.034, 0.04]]] * 2
    assert found.seconds.shape == (2, 2)


@pytest.mark.parametrize("damaged", [on_gpu(9, [1, 2]), on_gpu(1, [1]), on_gpu(1, [2**43, 1]), frame(b"CUDA", b"")])
def test_times_on_the_gpu_that_fit_no_step_end_the_file(damaged: bytes) -> None:
    found = read(WHOLE + on_gpu(0, [1, 2]) + damaged)
    assert found.steps[0].on_gpu is not None
    assert found.warning is not None
    assert len(found.steps) == 5


def test_another_format_version_is_rejected() -> None:
    with pytest.raises(RequestError, match="has format version 3, and this hvscale reads versions up to 2"):
        read(header(version=3))


@pytest.mark.parametrize("content", [b"", b"\0" * 500, frame(b"HEAD", MAGIC + b"{}"), header(size=0), header(rank=-1)])
def test_a_file_without_a_valid_header_is_rejected(content: bytes) -> None:
    with pytest.raises(RequestError, match="damaged"):
        read(content)


def test_a_job_needs_two_complete_steps(tmp_path: Path) -> None:
    one = header() + tensor("a") + step(0, [0])
    with pytest.raises(RequestError, match="must train for at least three steps"):
        read_job_gradients(job(tmp_path, one, one))


def test_a_rank_whose_recording_has_no_step_left_is_not_used(tmp_path: Path) -> None:
    cut = (header(rank=1) + tensor("a") + step(0, [0]) + step(1, [0]))[:-8]
    found = read_job_gradients(job(tmp_path, WHOLE, cut))
    assert ([rank.recording.header.rank for rank in found.ranks], found.size) == ([0], 2)
    assert "are damaged" in found.warnings[0]
    assert found.warnings[1] == "rank 1: no two whole steps in its recording, which is not used"


def test_steps_that_only_add_gradients_up_are_not_the_usual_ones(tmp_path: Path) -> None:
    """Three of four steps send nothing."""

    def recorded(name: str, numbers: list[int]) -> RunFolder:
        nothing = [frame(b"STEP", HEAD.pack(one, 0, NS, 0, 0) + StepLog().take(0, 0)) for one in range(13)]
        steps = [step(one, [0]) if one in numbers else nothing[one] for one in range(13)]
        (tmp_path / name).mkdir()
        return job(tmp_path / name, b"".join([header(), tensor("a"), *steps]))

    assert read_job_gradients(recorded("some", [0, 4, 8, 12])).numbers == [4, 8, 12]
    with pytest.raises(RequestError, match="no gradient was enqueued in a whole step after the first one"):
        read_job_gradients(recorded("none", []))


@pytest.mark.parametrize("size", [-1, 2**63, 10**30])
def test_an_impossible_size_of_a_tensor_ends_the_file(size: int) -> None:
    described = json.loads(tensor("a")[FRAME.size :]) | {"bytes": size}
    content = header() + tensor("a") + step(0, [0]) + frame(b"TNSR", json.dumps(described).encode()) + step(1, [0])
    assert [one.number for one in read(content).steps] == [0]


def test_ranks_with_different_tensors_are_rejected(tmp_path: Path) -> None:
    def rank(number: int, name: str) -> bytes:
        return header(rank=number) + tensor(name) + b"".join(step(count, [0]) for count in range(4))

    with pytest.raises(RequestError, match="the ranks disagree on the tensors of a step"):
        read_job_gradients(job(tmp_path, rank(0, "a"), rank(1, "b")))


def test_ranks_of_jobs_of_different_sizes_are_rejected(tmp_path: Path) -> None:
    other = WHOLE.replace(FRAMES[0], header(rank=1, size=3))
    with pytest.raises(RequestError, match="jobs of 2 and 3 ranks"):
        read_job_gradients(job(tmp_path, WHOLE, other))


def test_a_damaged_file_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    found = read_job_gradients(job(tmp_path, WHOLE, b"nothing"))
    assert (len(found.ranks), found.size, found.numbers) == (1, 2, [1, 2, 3, 4])
    assert "gradients-00001.hvg is not a recording of gradients" in found.warnings[0]


def test_ranks_without_a_file_are_named(tmp_path: Path) -> None:
    content = WHOLE.replace(FRAMES[0], header(rank=0, size=5))
    run = job(tmp_path, content)
    (run.hvprof / "gradients-00003.hvg").write_bytes(b"nothing")  # has its own warning
    found = read_job_gradients(run)
    [warning] = [one for one in found.warnings if "no recording" in one]
    assert "no recording of ranks 1-2, 4: " in warning


@pytest.mark.parametrize(("others", "warns"), [(4, True), (1, False)])
def test_many_steps_with_other_tensors_are_a_warning(tmp_path: Path, others: int, warns: bool) -> None:
    """Those of two optimizers in turn, unlike a step that also averages a metric."""
    sets = [[0, 1]] * 5 + [[1]] * others
    frames = [header(), tensor("a"), tensor("b"), *(step(number, tensors) for number, tensors in enumerate(sets))]
    found = read_job_gradients(job(tmp_path, b"".join(frames)))
    assert (len(found.numbers), found.left_out) == (4, others)
    text = f"{others} of {4 + others} steps have other tensors and are left out"
    assert sum(text in one for one in found.warnings) == warns


def test_times_are_indexed_by_rank_step_and_tensor(tmp_path: Path) -> None:
    """Rank 1 enqueues the tensors in a different order."""
    other = header(rank=1) + tensor("b", 9) + tensor("a") + b"".join(step(number, [0, 1]) for number in range(5))
    found = read_job_gradients(job(tmp_path, WHOLE, other))
    assert [one.name for one in found.tensors] == ["a", "b"]
    assert found.enqueued.shape == (2, 4, 2)
    assert found.enqueued[:, 0].tolist() == [[0.001, 0.002], [0.002, 0.001]]
    assert found.bytes == 52


def test_only_chosen_ranks_are_held_but_all_decide_which_steps_are_used(tmp_path: Path) -> None:
    def rank(number: int, steps: int) -> bytes:
        return b"".join(
            [header(rank=number, size=3), tensor("a"), tensor("b"), *(step(at, [0, 1]) for at in range(steps))]
        )

    run = job(tmp_path, rank(0, 5), rank(1, 4), rank(2, 6))
    every, chosen = read_job_gradients(run), read_job_gradients(run, [2])
    assert [one.recording.header.rank for one in chosen.ranks] == [0, 2]
    assert chosen.recorded == every.recorded == [0, 1, 2]
    assert (chosen.numbers, chosen.left_out) == (every.numbers, every.left_out) == ([1, 2, 3], 2)
    assert (chosen.enqueued == every.enqueued[[0, 2]]).all()
