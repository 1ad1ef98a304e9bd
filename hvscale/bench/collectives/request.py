"""What one start of ranks is to measure: written into its run folder before it, read by the ranks. And the lines in which rank 0 answers."""

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
Way = Literal["host", "staged", "aware", "nccl"]
InPlace = Literal["both", "out", "in"]
ALL_ROOTS = -1  # each rank in turn, as in nccl-tests


class Size(BaseModel):
    """One message, and how many calls of it."""

    bytes: int
    count: int
    iterations: int
    warmup: int


class Request(VersionedDocument):
    """bench-request.json. `root`: or ALL_ROOTS; `until_interval`: percent of the mean; `places`: out of place, in place or both.

    `first_worker`: where parameters are exchanged, the rank of the first worker: 1 behind a server, 0 without one. The workers' parameters lie
    on `device`, the server's in its node's memory, in as few buffers as will do, whatever `places` says.
    """

    schema_: Literal["hvscale/bench-request/1"] = "hvscale/bench-request/1"
    collective: str
    backend: str
    path: Way
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
    def of_this_rank(cls) -> "Request":
        return cls.model_validate_json(request_path(run_of_this_rank()).read_text())


class FirstWrong(BaseModel):
    """The first element that was not what it must be."""

    rank: int
    element: int
    got: float
    expected: float


class Begun(BaseModel):
    """The first line: whose library does it, and on which host each rank is."""

    kind: Literal["begun"] = "begun"
    library: str
    hosts: list[str]


class Refused(BaseModel):
    """A request that cannot be met on the nodes; nothing was measured."""

    kind: Literal["refused"] = "refused"
    why: str


class Measured(BaseModel):
    """One size. `seconds`: for each sample what a call took the slowest rank; `rank_seconds`: each rank's mean. `wrong`: over all ranks."""

    kind: Literal["measured"] = "measured"
    bytes: int
    count: int
    in_place: bool
    calls_per_sample: int
    seconds: list[float]
    rank_seconds: list[float]
    wrong: int | None = None
    first_wrong: FirstWrong | None = None


class Line(BaseModel):
    """One line of bench.jsonl."""

    line: Annotated[Begun | Refused | Measured, Field(discriminator="kind")]


def request_path(run: Path) -> Path:
    return run / "bench-request.json"


def results_path(run: Path) -> Path:
    return run / "bench.jsonl"


def run_of_this_rank() -> Path:
    return Path(os.environ["HVSCALE_RUN"])


# As OSU's benchmarks: many calls where one is short. 20 is nccl-tests' number.
DEFAULT_ITERATIONS, DEFAULT_WARMUP = "8K:1000,1M:100,20", "8K:100,1M:10,3"
MOST_CALLS = 10**9
SAMPLES = 20  # the calls of a size are timed in so many parts, which tell the interval


@dataclass(frozen=True)
class Schedule:
    """`steps`: up to how many bytes, how many calls; `beyond`: for all larger ones."""

    steps: tuple[tuple[int, int], ...]
    beyond: int

    @classmethod
    def parse(cls, option: str, text: str, least: int) -> "Schedule":
        """`20`, or `8K:1000,1M:100,20`. Raises RequestError."""
        *steps, beyond = text.split(",")
        pairs = [step.partition(":") for step in steps]
        calls = [read_whole(number, 0, MOST_CALLS) for number in (beyond, *(pair[2] for pair in pairs))]
        if None in calls:
            raise RequestError(
                f"{option} {text}: write a number of calls, or numbers up to sizes and one for what is beyond: {DEFAULT_ITERATIONS}"
            )
        found = cls(tuple((parse_size(option, size), int(number)) for size, _, number in pairs), int(beyond))
        limits = [limit for limit, _ in found.steps]
        if limits != sorted(set(limits)):
            raise RequestError(f"{option} {text}: the sizes must grow")
        if min([found.beyond, *(number for _, number in found.steps)]) < least:
            raise RequestError(f"{option} {text}: at least {least} is needed")
        return found

    def of(self, size: int) -> int:
        return next((number for limit, number in self.steps if size <= limit), self.beyond)


def parts(iterations: int) -> tuple[int, int]:
    """Samples, and the calls in each: together at least `iterations` calls."""
    samples = min(SAMPLES, iterations)
    return samples, -(-iterations // samples)
