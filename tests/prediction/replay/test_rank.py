"""How a rank replays a step, with a Horovod that notes the calls."""

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from hvscale.prediction.replay.rank import Rank
from hvscale.prediction.replay.schedule import RankSchedule
from tests.prediction.replay.test_schedule import job, step, tensor


class Calls:
    """Stands for Horovod and for the computation: a handle is the name of what was enqueued."""

    Average = Max = None

    def __init__(self) -> None:
        self.made: list[str] = []

    def allreduce_async_(self, tensor: Any, name: str, op: None) -> str:
        self.made.append(name)
        return name

    def grouped_allreduce_async_(self, tensors: list[Any], name: str, op: None) -> str:
        return self.allreduce_async_(tensors, name, op)

    def synchronize(self, handle: str) -> None:
        self.made.append(f"wait for {handle}")

    def until(self, moment: float) -> None:
        if self.made[-1:] != ["compute"]:
            self.made.append("compute")


def test_a_replay_waits_for_all_groups_before_it_computes_on() -> None:
    tensors = [tensor("g[0]", "g"), tensor("g[1]", "g"), tensor("h[0]", "h"), tensor("h[1]", "h"), tensor("a")]
    waits = step(1, [0.1, 0.1, 0.2, 0.2, 0.2], [(5, 0.3, 0.1)], [0, 1, 2, 3, 4])
    recording = job((tensors, [replace(waits, handles=np.array([3]))]))
    calls: Any = Calls()
    rank = Rank(calls, recording, SimpleNamespace(until=calls.until), None)  # type: ignore[arg-type]
    rank.step(next(iter(RankSchedule(recording, 0))), time.perf_counter())
    compute = "compute"
    assert calls.made == [
        *(compute, "g", compute, "h", compute, "a"),
        *(compute, "wait for g", "wait for h", "wait for a", compute),
    ]
