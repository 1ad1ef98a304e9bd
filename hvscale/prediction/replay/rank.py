"""One rank of a replay: real Horovod, tensors of the recorded names and sizes, no computation."""

import json
import os
import sys
import time
import zlib
from collections import deque
from contextlib import suppress
from io import TextIOWrapper
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import torch

from hvscale import profiling
from hvscale.core.errors import RequestError
from hvscale.core.host import available_cores, machine_identity
from hvscale.core.memory import keep_freed_memory
from hvscale.core.run_folder import RunFolder, is_own_command
from hvscale.prediction.replay.gpu import LAST_WAIT, STEP_START, GpuStream, choose_gpu
from hvscale.prediction.replay.schedule import Enqueue, RankSchedule, StepSchedule, first_counted, steps_in_words
from hvscale.profiling.analyze.gradients import JobGradients, is_timed_on_gpu
from hvscale.profiling.analyze.messages import FUSION_OFF, read_job_schedule
from hvscale.profiling.analyze.steps import read_step_log
from hvscale.profiling.read.gradients_file import GradientTensor

SPIN_SECONDS = 200e-6  # a sleep ends late by less than this
BLOCK = 1 << 17  # numbers of 4 bytes: three blocks fill most of a core's cache
LAST_DELAYS = 16  # calls, whose mean is expected of the next one


def replay_rank(recorded: RunFolder, steps: int | None, compute: str) -> None:
    """Replay `steps` steps (None: as many as were recorded) in this rank of a job.

    `compute`: sleep or spin between calls, or auto: spin if each rank has a core. Rank 0 writes
    steps.jsonl into the job's run folder and prints the median step. Raises RequestError when the
    recording cannot be replayed, or the ranks read different recordings.
    """
    if is_own_command(recorded.read().command, "train"):
        keep_freed_memory()  # as the trainer does
    gradients = read_job_schedule(recorded).timed_on_gpu
    if gradients.basis is not None:
        os.environ.update(FUSION_OFF)
    for name, value in gradients.ranks[0].recording.header.settings.items():
        os.environ.setdefault(name, value)
    import horovod.torch as hvd

    hvd.init()
    torch.set_num_threads(1)
    check_same_recording(hvd, gradients)
    if hvd.rank() == 0:
        warn_of_another_horovod(gradients)
    gpu = open_gpu(hvd, gradients)
    number, ranks = place_on_machine(hvd)
    threads = find_threads(hvd, gradients, ranks)
    spread_over_cores(number, ranks)
    if compute == "auto":
        compute = "spin" if threads and not computed_on_gpu(gradients) else "sleep"
    rank = Rank(hvd, gradients, Spin(threads or 1) if compute == "spin" else Sleep(), gpu)
    count = steps or len(gradients.numbers)
    durations: list[float] = []
    with StepLines(recorded, gradients, hvd, compute) as lines:
        schedules = iter(RankSchedule(gradients, hvd.rank()))
        begin = time.perf_counter()
        for _ in range(count):
            profiling.step()
            end, exposed = rank.step(next(schedules), begin)
            durations.append(end - begin)
            # The next step has begun: what is done between steps takes from its computation.
            begin = end
            lines.write(durations[-1], exposed)
    rank.check_results()
    if hvd.rank() == 0:
        first = first_counted(count)  # of rank 0, as in the table of `hvscale replay`
        repeated = list(islice(cycle(gradients.seconds[0].tolist()), count))
        shown = 1000 * median(durations[first:]), 1000 * median(repeated[first:])
        basis = f"; {gradients.basis}" if gradients.basis else ""
        print(
            f"replay: {steps_in_words(count)}, median {shown[0]:.1f} ms, --compute {compute}; "
            f"recorded on {gradients.size} ranks: {shown[1]:.1f} ms{basis}"
        )


def place_on_machine(hvd: ModuleType) -> tuple[int, int]:
    """Return this rank's number among the ranks of its machine, and how many these are.

    Containers and network namespaces share a machine. Collective.
    """
    machine = zlib.crc32(machine_identity().encode())
    machines = hvd.allgather(torch.tensor([machine]), name="hvscale.replay.machine").tolist()
    return machines[: hvd.rank()].count(machine), machines.count(machine)


