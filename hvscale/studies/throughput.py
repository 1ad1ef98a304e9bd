"""The throughput of one run, from what it wrote."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, median
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from hvscale.core.errors import RequestError, UntrustedError
from hvscale.core.files import read_bytes
from hvscale.core.run_folder import RunFolder
from hvscale.launch.supervision.output import lines_of
from hvscale.profiling.analyze.steps import read_step_log

Source = Literal["metric", "result.json", "steps.jsonl", "horovod"]
NUMBER = r"([0-9][0-9.,]*(?:[eE][-+]?[0-9]+)?)"
# What the synthetic benchmarks among Horovod's examples print at their end.
HOROVOD_TOTAL = re.compile(rf"Total img/sec on (\d+) .+?\(s\): {NUMBER}")
HOROVOD_PER_RANK = re.compile(rf"Img/sec per [^:]+: {NUMBER}")
PER_RANK, TOTAL = "per_rank", "total"
FIRST_STEPS = 3  # slower, because memory is allocated and kernels are compiled


@dataclass(frozen=True)
class Throughput:
    """Of all ranks together. `threads_per_rank`: None where the run does not tell."""

    value: float
    source: Source
    unit: str | None
    threads_per_rank: int | None = None


@dataclass(frozen=True)
class Metric:
    """`--metric REGEX`. Its group named `per_rank` is a rank's own throughput; one named `total`,
    or else the first, that of all ranks.
    """

    pattern: re.Pattern[str]

    @classmethod
    def parse(cls, text: str) -> "Metric":
        """Raises RequestError when it is not a regular expression with a group."""
        try:
            pattern = re.compile(text)
        except re.error as error:
            raise RequestError(f"--metric {text!r} is not a regular expression: {error}") from error
        if not pattern.groups:
            raise RequestError(rf"--metric {text!r}: put the number into a group, such as 'images/s: ([0-9.]+)'")
        return cls(pattern)

    @property
    def group(self) -> str | int:
        return next((name for name in (PER_RANK, TOTAL) if name in self.pattern.groupindex), 1)


def read_throughput(run: RunFolder, ranks: int, metric: Metric | None, warn: Callable[[str], None]) -> Throughput:
    """From `metric` where there is one; else from our trainer's result.json, from steps.jsonl, or
    from Horovod's lines.

    Raises RequestError when the run tells no throughput, UntrustedError when it ran on another
    number of ranks than it was started on.
    """
    found = find_throughput(run, ranks, metric, warn)
    if found is None:
        raise RequestError(
            f"np {ranks}: nothing tells the throughput; say with --metric REGEX what the command prints in {run.log(0)}"
        )
    return found


def find_throughput(
    run: RunFolder, ranks: int, metric: Metric | None, warn: Callable[[str], None]
) -> Throughput | None:
    """The same, but None when nothing tells it; what `metric` does not find is still a
    RequestError.
    """
    if metric is not None:
        return by_metric(run, ranks, metric, warn)
    for read in (from_result, from_steps, from_horovod_lines):
        found = read(run, ranks, warn)
        if found is not None:
            return found
    return None


def by_metric(run: RunFolder, ranks: int, metric: Metric, warn: Callable[[str], None]) -> Throughput:
    """The median of a rank's matches; of `total` the lowest rank's, of `per_rank` np times the mean
    over the ranks that say it.
    """
    of_ranks = {
        rank: median(number(found[metric.group], run, rank) for found in matches)
        for rank in range(ranks)
        if (matches := [found for line in lines_of(run.log(rank)) for found in metric.pattern.finditer(line)])
    }
    if not of_ranks:
        raise RequestError(
            f"np {ranks}: --metric {metric.pattern.pattern!r} matches nothing that the ranks printed: see {run.log(0)}"
        )
    if metric.group == PER_RANK:
        return Throughput(ranks * fmean(of_ranks.values()), "metric", None)
    if len(of_ranks) > 1 and metric.group != TOTAL:
        warn(
            f"{len(of_ranks)} ranks print what --metric matches; rank {min(of_ranks)}'s is taken as that of all together: "
            "name the group (?P<total>...) if it is, (?P<per_rank>...) if it is each rank's own"
        )
    return Throughput(of_ranks[min(of_ranks)], "metric", None)


class _Result(BaseModel):
    """What is read of result.json, which any program may have written."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    images_per_second: Annotated[float, Field(gt=0)]
    np: int
    threads_per_rank: int | None = None


def from_result(run: RunFolder, ranks: int, warn: Callable[[str], None]) -> Throughput | None:
    """Our trainer's own figure, which leaves the first steps out."""
    try:
        result = _Result.model_validate_json(read_bytes(run.path / "result.json"))
    except (OSError, ValueError):
        return None
    check_ranks(result.np, ranks)
    return Throughput(result.images_per_second, "result.json", "images/s", result.threads_per_rank)


def from_steps(run: RunFolder, ranks: int, warn: Callable[[str], None]) -> Throughput | None:
    """Images over seconds, without the first steps where there are others."""
    log = read_step_log(run)
    if log is None:
        return None
    if log.warning is not None:
        warn(log.warning)
    told = np.flatnonzero(np.isfinite(log.images))
    if not len(told):
        return None
    counted = told[FIRST_STEPS:] if len(told) > FIRST_STEPS else told
    value = float(np.sum(log.images[counted]) / np.sum(log.seconds[counted]))
    return Throughput(value, "steps.jsonl", "images/s") if 0 < value < math.inf else None


def from_horovod_lines(run: RunFolder, ranks: int, warn: Callable[[str], None]) -> Throughput | None:
    """The total that Horovod's synthetic benchmarks print, or else np times what they print for a
    rank.
    """
    own: list[float] = []
    for rank in range(ranks):
        totals: list[re.Match[str]] = []
        of_rank: list[re.Match[str]] = []
        for line in lines_of(run.log(rank)):
            totals += HOROVOD_TOTAL.finditer(line)
            of_rank += HOROVOD_PER_RANK.finditer(line)
        if totals:
            for found in totals:
                check_ranks(int(found[1]), ranks)
            return Throughput(median(number(found[2], run, rank) for found in totals), "horovod", "images/s")
        own += [number(found[1], run, rank) for found in of_rank]
    return Throughput(ranks * fmean(own), "horovod", "images/s") if own else None


def check_ranks(ran_on: int, ranks: int) -> None:
    if ran_on != ranks:
        raise UntrustedError(
            f"np {ranks}: the command says that it ran on {ran_on}; does it call hvd.init(), and is --mpi the one it is built for?"
        )


def rank_seconds(run: RunFolder) -> float:
    """From the last rank's start to the last one's end, so without the making of containers; by the
    clocks of the ranks' hosts.

    Raises UntrustedError where ranks have not noted both.
    """
    ranks = run.read().ranks
    started = [rank.started_at for rank in ranks if rank.started_at is not None]
    ended = [rank.ended_at for rank in ranks if rank.ended_at is not None]
    if not ranks or len(started) != len(ranks) or len(ended) != len(ranks):
        raise UntrustedError(f"{run.path}: not every rank has noted when it began and ended")
    if max(ended) <= max(started):
        raise UntrustedError(f"{run.path}: no time between the last rank's start and end: do the hosts' clocks agree?")
    return max(ended) - max(started)


def number(text: str | None, run: RunFolder, rank: int) -> float:
    """`1,234.5` too. Raises RequestError when it is not a number above zero."""
    try:
        value = float((text or "").replace(",", ""))
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise RequestError(f"{text!r} is not a valid throughput: it was found in {run.log(rank)}; fix --metric")
    return value
