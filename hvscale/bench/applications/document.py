"""bench-app.json: the runs of a program and the tables made from them."""

from collections.abc import Iterable
from statistics import median
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from hvscale.bench.applications import APPLICATIONS
from hvscale.bench.applications.build import Compiler
from hvscale.bench.applications.counters import Counters
from hvscale.bench.applications.programs.network import NetworkResult
from hvscale.core.run_folder import Library
from hvscale.core.statistics import Box, box, overhead
from hvscale.launch.options import LaunchOptions
from hvscale.studies.document import InterleavedDocument


class ApplicationVariant(BaseModel):
    """A variant to compare: a build, a placement and a number of ranks."""

    model_config = ConfigDict(frozen=True)

    flags: str
    placement: str
    np: int

    @property
    def variant(self) -> "ApplicationVariant":
        """The variant of this row or run."""
        return ApplicationVariant(flags=self.flags, placement=self.placement, np=self.np)

    def __str__(self) -> str:
        return f"{self.flags or 'no flags'}, {self.placement}, np {self.np}"


class ApplicationRun(ApplicationVariant):
    """One run.

    `seconds` and `result`: the program's output, None if it failed. `problem`: why the run does not
    count. `repeat` 0: the run on one rank for checking the others, if np 1 is not measured.
    """

    model_config = ConfigDict(frozen=False)

    repeat: int
    folder: str
    seconds: float | None = None
    result: dict[str, Any] | None = None
    problem: str | None = None


class ApplicationRow(ApplicationVariant):
    """One variant with the seconds over its runs.

    `speed_up`: median(base_np) / median(np) for the same build and placement, None without the
    base. `overhead_percent`: (median / median of the first placement - 1) * 100, with its 95 %
    bootstrap interval; None for the first placement.
    """

    runs: int
    median_seconds: float
    quartile_low_seconds: float
    quartile_high_seconds: float
    whisker_low_seconds: float
    whisker_high_seconds: float
    outlier_seconds: list[float]
    speed_up: float | None
    overhead_percent: float | None
    overhead_percent_low: float | None
    overhead_percent_high: float | None


class BestFlags(BaseModel):
    """The flags with the smallest sum of medians over np in a placement, among those measured on
    every np.
    """

    placement: str
    flags: str
    sum_of_median_seconds: float


class CountersRow(ApplicationVariant):
    """Event counts of one more run under perf, summed over the ranks. `problem`: why nothing was
    counted.
    """

    counters: Counters | None = None
    problem: str | None = None


class BandwidthRow(ApplicationVariant):
    """Bandwidth per pair in 10^9 bytes/s, over pairs and runs, while all pairs send messages of
    this size at once.
    """

    bytes: int
    median_gigabytes_per_second: float
    quartile_low_gigabytes_per_second: float
    quartile_high_gigabytes_per_second: float
    slowest_gigabytes_per_second: float


class PingRow(ApplicationVariant):
    """Round-trip time of one byte over all runs: the minimum, the median of the runs' medians, and
    the maximum.
    """

    min_seconds: float
    median_seconds: float
    max_seconds: float


