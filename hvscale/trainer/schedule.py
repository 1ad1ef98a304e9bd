"""The learning rate of each step."""

import math
from dataclasses import dataclass
from types import ModuleType

from hvscale.trainer.config import TrainConfig


@dataclass(frozen=True)
class LearningRate:
    start: float
    """Before the warm-up."""
    highest: float
    """After it."""
    warmup_steps: int
    cosine: bool

    def at(self, step: int, steps: int | None) -> float:
        """`step` counts from 0; `steps` is None while the ranks have not yet agreed on it, then the start of the schedule is meant.

        Linear over the warm-up; then constant, or half a cosine that reaches zero after the last step (Loshchilov and
        Hutter, 2017, without restarts).
        """
        if step < self.warmup_steps:
            return self.start + (self.highest - self.start) * (step + 1) / self.warmup_steps
        if not self.cosine or steps is None:
            return self.highest
        done = (step - self.warmup_steps) / max(1, steps - self.warmup_steps)
        return self.highest * (1 + math.cos(math.pi * done)) / 2


def learning_rate(config: TrainConfig, own: float, steps_per_epoch: int, factor: float) -> LearningRate:
    """`own` is the task's, for one rank; scaled by `factor` where that is asked for, and then risen to from where it was (Goyal et al., 2017)."""
    base = config.learning_rate or own
    warmup_steps = config.warmup_steps or round(config.warmup_epochs * steps_per_epoch)
    if not config.scale_learning_rate:
        return LearningRate(0.0, base, warmup_steps, config.schedule == "cosine")
    return LearningRate(base, base * factor, warmup_steps, config.schedule == "cosine")


def scaling_factor(config: TrainConfig, hvd: ModuleType | None) -> int:
    """How many batches a step's update stands for. Adasum adds up directions and needs no more than a node's sum (as Horovod's examples have it)."""
    if hvd is None:
        return config.batches_per_allreduce
    if not config.use_adasum:
        return int(config.batches_per_allreduce * hvd.size())
    return int(config.batches_per_allreduce * hvd.local_size()) if hvd.nccl_built() else 1
