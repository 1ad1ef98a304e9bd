"""The learning rate of each step."""

import math

from hvscale.trainer.config import TrainConfig


def learning_rate(config: TrainConfig, highest: float, step: int, steps: int | None) -> float:
    """`highest` is reached after the warm-up. `step` counts from 0; `steps` is None while the ranks have not yet agreed on it,
    then the start of the schedule is meant.

    Linear over `warmup_steps`; then constant, or half a cosine that reaches zero after the last step (Loshchilov and
    Hutter, 2017, without restarts).
    """
    if step < config.warmup_steps:
        return highest * (step + 1) / config.warmup_steps
    if config.schedule == "constant" or steps is None:
        return highest
    done = (step - config.warmup_steps) / max(1, steps - config.warmup_steps)
    return highest * (1 + math.cos(math.pi * done)) / 2
