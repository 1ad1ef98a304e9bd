"""The recorder's wrappers of Horovod's functions, and steps that differ from the step before."""

import importlib
import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hvscale.core.built_library import built_library
from hvscale.profiling.read.gradients_file import RankGradients, read_gradients
from hvscale.profiling.record import STEP_LOG
from hvscale.profiling.record.rank_side.gradient_recorder import Recorder, StepLog, wrap

WORLD, OTHER_SET = SimpleNamespace(process_set_id=0), SimpleNamespace(process_set_id=3)
Calls = list[tuple[Any, ...]]


def fake_horovod(calls: Calls) -> Any:
    """Stands for `horovod.torch.mpi_ops`. Its functions add their arguments to `calls`."""

    def allreduce(
        tensor: Any,
        average: Any = None,
        name: Any = None,
        op: Any = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: Any = WORLD,
    ) -> int:
        calls.append((tensor, average, name, op, prescale_factor, postscale_factor, process_set))
        return 7

    def grouped(tensors: Any, *arguments: Any, **options: Any) -> int:
        calls.append((tensors, *arguments, options))
        return 8

    names = ("allreduce_async_", "allreduce_async", "grouped_allreduce_async_", "grouped_allreduce_async")
    functions = dict(zip(names, (allreduce, allreduce, grouped, grouped), strict=True))
    rank = {"rank": lambda: 0, "size": lambda: 2, "local_size": lambda: 2, "is_initialized": lambda: True}
    return SimpleNamespace(**functions, **rank, synchronize=lambda handle: handle, global_process_set=WORLD)


