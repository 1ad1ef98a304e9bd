"""Reads the throughput of one run from its files and output."""

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
from hvscale.launch.supervision.output import uncoloured_lines_of
from hvscale.profiling.analyze.steps import read_step_log

ThroughputSource = Literal["metric", "result.json", "steps.jsonl", "horovod"]
NUMBER = r"([0-9][0-9.,]*(?:[eE][-+]?[0-9]+)?)"
# The last lines of the synthetic benchmarks among Horovod's examples.
HOROVOD_TOTAL = re.compile(rf"Total img/sec on (\d+) .+?\(s\): {NUMBER}")
HOROVOD_PER_RANK = re.compile(rf"Img/sec per [^:]+: {NUMBER}")
THOUSANDS = re.compile(r"\A[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9,])")
PER_RANK, TOTAL = "per_rank", "total"
WARMUP_STEPS = 3  # slower, because memory is allocated and kernels are compiled


@dataclass(frozen=True)
class Throughput:
    """The throughput of all ranks together. `threads_per_rank`: None if it is unknown."""

    value: float
    source: ThroughputSource
    unit: str | None
    threads_per_rank: int | None = None


@dataclass(frozen=True)
class Metric:
    """`--metric REGEX`.

    The group `per_rank` is the throughput of one rank. The group `total`, or else the first group,
    is the throughput of all ranks together.
    """

    pattern: re.Pattern[str]

    @classmethod
    def parse(cls, text: str) -> "Metric":
        """Raises RequestError if `text` is not a regular expression with a group."""
        try:
            pattern = re.compile(text)
        except re.error as error:
            raise RequestError(f"--metric '{text}' is not a regular expression: {error}") from error
        if not pattern.groups:
            raise RequestError(rf"--metric '{text}': put the number into a group, such as 'images/s: ([0-9.]+)'")
        return cls(pattern)

    @property
    def group(self) -> str | int:
        return next((name for name in (PER_RANK, TOTAL) if name in self.pattern.groupindex), 1)


def read_throughput(run: RunFolder, ranks: int, metric: Metric | None, warn: Callable[[str], None]) -> Throughput:
    """The throughput by `metric`, or else from result.json, steps.jsonl or Horovod's lines.

    Raises RequestError if the run does not report a throughput, UntrustedError if it ran on another
    number of ranks than `ranks`.
    """
    found = find_throughput(run, ranks, metric, warn)
    if found is None:
        raise RequestError(
            f"np {ranks}: no throughput found; give --metric REGEX for what the command prints in {run.log(0)}"
        )
    return found


def find_throughput(
    run: RunFolder, ranks: int, metric: Metric | None, warn: Callable[[str], None]
) -> Throughput | None:
    """As `read_throughput`, but None if there is none; a `metric` without a match still raises."""
    if metric is not None:
        return by_metric(run, ranks, metric, warn)
    for read in (from_result, from_steps, from_horovod_lines):
        found = read(run, ranks, warn)
        if found is not None:
            return found
    return None


def by_metric(run: RunFolder, ranks: int, metric: Metric, warn: Callable[[str], None]) -> Throughput:
    """The median of each rank's matches.

    `per_rank`: np times the mean over the ranks with a match. `total`: that of the lowest rank with
    a match.
    """
    by_rank = {
        rank: median(number(found[metric.group], run, rank) for found in matches)
        for rank in range(ranks)
        if (
            matches := [found for line in uncoloured_lines_of(run.log(rank)) for found in metric.pattern.finditer(line)]
        )
    }
    if not by_rank:
        raise RequestError(
            f"np {ranks}: --metric '{metric.pattern.pattern}' matches no line of the ranks' output: see {run.log(0)}"
        )
    if metric.group == PER_RANK:
        return Throughput(ranks * fmean(by_rank.values()), "metric", None)
    if len(by_rank) > 1 and metric.group != TOTAL:
        warn(
            f"--metric matches the output of {len(by_rank)} ranks; rank {min(by_rank)}'s number is used for all ranks together: "
            "name the group (?P<total>...) if that is right, or (?P<per_rank>...) if each rank prints its own"
        )
    return Throughput(by_rank[min(by_rank)], "metric", None)


