"""Compare `hvscale train` with PyTorch DistributedDataParallel over Gloo: EDSR, two ranks.

Both use the same model, batch, photos, precision (bf16 autocast) and threads. Each sample is a
fresh job; the jobs are interleaved. Run it with the environment's Python: `python
benchmarks/against_ddp.py [--rounds 5] [--steps 40] [--batch-size 4]`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.distributed
from interleaved import print_speeds, run_interleaved
from torch.nn.functional import l1_loss
from torch.nn.parallel import DistributedDataParallel

from hvscale.launch.controller import launch
from hvscale.launch.options import LaunchHooks, LaunchOptions
from hvscale.trainer.config import TrainConfig
from hvscale.trainer.ranks import Ranks
from hvscale.trainer.tasks.super_resolution import SuperResolution

WARM_UP_STEPS = 5


def train_config(batch_size: int, steps: int) -> TrainConfig:
    return TrainConfig.of(model="edsr-baseline", batch_size=batch_size, steps=steps, precision="bf16", threads=1)


def train_with_ddp(batch_size: int, steps: int) -> None:
    """Train as one rank of torchrun; rank 0 prints the median seconds of a step."""
    torch.distributed.init_process_group("gloo")
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    task = SuperResolution(train_config(batch_size, steps), Ranks())
    model = DistributedDataParallel(task.build_model())
    optimizer = torch.optim.Adam([parameter for parameter in model.parameters() if parameter.requires_grad], lr=1e-4)
    seconds = []
    for step in range(steps):
        start = time.perf_counter()
        crops = task.crops.draw(step, rank, size, batch_size)
        inputs, targets = (torch.from_numpy(patches).float() for patches in task.crops.cut(crops))
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = model(inputs)
        loss = l1_loss(output.float(), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        loss.item()
        seconds.append(time.perf_counter() - start)
    if rank == 0:
        print(json.dumps(float(np.median(seconds[WARM_UP_STEPS:]))))
    torch.distributed.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=4)
    options = parser.parse_args()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        train_with_ddp(options.batch_size, options.steps)
        return
    images = 2 * options.batch_size

    def ddp_speed() -> float:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
        arguments = ["--steps", str(options.steps), "--batch-size", str(options.batch_size)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run([*torchrun, __file__, *arguments], env=environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr)
        return float(images / json.loads(done.stdout))

    def hvscale_speed(*more: str) -> float:
        command = ["hvscale", "train", *train_config(options.batch_size, options.steps).arguments(), *more]
        with tempfile.TemporaryDirectory() as folder:
            run = launch(command, LaunchOptions(np=2, run=Path(folder) / "run"), LaunchHooks(warn=lambda text: None))
            lines = run.steps.read_text().splitlines()[WARM_UP_STEPS:]
        return float(images / np.median([json.loads(line)["seconds"] for line in lines]))

    title = f"EDSR-baseline x2, two ranks of one thread, batch {options.batch_size}, bf16"
    variants: dict[str, Callable[[], float]] = {
        "DDP over Gloo": ddp_speed,
        "hvscale": hvscale_speed,
        "hvscale --pin": partial(hvscale_speed, "--pin"),
        "hvscale --bf16-allreduce": partial(hvscale_speed, "--bf16-allreduce"),
    }
    print_speeds(title, run_interleaved(variants, options.rounds), "DDP over Gloo")


if __name__ == "__main__":
    main()
