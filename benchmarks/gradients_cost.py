"""What recording the gradients adds to a training step.

Run it on an idle machine with the environment's Python: `python benchmarks/gradients_cost.py`, with
`--device cuda` on a GPU. In one process, it alternates training steps with the recorder's own work
for one step: one record for each gradient, one wait, one mark and the write of the step. That is
the host's time, with the step log in Python and in C. Between two recorded steps the caches are
emptied, as training would do. On a GPU, the batches are larger, and a record also records a CUDA
event in as many steps as the recorder chooses; so the recorded steps last as long as training steps
there.

`--end-to-end` also compares steps over Horovod with and without the recorder, 32 of each in turn. A
GPU that computes meanwhile may hide the host's work. Only a GPU's steps are even enough to show it.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import horovod.torch as hvd
import numpy as np
import torch
from horovod.torch import mpi_ops
from horovod.torch import optimizer as horovod_optimizer
from numpy.typing import NDArray
from rich.progress import track
from rich.table import Table
from scipy import stats
from torch.optim import optimizer as torch_optimizer

from hvscale.core.built_library import built_library
from hvscale.core.plain_rich import PlainConsole
from hvscale.models import build
from hvscale.profiling.read.gradients_file import read_gradients
from hvscale.profiling.record import STEP_LOG
from hvscale.profiling.record.rank_side.gradient_recorder import MOST_INTERVAL, Recorder, wrap

WARM_UP_STEPS = 5
REPEATS = MOST_INTERVAL  # as many steps as one costly step may stand for, so that each round has one
BATCHES = {
    "cpu": {"edsr-baseline": (4, 3, 48, 48), "edsr": (1, 3, 48, 48), "resnet50": (4, 3, 224, 224)},
    "cuda": {"edsr-baseline": (16, 3, 48, 48), "edsr": (16, 3, 48, 48), "resnet50": (128, 3, 224, 224)},
}
WRAPPED = ("allreduce_async_", "allreduce_async", "grouped_allreduce_async_", "grouped_allreduce_async", "synchronize")
USED = ("allreduce_async_", "synchronize")  # by Horovod's optimizer
EVICTING = np.zeros(64 << 20, np.uint8)  # larger than a core's caches
Shares = NDArray[np.float64]


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def training_seconds(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> float:
    """Time one training step, on a GPU in bf16."""
    device = batch.device.type
    start = time.perf_counter()
    optimizer.zero_grad()
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        loss = model(batch).float().square().mean()
    loss.backward()
    optimizer.step()
    synchronize(device)
    return time.perf_counter() - start


def recording_seconds(recorder: Recorder, parameters: list[tuple[str, torch.nn.Parameter]], step: float) -> float:
    """Time the recorder's work for one of several steps, each at least `step` seconds long."""
    gradients = [(name, parameter.grad) for name, parameter in parameters]  # Horovod has them at hand
    spent = 0.0
    for _ in range(REPEATS):
        start = time.perf_counter()
        for name, gradient in gradients:
            recorder.enqueue(gradient, name, 0)
        for _ in parameters:
            recorder.wait(time.monotonic_ns(), time.monotonic_ns())
        recorder.mark_step()
        end = time.perf_counter()
        spent += end - start
        EVICTING.fill(0)
        while time.perf_counter() < start + step:
            pass
    if not recorder.active or not recorder.cuda.active:
        raise SystemExit("the recording ended early")
    return spent / REPEATS


@contextmanager
def recorder_switch(folder: str) -> Iterator[Callable[[bool], None]]:
    """Wrap Horovod's functions; what is yielded switches the recorder on or off."""
    os.environ["HVSCALE_GRADIENTS"] = folder
    hooks = torch_optimizer._global_optimizer_post_hooks
    before, hooks_before = {name: getattr(mpi_ops, name) for name in WRAPPED}, dict(hooks)
    wrap(mpi_ops)
    after, hooks_after = {name: getattr(mpi_ops, name) for name in WRAPPED}, dict(hooks)

    def switch(on: bool) -> None:
        for name in USED:
            setattr(horovod_optimizer, name, (after if on else before)[name])
        hooks.clear()
        hooks.update(hooks_after if on else hooks_before)

    try:
        yield switch
    finally:
        switch(False)
        for name, function in before.items():
            setattr(mpi_ops, name, function)