class _Result(BaseModel):
    """The fields read from result.json, which any program may have written."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    images_per_second: Annotated[float, Field(gt=0)]
    np: int
    threads_per_rank: int | None = None


def from_result(run: RunFolder, ranks: int, warn: Callable[[str], None]) -> Throughput | None:
    """The trainer's own throughput, without its first steps."""
    try:
        result = _Result.model_validate_json(read_bytes(run.path / "result.json"))
    except (OSError, ValueError):
        return None
    check_ranks(result.np, ranks)
    return Throughput(result.images_per_second, "result.json", "images/s", result.threads_per_rank)


def from_steps(run: RunFolder, ranks: int, warn: Callable[[str], None]) -> Throughput | None:
    """Images over seconds, without the first steps if there are more."""
    log = read_step_log(run)
    if log is None:
        return None
    if log.warning is not None:
        warn(log.warning)
    with_images = np.flatnonzero(np.isfinite(log.images))
    if not len(with_images):
        return None
    counted = with_images[WARMUP_STEPS:] if len(with_images) > WARMUP_STEPS else with_images
    value = float(np.sum(log.images[counted]) / np.sum(log.seconds[counted]))
    return Throughput(value, "steps.jsonl", "images/s") if 0 < value < math.inf else None


def from_horovod_lines(run: RunFolder, ranks: int, warn: Callable[[str], None]) -> Throughput | None:
    """The total that Horovod's synthetic benchmarks print, or else np times their mean per rank."""
    per_rank: list[float] = []
    for rank in range(ranks):
        totals: list[re.Match[str]] = []
        means: list[re.Match[str]] = []
        for line in uncoloured_lines_of(run.log(rank)):
            totals += HOROVOD_TOTAL.finditer(line)
            means += HOROVOD_PER_RANK.finditer(line)
        if totals:
            for found in totals:
                check_ranks(int(found[1]), ranks)
            return Throughput(median(number(found[2], run, rank) for found in totals), "horovod", "images/s")
        per_rank += [number(found[1], run, rank) for found in means]
    return Throughput(ranks * fmean(per_rank), "horovod", "images/s") if per_rank else None


def check_ranks(ran_on: int, ranks: int) -> None:
    if ran_on != ranks:
        raise UntrustedError(
            f"np {ranks}: the command says that it ran on {ran_on}. Check that it calls hvd.init(), and that --mpi is the library it is built for"
        )


def rank_seconds(run: RunFolder) -> float:
    """Seconds from the last rank's start to the last rank's end, by the clocks of their hosts.

    Creating containers does not count. Raises UntrustedError if a rank has not recorded both times.
    """
    ranks = run.read().ranks
    started = [rank.started_at for rank in ranks if rank.started_at is not None]
    ended = [rank.ended_at for rank in ranks if rank.ended_at is not None]
    if not ranks or len(started) != len(ranks) or len(ended) != len(ranks):
        raise UntrustedError(f"{run.path}: not every rank has recorded its start and its end")
    if max(ended) <= max(started):
        raise UntrustedError(
            f"{run.path}: the last rank's end is not after the last rank's start: synchronize the hosts' clocks"
        )
    return max(ended) - max(started)


def number(text: str | None, run: RunFolder, rank: int) -> float:
    """Parse a number, also one such as `1,234.5`, but not a decimal comma.

    Raises RequestError if it is not a finite number above zero.
    """
    try:
        value = float(THOUSANDS.sub(lambda found: found[0].replace(",", ""), (text or "").strip().rstrip(",")))
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise RequestError(f"{text!r} in {run.log(rank)} is not a valid throughput: fix --metric")
    return value
