"""What a collective should cost: Hockney's model of a message, a + m/b seconds for m bytes,
fit_level to the points.

Of a chain on n ranks, M bytes in chunks of C: (n - 2 + M/C) (a + C/b), with the best chunk sqrt(M a
b / (n - 2)) (Awan et al., "Optimized Broadcast for Deep Learning Workloads on Dense-GPU InfiniBand
Clusters: MPI or NCCL?", 2018). Of the others: Thakur, Rabenseifner and Gropp, "Optimization of
Collective Communication Operations in MPICH", 2005; what adding up costs is left out. A message
above the eager limit takes a rendezvous first: a third figure, beside a and b.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import ceil, log, sqrt
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel
from scipy import optimize

from hvscale.comm_tuning.collectives.decide.measurements import AlgorithmChoice, Point, Time

TYPICAL_ERROR = 0.1  # of a logarithm: beyond it a point counts less and less
INITIAL_SHARE, NEGLIGIBLE_SHARE = 1e-6, 1e-5  # of a point's time, to begin with, and to be left out
# What messages go through: with one rank on each node the network, on one node its memory, else
# both.
Level = Literal["between nodes", "within a node", "both"]


@dataclass(frozen=True)
class MessageSteps:
    """Of the ranks' longest way: `messages` one after another, and their `bytes` together."""

    messages: float
    bytes: float


def pipelined(steps_to_fill: float, sends: float, total: float, chunk: float) -> MessageSteps:
    """Chunks one behind another: each is sent `sends` times, the last one comes `steps_to_fill`
    messages later.
    """
    parts = max(total / chunk, 1)
    messages = steps_to_fill + sends * parts
    return MessageSteps(messages, messages * total / parts)


def chain(n: int, total: float, choice: AlgorithmChoice) -> MessageSteps:
    return pipelined(n - 2, 1, total, part(total, choice))


def flat(n: int, total: float, choice: AlgorithmChoice) -> MessageSteps:
    return pipelined(0, n - 1, total, part(total, choice))


def tree(n: int, total: float, choice: AlgorithmChoice) -> MessageSteps:
    """The root is the busiest: it sends to radix - 1 ranks in each level."""
    radix = choice.radix or 2
    return pipelined(0, (radix - 1) * levels(n, radix), total, part(total, choice))


def part(total: float, choice: AlgorithmChoice) -> float:
    return min(choice.chunk_bytes or choice.segment_bytes or total, total)


def levels(n: int, radix: int = 2) -> int:
    # Not over by one where the logarithm of a power comes out too large.
    return ceil(log(n, radix) - 1e-9)


def ring_allreduce(n: int, total: float, choice: AlgorithmChoice) -> MessageSteps:
    parts = max(total / n / choice.segment_bytes, 1) if choice.segment_bytes else 1
    return MessageSteps(2 * (n - 1) * parts, 2 * (n - 1) / n * total)


def doubling_allreduce(n: int, total: float, choice: AlgorithmChoice) -> MessageSteps:
    return MessageSteps(levels(n), levels(n) * total)


def halving_and_doubling(n: int, total: float, choice: AlgorithmChoice) -> MessageSteps:
    return MessageSteps(2 * levels(n), 2 * (n - 1) / n * total)


def scatter_and_ring(n: int, total: float, choice: AlgorithmChoice) -> MessageSteps:
    return MessageSteps(levels(n) + n - 1, 2 * (n - 1) / n * total)


def ring_allgather(n: int, total: float, choice: AlgorithmChoice) -> MessageSteps:
    return MessageSteps(n - 1, (n - 1) / n * total)


def doubling_allgather(n: int, total: float, choice: AlgorithmChoice) -> MessageSteps:
    return MessageSteps(levels(n), (n - 1) / n * total)


# By operation, and by our algorithm or the library's in the words of `hvscale knobs`.
COSTS: Mapping[tuple[str, str], Callable[[int, float, AlgorithmChoice], MessageSteps]] = {
    ("broadcast", "chain"): chain,
    ("broadcast", "flat"): flat,
    ("broadcast", "k-nomial"): tree,
    ("broadcast", "library's pipeline"): chain,
    ("broadcast", "library's linear"): flat,
    ("broadcast", "library's binomial"): tree,
    ("broadcast", "library's scatter_allgather"): halving_and_doubling,
    ("broadcast", "library's scatter_ring_allgather"): scatter_and_ring,
    ("allreduce", "library's ring"): ring_allreduce,
    ("allreduce", "library's segmented_ring"): ring_allreduce,
    ("allreduce", "library's recursive_doubling"): doubling_allreduce,
    ("allreduce", "library's reduce_scatter_allgather"): halving_and_doubling,
    ("allgather", "library's ring"): ring_allgather,
    ("allgather", "library's recursive_doubling"): doubling_allgather,
    ("allgather", "library's bruck"): doubling_allgather,
    ("gather", "library's linear"): ring_allgather,
    ("gather", "library's binomial"): doubling_allgather,
}


def steps(operation: str, np: int, total: int, choice: AlgorithmChoice) -> MessageSteps | None:
    """None for an algorithm whose cost is not known here: the library's own choice among them, and
    two-level, which is of two levels.
    """
    name = choice.algorithm if choice.algorithm != "library" else f"library's {choice.library_algorithm}"
    cost = COSTS.get((operation, name))
    return cost(np, total, choice) if cost else None


def level(np: int, ranks_per_node: int) -> Level:
    if ranks_per_node == 1:
        return "between nodes"
    return "within a node" if ranks_per_node >= np else "both"


