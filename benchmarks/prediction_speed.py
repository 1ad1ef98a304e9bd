"""Measure how long a prediction takes: the model alone, and the whole command on a recorded job.

Run it with the environment's Python: `python benchmarks/prediction_speed.py [--repeats 3]`. The
model's jobs are made up: tensors of random sizes, 160 MiB together, on a link of 1 Gbit/s. The
command predicts a real recording of 160 small tensors on 2 ranks.
"""

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from hvscale.prediction.model.costs import HorovodSettings
from hvscale.prediction.model.horovod_loop import simulate
from hvscale.prediction.model.job import PredictedJob
from hvscale.prediction.model.measured_costs import fit_costs
from hvscale.prediction.model.samples import Samples
from hvscale.prediction.predict import CHAINS, STEPS

MIB = 1 << 20
NPS, TENSORS, FUSION_MIB = (8, 64, 512, 4096), (73, 160, 600), (1, 128)
RECORDED_RANKS, RECORDED_STEPS = 4, 30
STEP_SECONDS, GRADIENT_BYTES, LINK = 0.5, 160 * MIB, 1.25e8
PROGRAM = """
import torch, horovod.torch as hvd
hvd.init()
model = torch.nn.Sequential(*[torch.nn.Linear(40, 40, bias=False) for _ in range(160)])
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
)
for step in range(40):
    optimizer.zero_grad()
    model(torch.ones(5, 40)).sum().backward()
    optimizer.step()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    costs = fit_costs([measured(np_) for np_ in (2, RECORDED_RANKS)], None).perturbed(CHAINS)
    print(f"one number of ranks: {CHAINS} jobs of {STEPS} steps; median of {repeats}, seconds of processor time\n")
    print(f"| tensors | fusion, MiB | messages a step | {' | '.join(f'np {np_}' for np_ in NPS)} |")
    print("|---" * (3 + len(NPS)) + "|")
    for tensors, fusion in itertools.product(TENSORS, FUSION_MIB):
        runs = [
            partial(
                simulate,
                made_up(tensors),
                HorovodSettings(fusion_bytes=fusion * MIB),
                costs,
                np_,
                chains=CHAINS,
                steps=STEPS,
            )
            for np_ in NPS
        ]
        messages = max(run().messages_per_step for run in runs)
        seconds = [median_seconds(run, repeats) for run in runs]
        print(f"| {tensors} | {fusion} | {messages:.0f} | {' | '.join(f'{one:.2f}' for one in seconds)} |")
    with tempfile.TemporaryDirectory() as folder:
        time_command(Path(folder), repeats)


def time_command(folder: Path, repeats: int) -> None:
    hvscale = Path(sys.executable).with_name("hvscale")
    program = folder / "program.py"
    program.write_text(PROGRAM)
    job = folder / "job"
    start = partial(subprocess.run, check=True, capture_output=True, cwd=folder)
    start([hvscale, "profile", "--gradients", "-np", "2", "--run", job, "--", sys.executable, program])
    for nps in ("4096", "8,64,512,4096"):
        seconds = median_seconds(partial(start, [hvscale, "predict", job, "--np", nps, "--json"]), repeats)
        print(f"\n`hvscale predict RUN --np {nps} --json`, whole command: {seconds:.1f} s of processor time")


def median_seconds(run: Callable[[], object], repeats: int) -> float:
    """Seconds of processor time, with that of child processes: other work does not count."""
    found = []
    for _ in range(repeats):
        start = processor_seconds()
        run()
        found.append(processor_seconds() - start)
    return statistics.median(found)


def processor_seconds() -> float:
    own, children, system, system_of_children, _ = os.times()
    return own + children + system + system_of_children


def made_up(tensors: int) -> PredictedJob:
    generator = np.random.default_rng(0)
    shares = generator.lognormal(0, 1.5, tensors)
    sizes = (shares / shares.sum() * GRADIENT_BYTES / 4).astype(np.int64) * 4 + 4
    shape = RECORDED_RANKS, RECORDED_STEPS
    ready = np.cumsum(generator.exponential(1, (*shape, tensors)), axis=2)
    ready *= STEP_SECONDS / ready[..., -1:] * (1 + 0.05 * generator.standard_normal((*shape, 1)))
    return PredictedJob(
        name="made up",
        names=[str(number) for number in range(tensors)],
        dtypes=["float32"] * tensors,
        groups=[None] * tensors,
        bytes=sizes,
        ready=ready,
        after=np.full(shape, 0.01),
        images=None,
        recorded_np=RECORDED_RANKS,
        settings={},
        recorded_seconds=ready[..., -1] + 0.01,
    )


def measured(np_: int) -> Samples:
    """All-reduces of a ring on a link of 1 Gbit/s."""
    sizes = np.geomspace(1e3, 1e8, 200)
    return Samples(
        np=np_,
        nodes=np_,
        ranks_per_core=1.0,
        bytes=sizes,
        seconds=2 * (np_ - 1) * 3e-5 + 2 * (np_ - 1) / np_ * sizes / (LINK * 0.94),
        idle_seconds=np.zeros(len(sizes)),
        agreements=np.full(50, 2e-4),
        bytes_per_second=LINK,
        library="a library",
        algorithm="ring",
        name="made up",
    )


if __name__ == "__main__":
    main()