def find_threads(hvd: ModuleType, gradients: JobGradients, ranks: int) -> int:
    """Return how many threads of each rank can compute at once, up to those of the recorded job.

    0 if a rank of this replay has no core for itself. `ranks`: of this machine. Collective.
    """
    cores = available_cores() // ranks
    every: list[int] = hvd.allgather(torch.tensor([cores]), name="hvscale.replay.cores").tolist()
    return min(*every, gradients.ranks[0].recording.header.threads or 1)


def spread_over_cores(number: int, ranks: int) -> None:
    """Keep this process on one core if its machine has fewer cores than ranks.

    `number`: of this rank among the machine's `ranks`. The kernel does not spread them evenly: it
    leaves up to 3 of 4 ranks, or 11 of 16, on one of two cores, and the slowest core decides how
    long a message takes.
    """
    cores = sorted(os.sched_getaffinity(0))
    if ranks > len(cores):
        for thread in Path("/proc/self/task").iterdir():
            with suppress(ProcessLookupError):  # it has ended meanwhile
                os.sched_setaffinity(int(thread.name), {cores[number % len(cores)]})


def warn_of_another_horovod(gradients: JobGradients) -> None:
    """Print a warning if the job was recorded with another version of Horovod."""
    recorded, here = gradients.ranks[0].recording.header.horovod, sys.modules["horovod"].__version__
    if recorded not in (None, here):
        text = f"recorded with Horovod {recorded}, replayed with {here}: it may schedule messages differently"
        print(f"hvscale: warning: {text}", file=sys.stderr)


def open_gpu(hvd: ModuleType, gradients: JobGradients) -> GpuStream | None:
    """Return this rank's GPU if the job computed on GPUs and all ranks have one. Collective.

    Rank 0 prints a warning if there is a reason why messages differ from the recorded ones.
    """
    if not computed_on_gpu(gradients):
        return None
    missing = choose_gpu(hvd)
    warning = None
    if missing:
        warning = f"the replay sends host memory ({missing}), so its messages are not those between GPUs"
    elif not is_timed_on_gpu(gradients.ranks[0].steps[gradients.numbers[0]]):
        warning = "their times were not recorded, so each gradient counts as computed when it is enqueued"
    if warning and hvd.rank() == 0:
        print(f"hvscale: warning: the job was recorded on GPUs; {warning}", file=sys.stderr)
    return None if missing else GpuStream()


def computed_on_gpu(gradients: JobGradients) -> bool:
    """Whether any gradient was on a GPU."""
    return any(tensor.device != "cpu" for tensor in gradients.tensors)


