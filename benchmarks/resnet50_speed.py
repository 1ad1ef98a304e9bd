"""Compare our ResNet-50 training step with a plain script's, on one core and synthetic images.

The plain script trains in fp32 and NCHW, with SGD and momentum and no autocast. Run it with the
environment's Python: `python benchmarks/resnet50_speed.py [--rounds 7] [--batch-size 8]
[--image-size 224]`.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch
import torchvision
from edsr_speed import our_step
from interleaved import in_own_processes, print_speeds, run_interleaved
from torch import Tensor, nn

from hvscale.core.memory import keep_freed_memory
from hvscale.trainer.config import TrainConfig
from hvscale.trainer.ranks import Ranks
from hvscale.trainer.system import precision
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


def prepare_our_step(
    config: TrainConfig, ranks: Ranks, task: Classification, images: Tensor, labels: Tensor
) -> Callable[[], None]:
    keep_freed_memory()
    model = task.build_model()
    compute_format = precision.choose(config, ranks, model, task.loss, images, labels)
    return partial(our_step(config, ranks, task, model, compute_format), images, labels)


def prepare(batch_size: int, image_size: int, ours: bool) -> Callable[[], float]:
    """Warm up one variant and return a function that measures the images/s of a step."""
    torch.set_num_threads(1)
    config = TrainConfig.of(model="resnet50", data="synthetic", batch_size=batch_size, image_size=image_size)
    ranks = Ranks()
    task = Classification(config, ranks)
    images, labels = task.to_device(task.load_batch(0), torch.device("cpu"))
    step = prepare_our_step(config, ranks, task, images, labels) if ours else plain_step(images, labels)
    step()

    def measure() -> float:
        start = time.perf_counter()
        step()
        return batch_size / (time.perf_counter() - start)

    return measure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--image-size", type=int, default=224)
    options = parser.parse_args()
    sizes = (options.batch_size, options.image_size)
    with in_own_processes(
        {"plain": partial(prepare, *sizes, False), "ours": partial(prepare, *sizes, True)}
    ) as variants:
        speeds = run_interleaved(variants, options.rounds)
    print_speeds(f"ResNet-50, batch {options.batch_size}, one core", speeds, "plain")


if __name__ == "__main__":
    main()
