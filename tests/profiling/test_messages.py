"""Schedules of jobs without recorded gradients, from synthetic messages."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunRecord
from hvscale.profiling.analyze.gradients import JobGradients
from hvscale.profiling.analyze.messages import MESSAGES_ONLY, message_schedule
from hvscale.profiling.read.events import Events, Recording, no_events

MS = 1_000_000
STEP_MS = 100
Message = tuple[float, float, int]  # start and duration in ms after the step's start, and bytes


RECORD = RunRecord.model_validate(
    {
        "command": ["program"],
        "np": 2,
        "library": {"flavour": "Open MPI", "version": "1"},
        "host": {"name": "here", "kernel": "k", "cpu": "c", "cores": 2, "memory_bytes": 1},
        "working_directory": "/",
        "started_at": "2026-01-01T00:00:00Z",
    }
)


def recording(*ranks: list[list[Message]], bitwise: bool = True) -> Recording:
    """By rank and step: its all-reduces. `bitwise`: with an agreement each ms, as Horovod makes."""
    rows = []
    for rank, steps in enumerate(ranks):
        for number, messages in enumerate(steps):
            begin = number * STEP_MS
            rows += [(rank, begin + start, took, size, False) for start, took, size in messages]
            rows += [(rank, begin + at, 0.01, 8, True) for at in range(STEP_MS) if bitwise]
    columns = list(zip(*rows, strict=True))
    count, steps_made = len(rows), len(ranks[0])
    fields = {
        **vars(no_events()),
        "operations": ("broadcast", "allreduce"),
        "rank": np.array(columns[0], np.int32),
        "operation": np.ones(count, np.uint8),
        "bytes": np.array(columns[3], np.int64),
        "start_ns": (np.array(columns[1]) * MS).astype(np.int64),
        "duration_ns": (np.array(columns[2]) * MS).astype(np.int64),
        "communicator_size": np.full(count, len(ranks), np.int32),
        "bitwise": np.array(columns[4], np.bool_),
        "thread": np.zeros(count, np.int64),
    }
    marks = np.arange(steps_made + 1) * STEP_MS * MS
    return Recording(
        "hvprof", Events(**fields), len(ranks), list(range(len(ranks))), steps=dict.fromkeys(range(len(ranks)), marks)
    )


def schedule(made: Recording, record: RunRecord = RECORD) -> JobGradients:
    return message_schedule("runs/x", record, made, made.steps[0])


STEPS: list[list[Message]] = [[(5.5, 1, 999)], [(40.5, 20, 300), (70.5, 10, 700)], [(30.5, 5, 400), (80.5, 9, 600)]]


def test_every_step_gets_the_same_messages_at_its_own_times() -> None:
    """In step 2, the last of the first 300 bytes is in the message of 400."""
    found = schedule(recording(STEPS, STEPS))
    assert [tensor.bytes for tensor in found.tensors] == [300, 700]
    assert found.numbers == [1, 2]
    assert found.basis == MESSAGES_ONLY
    assert found.warnings[0].startswith("fused messages only, fixed pattern: runs/x holds no gradients")
    # Between the two agreements before the message: at 39 and 40 ms for that of 40.5 ms.
    assert found.enqueued == pytest.approx(np.array([[[0.0395, 0.0695], [0.0295, 0.0795]]] * 2))
    assert found.seconds == pytest.approx(np.full((2, 2), 0.1))


def test_under_horovod_a_rank_computes_until_the_last_message_is_enqueued() -> None:
    step = schedule(recording(STEPS, STEPS)).ranks[0].steps[1]
    assert (step.positions.tolist(), step.handles.tolist()) == ([2], [2])
    assert step.begins == pytest.approx([0.0695])
    assert step.ends == pytest.approx([0.0805])
    assert step.blocked == pytest.approx([0.011])


def test_without_agreements_a_rank_waits_for_each_message() -> None:
    found = schedule(recording(STEPS, STEPS, bitwise=False))
    step = found.ranks[1].steps[1]
    assert (step.positions.tolist(), step.handles.tolist()) == ([1, 2], [1, 1])
    assert step.enqueued == pytest.approx([0.0405, 0.0705])
    assert step.blocked == pytest.approx([0.02, 0.01])


def test_steps_with_other_bytes_are_left_out() -> None:
    with_metric: list[list[Message]] = [*STEPS, [(10.5, 1, 1000), (90.5, 1, 4)], STEPS[1]]
    found = schedule(recording(with_metric, with_metric))
    assert (found.numbers, found.left_out) == ([1, 2, 4], 1)


def test_fusion_is_off_and_other_settings_are_kept() -> None:
    environment = {"HOROVOD_CYCLE_TIME": "5", "HOROVOD_FUSION_THRESHOLD": "1024", "PATH": "/bin"}
    found = schedule(recording(STEPS, STEPS), RECORD.model_copy(update={"rank_environment": environment}))
    settings = found.ranks[0].recording.header.settings
    assert settings == {"HOROVOD_CYCLE_TIME": "5", "HOROVOD_FUSION_THRESHOLD": "0"}


def test_messages_between_fewer_ranks_are_ignored() -> None:
    made = recording(STEPS, STEPS)
    sizes = np.where(made.load().bytes == 300, 1, 2).astype(np.int32)
    found = schedule(replace(made, events=replace(made.load(), communicator_size=sizes)))
    assert [tensor.bytes for tensor in found.tensors] == [700]


@pytest.mark.parametrize(
    ("steps", "reason"),
    [([STEPS[0]] * 2, "no step"), ([[], [], []], "contain no all-reduce")],
)
def test_unusable_messages_are_refused_with_the_command_that_records_gradients(
    steps: list[list[Message]], reason: str
) -> None:
    other: list[list[Message]] = (
        [[(5.5, 1, 100 + number)] for number in range(len(steps))] if reason == "no step" else steps
    )
    with pytest.raises(RequestError, match=f"{reason}.*Use `hvscale profile --gradients`"):
        schedule(recording(steps, other))


def test_messages_of_another_profiler_are_refused() -> None:
    with pytest.raises(RequestError, match="nccl recorded them"):
        schedule(replace(recording(STEPS, STEPS), source="nccl"))


def test_unknown_steps_are_refused() -> None:
    with pytest.raises(RequestError, match="steps are unknown"):
        message_schedule("runs/x", RECORD, recording(STEPS, STEPS), None)


sizes_of_steps = st.integers(1, 400).flatmap(
    lambda total: st.lists(
        st.lists(st.integers(1, total), max_size=8, unique=True).map(
            lambda cuts: np.diff(sorted({0, total, *cuts})).tolist()
        ),
        min_size=2,
        max_size=6,
    )
)


@given(sizes_of_steps)
def test_any_fusion_gives_one_pattern_in_order(steps: list[list[int]]) -> None:
    made = [[(10.0 * (place + 1) + 0.5, 2.0, size) for place, size in enumerate(sizes)] for sizes in steps]
    rank = [[(5.5, 1.0, 7)], *made]
    found = schedule(recording(rank, rank))
    assert len(found.numbers) == len(steps)
    assert sum(tensor.bytes for tensor in found.tensors) == sum(steps[0])
    assert [tensor.bytes for tensor in found.tensors] in steps
    times = found.enqueued
    assert (np.diff(times, axis=2) >= 0).all()
    last = [0.01 * len(sizes) - 0.0005 for sizes in steps]  # the last byte is sent when it was
    assert times[0, :, -1] == pytest.approx(last)


def test_only_chosen_ranks_are_held_but_all_decide_which_steps_are_used() -> None:
    fewer: list[list[Message]] = [*STEPS, *STEPS[:2], [(30.5, 5, 400)]]
    made, record = recording(STEPS * 2, fewer, STEPS * 2), RECORD.model_copy(update={"np": 3})
    every = schedule(made, record)
    chosen = message_schedule("runs/x", record, made, made.steps[0], [2])
    assert [one.recording.header.rank for one in chosen.ranks] == [0, 2]
    assert chosen.recorded == every.recorded == [0, 1, 2]
    assert (chosen.numbers, chosen.left_out) == (every.numbers, every.left_out)
    assert every.left_out == 2
    assert (chosen.enqueued == every.enqueued[[0, 2]]).all()
