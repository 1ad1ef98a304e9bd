"""The request to the ranks of one launch, and the lines in which rank 0 writes the results.

The controller writes the request into the run folder before it starts the ranks.
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
# --path: how the library gets a message in host or GPU memory.
MessagePath = Literal["host", "staged", "aware", "nccl"]
InPlace = Literal["both", "out", "in"]
ALL_ROOTS = -1  # each rank in turn, as in nccl-tests

# More calls for short messages, as in OSU's benchmarks; 20 is the default of nccl-tests.
DEFAULT_ITERATIONS, DEFAULT_WARMUP = "8K:1000,1M:100,20", "8K:100,1M:10,3"
MAX_CALLS = 10**9
SAMPLES = 20  # batches of timed calls per size; the confidence interval is over them


class RequestedSize(BaseModel):
    """One message size and its numbers of timed and warm-up calls."""

    bytes: int
    count: int
    iterations: int
    warmup: int


class BenchRequest(VersionedDocument):
    """bench-request.json.

    `root`: a rank, or ALL_ROOTS. `until_interval`: in percent of the mean.

    `first_worker`: the rank of the first worker in a parameter exchange: 1 with a server, 0 without
    one; None for other benchmarks. In an exchange the workers' parameters are on `device`, the
    server's in host memory, and `in_place` is ignored to save buffers.
    """

    schema_: Literal["hvscale/bench-request/1"] = "hvscale/bench-request/1"
    collective: str
    backend: str
    path: MessagePath
    dtype: str
    device: Device
    root: int
    in_place: InPlace
    check: bool
    until_interval: float | None
    sizes: list[RequestedSize]
    first_worker: int | None = None

    @property
    def has_server(self) -> bool:
        return bool(self.first_worker)

    @classmethod
    def load_own(cls) -> "BenchRequest":
        return cls.model_validate_json(request_path(own_run_folder()).read_text())


@dataclass(frozen=True)
class Schedule:
    """The number of calls for each message size.

    `steps`: (size in bytes, calls up to that size); `largest`: calls for all larger sizes.
    """

    steps: tuple[tuple[int, int], ...]
    largest: int

    @classmethod
    def parse(cls, option: str, text: str, minimum: int) -> "Schedule":
        """Parse `20` or `8K:1000,1M:100,20`. Raises RequestError."""
        *steps, largest = text.split(",")
        pairs = [step.partition(":") for step in steps]
        calls = [read_whole(number, 0, MAX_CALLS) for number in (largest, *(pair[2] for pair in pairs))]
        if None in calls:
            raise RequestError(
                f"{option} {text}: give a number of calls, or SIZE:CALLS pairs and a number for larger sizes, such as {DEFAULT_ITERATIONS}"
            )
        found = cls(tuple((parse_size(option, size), int(number)) for size, _, number in pairs), int(largest))
        limits = [limit for limit, _ in found.steps]
        if limits != sorted(set(limits)):
            raise RequestError(f"{option} {text}: the sizes must increase")
        if min([found.largest, *(number for _, number in found.steps)]) < minimum:
            raise RequestError(f"{option} {text}: the number of calls must be at least {minimum}")
        return found

    def calls(self, size: int) -> int:
        """The number of calls at a size in bytes."""
        return next((number for limit, number in self.steps if size <= limit), self.largest)


def samples_and_calls(iterations: int) -> tuple[int, int]:
    """The number of samples and of calls in each, together at least `iterations` calls."""
    samples = min(SAMPLES, iterations)
    return samples, -(-iterations // samples)


class WrongElement(BaseModel):
    """The first element that differs from the expected value."""

    rank: int
    element: int
    got: float
    expected: float

    def describe(self, wrong: int) -> str:
        """The element in words, with the number of wrong elements."""
        return (
            f"rank {self.rank} got {self.got:g} in element {self.element}, expected {self.expected:g}; "
            f"wrong elements: {wrong}"
        )


class BenchStarted(BaseModel):
    """The first line: the library's version text and the host of each rank."""

    kind: Literal["started"] = "started"
    library: str
    hosts: list[str]


class Refused(BaseModel):
    """The ranks cannot measure the request."""

    kind: Literal["refused"] = "refused"
    reason: str


Times = Annotated[list[Annotated[float, Field(ge=0, allow_inf_nan=False)]], Field(min_length=1)]


class MeasuredSize(BaseModel):
    """The times of one size.

    `seconds`: of a call on the slowest rank, one per sample. `rank_seconds`: each rank's mean.
    `wrong`: the number of wrong elements over all ranks, None if results were not checked.
    """

    kind: Literal["measured"] = "measured"
    bytes: int
    count: int
    in_place: bool
    calls_per_sample: int
    seconds: Times
    rank_seconds: Times
    wrong: int | None = None
    first_wrong: WrongElement | None = None


class ResultLine(BaseModel):
    """One line of bench.jsonl."""

    line: Annotated[BenchStarted | Refused | MeasuredSize, Field(discriminator="kind")]


def request_path(run: Path) -> Path:
    return run / "bench-request.json"


def results_path(run: Path) -> Path:
    return run / "bench.jsonl"


def own_run_folder() -> Path:
    return Path(os.environ["HVSCALE_RUN"])
