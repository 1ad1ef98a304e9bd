"""bench.json: the request, one row for each size and back end, and the crossovers between back
ends.
"""

import itertools
from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel

from hvscale.bench.collectives.request import Device, FirstWrong, InPlace, Measured, MessagePath
from hvscale.core.statistics import CONFIDENCE, summarise
from hvscale.launch.options import LaunchOptions
from hvscale.studies.document import StudyDocument

State = Literal["waiting", "running", "finished", "failed", "interrupted"]


class BackendRun(BaseModel):
    """One start. `name`: the back end, for GPU memory with its path. `library`: its name for
    itself. `problem`: why it failed.
    """

    name: str
    backend: str
    path: MessagePath
    flavour: str
    run: str
    library: str | None = None
    knobs: dict[str, str] = {}
    state: State = "waiting"
    problem: str | None = None


class BenchRow(BaseModel):
    """One size on one back end, out of place or in place.

    `seconds*`: of a call on the slowest rank; `seconds` is the mean with its 95 % interval.
    `rank_seconds_*`: over the ranks' own means. `bytes`, `count` and the bandwidths as in
    nccl-tests. `wrong`: wrong elements, None where not checked.
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


class Wrong(FirstWrong):
    """The first wrong element at one size."""

    backend: str
    bytes: int
    in_place: bool
    wrong: int


class Crossover(BaseModel):
    """Below `bytes` one back end is faster, above it the other, beyond their intervals on both
    sides.
    """

    bytes: int
    faster_below: str
    faster_above: str


class BenchDocument(StudyDocument):
    """What `hvscale bench COLLECTIVE --json` prints, by alias, and the bench folder's
    bench.json.
    """

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
    wrong: list[Wrong] = []
    crossovers: list[Crossover] = []


def row_of(name: str, measured: Measured, bus_factor: float) -> BenchRow:
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


def main_rows(rows: Sequence[BenchRow]) -> list[BenchRow]:
    """The rows by which back ends are compared: out of place, or in place where a back end has no
    others.
    """
    with_two_buffers = {row.backend for row in rows if not row.in_place}
    return [row for row in rows if not row.in_place or row.backend not in with_two_buffers]


def crossovers(rows: Sequence[BenchRow]) -> list[Crossover]:
    """The crossovers of each pair of back ends, by size: the geometric mean of two sizes at which
    different ones are faster for sure.
    """
    tables: dict[str, dict[int, BenchRow]] = {}
    for row in main_rows(rows):
        tables.setdefault(row.backend, {})[row.bytes] = row
    found = [
        crossover for one, other in itertools.combinations(tables.values(), 2) for crossover in _between(one, other)
    ]
    return sorted(found, key=lambda crossover: crossover.bytes)


def _between(one: dict[int, BenchRow], other: dict[int, BenchRow]) -> list[Crossover]:
    found: list[Crossover] = []
    before: tuple[int, str] | None = None
    for size in sorted(one.keys() & other.keys()):
        faster, slower = sorted((one[size], other[size]), key=lambda row: row.seconds)
        if not _is_below(faster, slower):
            continue
        if before is not None and before[1] != faster.backend:
            middle = round((before[0] * size) ** 0.5)
            found.append(Crossover(bytes=middle, faster_below=before[1], faster_above=faster.backend))
        before = size, faster.backend
    return found


def _is_below(faster: BenchRow, slower: BenchRow) -> bool:
    if faster.seconds_high is None or slower.seconds_low is None:
        return faster.seconds < slower.seconds
    return faster.seconds_high < slower.seconds_low
