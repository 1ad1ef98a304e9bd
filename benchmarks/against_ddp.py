"""EDSR-baseline x2 on two ranks: `hvscale train` under `hvscale launch` against PyTorch's
DistributedDataParallel over Gloo.

Same model, batch, photos, precision (bf16 autocast) and threads; each start is a job of its own, in
turns. Run it with the environment's Python: `python benchmarks/against_ddp.py [--rounds 5] [--steps
40] [--batch-size 4]`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.distributed
from torch.nn.functional import l1_loss
from torch.nn.parallel import DistributedDataParallel
from turns import in_turns, show

from hvscale.launch.controller import launch
from hvscale.launch.options import LaunchHooks, LaunchOptions
from hvscale.trainer.config import TrainConfig
from hvscale.trainer.ranks import Ranks
from hvscale.trainer.tasks.super_resolution import SuperResolution

WARM_UP_STEPS = 5


def config(batch_size: int, steps: int) -> TrainConfig:
    return TrainConfig.of(model="edsr-baseline", batch_size=batch_size, steps=steps, precision="bf16", threads=1)


def ddp(batch_size: int, steps: int) -> None:
    """One rank of the alternative, started by torchrun; rank 0 prints the median seconds of a
    step.
    """
    torch.distributed.init_process_group("gloo")
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    work = SuperResolution(config(batch_size, steps), Ranks())
    model = DistributedDataParallel(work.build_model())
    optimizer = torch.optim.Adam([one for one in model.parameters() if one.requires_grad], lr=1e-4)
    seconds = []
    for step in range(steps):
        begin = time.perf_counter()
        crops = work.crops.draw(step, rank, size, batch_size)
        inputs, targets = (torch.from_numpy(patches).float() for patches in work.crops.cut(crops))
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = model(inputs)
        loss = l1_loss(output.float(), targets)
        loss.backward()
        optimizer.step()
        loss.item()
        seconds.append(time.perf_counter() - begin)
    if rank == 0:
        print(json.dumps(float(np.median(seconds[WARM_UP_STEPS:]))))
    torch.distributed.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=4)
    arguments = parser.parse_args()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        ddp(arguments.batch_size, arguments.steps)
        return
    images = 2 * arguments.batch_size

    def theirs() -> float:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
        words = ["--steps", str(arguments.steps), "--batch-size", str(arguments.batch_size)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run([*torchrun, __file__, *words], env=environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr)
        return float(images / json.loads(done.stdout))

    def ours(*more: str) -> float:
        command = ["hvscale", "train", *config(arguments.batch_size, arguments.steps).arguments(), *more]
        with tempfile.TemporaryDirectory() as folder:
            run = launch(command, LaunchOptions(np=2, run=Path(folder) / "run"), LaunchHooks(warn=lambda text: None))
            lines = run.steps.read_text().splitlines()[WARM_UP_STEPS:]
        return float(images / np.median([json.loads(line)["seconds"] for line in lines]))

    title = f"EDSR-baseline x2, two ranks of one thread, batch {arguments.batch_size}, bf16"
    variants = {
        "DDP over Gloo": theirs,
        "hvscale": ours,
        "hvscale --pin": partial(ours, "--pin"),
        "hvscale --bf16-allreduce": partial(ours, "--bf16-allreduce"),
    }
    show(title, in_turns(variants, arguments.rounds), "DDP over Gloo")


if __name__ == "__main__":
    main()