def find_dtype(tensor: GradientTensor) -> torch.dtype:
    """Return a tensor's type. Raises RequestError if this PyTorch does not have it."""
    dtype = getattr(torch, tensor.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise RequestError(
            f"{tensor.name} has type {tensor.dtype}, which PyTorch {torch.__version__} does not have: "
            "replay it with the PyTorch that recorded it"
        )
    return dtype


class Sleep:
    """Stands for computation: sleeps, which leaves the core free."""

    def until(self, moment: float) -> None:
        """Return at `moment` of time.perf_counter(); spins for the last 200 us."""
        left = moment - time.perf_counter()
        if left > SPIN_SECONDS:
            time.sleep(left - SPIN_SECONDS)
        while time.perf_counter() < moment:
            pass


class Spin:
    """Stands for computation: keeps cores and their caches busy."""

    def __init__(self, threads: int) -> None:
        # PyTorch divides a sum evenly among its threads.
        torch.set_num_threads(threads)
        self.values, self.sums = torch.ones(2, threads * BLOCK), torch.empty(threads * BLOCK)

    def until(self, moment: float) -> None:
        """Return at `moment` of time.perf_counter()."""
        while (left := moment - time.perf_counter()) > 0:
            if left > SPIN_SECONDS:
                torch.add(self.values[0], self.values[1], out=self.sums)


class Delays:
    """How long after its planned moment each call returned, the last times.

    A call takes time, and its thread may first have to wait for a core while messages move. The
    recorded moments contain both already, so a replay plans each call earlier by its mean delay.
    """

    def __init__(self) -> None:
        self.seconds: dict[int, deque[float]] = {}  # by the first tensor of the call

    def expected(self, tensor: int) -> float:
        last = self.seconds.get(tensor)
        return sum(last) / len(last) if last else 0.0

    def add(self, tensor: int, seconds: float) -> None:
        if tensor in self.seconds:
            self.seconds[tensor].append(seconds)
        else:  # the first call, in which Horovod sets itself up, does not count
            self.seconds[tensor] = deque(maxlen=LAST_DELAYS)


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

    def __init__(
        self, hvd: ModuleType, gradients: JobGradients, computation: Sleep | Spin, gpu: GpuStream | None
    ) -> None:
        self.hvd, self.gradients, self.computation, self.gpu = hvd, gradients, computation, gpu
        self.delays = Delays()
        self.tensors = []
        for tensor in gradients.tensors:
            dtype = find_dtype(tensor)
            device = "cpu" if gpu is None or tensor.device == "cpu" else "cuda"
            self.tensors.append(torch.ones(tensor.bytes // dtype.itemsize, dtype=dtype, device=device))

    def step(self, schedule: StepSchedule, begin: float) -> tuple[float, float]:
        """Replay the step that began at `begin` of time.perf_counter().

        Return its end, and the seconds inside synchronize().
        """
        handles: deque[int] = deque()
        exposed, step_start = 0.0, begin
        if self.gpu is not None:
            self.gpu.mark(STEP_START)
        for action in schedule.actions:
            if isinstance(action, Enqueue):
                moment = begin + action.seconds
                if self.gpu is None and action.computed is not None:
                    # The recorded host enqueued ahead of its GPU; host memory is sent at once.
                    moment = max(moment, step_start + action.computed)
                handles.append(self.enqueue_at(moment, action))
                continue
            self.computation.until(begin + action.seconds)
            start = time.perf_counter()
            blocked = self.synchronize(handles, action.handles)
            # As in the recording, time between calls of synchronize() is computation.
            begin = start + blocked
            exposed += blocked
        end = begin + schedule.compute_seconds
        if self.gpu is not None and schedule.gpu_seconds is not None:
            self.gpu.mark(LAST_WAIT)
            self.gpu.busy_until(LAST_WAIT, schedule.gpu_seconds)
        elif schedule.gpu_seconds is not None:
            end = max(end, begin + schedule.gpu_seconds)
        self.computation.until(end)
        if handles:
            # Horovod refuses a tensor that is still under way under its name.
            self.synchronize(handles, len(handles))
            end = time.perf_counter()
        return end, exposed

    def synchronize(self, handles: deque[int], count: int) -> float:
        """Wait for the `count` oldest handles; return the seconds inside the calls."""
        blocked = 0.0
        for _ in range(min(count, len(handles))):
            start = time.perf_counter()
            self.hvd.synchronize(handles.popleft())
            blocked += time.perf_counter() - start
        return blocked

    def enqueue_at(self, moment: float, action: Enqueue) -> int:
        """Enqueue a tensor, or all tensors of a group, so that the call returns at `moment`.

        Return its handle.
        """
        first = action.tensors[0]
        planned = max(moment - self.delays.expected(first), time.perf_counter())
        self.computation.until(planned)
        if self.gpu is not None and action.computed is not None:
            self.gpu.busy_until(STEP_START, action.computed)
        handle = self.enqueue(action.tensors)
        self.delays.add(first, time.perf_counter() - planned)
        return handle

    def enqueue(self, numbers: tuple[int, ...]) -> int:
        """Enqueue a tensor, or all tensors of a group; return its handle."""
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
    """Context: rank 0's steps.jsonl in the run folder of the replay.

    `compute`: sleep or spin, for each line.
    """

    def __init__(self, recorded: RunFolder, gradients: JobGradients, hvd: ModuleType, compute: str) -> None:
        self.compute = compute
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
            line = {**known, "seconds": seconds, "communication_seconds": exposed_seconds, "compute": self.compute}
            self.stream.write(json.dumps(line) + "\n")

    def __exit__(self, *_: Any) -> None:
        if self.stream is not None:
            self.stream.close()
