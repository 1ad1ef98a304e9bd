"""bench.json: the options, a row for each size and back end, and crossovers between back ends."""

import itertools
from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel

from hvscale.bench.collectives.request import Device, InPlace, MeasuredSize, MessagePath, WrongElement
from hvscale.core.statistics import CONFIDENCE, summarise
from hvscale.launch.options import LaunchOptions
from hvscale.studies.document import StudyDocument

BackendRunState = Literal["waiting", "running", "finished", "failed", "interrupted"]


class BackendRun(BaseModel):
    """The launch of one back end.

    `name`: the back end, for GPU memory with its path. `library`: its version text. `problem`: why
    it failed.
    """

    name: str
    backend: str
    path: MessagePath
    flavour: str
    run: str
    library: str | None = None
    knobs: dict[str, str] = {}
    state: BackendRunState = "waiting"
    problem: str | None = None


class BenchRow(BaseModel):
    """One size on one back end, out of place or in place.

    `seconds*`: of a call on the slowest rank; `seconds` is the mean with its 95 % interval.
    `rank_seconds_*`: over the means of the ranks. `bytes`, `count` and the bandwidths are defined
    as in nccl-tests. `wrong`: the number of wrong elements, None if results were not checked.
    """

    backend: str
    bytes: int
    count: int
    in_place: bool
    iterations: int
    samples: int
    seconds: float
    seconds_low: float | None
    seconds_high: float | None
    seconds_min: float
    seconds_p50: float
    seconds_p99: float
    seconds_max: float
    rank_seconds_mean: float
    rank_seconds_min: float
    rank_seconds_max: float
    algbw_gigabytes_per_second: float
    busbw_gigabytes_per_second: float
    wrong: int | None


class WrongResult(WrongElement):
    """The first wrong element at one size."""

    backend: str
    bytes: int
    in_place: bool
    wrong: int


class Crossover(BaseModel):
    """Below `bytes` one back end is faster, above it the other; on neither side do their intervals
    overlap.
    """

    bytes: int
    faster_below: str
    faster_above: str


class BenchDocument(StudyDocument):
    """The document that `hvscale bench COLLECTIVE --json` prints and writes to bench.json."""

    schema_: Literal["hvscale/bench/2"] = "hvscale/bench/2"
    collective: str
    np: int
    dtype: str
    device: Device
    root: int
    reduction: str | None
    in_place: InPlace
    iterations: str
    warmup: str
    until_interval_percent: float | None
    launch: LaunchOptions
    confidence: float = CONFIDENCE
    backends: list[BackendRun] = []
    rows: list[BenchRow] = []
    wrong: list[WrongResult] = []
    crossovers: list[Crossover] = []


def make_row(name: str, measured: MeasuredSize, bus_factor: float) -> BenchRow:
    times = summarise(measured.seconds)
    algbw = measured.bytes / times.mean / 1e9
    ranks = measured.rank_seconds
    return BenchRow(
        backend=name,
        bytes=measured.bytes,
        count=measured.count,
        in_place=measured.in_place,
        iterations=len(measured.seconds) * measured.calls_per_sample,
        samples=len(measured.seconds),
        seconds=times.mean,
        seconds_low=times.low,
        seconds_high=times.high,
        seconds_min=times.min,
        seconds_p50=times.median,
        seconds_p99=times.p99,
        seconds_max=times.max,
        rank_seconds_mean=sum(ranks) / len(ranks),
        rank_seconds_min=min(ranks),
        rank_seconds_max=max(ranks),
        algbw_gigabytes_per_second=algbw,
        busbw_gigabytes_per_second=algbw * bus_factor,
        wrong=measured.wrong,
    )


def rows_to_compare(rows: Sequence[BenchRow]) -> list[BenchRow]:
    """The rows for comparing back ends: out of place, or in place if a back end has no others."""
    with_two_buffers = {row.backend for row in rows if not row.in_place}
    return [row for row in rows if not row.in_place or row.backend not in with_two_buffers]


def crossovers(rows: Sequence[BenchRow]) -> list[Crossover]:
    """The crossovers of each pair of back ends, in the order of sizes.

    A crossover is the geometric mean of two sizes between which the faster back end changes. The
    times of wrong results do not count.
    """
    tables: dict[str, dict[int, BenchRow]] = {}
    for row in rows_to_compare(rows):
        if not row.wrong:
            tables.setdefault(row.backend, {})[row.bytes] = row
    found = [
        crossover
        for one, other in itertools.combinations(tables.values(), 2)
        for crossover in _pair_crossovers(one, other)
    ]
    return sorted(found, key=lambda crossover: crossover.bytes)


def _pair_crossovers(one: dict[int, BenchRow], other: dict[int, BenchRow]) -> list[Crossover]:
    found: list[Crossover] = []
    previous: tuple[int, str] | None = None
    for size in sorted(one.keys() & other.keys()):
        faster, slower = sorted((one[size], other[size]), key=lambda row: row.seconds)
        if not _is_certainly_faster(faster, slower):
            continue
        if previous is not None and previous[1] != faster.backend:
            crossing = round((previous[0] * size) ** 0.5)
            found.append(Crossover(bytes=crossing, faster_below=previous[1], faster_above=faster.backend))
        previous = size, faster.backend
    return found


def _is_certainly_faster(faster: BenchRow, slower: BenchRow) -> bool:
    """Whether the intervals show that `faster` is faster; a single sample shows nothing."""
    return (
        faster.seconds_high is not None and slower.seconds_low is not None and faster.seconds_high < slower.seconds_low
    )