def distributed(model: torch.nn.Module) -> torch.optim.Optimizer:
    """Horovod's optimizer, which all-reduces in a single process only if the job is elastic."""
    os.environ["HOROVOD_ELASTIC"] = "1"
    try:
        return hvd.DistributedOptimizer(  # type: ignore[no-any-return]
            torch.optim.Adam(model.parameters()), named_parameters=model.named_parameters()
        )
    finally:
        del os.environ["HOROVOD_ELASTIC"]


def recorded_shares(name: str, batch: torch.Tensor, rounds: int, folder: str) -> Shares:
    """How much longer recorded steps take, in percent, by round."""
    model = build(name).to(batch.device)
    optimizer = distributed(model)
    seconds = []
    with recorder_switch(folder) as switch:
        for number in track(range(-1, rounds), f"{name}, end to end"):
            means = {}
            for recorded in ((False, True), (True, False))[number % 2]:
                switch(recorded)
                means[recorded] = np.mean([training_seconds(model, optimizer, batch) for _ in range(REPEATS)])
            if number >= 0:
                seconds.append((means[True], means[False]))
    recorded_steps = len(read_gradients(Path(folder, "gradients-00000.hvg")).steps)
    if recorded_steps < REPEATS * rounds:
        raise SystemExit("the recording ended early")
    longer, plain = np.array(seconds).T
    shares: Shares = 100 * (longer / plain - 1)
    return shares


def interval(shares: Shares) -> str:
    low, high = stats.bootstrap((shares,), np.median, random_state=0).confidence_interval
    return f"{low:.2f} to {high:.2f}"


def measure(name: str, device: str, rounds: int, end_to_end: bool, folder: str) -> tuple[str, ...]:
    """The row of a model; the recordings are in `folder`."""
    batch = torch.rand(BATCHES[device][name], device=device)
    model = build(name).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    parameters = [(key, one) for key, one in model.named_parameters() if one.requires_grad]
    seconds = [training_seconds(model, optimizer, batch) for _ in range(WARM_UP_STEPS)]
    step = seconds[-1] if device == "cuda" else 0.0
    recorders = []
    for library in ("", str(built_library(STEP_LOG))):
        os.environ["HVSCALE_STEP_LOG"] = library
        recorders.append(Recorder(tempfile.mkdtemp(dir=folder), hvd))
        recording_seconds(recorders[-1], parameters, step)
    found = []
    for _ in track(range(rounds), name):
        training = training_seconds(model, optimizer, batch)
        found.append((training, *(recording_seconds(recorder, parameters, step) for recorder in recorders)))
    training, in_python, in_c = np.array(found).T
    share = 100 * in_c / training
    longer: tuple[str, ...] = ()
    if end_to_end:
        shares = recorded_shares(name, batch, rounds, tempfile.mkdtemp(dir=folder))
        longer = (f"{np.median(shares):+.2f}", interval(shares))
    return (
        *(name, str(len(parameters)), f"{1e3 * np.median(training):.0f}"),
        *(f"{1e6 * np.median(column):.0f}" for column in (in_python, in_c)),
        *(f"{np.median(share):.2f}", interval(share), *longer),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="two or more")
    parser.add_argument("--device", choices=BATCHES, default="cpu")
    parser.add_argument("--models", nargs="+", choices=BATCHES["cpu"], default=list(BATCHES["cpu"]))
    parser.add_argument("--end-to-end", action="store_true", help="the last columns too: 64 more steps for each round")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    hvd.init()
    where = "one core" if arguments.device == "cpu" else f"{torch.cuda.get_device_name()}, bf16"
    table = Table(
        title=f"recording gradients, {where}, {arguments.rounds} rounds", caption="shares: of the training step"
    )
    columns = ["model", "tensors", "training step, ms", "in Python, us", "in C, us", "in C, %", "95 % interval"]
    columns += ["end to end, %", "95 % interval"] if arguments.end_to_end else []
    for column in columns:
        table.add_column(column, justify="left" if column == "model" else "right")
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.models:
            table.add_row(*measure(name, arguments.device, arguments.rounds, arguments.end_to_end, folder))
    PlainConsole().print(table)


if __name__ == "__main__":
    main()
