"""The cost of a collective by Hockney's model: a message of m bytes takes a + m/b seconds.

A chain on n ranks for M bytes in chunks of C takes (n - 2 + M/C) (a + C/b); its best chunk is
sqrt(M a b / (n - 2)) (Awan et al., "Optimized Broadcast for Deep Learning Workloads on Dense-GPU
InfiniBand Clusters: MPI or NCCL?", 2018). The other formulas are those of Thakur, Rabenseifner and
Gropp, "Optimization of Collective Communication Operations in MPICH", 2005, without the cost of the
reduction. A message above the eager limit also pays for a rendezvous, the model's third parameter.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import ceil, log, sqrt
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from hvscale.comm_tuning.collectives.decide.measurements import AlgorithmChoice, Point, Time

INLIER_ERROR = 0.1  # of a time's logarithm; points with larger errors get less weight
# Shares of a point's time: the least initial value of a parameter, and what counts as zero.
MIN_INITIAL_SHARE, NEGLIGIBLE_SHARE = 1e-6, 1e-5
# Where messages travel: over the network (one rank per node), in memory (one node), or both.
Level = Literal["between nodes", "within a node", "both"]


@dataclass(frozen=True)
class CriticalPath:
    """The longest sequence of dependent messages: their number, and their total bytes."""

    messages: float
    bytes: float


def pipelined(fill_messages: float, sends: float, total: float, chunk: float) -> CriticalPath:
    """A pipeline of chunks, each sent `sends` times; the last arrives `fill_messages` later.

    `chunk`: at most `total`.
    """
    chunks = total / chunk
    messages = fill_messages + sends * chunks
    return CriticalPath(messages, messages * total / chunks)


def chain(n: int, total: float, choice: AlgorithmChoice) -> CriticalPath:
    return pipelined(n - 2, 1, total, chunk_of(total, choice))


def flat(n: int, total: float, choice: AlgorithmChoice) -> CriticalPath:
    return pipelined(0, n - 1, total, chunk_of(total, choice))


def tree(n: int, total: float, choice: AlgorithmChoice) -> CriticalPath:
    """The root is the bottleneck: it sends to radix - 1 ranks at each level."""
    radix = choice.radix or 2
    return pipelined(0, (radix - 1) * tree_depth(n, radix), total, chunk_of(total, choice))


def chunk_of(total: float, choice: AlgorithmChoice) -> float:
    return min(choice.chunk_bytes or choice.segment_bytes or total, total)


def tree_depth(n: int, radix: int = 2) -> int:
    # The logarithm of a power may come out slightly too large.
    return ceil(log(n, radix) - 1e-9)


def ring_allreduce(n: int, total: float, choice: AlgorithmChoice) -> CriticalPath:
    segments = max(total / n / choice.segment_bytes, 1) if choice.segment_bytes else 1
    return CriticalPath(2 * (n - 1) * segments, 2 * (n - 1) / n * total)


def doubling_allreduce(n: int, total: float, choice: AlgorithmChoice) -> CriticalPath:
    return CriticalPath(tree_depth(n), tree_depth(n) * total)


def halving_and_doubling(n: int, total: float, choice: AlgorithmChoice) -> CriticalPath:
    return CriticalPath(2 * tree_depth(n), 2 * (n - 1) / n * total)


def scatter_and_ring(n: int, total: float, choice: AlgorithmChoice) -> CriticalPath:
    return CriticalPath(tree_depth(n) + n - 1, 2 * (n - 1) / n * total)


def ring_allgather(n: int, total: float, choice: AlgorithmChoice) -> CriticalPath:
    return CriticalPath(n - 1, (n - 1) / n * total)


def doubling_allgather(n: int, total: float, choice: AlgorithmChoice) -> CriticalPath:
    return CriticalPath(tree_depth(n), (n - 1) / n * total)


# By operation, and by the name of hvscale's broadcast or of the library's algorithm.
COSTS: Mapping[tuple[str, str], Callable[[int, float, AlgorithmChoice], CriticalPath]] = {
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


def critical_path(operation: str, np: int, total: int, choice: AlgorithmChoice) -> CriticalPath | None:
    """None for an algorithm without a formula.

    That includes the library's own choice, and two-level, which uses network and memory.
    """
    name = choice.algorithm if choice.algorithm != "library" else f"library's {choice.library_algorithm}"
    cost = COSTS.get((operation, name))
    return cost(np, total, choice) if cost else None


def level_of(np: int, ranks_per_node: int) -> Level:
    if ranks_per_node == 1:
        return "between nodes"
    return "within a node" if ranks_per_node >= np else "both"


class Fit(BaseModel):
    """The parameters of one level under one eager limit (None: unknown).

    `start_seconds`: a, the start-up time of a message. `bytes_per_second`: b, None if the fitted
    cost per byte is zero. `rendezvous_seconds`: the additional cost of a message above
    `eager_limit_bytes`, 0 if no point shows it. `points`: the number of points in the fit.
    `error_percent`: the median relative error of the fit.
    """

    level: Level
    start_seconds: float
    bytes_per_second: float | None
    rendezvous_seconds: float
    eager_limit_bytes: int | None
    points: int
    error_percent: float

    def seconds(self, operation: str, np: int, total: int, choice: AlgorithmChoice) -> float | None:
        """The predicted time of a call; None for an algorithm without a formula."""
        path = critical_path(operation, np, total, choice)
        return None if path is None else self.path_seconds(path)

    def path_seconds(self, path: CriticalPath) -> float:
        per_byte = 0.0 if self.bytes_per_second is None else 1 / self.bytes_per_second
        start = self.start_seconds + (
            self.rendezvous_seconds if needs_rendezvous(path, self.eager_limit_bytes) else 0.0
        )
        return path.messages * start + path.bytes * per_byte

    def best_chunk(self, np: int, total: int) -> int:
        """The chunk in bytes that is fastest for a chain; the whole message between two ranks.

        Above the eager limit the formula includes the rendezvous; the cheaper of both chunks wins.
        """

        def formula(start: float) -> int:
            if np == 2 or self.bytes_per_second is None:
                return total
            return int(min(max(sqrt(total * start * self.bytes_per_second / (np - 2)), 1), total))

        limit = self.eager_limit_bytes or total
        chunks = {min(formula(self.start_seconds), limit), formula(self.start_seconds + self.rendezvous_seconds)}
        return min(
            sorted(chunks),
            key=lambda chunk: self.path_seconds(
                chain(np, total, AlgorithmChoice(algorithm="chain", chunk_bytes=chunk))
            ),
        )


def needs_rendezvous(path: CriticalPath, eager_limit_bytes: int | None) -> bool:
    """Whether the path's messages are larger than the eager limit."""
    return eager_limit_bytes is not None and path.bytes / path.messages > eager_limit_bytes


