"""What a search says of each knob by itself: the trials with a value against all the others."""

from collections import defaultdict
from dataclasses import dataclass

from hvscale.comm_tuning.tune.document import KnobChoice, TuneDocument
from hvscale.core.statistics import Estimate, welch_ratio

DEFAULT = "default"


@dataclass(frozen=True)
class KnobEffect:
    """Of one value of a knob: the ratio of throughputs in the trials with it to the others, in which other knobs were changed, too."""

    knob: str
    value: str
    trials: int
    ratio: Estimate | None

    @property
    def verdict(self) -> str:
        return self.ratio.verdict("faster", "slower") if self.ratio is not None else "unknown"


def effects_of(choice: KnobChoice, document: TuneDocument) -> list[KnobEffect]:
    """Each value that was tried, the best first; "default" for the trials that did not set the knob."""
    throughputs: defaultdict[str, list[float]] = defaultdict(list)
    for trial in document.trials:
        if trial.throughput is not None:
            throughputs[trial.settings.get(choice.knob, DEFAULT)].append(trial.throughput.mean)
    found = []
    for value, own in throughputs.items():
        others = [one for other, its in throughputs.items() if other != value for one in its]
        found.append(KnobEffect(choice.knob, value, len(own), welch_ratio(own, others) if others else None))
    return sorted(found, key=lambda effect: -effect.ratio.mean if effect.ratio else 0)
