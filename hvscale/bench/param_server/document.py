"""bench-param-server.json: the starts that were made, and the tables over them."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from hvscale.bench.collectives.request import Device
from hvscale.bench.collectives.summary import summarise
from hvscale.core.statistics import as_columns, estimate, ratio
from hvscale.launch.options import LaunchOptions
from hvscale.studies.document import InterleavedDocument

SERVED = ("broadcast", "gather")  # what a step needs of a server
REPLACEMENT = "allreduce"


class Variant(BaseModel):
    """What is compared. `backend`: the library, and for GPU memory its path. One worker has nobody to all-reduce with."""

    model_config = ConfigDict(frozen=True)

    operation: str
    backend: str
    placement: str
    workers: int

    @property
    def variant(self) -> "Variant":
        """What a row or a run is of."""
        return Variant(operation=self.operation, backend=self.backend, placement=self.placement, workers=self.workers)

    def __str__(self) -> str:
        return f"{self.operation}, {self.backend}, {self.placement}, workers {self.workers}"


class ServerRun(Variant):
    """One start. `seconds`: for each sample what a call took the slowest rank; `wrong`: elements over all ranks, None where not checked.

    `problem`: why it does not count.
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


class ServerRow(Variant):
    """One variant. `seconds`: of a call, the geometric mean of the starts' means with its 95 % interval; with one start the mean of its samples.

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
    """The least and the largest seconds of an operation, over back ends, placements and, where `workers` is None, numbers of workers.

    `saved_percent`: what the best saves of the worst's time, round by round, with its 95 % interval.
    """

    operation: str
    workers: int | None
    best: ServerRow
    worst: ServerRow
    saved_percent: float | None
    saved_percent_low: float | None
    saved_percent_high: float | None


class Exchange(BaseModel):
    """A step's exchange: broadcast and gather together against the all-reduce. `saved_percent`: of the server's time, as in Extremes."""

    backend: str
    placement: str
    workers: int
    server_seconds: float
    allreduce_seconds: float
    saved_percent: float | None
    saved_percent_low: float | None
    saved_percent_high: float | None


class ServerDocument(InterleavedDocument):
    """What `hvscale bench param-server --json` prints, by alias, and the folder's bench-param-server.json. `bytes`: of the parameters."""

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

    def variants(self) -> list[Variant]:
        """In the order in which a round starts them."""
        return [
            Variant(operation=operation, backend=backend, placement=placement, workers=workers)
            for workers in self.workers
            for operation in self.operations
            for backend in self.backends
            for placement in self.placements
            if workers > 1 or operation != REPLACEMENT
        ]

    def tabulate(self) -> None:
        """Make the tables from the runs that count."""
        counting: dict[Variant, list[ServerRun]] = {variant: [] for variant in self.variants()}
        for run in self.runs:
            if run.problem is None:
                counting[run.variant].append(run)
        measured = {variant: runs for variant, runs in counting.items() if runs}
        self.rows = [row_of(variant, runs) for variant, runs in measured.items()]
        means = {variant: {run.repeat: run.mean for run in runs} for variant, runs in measured.items()}
        numbers: list[int | None] = [*self.workers, *([None] if len(self.workers) > 1 else [])]
        self.extremes = [
            found
            for operation, workers in itertools.product(self.operations, numbers)
            if (found := extremes(self.rows, means, operation, workers)) is not None
        ]
        self.exchanges = list(exchanges(means))


def row_of(variant: Variant, runs: Sequence[ServerRun]) -> ServerRow:
    """Of one run or more."""
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
        seconds_min=all_samples.least,
        seconds_p50=all_samples.median,
        seconds_max=all_samples.most,
    )


def extremes(
    rows: Sequence[ServerRow], means: dict[Variant, dict[int, float]], operation: str, workers: int | None
) -> Extremes | None:
    """None where fewer than two were measured."""
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


def exchanges(means: dict[Variant, dict[int, float]]) -> Iterable[Exchange]:
    """Of each back end, placement and number of workers that has all three operations."""
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
    """The columns of what `better` saves of `worse`'s time, in percent: (1 - better / worse) * 100. None without a round that has both."""
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
