"""Ends training after `--seconds`, with the same number of steps on all ranks."""

from statistics import fmean

from hvscale.trainer.ranks import Ranks
from hvscale.trainer.trainer import Hook, StepReport

# The first steps are slower (memory is allocated, kernels are compiled), so they are not timed.
WARMUP_STEPS = 3
TIMED_STEPS = 10


class TimeBudget(Hook):
    """`--seconds`: sets `trainer.steps` as soon as the ranks have agreed on a number of steps."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def after_step(self, step: StepReport) -> None:
        trainer = self.trainer
        if trainer.steps is None:
            steps = agreed_steps(self.seconds, trainer.step_seconds, trainer.ranks)
            if steps is not None:
                trainer.steps = trainer.step - len(trainer.step_seconds) + steps


def agreed_steps(budget_seconds: float, step_seconds: list[float], ranks: Ranks) -> int | None:
    """The number of steps that fit into the budget; None until enough are timed. Collective.

    Call it after every step with the seconds of all steps so far. The ranks average their
    measurements, so all get the same number. It stays fixed, so that the learning-rate schedule no
    longer depends on the machine's speed. If the timed steps alone would exceed the budget, the
    first step decides.
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
    """Throughput without the warm-up steps, unless there are no others; 0 without any steps."""
    timed = step_seconds[WARMUP_STEPS:] or step_seconds[-1:]
    return images_per_step * len(timed) / sum(timed) if timed else 0.0
