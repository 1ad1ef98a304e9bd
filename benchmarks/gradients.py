"""All-reduce a model's gradients in every step as a training does; a sleep replaces computation.

Each rank runs this program: `hvscale launch -np 4 -- python benchmarks/gradients.py edsr --steps
20`. A step sleeps for --compute-seconds. The last two thirds are the backward pass, during which
the gradients become ready one after another. The default is the time of 4 images at the 10.3
images/s of EDSR on a V100 (Anthony et al., 2021). With --broadcast each step ends with a broadcast
of so many MiB from rank 0, as in a job with a parameter server.
"""

import argparse
import json
import os
import time
from pathlib import Path

import horovod.torch as hvd
import torch

from hvscale import profiling
from hvscale.models.cost import build_on_fake_tensors

BATCH_SIZE = 4
V100_IMAGES_PER_SECOND = 10.3
FORWARD_SHARE = 1 / 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--compute-seconds", type=float, default=BATCH_SIZE / V100_IMAGES_PER_SECOND)
    parser.add_argument("--broadcast", type=int, default=0, metavar="MIB")
    options = parser.parse_args()
    hvd.init()
    torch.set_num_threads(1)
    parameters = list(build_on_fake_tensors(options.model).named_parameters())
    gradients = [(name, torch.ones(parameter.shape)) for name, parameter in reversed(parameters)]
    state = torch.full((options.broadcast << 18,), float(hvd.rank()))
    run = os.environ.get("HVSCALE_RUN")
    log = (Path(run) / "steps.jsonl").open("w", buffering=1) if run is not None and hvd.rank() == 0 else None
    # Ends each step, as in a training: hvscale's autotune acts there.
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    interval = options.compute_seconds * (1 - FORWARD_SHARE) / len(gradients)
    step_start = time.perf_counter()
    for _ in range(options.steps):
        profiling.step()
        time.sleep(options.compute_seconds * FORWARD_SHARE)
        handles = []
        backward_start = time.perf_counter()
        for number, (name, gradient) in enumerate(gradients, 1):
            time.sleep(max(0.0, backward_start + number * interval - time.perf_counter()))
            handles.append(hvd.allreduce_async_(gradient, name=name, op=hvd.Average))
        for handle in handles:
            hvd.synchronize(handle)
        if options.broadcast:
            hvd.broadcast_(state, 0, name="state")
        optimizer.step()
        now = time.perf_counter()
        if log is not None:
            log.write(json.dumps({"images": BATCH_SIZE * hvd.size(), "seconds": now - step_start}) + "\n")
        step_start = now
    if any(bool((gradient != 1).any()) for _, gradient in gradients):
        raise SystemExit("wrong result: the average of ones is not 1")
    if bool((state != 0).any()):
        raise SystemExit("wrong result: rank 0 broadcasts zeros")


if __name__ == "__main__":
    main()
