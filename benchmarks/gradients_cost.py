"""What recording the gradients adds to a training step.

Run it on an idle machine with the environment's Python: `python benchmarks/gradients_cost.py`, with
`--device cuda` on a GPU. In one process, it alternates training steps with the recorder's own work
for one step: one record for each gradient, one wait, one mark and the write of the step. The result
is their ratio. On a GPU, the batches are larger, and a record also records a CUDA event in as many
steps as the recorder chooses; so the recorded steps last as long as training steps there.
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
from hvscale.profiling.record.rank_side.gradient_recorder import MOST_INTERVAL, Recorder

WARM_UP_STEPS = 5
REPEATS = MOST_INTERVAL  # as many steps as one costly step may stand for, so that each round has one
BATCHES = {
    "cpu": {"edsr-baseline": (4, 3, 48, 48), "edsr": (1, 3, 48, 48), "resnet50": (4, 3, 224, 224)},
    "cuda": {"edsr-baseline": (16, 3, 48, 48), "edsr": (16, 3, 48, 48), "resnet50": (128, 3, 224, 224)},
}


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
    """Time the recorder's work for one of several steps, each `step` seconds long."""
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
        while time.perf_counter() < start + step:
            pass
    if not recorder.active or not recorder.cuda.active:
        raise SystemExit("the recording ended early")
    return spent / REPEATS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="two or more")
    parser.add_argument("--device", choices=BATCHES, default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    hvd.init()
    where = "one core" if arguments.device == "cpu" else f"{torch.cuda.get_device_name()}, bf16"
    table = Table(
        title=f"recording gradients, {where}, {arguments.rounds} rounds", caption="share: of the training step"
    )
    for column in ("model", "tensors", "training step, ms", "recording a step, us", "% of the step", "95 % interval"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for name, shape in BATCHES[arguments.device].items():
        model, batch = build(name).to(arguments.device), torch.rand(shape, device=arguments.device)
        optimizer = torch.optim.Adam(model.parameters())
        parameters = [(key, one) for key, one in model.named_parameters() if one.requires_grad]
        seconds = [training_seconds(model, optimizer, batch) for _ in range(WARM_UP_STEPS)]
        step = seconds[-1] if arguments.device == "cuda" else 0.0
        with tempfile.TemporaryDirectory() as folder:
            recorder = Recorder(folder, hvd)
            recording_seconds(recorder, parameters, step)
            pairs = [
                (training_seconds(model, optimizer, batch), recording_seconds(recorder, parameters, step))
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
