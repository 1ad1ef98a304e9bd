"""One rank of a replay: real Horovod, tensors of the recorded names and sizes, no computation."""

import json
import os
import time
import zlib
from collections import deque
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any, Literal

import torch

from hvscale import profiling
from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder
from hvscale.prediction.replay.schedule import Enqueue, RankSchedule, StepSchedule
from hvscale.profiling.analyze.gradients import JobGradients
from hvscale.profiling.analyze.messages import FUSION_OFF, read_job_schedule
from hvscale.profiling.analyze.steps import read_step_log

Compute = Literal["sleep", "spin"]
SPIN_SECONDS = 200e-6  # a sleep ends late by less than this


def replay_rank(recorded: RunFolder, steps: int | None, compute: Compute) -> None:
    """Replay `steps` steps (None: as many as were recorded) in this rank of a job.

    Rank 0 writes steps.jsonl into the job's run folder and prints the median step. Raises
    RequestError when the recording cannot be replayed, or the ranks read different recordings.
    """
    gradients = read_job_schedule(recorded)
    if gradients.basis is not None:
        os.environ.update(FUSION_OFF)
    for name, value in gradients.ranks[0].recording.header.settings.items():
        os.environ.setdefault(name, value)
    import horovod.torch as hvd

    hvd.init()
    torch.set_num_threads(1)
    check_same_recording(hvd, gradients)
    rank = Rank(hvd, gradients, until_spun if compute == "spin" else until_slept)
    count = steps or len(gradients.numbers)
    durations: list[float] = []
    with StepLines(recorded, gradients, hvd) as lines:
        schedules = iter(RankSchedule(gradients, hvd.rank()))
        begin = time.perf_counter()
        for _ in range(count):
            profiling.step()
            exposed = rank.step(next(schedules))
            end = time.perf_counter()
            durations.append(end - begin)
            lines.write(durations[-1], exposed)
            begin = end
    rank.check_results()
    if hvd.rank() == 0:
        shown = 1000 * median(durations), 1000 * float(median(gradients.seconds.mean(axis=0).tolist()))
        basis = f"; {gradients.basis}" if gradients.basis else ""
        print(
            f"replay: {count} steps, median {shown[0]:.1f} ms; "
            f"recorded on {gradients.size} ranks: {shown[1]:.1f} ms{basis}"
        )


def until_slept(moment: float) -> None:
    """Sleep until `moment` of time.perf_counter(), and spin for the last 200 us."""
    left = moment - time.perf_counter()
    if left > SPIN_SECONDS:
        time.sleep(left - SPIN_SECONDS)
    until_spun(moment)


def until_spun(moment: float) -> None:
    """Keep a core busy until `moment` of time.perf_counter()."""
    while time.perf_counter() < moment:
        pass


def check_same_recording(hvd: ModuleType, gradients: JobGradients) -> None:
    """Raise RequestError, on all ranks, unless all ranks read the same tensors."""
    check = zlib.crc32(repr(gradients.tensors).encode())
    checks = hvd.allgather(torch.tensor([check]), name="hvscale.replay.recording").tolist()
    different = [rank for rank, one in enumerate(checks) if one != checks[0]]
    if different:
        raise RequestError(
            f"rank {different[0]} read a recording with other tensors than rank 0: give all ranks the same run folder"
        )


class Rank:
    """The tensors of one rank, and how it replays a step."""

    def __init__(self, hvd: ModuleType, gradients: JobGradients, wait_until: Callable[[float], None]) -> None:
        self.hvd, self.gradients, self.wait_until = hvd, gradients, wait_until
        self.tensors = []
        for tensor in gradients.tensors:
            dtype = getattr(torch, tensor.dtype, None)
            if not isinstance(dtype, torch.dtype):
                raise RequestError(f"{tensor.name} has type {tensor.dtype}, which this PyTorch does not have")
            self.tensors.append(torch.ones(tensor.bytes // dtype.itemsize, dtype=dtype))

    def step(self, schedule: StepSchedule) -> float:
        """Replay one step; return the seconds that the rank waited in synchronize()."""
        handles: deque[tuple[int, int]] = deque()
        exposed, begin = 0.0, time.perf_counter()
        for action in schedule.actions:
            self.wait_until(begin + action.seconds)
            if isinstance(action, Enqueue):
                handles.append((self.enqueue(action.tensors), len(action.tensors)))
                continue
            start = time.perf_counter()
            left = action.handles
            while handles and left > 0:
                handle, count = handles.popleft()
                self.hvd.synchronize(handle)
                left -= count
            begin = time.perf_counter()
            exposed += begin - start
        self.wait_until(begin + schedule.compute_seconds)
        # Horovod refuses a tensor that is still under way under its name.
        for handle, _ in handles:
            self.hvd.synchronize(handle)
        return exposed

    def enqueue(self, numbers: tuple[int, ...]) -> int:
        tensors = [self.tensors[number] for number in numbers]
        first = self.gradients.tensors[numbers[0]]
        # Both leave a tensor of ones as it is; Horovod averages only floating-point tensors.
        op = self.hvd.Average if tensors[0].is_floating_point() else self.hvd.Max
        if first.group is None:
            handle: int = self.hvd.allreduce_async_(tensors[0], name=first.name, op=op)
        else:
            handle = self.hvd.grouped_allreduce_async_(tensors, name=first.group, op=op)
        return handle

    def check_results(self) -> None:
        """Raise RequestError if an all-reduce changed a tensor."""
        for tensor, described in zip(self.tensors, self.gradients.tensors, strict=True):
            if bool((tensor != 1).any()):
                raise RequestError(f"{described.name}: the average of ones over the ranks is not one")


class StepLines:
    """Context: rank 0's steps.jsonl in the run folder of the replay."""

    def __init__(self, recorded: RunFolder, gradients: JobGradients, hvd: ModuleType) -> None:
        run = os.environ.get("HVSCALE_RUN")
        self.path = Path(run, "steps.jsonl") if run is not None and hvd.rank() == 0 else None
        log = read_step_log(recorded)
        images = [] if log is None else log.images[log.images == log.images].tolist()
        self.images = median(images) / gradients.size * hvd.size() if images else None
        self.stream: TextIOWrapper | None = None

    def __enter__(self) -> "StepLines":
        if self.path is not None:
            self.stream = self.path.open("x", buffering=1)
        return self

    def write(self, seconds: float, exposed_seconds: float) -> None:
        if self.stream is not None:
            known = {} if self.images is None else {"images": self.images}
            line = {**known, "seconds": seconds, "communication_seconds": exposed_seconds}
            self.stream.write(json.dumps(line) + "\n")

    def __exit__(self, *_: Any) -> None:
        if self.stream is not None:
            self.stream.close()
