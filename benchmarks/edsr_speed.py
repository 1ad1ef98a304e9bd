"""Compare our EDSR-baseline x2 training step with the public code's, on one core.

The public code trains in fp32 and NCHW with plain Adam and no autocast. Run it with the
environment's Python: `python benchmarks/edsr_speed.py [--rounds 7] [--steps 2] [--quality-steps 100
[--seeds 1]]`. `--quality-steps` also compares the validation PSNR of both after that many steps on
the same batches from the same weights.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch
from interleaved import in_own_processes, print_speeds, run_interleaved
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn

from hvscale.core.memory import keep_freed_memory
from hvscale.trainer.config import TrainConfig
from hvscale.trainer.inference.super_resolution_evaluation import mean_psnr_db, score_photos
from hvscale.trainer.optimizer import make_optimizer
from hvscale.trainer.ranks import Ranks
from hvscale.trainer.step import StepUpdate
from hvscale.trainer.system import precision
from hvscale.trainer.system.precision import ComputeFormat, compile_blocks
from hvscale.trainer.tasks.super_resolution import SuperResolution
from hvscale.trainer.tasks.workload import Workload

BATCH = 16
MEAN = (0.4488, 0.4371, 0.4040)
Step = Callable[[Tensor, Tensor], None]


class MeanShift(nn.Conv2d):
    def __init__(self, sign: int) -> None:
        super().__init__(3, 3, 1)
        self.weight.data = torch.eye(3).view(3, 3, 1, 1)
        self.bias.data = sign * 255 * torch.tensor(MEAN)  # type: ignore[union-attr]
        self.requires_grad_(False)


class ResBlock(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        convolutions = [nn.Conv2d(features, features, 3, padding=1) for _ in range(2)]
        self.body = nn.Sequential(convolutions[0], nn.ReLU(True), convolutions[1])

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x).mul(1.0)
        out += x
        return out


class PublicEDSR(nn.Module):
    """EDSR as Lim et al.'s public implementation builds it, with its parameter names."""

    def __init__(self, features: int = 64, blocks: int = 16) -> None:
        super().__init__()
        self.sub_mean, self.add_mean = MeanShift(-1), MeanShift(1)
        self.head = nn.Sequential(nn.Conv2d(3, features, 3, padding=1))
        last = nn.Conv2d(features, features, 3, padding=1)
        self.body = nn.Sequential(*(ResBlock(features) for _ in range(blocks)), last)
        upsampler = nn.Sequential(nn.Conv2d(features, 4 * features, 3, padding=1), nn.PixelShuffle(2))
        self.tail = nn.Sequential(upsampler, nn.Conv2d(features, 3, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.head(self.sub_mean(x))
        res = self.body(x)
        res += x
        shifted: Tensor = self.add_mean(self.tail(res))
        return shifted


def public_step(model: nn.Module) -> Step:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr=1e-4, betas=(0.9, 0.999), eps=1e-8)
    loss_function = nn.L1Loss()

    def step(inputs: Tensor, targets: Tensor) -> None:
        optimizer.zero_grad()
        loss = loss_function(model(inputs), targets)
        loss.backward()
        optimizer.step()
        loss.item()

    return step


def our_step(
    config: TrainConfig, ranks: Ranks, task: Workload, model: nn.Module, compute_format: ComputeFormat
) -> Step:
    optimizer = make_optimizer(config, task, model, None)
    for group in optimizer.param_groups:
        group["lr"] = task.learning_rate
    update = StepUpdate(config, ranks, model, optimizer, compute_format)

    def step(inputs: Tensor, targets: Tensor) -> None:
        update.begin()
        loss = compute_format.loss(model, inputs, targets, task.loss)
        update.backward(loss)
        update.finish(loss.detach(), False)
        loss.item()

    return step


class Setup:
    """The same initial weights and batches for every variant."""

    def __init__(self, seed: int = 1) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self.config = TrainConfig.of(model="edsr-baseline", scale=2, batch_size=BATCH, patch_size=48, seed=seed)
        self.ranks = Ranks()
        self.task = SuperResolution(self.config, self.ranks)
        self.model = self.task.build_model()

    def batch(self, number: int) -> tuple[Tensor, Tensor]:
        return self.task.to_device(self.task.load_batch(number), torch.device("cpu"))

    def public(self) -> tuple[nn.Module, Step]:
        model = PublicEDSR()
        model.load_state_dict(self.model.state_dict())
        return model, public_step(model)

    def ours(self, compute_format: ComputeFormat | None) -> tuple[nn.Module, Step]:
        """Our model and step; None uses the format that hvscale chooses by default."""
        keep_freed_memory()
        chosen = compute_format or precision.choose(self.config, self.ranks, self.model, self.task.loss, *self.batch(0))
        return self.model, our_step(self.config, self.ranks, self.task, self.model, chosen)


def prepare(
    steps: int, ours: bool, compute_format: ComputeFormat | None = None, compiled: bool = False
) -> Callable[[], float]:
    """Warm up one variant and return a function that measures its images/s over `steps` steps."""
    setup = Setup()
    if compiled:
        compile_blocks(setup.model)
    step = (setup.ours(compute_format) if ours else setup.public())[1]
    batches = [setup.batch(number) for number in range(4)]
    step(*batches[0])

    def measure() -> float:
        start = time.perf_counter()
        for number in range(steps):
            step(*batches[number % len(batches)])
        return steps * BATCH / (time.perf_counter() - start)

    return measure


def psnr_db(steps: int, ours: bool, seed: int) -> float:
    """Validation PSNR after `steps` training steps."""
    setup = Setup(seed)
    model, step = setup.ours(None) if ours else setup.public()
    for number in track(range(steps), "ours" if ours else "public"):
        step(*setup.batch(number))
    task = setup.task
    return mean_psnr_db(score_photos(model, task.validation, setup.config.scale, task.measure, setup.ranks)) or 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=2, help="steps of each variant per round")
    parser.add_argument(
        "--quality-steps", type=int, default=0, help="also compare PSNR after this many steps; default: no comparison"
    )
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds for the PSNR comparison")
    options = parser.parse_args()
    fp32, bf16 = (ComputeFormat(name, channels_last=True) for name in ("fp32", "bf16"))
    variants = {
        "public": partial(prepare, options.steps, False),
        "ours": partial(prepare, options.steps, True),
        "ours, fp32": partial(prepare, options.steps, True, ComputeFormat("fp32", channels_last=False)),
        "ours, fp32 + channels_last": partial(prepare, options.steps, True, fp32),
        "ours, fp32 + channels_last, compiled": partial(prepare, options.steps, True, fp32, True),
        "ours, bf16 + channels_last, compiled": partial(prepare, options.steps, True, bf16, True),
    }
    with in_own_processes(variants) as prepared:
        speeds = run_interleaved(prepared, options.rounds)
    print_speeds("EDSR-baseline x2, batch 16, one core", speeds, "public")
    for seed in range(1, options.seeds + 1) if options.quality_steps else ():
        public, ours = (psnr_db(options.quality_steps, is_ours, seed) for is_ours in (False, True))
        Console().print(
            f"seed {seed}, PSNR after {options.quality_steps} steps: public {public:.3f} dB, ours {ours:.3f} dB"
        )


if __name__ == "__main__":
    main()
