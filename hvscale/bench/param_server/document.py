"""bench-param-server.json: the runs, and the tables over them."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from hvscale.bench.collectives.request import Device
from hvscale.core.statistics import as_columns, estimate, ratio, summarise
from hvscale.launch.options import LaunchOptions
from hvscale.studies.document import InterleavedDocument

SERVED = ("broadcast", "gather")  # the operations of a training step with a server
REPLACEMENT = "allreduce"


class ExchangeVariant(BaseModel):
    """What is compared. `backend`: the library, for GPU memory with its path. All-reduce needs at
    least two workers.
    """

    model_config = ConfigDict(frozen=True)

    operation: str
    backend: str
    placement: str
    workers: int

    @property
    def variant(self) -> "ExchangeVariant":
        """The variant of a row or a run."""
        return ExchangeVariant(
            operation=self.operation, backend=self.backend, placement=self.placement, workers=self.workers
        )

    def __str__(self) -> str:
        return f"{self.operation}, {self.backend}, {self.placement}, workers {self.workers}"


class ServerRun(ExchangeVariant):
    """One run. `seconds`: of a call on the slowest rank, one per sample. `wrong`: wrong elements
    over all ranks, None if not checked.

    `problem`: why the run does not count.
    """

    model_config = ConfigDict(frozen=False)

    repeat: int
    folder: str
    seconds: list[float] = []
    wrong: int | None = None
    problem: str | None = None

    @property
    def mean(self) -> float:
        return sum(self.seconds) / len(self.seconds)


class ServerRow(ExchangeVariant):
    """One variant. `seconds`: of a call, the geometric mean of the runs' means with its 95 %
    interval; for one run the mean of its samples.

    `seconds_min`, `_p50`, `_max`: over all samples.
    """

    starts: int
    samples: int
    seconds: float
    seconds_low: float | None
    seconds_high: float | None
    seconds_min: float
    seconds_p50: float
    seconds_max: float


class Extremes(BaseModel):
    """The best and the worst variant of an operation, over back ends, placements and, where
    `workers` is None, numbers of workers.

    `saved_percent`: the share of the worst's time that the best saves, round by round, with its 95
    % interval.
    """

    operation: str
    workers: int | None
    best: ServerRow
    worst: ServerRow
    saved_percent: float | None
    saved_percent_low: float | None
    saved_percent_high: float | None


class Exchange(BaseModel):
    """The exchange of a step: broadcast and gather together against all-reduce. `saved_percent`: of
    the server's time.
    """

    backend: str
    placement: str
    workers: int
    server_seconds: float
    allreduce_seconds: float
    saved_percent: float | None
    saved_percent_low: float | None
    saved_percent_high: float | None


class ServerDocument(InterleavedDocument):
    """What `hvscale bench param-server --json` prints, by alias, and the folder's
    bench-param-server.json. `bytes`: of the parameters.
    """

    schema_: Literal["hvscale/bench-param-server/2"] = "hvscale/bench-param-server/2"
    bytes: int
    dtype: str
    device: Device
    operations: list[str]
    backends: list[str]
    placements: list[str]
    workers: list[int]
    iterations: int
    warmup: int
    check: bool
    launch: LaunchOptions
    libraries: dict[str, str] = {}
    rows: list[ServerRow] = []
    extremes: list[Extremes] = []
    exchanges: list[Exchange] = []
    runs: list[ServerRun] = []

    def variants(self) -> list[ExchangeVariant]:
        """In the order in which a round starts them."""
        return [
            ExchangeVariant(operation=operation, backend=backend, placement=placement, workers=workers)
            for workers in self.workers
            for operation in self.operations
            for backend in self.backends
            for placement in self.placements
            if workers > 1 or operation != REPLACEMENT
        ]

    def tabulate(self) -> None:
        """Make the tables from the valid runs."""
        counting: dict[ExchangeVariant, list[ServerRun]] = {variant: [] for variant in self.variants()}
        for run in self.runs:
            if run.problem is None:
                counting[run.variant].append(run)
        measured = {variant: runs for variant, runs in counting.items() if runs}
        self.rows = [make_row(variant, runs) for variant, runs in measured.items()]
        means = {variant: {run.repeat: run.mean for run in runs} for variant, runs in measured.items()}
        numbers: list[int | None] = [*self.workers, *([None] if len(self.workers) > 1 else [])]
        self.extremes = [
            found
            for operation, workers in itertools.product(self.operations, numbers)
            if (found := extremes(self.rows, means, operation, workers)) is not None
        ]
        self.exchanges = list(exchanges(means))


def make_row(variant: ExchangeVariant, runs: Sequence[ServerRun]) -> ServerRow:
    """The row of a variant from at least one run."""
    samples = [seconds for run in runs for seconds in run.seconds]
    all_samples = summarise(samples)
    over = estimate([run.mean for run in runs]) if len(runs) > 1 else all_samples
    return ServerRow(
        **dict(variant),
        starts=len(runs),
        samples=len(samples),
        seconds=over.mean,
        seconds_low=over.low,
        seconds_high=over.high,
        seconds_min=all_samples.min,
        seconds_p50=all_samples.median,
        seconds_max=all_samples.max,
    )


def extremes(
    rows: Sequence[ServerRow], means: dict[ExchangeVariant, dict[int, float]], operation: str, workers: int | None
) -> Extremes | None:
    """The best and the worst; None where fewer than two were measured."""
    among = [row for row in rows if row.operation == operation and workers in (None, row.workers)]
    if len(among) < 2:
        return None
    best, *_, worst = sorted(among, key=lambda row: row.seconds)
    return Extremes(
        operation=operation,
        workers=workers,
        best=best,
        worst=worst,
        **saved(means[best.variant], means[worst.variant]),
    )


def exchanges(means: dict[ExchangeVariant, dict[int, float]]) -> Iterable[Exchange]:
    """The exchanges of each back end, placement and number of workers with all three operations
    measured.
    """
    for variant, replaced in means.items():
        if variant.operation != REPLACEMENT:
            continue
        parts = [means.get(variant.model_copy(update={"operation": operation}), {}) for operation in SERVED]
        rounds = set.intersection(*(set(part) for part in parts))
        server = {repeat: sum(part[repeat] for part in parts) for repeat in rounds}
        if server:
            yield Exchange(
                backend=variant.backend,
                placement=variant.placement,
                workers=variant.workers,
                server_seconds=estimate(list(server.values())).mean,
                allreduce_seconds=estimate(list(replaced.values())).mean,
                **saved(replaced, server),
            )


def saved(better: dict[int, float], worse: dict[int, float]) -> dict[str, Any]:
    """The columns of (1 - better / worse) * 100, round by round; None where no round has both."""
    change = ratio(better, worse)
    if change is None:
        return dict.fromkeys(("saved_percent", "saved_percent_low", "saved_percent_high"))
    kept = change.change_percent()
    turned = kept.model_copy(
        update={
            "mean": -kept.mean,
            "low": None if kept.high is None else -kept.high,
            "high": None if kept.low is None else -kept.low,
        }
    )
    return as_columns("saved_percent", turned)