def fit(points: Iterable[Point], default_eager_limit: int | None = None) -> dict[tuple[Level, int | None], Fit]:
    """The fits by level and eager limit, for those with at least two points that have a formula.

    `default_eager_limit`: the library's limit in bytes for points without one. The fit minimizes
    errors of the times' logarithms, so that half and twice are equally wrong. Errors up to about 10
    % count as squares and larger ones less (scipy.optimize.least_squares, soft_l1), because some
    algorithms cost more than their formula. Each collective and size has the same total weight,
    whatever the number of choices measured there.
    """
    of_level: dict[tuple[Level, int | None], list[tuple[CriticalPath, float, float]]] = {}
    points = list(points)
    points_at_size = Counter(size_key(point) for point in points)
    for point in points:
        path = critical_path(point.operation, point.np, point.bytes, point.choice)
        if path is not None and not point.wrong:
            key = level_of(point.np, point.ranks_per_node), point.eager_limit_bytes
            weight = sqrt(1 / points_at_size[size_key(point)])
            of_level.setdefault(key, []).append((path, Time.of(point.seconds).median, weight))
    return {
        key: fit_level(key[0], default_eager_limit if key[1] is None else key[1], rows)
        for key, rows in of_level.items()
        if len(rows) > 1
    }


def size_key(point: Point) -> tuple[object, ...]:
    return point.case, point.bytes, point.eager_limit_bytes


def fit_level(level: Level, eager_limit_bytes: int | None, rows: list[tuple[CriticalPath, float, float]]) -> Fit:
    """`rows`: the path, the measured seconds and the weight of each point."""
    from scipy import optimize  # takes half of a rank's start, and only rank 0 fits

    seconds, weights = (np.array([row[column] for row in rows]) for column in (1, 2))
    terms = np.array(
        [
            (path.messages, path.bytes, path.messages if needs_rendezvous(path, eager_limit_bytes) else 0.0)
            for path, *_ in rows
        ]
    )
    shares = terms / seconds[:, None]
    # Scaled to similar magnitudes: bytes are millions while messages are few.
    scale = np.maximum(np.max(shares, axis=0), np.finfo(float).tiny)
    initial = optimize.nnls(shares / scale, np.ones(len(rows)))[0]

    def errors(parameters: NDArray[np.float64]) -> NDArray[np.float64]:
        found: NDArray[np.float64] = np.log(shares / scale @ parameters) * weights
        return found

    best = optimize.least_squares(
        errors, np.maximum(initial, MIN_INITIAL_SHARE), bounds=(0, np.inf), loss="soft_l1", f_scale=INLIER_ERROR
    )
    # The optimizer never reaches the bound of 0: a parameter that is negligible at every point is
    # zero.
    parameters = np.where(np.max(shares / scale * best.x, axis=0) > NEGLIGIBLE_SHARE, best.x, 0.0) / scale
    start, per_byte, rendezvous = (float(parameter) for parameter in parameters)
    relative_errors = np.abs(terms @ parameters / seconds - 1)
    return Fit(
        level=level,
        start_seconds=start,
        bytes_per_second=1 / per_byte if per_byte > 0 else None,
        rendezvous_seconds=rendezvous,
        eager_limit_bytes=eager_limit_bytes,
        points=len(rows),
        error_percent=100 * float(np.median(relative_errors)),
    )


def wire_seconds(operation: str, nodes: int, total: int, bytes_per_second: float) -> float:
    """The least time the links need, with `bytes_per_second` in each direction; 0 within a node.

    A broadcast's root sends the message once. In an all-reduce each of k nodes sends and receives 2
    (k - 1)/k of the message; in an all-gather and a gather, (k - 1)/k of all ranks' bytes
    (Patarasuk and Yuan, "Bandwidth Optimal All-reduce Algorithms", 2009; Chan et al., 2007).
    """
    if nodes < 2:
        return 0.0
    share = {"broadcast": 1.0, "allreduce": 2 * (nodes - 1) / nodes}.get(operation, (nodes - 1) / nodes)
    return share * total / bytes_per_second
