"""What recording the gradients adds to a training step.

Run it on an idle machine with the environment's Python: `python benchmarks/gradients_cost.py`. In
one process, it alternates training steps with the recorder's own work for one step: one record for
each gradient, one wait, one mark and the write of the step. The result is their ratio.
"""

import argparse
import tempfile
import time

import horovod.torch as hvd
import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy import stats

from hvscale.models import build
from hvscale.profiling.record.rank_side.gradient_recorder import Recorder

REPEATS = 20  # a step's records take too little time for one clock reading
BATCHES = {"edsr-baseline": (4, 3, 48, 48), "edsr": (1, 3, 48, 48), "resnet50": (4, 3, 224, 224)}


def training_seconds(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> float:
    """Time one training step."""
    start = time.perf_counter()
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
    return time.perf_counter() - start


def recording_seconds(recorder: Recorder, parameters: list[tuple[str, torch.nn.Parameter]]) -> float:
    """Time the recorder's work for one step."""
    start = time.perf_counter()
    for _ in range(REPEATS):
        for name, parameter in parameters:
            recorder.enqueue((parameter.grad,), name, 0)
        for _ in parameters:
            recorder.wait(time.monotonic_ns(), time.monotonic_ns())
        recorder.mark_step()
    if not recorder.active:
        raise SystemExit("the recording ended early")
    return (time.perf_counter() - start) / REPEATS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="two or more")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    hvd.init()
    table = Table(
        title=f"recording gradients, one core, {arguments.rounds} rounds", caption="share: of the training step"
    )
    for column in ("model", "tensors", "training step, ms", "recording a step, us", "% of the step", "95 % interval"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for name, shape in BATCHES.items():
        model, batch = build(name), torch.rand(shape)
        optimizer = torch.optim.Adam(model.parameters())
        parameters = [(key, one) for key, one in model.named_parameters() if one.requires_grad]
        training_seconds(model, optimizer, batch)
        with tempfile.TemporaryDirectory() as folder:
            recorder = Recorder(folder, hvd)
            recording_seconds(recorder, parameters)
            pairs = [
                (training_seconds(model, optimizer, batch), recording_seconds(recorder, parameters))
                for _ in track(range(arguments.rounds), name)
            ]
        training, recording = np.array(pairs).T
        share = 100 * recording / training
        low, high = stats.bootstrap((share,), np.median, random_state=0).confidence_interval
        figures = (f"{1e3 * np.median(training):.0f}", f"{1e6 * np.median(recording):.0f}", f"{np.median(share):.2f}")
        table.add_row(name, str(len(parameters)), *figures, f"{low:.2f} to {high:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
