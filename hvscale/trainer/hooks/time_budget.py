"""`--seconds`: turns a time budget into a number of steps, once the first steps have been timed."""

from statistics import fmean

from hvscale.trainer.hooks.hook import Hook
from hvscale.trainer.ranks import Ranks
from hvscale.trainer.trainer import StepReport

# The first steps are slower (memory is allocated, kernels are compiled) and count towards no speed.
WARMUP_STEPS = 3
TIMED_STEPS = 10


class TimeBudget(Hook):
    """Sets `trainer.steps` as soon as the ranks agree on it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def after_step(self, step: StepReport) -> None:
        trainer = self.trainer
        if trainer.steps is None:
            steps = agreed_steps(self.seconds, trainer.step_seconds, trainer.ranks)
            if steps is not None:
                trainer.steps = trainer.step - len(trainer.step_seconds) + steps


def agreed_steps(budget_seconds: float, step_seconds: list[float], ranks: Ranks) -> int | None:
    """How many steps fit into the budget, or None while it is too early to say. Collective.

    Call it after every step with the seconds of all steps so far. The ranks average their
    measurements, so all get the same number. From then on it is fixed: the schedule, and with it
    the result, no longer depends on the machine's speed. If even the timed steps would not fit,
    the first step alone decides.
    """
    done = len(step_seconds)
    if done == 1:
        first = fmean(ranks.allgather(step_seconds[0]))
        return max(1, round(budget_seconds / first)) if first * (WARMUP_STEPS + TIMED_STEPS) > budget_seconds else None
    if done == WARMUP_STEPS + TIMED_STEPS:
        left = budget_seconds - fmean(ranks.allgather(sum(step_seconds)))
        each = fmean(ranks.allgather(fmean(step_seconds[WARMUP_STEPS:])))
        return done + max(1, round(left / each))
    return None


def images_per_second(images_per_step: int, step_seconds: list[float]) -> float:
    """Throughput without the warm-up steps, if there are any others; 0 if there are no steps."""
    counted = step_seconds[WARMUP_STEPS:] or step_seconds[-1:]
    return images_per_step * len(counted) / sum(counted) if counted else 0.0
