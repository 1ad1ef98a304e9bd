"""What one start of ranks is to measure, and the lines in which rank 0 answers.

The controller writes the request into the run folder before the start.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from hvscale.bench.collectives.sizes import parse_size
from hvscale.core.documents import VersionedDocument
from hvscale.core.errors import RequestError
from hvscale.core.numbers import read_whole

Device = Literal["cpu", "cuda"]
# How a message in GPU or host memory reaches the library: --path.
MessagePath = Literal["host", "staged", "aware", "nccl"]
InPlace = Literal["both", "out", "in"]
ALL_ROOTS = -1  # each rank in turn, as in nccl-tests

# As OSU's benchmarks: many calls where a call is short. 20 is nccl-tests' number.
DEFAULT_ITERATIONS, DEFAULT_WARMUP = "8K:1000,1M:100,20", "8K:100,1M:10,3"
MOST_CALLS = 10**9
SAMPLES = 20  # the calls of a size are timed in this many batches, which give the confidence interval


class Size(BaseModel):
    """One message size, and the numbers of timed and untimed calls."""

    bytes: int
    count: int
    iterations: int
    warmup: int


class BenchRequest(VersionedDocument):
    """bench-request.json. `root`: a rank, or ALL_ROOTS. `until_interval`: percent of the mean.
    `places`: out of place, in place or both.

    `first_worker`: the rank of the first worker in an exchange with a parameter server: 1 with a
    server, 0 without one; None for a plain benchmark. The workers' parameters lie on `device`, the
    server's in host memory, in as few buffers as possible, whatever `places` says.
    """

    schema_: Literal["hvscale/bench-request/1"] = "hvscale/bench-request/1"
    collective: str
    backend: str
    path: MessagePath
    dtype: str
    device: Device
    root: int
    places: InPlace
    check: bool
    until_interval: float | None
    sizes: list[Size]
    first_worker: int | None = None

    @property
    def has_server(self) -> bool:
        return bool(self.first_worker)

    @classmethod
    def of_this_rank(cls) -> "BenchRequest":
        return cls.model_validate_json(request_path(run_of_this_rank()).read_text())


@dataclass(frozen=True)
class Schedule:
    """The number of calls by message size. `steps`: pairs of a size in bytes and the calls up to
    it; `beyond`: calls for larger sizes.
    """

    steps: tuple[tuple[int, int], ...]
    beyond: int

    @classmethod
    def parse(cls, option: str, text: str, least: int) -> "Schedule":
        """Reads `20`, or `8K:1000,1M:100,20`. Raises RequestError."""
        *steps, beyond = text.split(",")
        pairs = [step.partition(":") for step in steps]
        calls = [read_whole(number, 0, MOST_CALLS) for number in (beyond, *(pair[2] for pair in pairs))]
        if None in calls:
            raise RequestError(
                f"{option} {text}: give a number of calls, or SIZE:CALLS pairs and a number for larger sizes, such as {DEFAULT_ITERATIONS}"
            )
        found = cls(tuple((parse_size(option, size), int(number)) for size, _, number in pairs), int(beyond))
        limits = [limit for limit, _ in found.steps]
        if limits != sorted(set(limits)):
            raise RequestError(f"{option} {text}: the sizes must increase")
        if min([found.beyond, *(number for _, number in found.steps)]) < least:
            raise RequestError(f"{option} {text}: the number of calls must be at least {least}")
        return found

    def calls(self, size: int) -> int:
        """The number of calls at a size in bytes."""
        return next((number for limit, number in self.steps if size <= limit), self.beyond)


def samples_and_calls(iterations: int) -> tuple[int, int]:
    """The number of samples and the calls in each; together at least `iterations` calls."""
    samples = min(SAMPLES, iterations)
    return samples, -(-iterations // samples)


class FirstWrong(BaseModel):
    """The first element that differs from the expected value."""

    rank: int
    element: int
    got: float
    expected: float


class BenchStarted(BaseModel):
    """The first line: the library's name for itself, and the host of each rank."""

    kind: Literal["started"] = "started"
    library: str
    hosts: list[str]


class Refused(BaseModel):
    """The ranks cannot do what was requested; nothing was measured."""

    kind: Literal["refused"] = "refused"
    reason: str


class Measured(BaseModel):
    """One measured size. `seconds`: of a call on the slowest rank, one per sample. `rank_seconds`:
    each rank's mean.

    `wrong`: wrong elements over all ranks, None where results were not checked.
    """

    kind: Literal["measured"] = "measured"
    bytes: int
    count: int
    in_place: bool
    calls_per_sample: int
    seconds: list[float]
    rank_seconds: list[float]
    wrong: int | None = None
    first_wrong: FirstWrong | None = None


class ResultLine(BaseModel):
    """One line of bench.jsonl."""

    line: Annotated[BenchStarted | Refused | Measured, Field(discriminator="kind")]


def request_path(run: Path) -> Path:
    return run / "bench-request.json"


def results_path(run: Path) -> Path:
    return run / "bench.jsonl"


def run_of_this_rank() -> Path:
    return Path(os.environ["HVSCALE_RUN"])
