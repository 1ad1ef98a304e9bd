"""Schedules of jobs without recorded gradients, from synthetic messages."""

from collections.abc import Sequence
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
from hvscale.profiling.read.gradients_file import GradientsHeader, GradientStep, GradientTensor
from hvscale.profiling.record.rank_side.gradient_recorder import VERSION

BEGAN_NS = 1_700_000_000_123_456_789  # a realistic time, with more digits than a float has
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


def recording(*ranks: list[list[Message]], agreements: Sequence[float] | None = None) -> Recording:
    """By rank and step: its all-reduces. `agreements`: in ms; None: each ms, as Horovod makes."""
    rows = []
    steps_made = len(ranks[0])
    agreed = range(steps_made * STEP_MS) if agreements is None else agreements
    for rank, steps in enumerate(ranks):
        for number, messages in enumerate(steps):
            rows += [(rank, number * STEP_MS + start, took, size, False) for start, took, size in messages]
        rows += [(rank, at, 0.01, 8, True) for at in agreed]
    columns = list(zip(*rows, strict=True)) or [()] * 5
    count = len(rows)
    fields = {
        **vars(no_events()),
        "operations": ("broadcast", "allreduce"),
        "rank": np.array(columns[0], np.int32),
        "operation": np.ones(count, np.uint8),
        "bytes": np.array(columns[3], np.int64),
        "start_ns": BEGAN_NS + (np.array(columns[1]) * MS).astype(np.int64),
        "duration_ns": (np.array(columns[2]) * MS).astype(np.int64),
        "communicator_size": np.full(count, len(ranks), np.int32),
        "bitwise": np.array(columns[4], np.bool_),
        "thread": np.zeros(count, np.int64),
    }
    marks = BEGAN_NS + np.arange(steps_made + 1) * STEP_MS * MS
    return Recording(
        "hvprof", Events(**fields), len(ranks), list(range(len(ranks))), steps=dict.fromkeys(range(len(ranks)), marks)
    )


def schedule(made: Recording, record: RunRecord = RECORD) -> JobGradients:
    return message_schedule("runs/x", record, made, made.steps[0])


def alone(*steps: list[Message], agreements: Sequence[float] = ()) -> JobGradients:
    """The schedule of a job of one rank."""
    return schedule(recording(list(steps), agreements=agreements), RECORD.model_copy(update={"np": 1}))


def times(step: GradientStep) -> tuple[list[float], ...]:
    return step.enqueued.tolist(), step.begins.tolist(), step.ends.tolist(), step.blocked.tolist()


STEPS: list[list[Message]] = [[(5.5, 1, 999)], [(40.5, 20, 300), (70.5, 10, 700)], [(30.5, 5, 400), (80.5, 9, 600)]]


def test_every_step_gets_the_same_messages_at_its_own_times() -> None:
    """In step 2, the last of the first 300 bytes is in the message of 400."""
    found = schedule(recording(STEPS, STEPS))
    assert [tensor.bytes for tensor in found.tensors] == [300, 700]
    assert found.numbers == [1, 2]
    assert found.basis == MESSAGES_ONLY
    assert found.warnings[0].startswith("fused messages only, fixed pattern: runs/x holds no gradients")
    assert found.warnings[0].endswith("Horovod's fusion is off")
    # Between the two agreements before the message: at 39 and 40 ms for that of 40.5 ms.
    assert found.enqueued.tolist() == [[[0.0395, 0.0695], [0.0295, 0.0795]]] * 2
    assert found.seconds.tolist() == [[0.1, 0.1]] * 2
    for rank in found.ranks:
        assert [step.number for step in rank.recording.steps] == list(rank.steps) == [1, 2]


def test_under_horovod_a_rank_computes_until_the_last_message_is_enqueued() -> None:
    step = schedule(recording(STEPS, STEPS)).ranks[0].steps[1]
    assert (step.positions.tolist(), step.handles.tolist()) == ([2], [2])
    assert (step.begins.tolist(), step.ends.tolist()) == ([0.0695], [0.0805])
    assert step.blocked == pytest.approx([0.011])


@pytest.mark.parametrize(
    ("messages", "begins"), [([(10.5, 60, 100)], 0.0095), ([(10.5, 60, 100), (20.5, 40, 100), (30.5, 20, 100)], 0.0295)]
)
def test_under_horovod_a_rank_waits_once_for_any_number_of_messages(messages: list[Message], begins: float) -> None:
    """The wait begins with the last message, and ends with the one that ends last."""
    step = schedule(recording([[], messages], [[], messages])).ranks[0].steps[1]
    assert (step.positions.tolist(), step.handles.tolist()) == ([len(messages)], [len(messages)])
    assert (step.begins.tolist(), step.ends.tolist()) == ([begins], [0.0705])


def test_without_agreements_a_rank_waits_for_each_message() -> None:
    found = schedule(recording(STEPS, STEPS, agreements=()))
    step = found.ranks[1].steps[1]
    assert (step.positions.tolist(), step.handles.tolist()) == ([1, 2], [1, 1])
    assert step.handles.dtype == np.int64
    assert times(step)[:3] == ([0.0405, 0.0705], [0.0405, 0.0705], [0.0605, 0.0805])
    assert step.blocked == pytest.approx([0.02, 0.01])


def test_without_agreements_a_rank_waits_only_for_the_last_part_of_a_recorded_message() -> None:
    """Steps 1 and 2 send 300 and 700 bytes apart, step 3 together."""
    apart: list[Message] = [(10, 5, 300), (20, 5, 700)]
    step = alone([], apart, apart, [(40, 20, 1000)]).ranks[0].steps[3]
    assert times(step) == ([0.04, 0.04], [0.04, 0.04], [0.04, 0.06], [0, pytest.approx(0.02)])


