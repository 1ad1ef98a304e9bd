"""bench-param-server.json: the runs and the tables made from them."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from hvscale.bench.collectives.request import Device
from hvscale.core.statistics import as_columns, estimate, ratio, summarise
from hvscale.launch.options import LaunchOptions
from hvscale.studies.document import InterleavedDocument

SERVER_OPERATIONS = ("broadcast", "gather")  # a training step with a server needs both
ALLREDUCE = "allreduce"


class ExchangeVariant(BaseModel):
    """A variant to compare. `backend`: the library, for GPU memory with its path."""

    model_config = ConfigDict(frozen=True)

    operation: str
    backend: str
    placement: str
    workers: int

    @property
    def variant(self) -> "ExchangeVariant":
        """The variant of this row or run."""
        return ExchangeVariant(
            operation=self.operation, backend=self.backend, placement=self.placement, workers=self.workers
        )

    def __str__(self) -> str:
        return f"{self.operation}, {self.backend}, {self.placement}, workers {self.workers}"


class ParamServerRun(ExchangeVariant):
    """One run.

    `seconds`: of a call on the slowest rank, one per sample. `wrong`: the number of wrong elements
    over all ranks, None if not checked. `problem`: why the run does not count.
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


class ParamServerRow(ExchangeVariant):
    """One variant.

    `seconds`: the geometric mean of the starts' means with its 95 % interval; for a single start,
    the mean of its samples. `seconds_min`, `_p50`, `_max`: over all samples.
    """

    starts: int
    samples: int
    seconds: float
    seconds_low: float | None
    seconds_high: float | None
    seconds_min: float
    seconds_p50: float
    seconds_max: float


class BestAndWorst(BaseModel):
    """The best and the worst variant of an operation.

    `workers`: None for the best and worst over all numbers of workers. `best` and `worst`: over the
    rounds that all compared variants have. `saved_percent`: (1 - best / worst) * 100, round by
    round, with its 95 % interval.
    """

    operation: str
    workers: int | None
    best: ParamServerRow
    worst: ParamServerRow
    saved_percent: float | None
    saved_percent_low: float | None
    saved_percent_high: float | None


class StepExchange(BaseModel):
    """The exchange of a training step: broadcast plus gather with a server, or all-reduce.

    All over the rounds that all three operations have. `saved_percent`: (1 - all-reduce / server) *
    100, round by round, with its 95 % interval.
    """

    backend: str
    placement: str
    workers: int
    server_seconds: float
    allreduce_seconds: float
    saved_percent: float | None
    saved_percent_low: float | None
    saved_percent_high: float | None


class ParamServerDocument(InterleavedDocument):
    """The document that `hvscale bench param-server --json` prints and writes to
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
    rows: list[ParamServerRow] = []
    best_and_worst: list[BestAndWorst] = []
    step_exchanges: list[StepExchange] = []
    runs: list[ParamServerRun] = []

    def variants(self) -> list[ExchangeVariant]:
        """The variants in the order of a round. All-reduce needs at least two workers."""
        return [
            ExchangeVariant(operation=operation, backend=backend, placement=placement, workers=workers)
            for workers in self.workers
            for operation in self.operations
            for backend in self.backends
            for placement in self.placements
            if workers > 1 or operation != ALLREDUCE
        ]

    def tabulate(self) -> None:
        """Make the tables from the valid runs."""
        valid: dict[ExchangeVariant, list[ParamServerRun]] = {variant: [] for variant in self.variants()}
        for run in self.runs:
            if run.problem is None:
                valid[run.variant].append(run)
        measured = {variant: runs for variant, runs in valid.items() if runs}
        self.rows = [make_row(variant, runs) for variant, runs in measured.items()]
        means = {variant: {run.repeat: run.mean for run in runs} for variant, runs in measured.items()}
        numbers: list[int | None] = [*self.workers, *([None] if len(self.workers) > 1 else [])]
        self.best_and_worst = [
            found
            for operation, workers in itertools.product(self.operations, numbers)
            if (found := find_best_and_worst(measured, operation, workers)) is not None
        ]
        self.step_exchanges = list(compare_step_exchanges(means))


def make_row(variant: ExchangeVariant, runs: Sequence[ParamServerRun]) -> ParamServerRow:
    """The row of a variant from at least one run."""
    samples = [seconds for run in runs for seconds in run.seconds]
    all_samples = summarise(samples)
    over = estimate([run.mean for run in runs]) if len(runs) > 1 else all_samples
    return ParamServerRow(
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


def find_best_and_worst(
    measured: Mapping[ExchangeVariant, Sequence[ParamServerRun]], operation: str, workers: int | None
) -> BestAndWorst | None:
    """The best and the worst variant; None if fewer than two were measured in a common round."""
    among = {
        variant: {run.repeat: run for run in runs}
        for variant, runs in measured.items()
        if variant.operation == operation and workers in (None, variant.workers)
    }
    common = common_rounds(among.values())
    if len(among) < 2 or not common:
        return None
    rows = [make_row(variant, [runs[repeat] for repeat in common]) for variant, runs in among.items()]
    best, *_, worst = sorted(rows, key=lambda row: row.seconds)
    means = [{repeat: among[row.variant][repeat].mean for repeat in common} for row in (best, worst)]
    return BestAndWorst(operation=operation, workers=workers, best=best, worst=worst, **saved(*means))


def compare_step_exchanges(means: dict[ExchangeVariant, dict[int, float]]) -> Iterable[StepExchange]:
    """The exchanges for each back end, placement and number of workers with all three operations in
    a common round.
    """
    for variant, allreduce in means.items():
        if variant.operation != ALLREDUCE:
            continue
        parts = [means.get(variant.model_copy(update={"operation": operation}), {}) for operation in SERVER_OPERATIONS]
        common = common_rounds([allreduce, *parts])
        if common:
            server = {repeat: sum(part[repeat] for part in parts) for repeat in common}
            ours = {repeat: allreduce[repeat] for repeat in common}
            yield StepExchange(
                backend=variant.backend,
                placement=variant.placement,
                workers=variant.workers,
                server_seconds=estimate(list(server.values())).mean,
                allreduce_seconds=estimate(list(ours.values())).mean,
                **saved(ours, server),
            )


def common_rounds(groups: Iterable[Mapping[int, object]]) -> list[int]:
    """The rounds that all groups have: only within a round is the machine in the same state."""
    rounds = [set(group) for group in groups]
    return sorted(set.intersection(*rounds)) if rounds else []


def saved(better: dict[int, float], worse: dict[int, float]) -> dict[str, Any]:
    """The columns of (1 - better / worse) * 100, round by round; None if no round has both."""
    found = ratio(better, worse)
    return as_columns("saved_percent", found.saved_percent() if found is not None else None)
