"""Makes calls of both step logs, in Python and in C, and compares what they return.

Started as a program, with a seed, it makes many such calls.
"""

import importlib.util
import random
import sys
import time
import weakref
from array import array
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

RECORDER = Path(__file__).parents[2] / "hvscale/profiling/record/rank_side/gradient_recorder.py"
DTYPES = [type("float32", (), {}), type("float16", (), {})]
NARROW, WIDE = array("I").itemsize, array("Q").itemsize


def load_recorder() -> ModuleType:
    """The recorder, without hvscale's packages, as a rank loads it."""
    spec = importlib.util.spec_from_file_location("gradient_recorder", RECORDER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TwoLogs:
    """Both logs, which get the same calls."""

    def __init__(self, recorder: ModuleType) -> None:
        self.logs = [recorder.StepLog(), recorder.step_log_class()()]
        assert type(self.logs[0]) is not type(self.logs[1])
        self.numbers: dict[tuple[object, ...], int] = {}
        self.began, self.now = time.monotonic_ns(), 0

    def both(self, method: str, *arguments: Any) -> Any:
        found, other = (getattr(log, method)(*arguments) for log in self.logs)
        assert found == other, (method, arguments, found, other)
        return found

    def enqueue(self, name: str, elements: int, dtype: int, process_set: int) -> None:
        """As the recorder does it."""
        tensor = SimpleNamespace(numel=lambda: elements, dtype=DTYPES[dtype])
        times = [log.enqueue(tensor, name, process_set) for log in self.logs]
        assert bool(times[0]) == bool(times[1])
        if not times[0]:
            return
        number = self.numbers.setdefault((name, elements, dtype, process_set), len(self.numbers))
        if self.both("has", number):
            self.take(*self.both("size"))
        self.both("add", number, times[0])
        self.both("know", name, number, elements, DTYPES[dtype], process_set)

    def wait(self, nanoseconds: int) -> None:
        self.now += 10
        self.both("wait", self.now, self.now + nanoseconds)

    def take(self, enqueues: int, waits: int) -> None:
        """Each log reads its own clock, so the times of enqueues differ."""
        found, other = (log.take(enqueues, waits) for log in self.logs)
        begin = NARROW * (enqueues + 2 * waits)
        end = begin + WIDE * enqueues
        assert found[:begin] + found[end:] == other[:begin] + other[end:]
        assert len(found) == end + 3 * waits * WIDE
        for columns in (found, other):
            times = array("Q", columns[begin:end]).tolist()
            assert times == sorted(times)
            assert all(self.began <= one <= time.monotonic_ns() for one in times)


def act(logs: TwoLogs, draw: random.Random) -> None:
    """Make one call, or one that a step's end consists of."""
    choice = draw.random()
    if choice < 0.6:
        logs.enqueue(f"layer.{draw.randrange(9)}", draw.choice([4, 4, 4, 5]), draw.random() < 0.1, draw.random() < 0.1)
    elif choice < 0.9:
        logs.wait(draw.randrange(9))
    elif choice < 0.95:
        logs.both("end_wait")
        mark = logs.both("size")
        for _ in range(draw.randrange(4)):
            if draw.random() < 0.5:
                logs.enqueue(f"metric.{logs.now}", 1, 0, 0)
            logs.wait(1)
        logs.take(*mark)
    else:
        logs.take(*logs.both("size"))


def compare(recorder: ModuleType, draw: random.Random, calls: int) -> None:
    logs = TwoLogs(recorder)
    for _ in range(calls):
        act(logs, draw)
    logs.take(*logs.both("size"))


def refuse(log: Any) -> None:
    """Calls that no recorder makes raise an exception."""
    tensor = SimpleNamespace(numel=lambda: 4, dtype=DTYPES[0])
    log.add(0, 1)
    log.know("a", 0, 4, DTYPES[0], 0)
    for error, method, arguments in (
        (TypeError, "enqueue", (tensor, "b")),
        (TypeError, "enqueue", (tensor, [], 0)),
        (AttributeError, "enqueue", (object(), "a", 0)),
        (TypeError, "enqueue", (tensor, "a", None)),
        (OverflowError, "enqueue", (SimpleNamespace(numel=lambda: -1, dtype=DTYPES[0]), "a", 0)),
        (OverflowError, "has", (-1,)),
        (OverflowError, "add", (1 << 32, 1)),
        (OverflowError, "add", (1, -1)),
        (OverflowError, "know", ("b", 1, -1, DTYPES[0], 0)),
        (OverflowError, "wait", (1, -1)),
        (ValueError, "take", (2, 0)),
        (ValueError, "take", (0, 1)),
    ):
        try:
            getattr(log, method)(*arguments)
        except error:
            continue
        raise AssertionError(f"{method}{arguments} raised no {error.__name__}")
    assert log.size() == (1, 0)


def check_references(log_class: Any) -> None:
    """A log keeps types while it lives, and no tensor."""

    class Dtype:
        pass

    class Tensor(SimpleNamespace):
        pass

    log, tensor = log_class(), Tensor(numel=lambda: 4, dtype=Dtype())
    kept, dtype = weakref.ref(tensor), weakref.ref(tensor.dtype)
    log.add(0, 1)
    log.know("a", 0, 4, tensor.dtype, 0)
    log.take(1, 0)
    assert log.enqueue(tensor, "a", 0) == 0
    log.know("a", 0, 5, tensor.dtype, 0)
    del tensor
    assert kept() is None
    assert dtype() is not None
    del log
    assert dtype() is None


if __name__ == "__main__":
    module = load_recorder()
    for seed in range(int(sys.argv[1]), int(sys.argv[1]) + 20):
        compare(module, random.Random(seed), 2000)  # noqa: S311
    refuse(module.step_log_class()())
    check_references(module.step_log_class())
    print("all right")
