"""Images per second of a model's training step in each variant; appends a JSON line for each.

The measurements of the variants are interleaved; those that torch.compile compiles come after the
others. A variant that fails is recorded with its problem and left out. The model is hvscale's; the
step is plain PyTorch in one process, so that the figures show what the chip can do.

Usage: python -m ...rank_side.throughput REQUEST RESULTS: two files of JSON
"""

import gc
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, l1_loss

from hvscale import models
from hvscale.bench.gpu_check.rank_side.requests import VARIANTS, Request, ThroughputVariant
from hvscale.bench.gpu_check.rank_side.results import synchronize
from hvscale.core.compiler_tools import compile_without_openssl

WARM_UP_STEPS = 3  # the first one chooses cuDNN's algorithms
CLASSES = 1000


class TrainingStep:
    """One variant with its own model and optimizer. `run` trains for one step and returns the loss.

    The loss stays on the device.
    """

    def __init__(self, request: Request, variant: ThroughputVariant) -> None:
        self.variant = variant
        self.device = torch.device(request.device)
        torch.manual_seed(1)
        self.model = models.build(request.model, **request.options).to(self.device)
        self.images, self.targets = batch_of(request, self.device)
        if variant.channels_last:
            # As in the trainer: the weights stay contiguous.
            self.images = self.images.contiguous(memory_format=torch.channels_last)
        self.optimizer = optimizer_of(self.model, models.find(request.model).task, self.device)
        self.forward: Callable[[Tensor], Tensor] = torch.compile(self.model) if variant.compiled else self.model
        self.loss = torch.zeros((), device=self.device)
        self.run: Callable[[], Tensor] = self.train

    def train(self) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        # Without autocast's cache of weights, which a graph must not keep.
        with torch.autocast(
            self.device.type, dtype=torch.bfloat16, enabled=self.variant.bf16, cache_enabled=not self.variant.graph
        ):
            output = self.forward(self.images)
        loss = (
            cross_entropy(output.float(), self.targets)
            if self.targets.dtype == torch.int64
            else l1_loss(output.float(), self.targets)
        )
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.detach()

    def warm_up(self) -> None:
        for _ in range(WARM_UP_STEPS):
            self.loss = self.run()
        synchronize(self.device)

    def capture(self) -> None:
        """Record the whole step as a CUDA graph, after a warm-up on another stream."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_STEPS):
                self.train()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        self.optimizer.zero_grad(set_to_none=True)  # the graph allocates the gradients in its own memory
        with torch.cuda.graph(graph):
            loss = self.train()

        def replay() -> Tensor:
            graph.replay()
            return loss

        self.run = replay


def batch_of(request: Request, device: torch.device) -> tuple[Tensor, Tensor]:
    """The same random images, and targets of the model's task."""
    random = torch.Generator().manual_seed(2)
    images = torch.rand(request.batch, 3, request.side, request.side, generator=random)
    if models.find(request.model).task == "classification":
        return images.to(device), torch.randint(CLASSES, (request.batch,), generator=random).to(device)
    high = request.options["scale"] * request.side
    targets = torch.rand(request.batch, 3, high, high, generator=random)
    return 255 * images.to(device), 255 * targets.to(device)


def optimizer_of(model: nn.Module, task: str, device: torch.device) -> torch.optim.Optimizer:
    """The task's optimizer in the trainer, in a form that a CUDA graph can hold."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if task == "classification":
        return torch.optim.SGD(parameters, lr=0.0125, momentum=0.9, fused=True)
    return torch.optim.Adam(parameters, lr=1e-4, fused=True, capturable=device.type == "cuda")


def allow_tf32(allowed: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


def needs_gpu(variant: ThroughputVariant) -> bool:
    return variant.tf32 or variant.graph


def prepare(request: Request, variant: ThroughputVariant) -> tuple[TrainingStep, dict[str, Any]]:
    """A variant that is ready to be timed, and its memory and first seconds."""
    on_gpu = request.device != "cpu"
    allow_tf32(variant.tf32)
    before = 0
    if on_gpu:
        synchronize(torch.device(request.device))
        gc.collect()  # an earlier step refers to itself, so its memory waits for this
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    step = TrainingStep(request, variant)
    step.warm_up()
    if variant.graph and on_gpu:
        step.capture()
        step.warm_up()
    memory = torch.cuda.max_memory_allocated() - before if on_gpu else None
    return step, {"memory_bytes": memory, "preparation_seconds": time.perf_counter() - start}


def measure(step: TrainingStep, seconds: float) -> tuple[int, float]:
    """Train for about `seconds`: the number of steps, and their seconds."""
    allow_tf32(step.variant.tf32)
    step.run()
    synchronize(step.device)
    count, start = 0, time.perf_counter()
    while count == 0 or time.perf_counter() - start < seconds:
        for _ in range(2):  # the device is busy while the host looks at the clock
            step.loss = step.run()
        count += 2
        synchronize(step.device)
    return count, time.perf_counter() - start


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"[:500]


def run_all(request: Request, variants: Sequence[ThroughputVariant], write: Callable[[dict[str, Any]], None]) -> None:
    """Measure the compiled variants last: compiling may take all the time there is."""
    if request.device != "cpu":
        torch.backends.cudnn.benchmark = True
    compile_without_openssl()
    for compiled in (False, True):
        measure_interleaved(request, [variant for variant in variants if variant.compiled == compiled], write)


def measure_interleaved(
    request: Request, variants: Sequence[ThroughputVariant], write: Callable[[dict[str, Any]], None]
) -> None:
    """Prepare the variants, measure them interleaved, and write a line for each."""
    ready: dict[ThroughputVariant, TrainingStep] = {}
    facts: dict[ThroughputVariant, dict[str, Any]] = {}
    for variant in variants:
        if request.device == "cpu" and needs_gpu(variant):
            write({**asdict(variant), "needs_gpu": True})
            if variant.tf32:
                continue
        try:
            ready[variant], facts[variant] = prepare(request, variant)
        except Exception as error:
            write({**asdict(variant), "problem": first_line(error)})
    speeds: dict[ThroughputVariant, list[float]] = {variant: [] for variant in ready}
    for _ in range(request.rounds):
        for variant, step in ready.items():
            count, seconds = measure(step, request.seconds / request.rounds)
            speeds[variant].append(count * request.batch / seconds)
    for variant, step in ready.items():
        loss = float(step.loss)
        write(
            {
                **asdict(variant),
                **facts[variant],
                "images_per_second": speeds[variant],
                "loss": loss if math.isfinite(loss) else None,
            }
        )


def main() -> None:
    request = Request(**json.loads(Path(sys.argv[1]).read_text()))
    with Path(sys.argv[2]).open("a") as results:

        def write(line: dict[str, Any]) -> None:
            results.write(json.dumps(line) + "\n")
            results.flush()

        model = models.build(request.model, **request.options)
        write({"forward_flops": models.cost(model, (1, 3, request.side, request.side)).forward_flops})
        del model
        run_all(request, VARIANTS, write)


if __name__ == "__main__":
    main()
