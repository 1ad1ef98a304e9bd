"""What the tensors of one message of Horovod go through, by the names of its timeline, and how long
each phase takes.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from hvscale.profiling.read.events import PHASES

NEGOTIATION = "NEGOTIATE_"
QUEUEING, COPY_IN, COPY_OUT = "queueing", "copy_in", "copy_out"
PHASE_OF_ACTIVITY = {
    **dict.fromkeys(("QUEUE", "WAIT_FOR_DATA", "WAIT_FOR_OTHER_TENSOR_DATA"), QUEUEING),
    **dict.fromkeys(("MEMCPY_IN_FUSION_BUFFER", "MEMCPY_IN_HOST_BUFFER"), COPY_IN),
    **dict.fromkeys(("MEMCPY_OUT_FUSION_BUFFER", "MEMCPY_OUT_HOST_BUFFER"), COPY_OUT),
}
Span = tuple[int, int]  # begin and end, microseconds


@dataclass
class Stages:
    """The spans of a message's tensors, one for each tensor in each list.

    Fused tensors go through an activity together: it begins for each, then ends for each. So they
    are one span, not a sum of spans.
    """

    negotiated: list[Span] = field(default_factory=list)
    operated: list[Span] = field(default_factory=list)
    activities: defaultdict[tuple[str, int], list[Span]] = field(default_factory=lambda: defaultdict(list))

    def add(self, negotiated: Span | None, operated: Span, activities: list[tuple[str, Span]]) -> None:
        """One tensor: when it was negotiated, when its operation ran, and the phases within that,
        in order.
        """
        self.operated.append(operated)
        if negotiated is not None:
            self.negotiated.append(negotiated)
        times: Counter[str] = Counter()
        for phase, span in activities:
            self.activities[phase, times[phase]].append(span)
            times[phase] += 1

    def phases_us(self, communication_us: int, longest_us: int) -> list[int]:
        """Of each of PHASES. Queueing also holds the time between negotiation and the operation.

        Negotiation runs from the first tensor's begin to the last one's end. No phase counts for
        more than `longest_us`.
        """
        spent = dict.fromkeys(PHASES, 0)
        spent["communication"] = communication_us
        for (phase, _), spans in self.activities.items():
            spent[phase] += _length(_overlap(spans))
        if self.operated:
            begin, end = _hull(self.operated)
            spent["other"] = max(0, end - begin - sum(spent.values()))
            if self.negotiated:
                negotiated = _hull(self.negotiated)
                spent["negotiation"] = _length(negotiated)
                spent[QUEUEING] += _length((negotiated[1], begin))
        return [min(spent[phase], longest_us) for phase in PHASES]


def _overlap(spans: list[Span]) -> Span:
    return max(begin for begin, _ in spans), min(end for _, end in spans)


def _hull(spans: list[Span]) -> Span:
    return min(begin for begin, _ in spans), max(end for _, end in spans)


def _length(span: Span) -> int:
    return max(0, span[1] - span[0])
