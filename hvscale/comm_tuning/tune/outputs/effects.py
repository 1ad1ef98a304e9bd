"""The effect of each knob by itself: the trials with one value against all others."""

from collections import defaultdict
from dataclasses import dataclass

from hvscale.comm_tuning.tune.document import KnobChoice, TuneDocument
from hvscale.comm_tuning.tune.search_space import DEFAULT
from hvscale.core.statistics import Estimate, welch_ratio


@dataclass(frozen=True)
class KnobEffect:
    """The effect of one value of a knob.

    `ratio`: of the throughputs of the trials with it to those of all other trials. Other knobs
    differ between them, too, so it is a hint and no proof.
    """

    knob: str
    value: str
    trials: int
    ratio: Estimate | None

    @property
    def verdict(self) -> str:
        return self.ratio.verdict("faster", "slower") if self.ratio is not None else "unknown"


def effects_of(choice: KnobChoice, document: TuneDocument) -> list[KnobEffect]:
    """The effect of each value that was tried, the best first.

    "default": the trials that did not set the knob.
    """
    throughputs: defaultdict[str, list[float]] = defaultdict(list)
    for trial in document.trials:
        if trial.throughput is not None:
            throughputs[trial.settings.get(choice.knob, DEFAULT)].append(trial.throughput.mean)
    found = []
    for value, own in throughputs.items():
        others = [one for other, its in throughputs.items() if other != value for one in its]
        found.append(KnobEffect(choice.knob, value, len(own), welch_ratio(own, others) if others else None))
    return sorted(found, key=lambda effect: -effect.ratio.mean if effect.ratio else 0)
