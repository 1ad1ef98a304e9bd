"""ResNet-50 on one core, synthetic images: our training step against the plain script (fp32, NCHW, SGD with momentum, no autocast).

Run it with the environment's Python: `python benchmarks/resnet50_speed.py [--rounds 7] [--batch-size 8] [--image-size 224]`.
"""

import argparse
import time
from collections.abc import Callable

import torch
import torchvision
from torch import nn
from turns import in_turns, show

from hvscale.trainer import precision
from hvscale.trainer.classification import Classification
from hvscale.trainer.config import TrainConfig
from hvscale.trainer.optimizer import make_optimizer
from hvscale.trainer.ranks import Ranks
from hvscale.trainer.update import Update


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--image-size", type=int, default=224)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    config = TrainConfig.of(
        model="resnet50", data="synthetic", batch_size=arguments.batch_size, image_size=arguments.image_size
    )
    ranks = Ranks()
    work = Classification(config, ranks)
    images, labels = work.batch(work.load(0), torch.device("cpu"))

    plain = torchvision.models.resnet50()
    plain_optimizer = torch.optim.SGD(plain.parameters(), lr=0.0125, momentum=0.9, weight_decay=5e-5)
    criterion = nn.CrossEntropyLoss()

    def plain_step() -> None:
        plain_optimizer.zero_grad()
        loss = criterion(plain(images), labels)
        loss.backward()
        plain_optimizer.step()
        loss.item()

    ours = work.build()
    arithmetic = precision.choose(config, ranks, ours, work.loss, images, labels)
    optimizer = make_optimizer(config, work, ours, None)
    for group in optimizer.param_groups:
        group["lr"] = work.learning_rate
    update = Update(config, ranks, ours, optimizer, arithmetic)

    def our_step() -> None:
        update.before()
        loss = arithmetic.loss(ours, images, labels, work.loss)
        update.backward(loss)
        update.after(loss.detach(), False)
        loss.item()

    def speed(step: Callable[[], None]) -> Callable[[], float]:
        def measure() -> float:
            begin = time.perf_counter()
            step()
            return float(len(images)) / (time.perf_counter() - begin)

        return measure

    variants = {"plain": plain_step, "ours": our_step}
    for step in variants.values():
        step()
    speeds = in_turns({name: speed(step) for name, step in variants.items()}, arguments.rounds)
    show(f"ResNet-50, batch {len(images)}, one core; ours: {arithmetic}", speeds, "plain")


if __name__ == "__main__":
    main()
