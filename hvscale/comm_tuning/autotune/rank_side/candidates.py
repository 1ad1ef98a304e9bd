"""Which settings the search tries, the most promising first."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hvscale.comm_tuning.autotune.rank_side.request import Settings
from hvscale.comm_tuning.autotune.rank_side.step_model import Gradient, MessageCost, communication_end

Moves = Mapping[str, Mapping[str, object]]  # the values of each knob that can change

# Algorithms that send each byte of a large message about twice, whatever the number of ranks.
FOR_LARGE = ("ring", "reduce_scatter_allgather", "segmented_ring", "k_reduce_scatter_allgather")
LARGE_BYTES = 1 << 20
# Of jobs that broadcast messages of at least LARGE_BROADCAST bytes in their steps: the size from
# which hvscale's broadcast replaces the library's.
OF_BROADCASTS = ("hvscale_broadcast", "broadcast_algorithm")
LARGE_BROADCAST = 64 << 10
MAX_CYCLE_SHARE = 0.1  # of a step
# The most promising first: on CPUs, long cycles leave cores to the computation.
CYCLES = ("5", "2.5", "10", "0.5", "25", "1", "0.1")
WORTH_TRYING = 0.99  # the predicted step over that of the defaults
SLOWER = 1.02  # an algorithm's message over that of the best one, from which it is not tried


@dataclass(frozen=True)
class JobShape:
    """What the first steps show of a job: bytes of its gradients, seconds of a step, and its nodes.

    `gradients`: those of one step, in order of time. `largest_message`: bytes of an all-reduce.
    `largest_broadcast`: bytes of one in a step. `threshold` (bytes) and `cycle` (seconds) are those
    of the job itself.
    """

    gradient_bytes: int
    step_seconds: float
    has_several_nodes: bool = True
    gradients: Sequence[Gradient] = ()
    largest_message: int = 0
    largest_broadcast: int = 0
    threshold: int = 128 << 20
    cycle: float = 1e-3


@dataclass
class Space:
    """The candidates of a job.

    `costs`: what messages cost with an algorithm, "" with the job's own, once they were timed.
    """

    moves: Moves
    job: JobShape
    costs: dict[str, MessageCost] = field(default_factory=dict)

    @property
    def algorithms(self) -> list[str]:
        """Left out are those that send large messages more often than others."""
        found = self.moves.get("allreduce_algorithm", ())
        return [value for value in found if self.job.gradient_bytes < LARGE_BYTES or value in FOR_LARGE]

    def candidates(self) -> list[Settings]:
        """The best of the model, if messages were timed; then one knob each, in turn. Segment sizes
        come last, once an algorithm that has segments may have been kept.

        Left out is what cannot help: fusion thresholds above the gradients' bytes, cycles that take
        much of a step, algorithms whose messages are slower, those of broadcasts if the steps have
        no large ones, and within one node the limit of eager messages between nodes.
        """
        job, broadcasts = self.job, self._of_broadcasts()
        ordered = {
            **(broadcasts if job.largest_broadcast > job.gradient_bytes else {}),
            "cycle_time": self._cycles(),
            "fusion_threshold": self._thresholds(),
            "allreduce_algorithm": self._algorithms(),
        }
        segments: list[Settings] = [{"segment_size": value} for value in self.moves.get("segment_size", ())]
        left_out = {*ordered, *OF_BROADCASTS, "segment_size", *(() if job.has_several_nodes else ("eager_threshold",))}
        others = {knob: list(values) for knob, values in self.moves.items() if knob not in left_out}
        first = [one for one in (self.best_of_model(), self._best_algorithm()) if one]
        rest = [*_round_robin({**ordered, **others, **broadcasts}), *segments]
        return [*first, *(one for one in rest if one not in first)]

    def _of_broadcasts(self) -> dict[str, list[str]]:
        """The values for large broadcasts; none if the steps have no such broadcast."""
        if self.job.largest_broadcast < LARGE_BROADCAST:
            return {}
        return {knob: list(self.moves[knob]) for knob in OF_BROADCASTS if knob in self.moves}

    def best_of_model(self) -> Settings:
        """The settings with the shortest step in the model; empty if that promises too little."""
        if not self.costs or not self.job.gradients:
            return {}
        algorithm = self._best_algorithm()
        cost = self.costs[algorithm.get("allreduce_algorithm", "")]
        grid: list[Settings] = [
            {**threshold, **cycle}
            for threshold in ({}, *({"fusion_threshold": value} for value in self._thresholds()))
            for cycle in ({}, *({"cycle_time": value} for value in self._cycles()))
        ]
        # What follows the last gradient stays as it was measured.
        before = self._communication_end({}, self.costs[""])
        after = max(self.job.step_seconds - before, 0.0)
        seconds = [self._communication_end(settings, cost) + after for settings in grid]
        # A change that promises nothing may cost something that the model does not know.
        promising = [place for place, one in enumerate(seconds) if WORTH_TRYING * one <= min(seconds)]
        best = min(promising, key=lambda place: (len(grid[place]), seconds[place]))
        return {**algorithm, **grid[best]} if seconds[best] < WORTH_TRYING * (before + after) else {}

    def _communication_end(self, settings: Settings, cost: MessageCost) -> float:
        job = self.job
        threshold = megabytes(settings["fusion_threshold"]) << 20 if "fusion_threshold" in settings else job.threshold
        cycle = float(settings["cycle_time"]) / 1e3 if "cycle_time" in settings else job.cycle
        return communication_end(job.gradients, threshold, cycle, cost)

    def _best_algorithm(self) -> Settings:
        """The algorithm whose messages are the fastest; empty if that is the job's own."""
        if not self.costs:
            return {}
        best = min(self.costs, key=self._message_seconds)
        faster = self._message_seconds(best) < WORTH_TRYING * self._message_seconds("")
        return {"allreduce_algorithm": best} if best and faster else {}

    def _message_seconds(self, algorithm: str) -> float:
        return self.costs[algorithm].seconds(max(self.job.largest_message, 1))

    def _algorithms(self) -> list[str]:
        """The fastest first, then those that were not timed."""
        timed = [value for value in self.algorithms if value in self.costs]
        if self.costs:
            limit = SLOWER * min(map(self._message_seconds, self.costs))
            timed = [value for value in timed if self._message_seconds(value) <= limit]
        return [
            *sorted(timed, key=self._message_seconds),
            *(value for value in self.algorithms if value not in self.costs),
        ]

    def _cycles(self) -> list[str]:
        values = self.moves.get("cycle_time", ())
        most = MAX_CYCLE_SHARE * self.job.step_seconds
        return [value for value in CYCLES if value in values and float(value) / 1e3 <= most]

    def _thresholds(self) -> list[str]:
        """Those below the gradients' bytes, the nearest to a quarter of them first."""
        values = self.moves.get("fusion_threshold", ())
        below = [value for value in values if megabytes(value) << 20 < self.job.gradient_bytes]
        quarter = max(self.job.gradient_bytes / 4 / (1 << 20), 1)
        return sorted(below, key=lambda value: abs(math.log(megabytes(value) / quarter)))


def megabytes(value: str) -> int:
    """The number in a threshold such as 16M."""
    return int(value.removesuffix("M"))


def _round_robin(values: Mapping[str, Sequence[str]]) -> Iterator[Settings]:
    for position in range(max(map(len, values.values()), default=0)):
        for knob, of_knob in values.items():
            if position < len(of_knob):
                yield {knob: of_knob[position]}
