"""How many steps fit into the seconds that were asked for."""

from statistics import fmean

from hvscale.trainer.ranks import Ranks

# The first steps are slower (memory is allocated, kernels are compiled) and count in no speed.
WARMUP_STEPS = 3
TIMED_STEPS = 10


def agreed_steps(budget_seconds: float, step_seconds: list[float], ranks: Ranks) -> int | None:
    """To be called after every step with the durations of all steps so far; None while it is too early to say.

    The ranks average what they measured and so get the same number; from then on it is fixed, so that the schedule and
    with it the result no longer depend on the machine's speed. When even the timed steps would not fit, the first step alone decides.
    """
    done = len(step_seconds)
    if done == 1:
        first = fmean(ranks.gather(step_seconds[0]))
        return max(1, round(budget_seconds / first)) if first * (WARMUP_STEPS + TIMED_STEPS) > budget_seconds else None
    if done == WARMUP_STEPS + TIMED_STEPS:
        left = budget_seconds - fmean(ranks.gather(sum(step_seconds)))
        each = fmean(ranks.gather(fmean(step_seconds[WARMUP_STEPS:])))
        return done + max(1, round(left / each))
    return None


def images_per_second(images_per_step: int, step_seconds: list[float]) -> float:
    """Without the warm-up steps, where there are others."""
    counted = step_seconds[WARMUP_STEPS:] or step_seconds[-1:]
    return images_per_step * len(counted) / sum(counted)