class Fit(BaseModel):
    """`start_seconds`: a, of each message; `bytes_per_second`: b, None where no byte's cost can be
    told from nothing.

    `rendezvous_seconds`: what a message above `eager_limit_bytes` costs more, 0 where no point
    tells. `points`: how many it rests on, and `error_percent`: how far their medians are from it,
    as a median.
    """

    level: Level
    start_seconds: float
    bytes_per_second: float | None
    rendezvous_seconds: float
    eager_limit_bytes: int | None
    points: int
    error_percent: float

    def seconds(self, operation: str, np: int, total: int, choice: AlgorithmChoice) -> float | None:
        """None for an algorithm whose cost is not known."""
        found = steps(operation, np, total, choice)
        return None if found is None else self.of(found)

    def of(self, found: MessageSteps) -> float:
        per_byte = 0.0 if self.bytes_per_second is None else 1 / self.bytes_per_second
        start = self.start_seconds + (
            self.rendezvous_seconds if needs_rendezvous(found, self.eager_limit_bytes) else 0.0
        )
        return found.messages * start + found.bytes * per_byte

    def best_chunk(self, np: int, total: int) -> int:
        """Of a chain, in bytes: the formula's with or without a rendezvous, whichever costs less;
        between two ranks the whole message.
        """

        def formula(start: float) -> int:
            if np == 2 or self.bytes_per_second is None:
                return total
            return int(min(max(sqrt(total * start * self.bytes_per_second / (np - 2)), 1), total))

        limit = self.eager_limit_bytes or total
        chunks = {min(formula(self.start_seconds), limit), formula(self.start_seconds + self.rendezvous_seconds)}
        return min(
            sorted(chunks),
            key=lambda chunk: self.of(chain(np, total, AlgorithmChoice(algorithm="chain", chunk_bytes=chunk))),
        )


def needs_rendezvous(found: MessageSteps, eager_limit_bytes: int | None) -> bool:
    """Whether a message of this size has a rendezvous."""
    return eager_limit_bytes is not None and found.bytes / found.messages > eager_limit_bytes


def fit(points: Iterable[Point], own_eager_limit: int | None = None) -> dict[tuple[Level, int | None], Fit]:
    """By level and eager limit, for those with two points or more whose cost is known;
    `own_eager_limit`: the library's where none was set.

    Of the logarithms, so that half and twice are as far off; in squares up to some 10 %, beyond
    that less and less (scipy.optimize.least_squares, soft_l1), because some algorithms cost more
    than their formula; each collective and size counts once, however many choices were measured at
    it.
    """
    of_level: dict[tuple[Level, int | None], list[tuple[MessageSteps, float, float]]] = {}
    points = list(points)
    alike = Counter(same_size(point) for point in points)
    for point in points:
        found = steps(point.operation, point.np, point.bytes, point.choice)
        if found is not None and not point.wrong:
            key = level(point.np, point.ranks_per_node), point.eager_limit_bytes
            weight = sqrt(1 / alike[same_size(point)])
            of_level.setdefault(key, []).append((found, Time.of(point.seconds).median, weight))
    return {
        key: fit_level(key[0], own_eager_limit if key[1] is None else key[1], rows)
        for key, rows in of_level.items()
        if len(rows) > 1
    }


def same_size(point: Point) -> tuple[object, ...]:
    return point.case, point.bytes, point.eager_limit_bytes


def fit_level(of: Level, eager_limit_bytes: int | None, rows: list[tuple[MessageSteps, float, float]]) -> Fit:
    """`rows`: of a point its steps, its seconds, and what its error counts."""
    seconds, weights = (np.array([row[column] for row in rows]) for column in (1, 2))
    terms = np.array(
        [
            (found.messages, found.bytes, found.messages if needs_rendezvous(found, eager_limit_bytes) else 0.0)
            for found, *_ in rows
        ]
    )
    shares = terms / seconds[:, None]
    # Of one size each, because bytes are millions where messages are few.
    scale = np.maximum(np.max(shares, axis=0), np.finfo(float).tiny)
    first = optimize.nnls(shares / scale, np.ones(len(rows)))[0]

    def errors(figures: NDArray[np.float64]) -> NDArray[np.float64]:
        found: NDArray[np.float64] = np.log(shares / scale @ figures) * weights
        return found

    best = optimize.least_squares(
        errors, np.maximum(first, INITIAL_SHARE), bounds=(0, np.inf), loss="soft_l1", f_scale=TYPICAL_ERROR
    )
    # The bound is never reached: what comes to nothing at every point is nothing.
    figures = np.where(np.max(shares / scale * best.x, axis=0) > NEGLIGIBLE_SHARE, best.x, 0.0) / scale
    start, per_byte, rendezvous = (float(figure) for figure in figures)
    off = np.abs(terms @ figures / seconds - 1)
    return Fit(
        level=of,
        start_seconds=start,
        bytes_per_second=1 / per_byte if per_byte > 0 else None,
        rendezvous_seconds=rendezvous,
        eager_limit_bytes=eager_limit_bytes,
        points=len(rows),
        error_percent=100 * float(np.median(off)),
    )


def wire_seconds(operation: str, nodes: int, total: int, bytes_per_second: float) -> float:
    """What the links need at least, each carrying so much in each direction: 0 within a node.

    A broadcast's last byte leaves the root once; an all-reduce sends and receives 2 (k - 1)/k of
    the message on each of k nodes, an all-gather and a gather (k - 1)/k of all ranks' bytes
    (Patarasuk and Yuan, "Bandwidth Optimal All-reduce Algorithms", 2009; Chan et al., 2007).
    """
    if nodes < 2:
        return 0.0
    share = {"broadcast": 1.0, "allreduce": 2 * (nodes - 1) / nodes}.get(operation, (nodes - 1) / nodes)
    return share * total / bytes_per_second
