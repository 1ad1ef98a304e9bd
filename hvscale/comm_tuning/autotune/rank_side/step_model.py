"""What a step takes with other fusion thresholds and cycle times: Horovod's loop, simulated.

The ranks know when their gradients become ready and what a message costs, so that the search can
begin where the model has its best step. Real steps then prove it or not.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

SHORTEST_CYCLE = 1e-6  # seconds; a shorter one does not delay anything
Gradient = tuple[float, int]  # seconds from the begin of the step until it is ready, and bytes


@dataclass(frozen=True)
class MessageCost:
    """An all-reduce takes `latency` seconds, and `per_byte` seconds for each byte."""

    latency: float
    per_byte: float

    def seconds(self, size: int) -> float:
        return self.latency + self.per_byte * size


def fitted_cost(small: tuple[int, float], large: tuple[int, float]) -> MessageCost:
    """The cost that explains two messages, each with its bytes and seconds; never negative."""
    per_byte = max((large[1] - small[1]) / (large[0] - small[0]), 0.0) if large[0] > small[0] else small[1] / small[0]
    return MessageCost(max(small[1] - per_byte * small[0], 0.0), per_byte)


def communication_end(gradients: Sequence[Gradient], threshold: int, cycle: float, cost: MessageCost) -> float:
    """Seconds from the begin of a step until its last gradient is reduced.

    `gradients`: in order of time. A cycle begins `cycle` seconds after the one before it, or at the
    end of that one's messages. It sends all gradients that are ready, packed up to `threshold`
    bytes (horovod/common/operations.cc, RunLoopOnce).
    """
    now = next_cycle = 0.0
    sent = 0
    while sent < len(gradients):
        begin, ready = max(now, next_cycle), gradients[sent][0]
        if ready > begin:
            cycles = math.ceil((ready - begin) / cycle) if cycle > SHORTEST_CYCLE else 0
            begin = max(ready, begin + cycles * cycle)
        now, next_cycle, packed = begin, begin + cycle, 0
        while sent < len(gradients) and gradients[sent][0] <= begin:
            size = gradients[sent][1]
            if packed and packed + size > threshold:
                now += cost.seconds(packed)
                packed = 0
            packed += size
            sent += 1
        now += cost.seconds(packed)
    return now