@pytest.fixture(params=["Python", "C"], autouse=True)
def language(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of the step log: each test has both."""
    found = str(request.param)
    if found == "C":
        monkeypatch.setenv("HVSCALE_STEP_LOG", str(built_library(STEP_LOG)))
    else:
        monkeypatch.delenv("HVSCALE_STEP_LOG", raising=False)
    return found


@pytest.fixture
def wrapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Any]:
    """Wrap a module; a call of its `end_step()` stands for an optimizer's step()."""

    def make(horovod: Any) -> Any:
        monkeypatch.setenv("HVSCALE_GRADIENTS", str(tmp_path))
        optimizer = importlib.import_module("torch.optim.optimizer")
        register = "register_optimizer_step_post_hook"
        monkeypatch.setattr(optimizer, register, lambda hook: setattr(horovod, "end_step", hook))
        wrap(horovod)
        return horovod

    return make


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(str(tmp_path), fake_horovod([]))


def read(folder: Path) -> RankGradients:
    found = read_gradients(folder / "gradients-00000.hvg")
    assert found.warning is None
    return found


def steps(found: RankGradients) -> list[list[str]]:
    return [[found.tensors[number].name for number in step.tensors] for step in found.steps]


def test_the_step_log_is_in_the_language_that_was_built(recorder: Recorder, language: str) -> None:
    assert (type(recorder.log) is StepLog) == (language == "Python")


def test_wrapped_functions_are_called_with_the_program_s_arguments(
    wrapped: Callable[[Any], Any], tmp_path: Path
) -> None:
    calls: Calls = []
    horovod, part = wrapped(fake_horovod(calls)), torch.zeros(5)
    handles = [
        horovod.allreduce_async_(part, name="a", op=2, prescale_factor=0.5, process_set=OTHER_SET),
        horovod.allreduce_async(part, None, "b", 1, 1.0, 0.25, OTHER_SET),
        horovod.allreduce_async_(tensor=part),
        horovod.grouped_allreduce_async_([part, part], name="c", process_set=OTHER_SET),
        horovod.grouped_allreduce_async([part], None, "d", 1, 1.0, 1.0, OTHER_SET),
    ]
    assert handles == [7, 7, 7, 8, 8]
    assert [call[1:] for call in calls] == [
        (None, "a", 2, 0.5, 1.0, OTHER_SET),
        (None, "b", 1, 1.0, 0.25, OTHER_SET),
        (None, None, None, 1.0, 1.0, WORLD),
        ({"name": "c", "process_set": OTHER_SET},),
        (None, "d", 1, 1.0, 1.0, OTHER_SET, {}),
    ]
    assert horovod.synchronize(9) == 9
    horovod.end_step()
    horovod.allreduce_async_(part, name="a", process_set=OTHER_SET)
    found = read(tmp_path)
    assert [(one.name, one.process_set) for one in found.tensors[:6]] == [
        *(("a", 3), ("b", 3), ("unnamed.0", 0)),
        *(("c[0]", 3), ("c[1]", 3), ("d", 3)),
    ]


def test_an_all_reduce_with_other_parameters_is_recorded(wrapped: Callable[[Any], Any], tmp_path: Path) -> None:
    horovod = fake_horovod([])
    horovod.allreduce_async_ = lambda tensor, average=None, name=None, compression=None: compression
    assert wrapped(horovod).allreduce_async_(torch.zeros(1), name="a", compression=4) == 4
    horovod.end_step()
    horovod.allreduce_async_(torch.zeros(1), name="a")
    assert steps(read(tmp_path)) == [["a"]]


def test_a_name_with_another_size_or_type_is_another_tensor(recorder: Recorder, tmp_path: Path) -> None:
    parts = [torch.zeros(5), torch.zeros(6), torch.zeros(6, dtype=torch.float16), torch.zeros(5)]
    for part in parts * 2:
        recorder.enqueue(part, "a", 0)
    recorder.close()
    found = read(tmp_path)
    assert [(one.dtype, one.bytes) for one in found.tensors] == [("float32", 20), ("float32", 24), ("float16", 12)]
    # Without an optimizer, a tensor that comes again begins a step.
    assert [step.tensors.tolist() for step in found.steps] == [[0, 1, 2], [0], [0, 1, 2]]


def test_the_order_of_the_tensors_may_change(recorder: Recorder, tmp_path: Path) -> None:
    orders = ["abc", "cab", "ac", "dcba", "abcd"]
    for order in orders:
        for name in order:
            recorder.enqueue(torch.zeros(2), name, 0)
        recorder.wait(1, 2)
        recorder.wait(3, 5)
        recorder.mark_step()
    recorder.close()
    found = read(tmp_path)
    assert ["".join(names) for names in steps(found)] == orders
    for step, order in zip(found.steps, orders, strict=True):
        assert (step.positions.tolist(), step.handles.tolist()) == ([len(order)], [2])
        assert step.blocked.tolist() == [pytest.approx(3e-9)]


def test_no_tensor_is_kept(recorder: Recorder) -> None:
    kept = []
    for _ in range(3):
        for name in ("a", "b"):
            part = torch.zeros(2)
            kept.append(weakref.ref(part))
            recorder.enqueue(part, name, 0)
        recorder.mark_step()
    del part
    assert not any(reference() is not None for reference in kept)


def test_threads_may_enqueue_at_the_same_time(recorder: Recorder, tmp_path: Path) -> None:
    def enqueue(thread: int) -> None:
        for number in range(50):
            recorder.enqueue(torch.zeros(1), f"{thread}.{number}", 0)

    for _ in range(20):
        threads = [threading.Thread(target=enqueue, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        recorder.mark_step()
    recorder.close()
    found = steps(read(tmp_path))
    assert len(found) == 20
    assert all(len(names) == len(set(names)) == 200 for names in found)


def test_a_forked_child_writes_nothing(recorder: Recorder, tmp_path: Path) -> None:
    def step() -> None:
        recorder.enqueue(torch.zeros(1), "a", 0)
        recorder.mark_step()

    step()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for _ in range(3):
                step()
            recorder.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    step()
    recorder.close()
    assert steps(read(tmp_path)) == [["a"], ["a"]]
