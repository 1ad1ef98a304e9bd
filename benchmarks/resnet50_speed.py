"""ResNet-50 on one core, synthetic images: our training step against the plain script (fp32, NCHW,
SGD with momentum, no autocast).

Run it with the environment's Python: `python benchmarks/resnet50_speed.py [--rounds 7]
[--batch-size 8] [--image-size 224]`.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch
import torchvision
from torch import Tensor, nn
from turns import apart, in_turns, show

from hvscale.trainer.config import TrainConfig
from hvscale.trainer.optimizer import make_optimizer
from hvscale.trainer.ranks import Ranks
from hvscale.trainer.step import StepUpdate
from hvscale.trainer.system import precision, resources
from hvscale.trainer.tasks.classification import Classification


def plain_step(images: Tensor, labels: Tensor) -> Callable[[], None]:
    model = torchvision.models.resnet50()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0125, momentum=0.9, weight_decay=5e-5)
    criterion = nn.CrossEntropyLoss()

    def step() -> None:
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        loss.item()

    return step


def our_step(
    config: TrainConfig, ranks: Ranks, work: Classification, images: Tensor, labels: Tensor
) -> Callable[[], None]:
    resources.keep_freed_memory()
    model = work.build_model()
    arithmetic = precision.choose(config, ranks, model, work.loss, images, labels)
    optimizer = make_optimizer(config, work, model, None)
    for group in optimizer.param_groups:
        group["lr"] = work.learning_rate
    update = StepUpdate(config, ranks, model, optimizer, arithmetic)

    def step() -> None:
        update.begin()
        loss = arithmetic.loss(model, images, labels, work.loss)
        update.backward(loss)
        update.finish(loss.detach(), False)
        loss.item()

    return step


def prepare(batch_size: int, image_size: int, ours: bool) -> Callable[[], float]:
    """What measures one variant, warm: images a second of a step."""
    torch.set_num_threads(1)
    config = TrainConfig.of(model="resnet50", data="synthetic", batch_size=batch_size, image_size=image_size)
    ranks = Ranks()
    work = Classification(config, ranks)
    images, labels = work.to_device(work.load_batch(0), torch.device("cpu"))
    step = our_step(config, ranks, work, images, labels) if ours else plain_step(images, labels)
    step()

    def measure() -> float:
        begin = time.perf_counter()
        step()
        return batch_size / (time.perf_counter() - begin)

    return measure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--image-size", type=int, default=224)
    arguments = parser.parse_args()
    sizes = (arguments.batch_size, arguments.image_size)
    with apart({"plain": partial(prepare, *sizes, False), "ours": partial(prepare, *sizes, True)}) as variants:
        speeds = in_turns(variants, arguments.rounds)
    show(f"ResNet-50, batch {arguments.batch_size}, one core", speeds, "plain")


if __name__ == "__main__":
    main()
