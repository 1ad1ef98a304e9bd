"""EDSR-baseline x2 on one core: our training step against the way the public code trains (fp32, NCHW, plain Adam, no autocast).

Run it with the environment's Python: `python benchmarks/edsr_speed.py [--rounds 7] [--steps 3] [--quality-steps 100]`. The last asks how far the
validation PSNR of the two is apart after as many steps on the same batches from the same weights.
"""

import argparse
import copy
import time
from collections.abc import Callable

import torch
from rich.console import Console
from torch import Tensor, nn
from turns import in_turns, show

from hvscale.trainer import precision
from hvscale.trainer.config import TrainConfig
from hvscale.trainer.evaluation import mean_psnr_db, scores
from hvscale.trainer.optimizer import make_optimizer
from hvscale.trainer.precision import Arithmetic
from hvscale.trainer.ranks import Ranks
from hvscale.trainer.super_resolution import SuperResolution
from hvscale.trainer.update import Update

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
    """As Lim et al.'s public implementation builds it, with its names."""

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
    config: TrainConfig, ranks: Ranks, work: SuperResolution, model: nn.Module, arithmetic: Arithmetic
) -> Step:
    optimizer = make_optimizer(config, work, model, None)
    for group in optimizer.param_groups:
        group["lr"] = work.learning_rate
    update = Update(config, ranks, model, optimizer, arithmetic)

    def step(inputs: Tensor, targets: Tensor) -> None:
        update.before()
        loss = arithmetic.loss(model, inputs, targets, work.loss)
        update.backward(loss)
        update.after(loss.detach(), False)
        loss.item()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3, help="of each variant in each round")
    parser.add_argument("--quality-steps", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    config = TrainConfig.of(model="edsr-baseline", scale=2, batch_size=16, patch_size=48)
    ranks = Ranks()
    work = SuperResolution(config, ranks)
    built = work.build()
    start = {name: value.clone() for name, value in built.state_dict().items()}
    batches = [work.batch(work.load(step), torch.device("cpu")) for step in range(8)]

    def public() -> nn.Module:
        model = PublicEDSR()
        model.load_state_dict(start)
        return model

    chosen = {
        "ours": precision.choose(config, ranks, built, work.loss, *batches[0]),
        "ours, fp32": Arithmetic("fp32", channels_last=False),
        "ours, fp32 + channels_last": Arithmetic("fp32", channels_last=True),
    }
    models = {"public": public(), **{name: copy.deepcopy(built) for name in chosen}}
    steps = {
        "public": public_step(models["public"]),
        **{name: our_step(config, ranks, work, models[name], chosen[name]) for name in chosen},
    }

    def speed(step: Step) -> Callable[[], float]:
        def measure() -> float:
            begin = time.perf_counter()
            for number in range(arguments.steps):
                step(*batches[number % len(batches)])
            return float(arguments.steps * config.batch_size) / (time.perf_counter() - begin)

        return measure

    for step in steps.values():
        step(*batches[0])
    speeds = in_turns({name: speed(step) for name, step in steps.items()}, arguments.rounds)
    show(f"EDSR-baseline x2, batch 16, one core; ours: {chosen['ours']}", speeds, "public")
    if not arguments.quality_steps:
        return
    for name, trained in (("public", public()), ("ours", copy.deepcopy(built))):
        trained.load_state_dict(start)
        step = public_step(trained) if name == "public" else our_step(config, ranks, work, trained, chosen["ours"])
        for number in range(arguments.quality_steps):
            step(*work.batch(work.load(number), torch.device("cpu")))
        measured = scores(trained, work.validation, config.scale, work.measured_by, ranks)
        Console().print(f"{name}: PSNR {mean_psnr_db(measured):.3f} dB after {arguments.quality_steps} steps")


if __name__ == "__main__":
    main()
