"""Fused messages by step, from synthetic recordings."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hvscale.prediction.replay.comparison import StepBytes, messages_by_step, tensor_bytes
from hvscale.profiling.read.events import Events, Recording
from hvscale.profiling.read.gradients_file import GradientTensor

NEGOTIATION = 8  # bytes
SIZES = st.lists(st.lists(st.integers(1, 2**40), min_size=1, max_size=4), min_size=1, max_size=6)


def recording(messages: list[tuple[int, bool]], overwritten: int = 0) -> Recording:
    """All-reduces of rank 1, in order of time: bytes, and whether bitwise. Rank 0 sends one."""
    sizes = [size for size, _ in messages]
    count = len(messages) + 1
    order = np.random.default_rng(0).permutation(count)
    events = Events(
        operations=("broadcast", "allreduce"),
        rank=np.array([0] + [1] * len(messages), np.int32)[order],
        operation=np.ones(count, np.uint8),
        bytes=np.array([1, *sizes], np.int64)[order],
        start_ns=np.arange(count, dtype=np.int64)[order],
        duration_ns=np.ones(count, np.int64),
        communicator_size=np.full(count, 2, np.int32),
        bitwise=np.array([False, *(bitwise for _, bitwise in messages)])[order],
        thread=np.zeros(count, np.int64),
    )
    return Recording(source="hvprof", events=events, np=2, ranks=[0, 1], overwritten=overwritten)


def exact_step(size: int, use: bool = True) -> StepBytes:
    return StepBytes(size, size, use)


@given(SIZES, st.data())
def test_a_step_has_the_messages_that_add_up_to_its_gradients(steps: list[list[int]], data: st.DataObject) -> None:
    uses = data.draw(st.lists(st.booleans(), min_size=len(steps), max_size=len(steps)))
    messages = [one for step in steps for size in step for one in ((NEGOTIATION, True), (size, False))]
    gradients = [exact_step(sum(step), use) for step, use in zip(steps, uses, strict=True)]
    found = messages_by_step(recording(messages), 1, gradients)
    assert [sizes.tolist() for sizes in found] == [step for step, use in zip(steps, uses, strict=True) if use]


def test_steps_whose_end_falls_into_a_message_are_left_out() -> None:
    """Another all-reduce of 3 bytes follows the first step."""
    messages = [(10, False), (3, False), (10, False), (10, False)]
    found = messages_by_step(recording(messages), 1, [exact_step(10)] * 3)
    assert [sizes.tolist() for sizes in found] == [[10]]


def test_a_recording_that_lost_messages_has_no_steps() -> None:
    assert messages_by_step(recording([(10, False)], overwritten=1), 1, [exact_step(10)]) == []


def gradient(size: int, device: str) -> GradientTensor:
    return GradientTensor(name="a", dtype="float32", bytes=size, group=None, process_set=0, device=device)


def test_tensors_of_gpus_may_be_padded_in_fused_messages() -> None:
    """As two ranks on GPUs sent tensors of 12 and 6900 bytes, fused or not, and one of 8 bytes."""
    sizes = tensor_bytes([gradient(12, "cuda"), gradient(6900, "cuda"), gradient(8, "cuda")])
    assert sizes.tolist() == [[12, 6900, 8], [16, 6912, 16]]
    step = StepBytes(6920, 6944, True)
    messages = [6928, 8, 12, 6900, 8, 6944, 6928, 8]
    found = messages_by_step(recording([(size, False) for size in messages]), 1, [step] * 4)
    assert [sizes.tolist() for sizes in found] == [[6928, 8], [12, 6900, 8], [6944], [6928, 8]]


def test_tensors_of_cpus_are_not_padded() -> None:
    assert tensor_bytes([gradient(12, "cpu"), gradient(8, "cpu")]).tolist() == [[12, 8], [12, 8]]
