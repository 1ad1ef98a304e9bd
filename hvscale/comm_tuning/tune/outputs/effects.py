"""What a search says of each knob by itself: the trials with a value against all the others."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import special

from hvscale.comm_tuning.tune.document import KnobChoice, TuneDocument
from hvscale.core.statistics import CONFIDENCE, Estimate

DEFAULT = "default"
Verdict = Literal["faster", "slower", "no difference", "unknown"]


@dataclass(frozen=True)
class KnobEffect:
    """Of one value of a knob: the ratio of throughputs in the trials with it to the others, in which other knobs were changed, too."""

    knob: str
    value: str
    trials: int
    ratio: Estimate | None

    @property
    def verdict(self) -> Verdict:
        if self.ratio is None or self.ratio.low is None or self.ratio.high is None:
            return "unknown"
        if self.ratio.low <= 1 <= self.ratio.high:
            return "no difference"
        return "faster" if self.ratio.mean > 1 else "slower"


def effects_of(choice: KnobChoice, document: TuneDocument) -> list[KnobEffect]:
    """Each value that was tried, the best first; "default" for the trials that did not set the knob."""
    logs: defaultdict[str, list[float]] = defaultdict(list)
    for trial in document.trials:
        if trial.throughput is not None:
            logs[trial.settings.get(choice.knob, DEFAULT)].append(float(np.log(trial.throughput.mean)))
    found = []
    for value, own in logs.items():
        others = [log for other, its in logs.items() if other != value for log in its]
        found.append(KnobEffect(choice.knob, value, len(own), ratio(own, others) if others else None))
    return sorted(found, key=lambda effect: -effect.ratio.mean if effect.ratio else 0)


def ratio(first: list[float], second: list[float]) -> Estimate:
    """Of the geometric means of two groups given by their logarithms, with Welch's interval; none where a group has one member only."""
    mean = float(np.mean(first) - np.mean(second))
    if min(len(first), len(second)) < 2:
        return Estimate(mean=float(np.exp(mean)), low=None, high=None)
    parts = [float(np.var(group, ddof=1)) / len(group) for group in (first, second)]
    if sum(parts) == 0:
        return Estimate(mean=float(np.exp(mean)), low=float(np.exp(mean)), high=float(np.exp(mean)))
    # Degrees of freedom: Welch, Biometrika 34, 1947.
    weights = [part**2 / (len(group) - 1) for part, group in zip(parts, (first, second), strict=True)]
    quantile = special.stdtrit(sum(parts) ** 2 / sum(weights), (1 + CONFIDENCE) / 2)
    reach = float(quantile) * sum(parts) ** 0.5
    return Estimate(mean=float(np.exp(mean)), low=float(np.exp(mean - reach)), high=float(np.exp(mean + reach)))
