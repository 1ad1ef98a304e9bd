"""The schedule of a run: from its recorded gradients or, without any, from its profiles."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder
from hvscale.profiling.analyze.messages import MESSAGES_ONLY, other_data_warnings, read_job_schedule
from hvscale.profiling.read.profile_file import NO_COMMUNICATOR, RECORD, STEP
from tests.profiling import synthetic
from tests.profiling.conftest import MakeRun
from tests.profiling.test_explanation import ALLREDUCE, MILLISECOND, PAIR, write
from tests.profiling.test_gradients import header, step, tensor

STEPS = 4
ALLGATHER, SEND_RECEIVE = 7, 25


def records(marked: bool) -> NDArray[Any]:
    """In each step of 100 ms, an all-reduce from 50 to 60 ms."""
    marks, calls = np.zeros(STEPS + 1 if marked else 0, RECORD), np.zeros(STEPS, RECORD)
    marks["operation"], marks["communicator"] = STEP, NO_COMMUNICATOR
    marks["start_ns"] = synthetic.START_NS + np.arange(len(marks)) * 100 * MILLISECOND
    calls["operation"], calls["communicator"], calls["bytes"] = ALLREDUCE, PAIR, 4096
    calls["start_ns"] = synthetic.START_NS + (50 + np.arange(STEPS) * 100) * MILLISECOND
    calls["duration_ns"] = 10 * MILLISECOND
    calls["ordinal"] = np.arange(STEPS)
    made = np.concatenate([marks, calls])
    made = made[np.argsort(made["start_ns"])]
    made["sequence"] = np.arange(1, len(made) + 1)
    return synthetic.signed(made)


def profiled(make_run: MakeRun, marked: bool = True) -> RunFolder:
    run = make_run(2)
    for rank in range(2):
        write(run, rank, records(marked))
    return run


def write_gradients(run: RunFolder) -> None:
    for rank in range(2):
        frames = [header(rank=rank), tensor("weight"), *(step(number, [0]) for number in range(3))]
        (run.hvprof / f"gradients-{rank:05d}.hvg").write_bytes(b"".join(frames))


def test_messages_replace_gradients_that_were_not_recorded(make_run: MakeRun) -> None:
    run = profiled(make_run)
    found = read_job_schedule(run)
    assert (found.basis, found.numbers, found.recorded) == (MESSAGES_ONLY, [1, 2, 3], [0, 1])
    assert str(run.path) in found.warnings[0]
    assert found.enqueued.tolist() == [[[0.05]] * 3] * 2


def test_without_marks_the_step_log_divides_the_messages(make_run: MakeRun) -> None:
    """A step ends with its message at the earliest: it begins 40 ms before the program's step."""
    run = profiled(make_run, marked=False)
    with pytest.raises(RequestError, match="steps are unknown"):
        read_job_schedule(run)
    run.steps.write_text('{"seconds": 0.1}\n' * STEPS)
    found = read_job_schedule(run)
    assert (found.numbers, found.enqueued.tolist()) == ([1, 2, 3], [[[0.09]] * 3] * 2)


def test_recorded_gradients_take_precedence_over_messages(make_run: MakeRun) -> None:
    run = profiled(make_run)
    write_gradients(run)
    found = read_job_schedule(run)
    assert (found.basis, [one.name for one in found.tensors]) == (None, ["weight"])


@pytest.mark.parametrize(("calls", "warns"), [(2 * STEPS, True), (2, False)])
def test_all_gathers_in_each_step_are_named(make_run: MakeRun, calls: int, warns: bool) -> None:
    """As Horovod makes them for sparse gradients; a few at its start do not count."""
    run = profiled(make_run)
    write_gradients(run)
    gathers = np.zeros(calls, RECORD)
    gathers["operation"], gathers["communicator"], gathers["bytes"] = ALLGATHER, PAIR, 1000
    gathers["start_ns"] = synthetic.START_NS + np.arange(calls) * MILLISECOND
    gathers["ordinal"] = np.arange(calls)
    made = np.concatenate([gathers, records(marked=True)])
    made["sequence"] = np.arange(1, len(made) + 1)
    write(run, 0, synthetic.signed(made))
    found = other_data_warnings(run, read_job_schedule(run))
    assert [f"{run.path}: in each step, a rank also calls allgather " in one for one in found] == [True] * warns


@pytest.mark.parametrize(("calls", "warns"), [(2 * STEPS, True), (2, False)])
def test_sends_in_each_step_are_named(make_run: MakeRun, calls: int, warns: bool) -> None:
    """As Horovod makes them for Adasum. They are only counted."""
    run = profiled(make_run)
    write_gradients(run)
    sends = np.zeros(calls, RECORD)
    sends["operation"], sends["communicator"], sends["bytes"] = SEND_RECEIVE, PAIR, 1000
    made = records(marked=True)
    header = synthetic.header(len(made), 1 << 20)
    header["operations"][0, SEND_RECEIVE] = b"send-receive"
    parts = (synthetic.signed_header(header), synthetic.communicators(), synthetic.counters(sends), made)
    (run.hvprof / "rank-00000.hvp").write_bytes(b"".join(part.tobytes() for part in parts))
    found = other_data_warnings(run, read_job_schedule(run))
    assert [f"{run.path}: in each step, a rank also calls send-receive " in one for one in found] == [True] * warns


def test_other_data_of_a_run_without_profiles_is_unknown(make_run: MakeRun) -> None:
    run = make_run(2)
    write_gradients(run)
    assert other_data_warnings(run, read_job_schedule(run)) == []


@pytest.mark.parametrize("gradients", [False, True])
def test_only_the_chosen_ranks_are_held(make_run: MakeRun, gradients: bool) -> None:
    run = profiled(make_run)
    if gradients:
        write_gradients(run)
    found = read_job_schedule(run, [0])
    assert ([one.recording.header.rank for one in found.ranks], found.unread) == ([0], (1,))


def test_a_run_without_gradients_and_profiles_is_refused(make_run: MakeRun) -> None:
    with pytest.raises(RequestError, match="holds no gradients: record them"):
        read_job_schedule(make_run(2))