def test_the_data_was_ready_between_the_last_two_agreements() -> None:
    """Until there are two, it was ready when the rank called the all-reduce."""
    messages: list[Message] = [(5, 1, 100), (10, 1, 200), (25, 1, 300), (30, 1, 400), (55, 1, 500)]
    found = alone([], messages, agreements=[110, 130, 150])
    # The one at 30 ms starts at the moment of an agreement.
    assert found.enqueued.tolist() == [[[0.005, 0.01, 0.025, 0.02, 0.04]]]


def test_one_agreement_shows_that_horovod_sent_the_messages() -> None:
    step = alone([], [(5, 1, 100), (25, 1, 200)], agreements=[10]).ranks[0].steps[1]
    assert (step.positions.tolist(), step.handles.tolist()) == ([2], [2])
    assert step.enqueued.tolist() == [0.005, 0.025]


def test_data_that_was_ready_before_a_step_is_ready_at_its_start() -> None:
    assert alone([], [(0.5, 1, 100)], agreements=[98, 99, 100]).enqueued.tolist() == [[[0]]]


def test_steps_with_other_bytes_are_left_out() -> None:
    with_metric: list[list[Message]] = [*STEPS, [(10.5, 1, 1000), (90.5, 1, 4)], STEPS[1]]
    found = schedule(recording(with_metric, with_metric))
    assert (found.numbers, found.left_out) == ([1, 2, 4], 1)


def test_messages_before_the_first_mark_and_after_the_last_one_are_in_no_step() -> None:
    small: list[Message] = [(10, 1, 600)]
    large: list[Message] = [(10, 1, 700)]
    made = recording([large, small, large, small, small, large], agreements=())
    made = replace(made, steps={0: made.steps[0][1:-1]})
    found = schedule(made, RECORD.model_copy(update={"np": 1}))
    assert (found.numbers, found.left_out) == ([2, 3], 1)


def test_a_message_at_a_mark_belongs_to_the_step_that_begins() -> None:
    at_mark: list[Message] = [(0, 1, 600)]
    found = alone(at_mark, at_mark, at_mark)
    assert (found.numbers, found.enqueued.tolist()) == ([1, 2], [[[0], [0]]])


def test_each_rank_has_its_own_marks() -> None:
    """Rank 1 enters its steps 60 ms later, and sends 5 ms after that."""
    early: list[list[Message]] = [[(55, 1, 600)]] * 3
    late: list[list[Message]] = [[(65, 1, 600)]] * 3
    made = recording(early, late, agreements=())
    found = schedule(replace(made, steps={0: made.steps[0], 1: made.steps[1] + 60 * MS}))
    assert found.numbers == [1, 2]
    assert found.enqueued.tolist() == [[[0.055]] * 2, [[0.005]] * 2]


@pytest.mark.parametrize(
    ("steps", "pattern"),
    [
        ([[100, 300, 600], [1000], [400, 600]], [400, 600]),
        ([[400, 600], [1000]], [1000]),  # the smaller one of two medians
        ([[300, 700], [400, 600], [400, 600]], [400, 600]),
    ],
)
def test_the_pattern_is_the_most_common_one_of_the_median_length(steps: list[list[int]], pattern: list[int]) -> None:
    made: list[list[Message]] = [[(10 * (place + 1), 1, size) for place, size in enumerate(sizes)] for sizes in steps]
    assert [tensor.bytes for tensor in alone([], *made).tensors] == pattern


def test_messages_are_described_as_tensors() -> None:
    found = alone([], [(10, 1, 8), (20, 1, 10)])
    assert found.tensors == [
        GradientTensor(name="message.0", dtype="float32", bytes=8, group=None, process_set=0, device="cpu"),
        GradientTensor(name="message.1", dtype="uint8", bytes=10, group=None, process_set=0, device="cpu"),
    ]


def test_fusion_is_off_and_other_settings_are_kept() -> None:
    environment = {"HOROVOD_CYCLE_TIME": "5", "HOROVOD_FUSION_THRESHOLD": "1024", "PATH": "/bin"}
    found = schedule(recording(STEPS, STEPS), RECORD.model_copy(update={"rank_environment": environment}))
    settings = {"HOROVOD_CYCLE_TIME": "5", "HOROVOD_FUSION_THRESHOLD": "0"}
    assert [rank.recording.header for rank in found.ranks] == [
        GradientsHeader(version=VERSION, rank=rank, size=2, local_size=1, horovod=None, torch=None, settings=settings)
        for rank in range(2)
    ]


def test_messages_between_fewer_ranks_are_ignored() -> None:
    made = recording(STEPS, STEPS)
    sizes = np.where(made.load().bytes == 300, 1, 2).astype(np.int32)
    found = schedule(replace(made, events=replace(made.load(), communicator_size=sizes)))
    assert [tensor.bytes for tensor in found.tensors] == [700]


def test_messages_without_bytes_are_ignored() -> None:
    found = alone([], [(10, 1, 600), (20, 1, 0)])
    assert [tensor.bytes for tensor in found.tensors] == [600]


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


def test_messages_that_were_only_counted_are_refused() -> None:
    with pytest.raises(RequestError, match=r"calls were only counted .*Use `hvscale profile --gradients`"):
        schedule(replace(recording(STEPS, STEPS), has_calls=False))


def test_a_job_without_any_all_reduce_is_refused() -> None:
    made = recording(STEPS, STEPS)
    with pytest.raises(RequestError, match="contain no all-reduce"):
        schedule(replace(made, events=replace(made.load(), operations=("broadcast", "barrier"))))


def test_unknown_steps_are_refused() -> None:
    with pytest.raises(RequestError, match="cannot replace them: their steps are unknown"):
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