class ApplicationDocument(InterleavedDocument):
    """The document that `hvscale bench app --json` prints and writes to bench-app.json."""

    schema_: Literal["hvscale/bench-app/2"] = "hvscale/bench-app/2"
    application: str
    source: str
    sizes: dict[str, int]
    flags: list[str]
    placements: list[str]
    np: list[int]
    base_np: int
    launch: LaunchOptions
    compiler: Compiler
    library: Library | None = None
    rows: list[ApplicationRow] = []
    best_flags: list[BestFlags] = []
    counters: list[CountersRow] = []
    bandwidth: list[BandwidthRow] = []
    pings: list[PingRow] = []
    runs: list[ApplicationRun] = []

    def variants(self) -> list[ApplicationVariant]:
        """The variants in the order of a round."""
        return [
            ApplicationVariant(flags=flags, placement=placement, np=np)
            for np in self.np
            for flags in self.flags
            for placement in self.placements
        ]

    def tabulate(self) -> None:
        """Make the tables from the valid runs."""
        measured = {variant: seconds_of(self.runs, variant) for variant in self.variants()}
        measured = {variant: seconds for variant, seconds in measured.items() if seconds}
        boxes = {variant: box(list(seconds.values())) for variant, seconds in measured.items()}
        if not APPLICATIONS.get(self.application).is_timed:
            self.bandwidth = [row for variant in measured for row in bandwidth_rows(self.runs, variant)]
            self.pings = [ping_row(self.runs, variant) for variant in measured]
            return
        self.rows = [self._row(variant, measured, boxes) for variant in measured]
        self.best_flags = [best for placement in self.placements for best in self._best(placement, boxes)]

    def _row(
        self,
        variant: ApplicationVariant,
        measured: dict[ApplicationVariant, dict[int, float]],
        boxes: dict[ApplicationVariant, Box],
    ) -> ApplicationRow:
        own = boxes[variant]
        base = boxes.get(variant.model_copy(update={"np": self.base_np}))
        first = variant.model_copy(update={"placement": self.placements[0]})
        over = overhead(measured[variant], measured.get(first, {})) if variant != first else None
        return ApplicationRow(
            **dict(variant),
            runs=len(measured[variant]),
            median_seconds=own.median,
            quartile_low_seconds=own.quartile_low,
            quartile_high_seconds=own.quartile_high,
            whisker_low_seconds=own.whisker_low,
            whisker_high_seconds=own.whisker_high,
            outlier_seconds=own.outliers,
            speed_up=base.median / own.median if base is not None else None,
            overhead_percent=over.percent if over is not None else None,
            overhead_percent_low=over.percent_low if over is not None else None,
            overhead_percent_high=over.percent_high if over is not None else None,
        )

    def _best(self, placement: str, boxes: dict[ApplicationVariant, Box]) -> list[BestFlags]:
        sums = {}
        for flags in self.flags:
            own = [boxes.get(ApplicationVariant(flags=flags, placement=placement, np=np)) for np in self.np]
            medians = [one.median for one in own if one is not None]
            if len(medians) == len(self.np):
                sums[flags] = sum(medians)
        if not sums:
            return []
        best = min(sums, key=lambda flags: sums[flags])
        return [BestFlags(placement=placement, flags=best, sum_of_median_seconds=sums[best])]


def valid_runs(runs: Iterable[ApplicationRun], variant: ApplicationVariant) -> list[ApplicationRun]:
    """The valid runs of the variant."""
    return [run for run in runs if run.variant == variant and run.problem is None]


def seconds_of(runs: Iterable[ApplicationRun], variant: ApplicationVariant) -> dict[int, float]:
    """The seconds of the variant's valid runs, by repeat."""
    return {run.repeat: run.seconds for run in valid_runs(runs, variant) if run.seconds is not None}


def network_results(runs: Iterable[ApplicationRun], variant: ApplicationVariant) -> list[NetworkResult]:
    return [NetworkResult.model_validate(run.result) for run in valid_runs(runs, variant)]


def bandwidth_rows(runs: Iterable[ApplicationRun], variant: ApplicationVariant) -> list[BandwidthRow]:
    """A row for each size."""
    reached: dict[int, list[float]] = {}
    for result in network_results(runs, variant):
        for one in result.bandwidth:
            reached.setdefault(one.bytes, []).extend(rate / 1e9 for rate in one.bytes_per_second)
    rows = []
    for size, rates in sorted(reached.items()):
        own = box(rates)
        rows.append(
            BandwidthRow(
                **dict(variant),
                bytes=size,
                median_gigabytes_per_second=own.median,
                quartile_low_gigabytes_per_second=own.quartile_low,
                quartile_high_gigabytes_per_second=own.quartile_high,
                slowest_gigabytes_per_second=min(rates),
            )
        )
    return rows


def ping_row(runs: Iterable[ApplicationRun], variant: ApplicationVariant) -> PingRow:
    """The row of a variant with at least one valid run."""
    pings = [result.ping_seconds for result in network_results(runs, variant)]
    return PingRow(
        **dict(variant),
        min_seconds=min(ping.min for ping in pings),
        median_seconds=median(ping.median for ping in pings),
        max_seconds=max(ping.max for ping in pings),
    )
