"""What was measured: each algorithm of a collective at each size, with its samples."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from hvscale.comm_tuning.collectives.tables.library_algorithms import OWN_CHOICE
from hvscale.comm_tuning.collectives.tables.table import (
    MOST_BYTES,
    MOST_RANKS,
    Algorithm,
    CollectivesTable,
    Operation,
    Protocol,
    Rule,
)
from hvscale.core.documents import VersionedDocument
from hvscale.core.errors import RequestError
from hvscale.core.files import read_bytes
from hvscale.core.run_folder import write_atomically
from hvscale.core.statistics import estimate


class Choice(BaseModel):
    """What a message may take, in the fields of a table's rule. With all but `algorithm` None, `library` is the library's own choice."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    algorithm: Algorithm = "library"
    library_algorithm: str | None = None
    segment_bytes: int | None = None
    protocol: Protocol | None = None
    channels: int | None = None
    chunk_bytes: int | None = None
    depth: int | None = None
    radix: int | None = None

    @model_serializer(mode="wrap")
    def without_what_it_has_not(self, serialize: SerializerFunctionWrapHandler) -> dict[str, int | str]:
        """Thousands of these stand in a study's document."""
        return {name: value for name, value in serialize(self).items() if value is not None}

    @property
    def order(self) -> tuple[tuple[bool, int, str], ...]:
        """The same for the same choice, in any run: what decides between equals."""
        values = (getattr(self, name) for name in type(self).model_fields)
        return tuple((value is not None, value if isinstance(value, int) else 0, str(value)) for value in values)

    def fields(self) -> dict[str, int | str]:
        return self.model_dump(exclude_none=True)

    def __str__(self) -> str:
        """For people: `chain chunk_bytes=32768 depth=8`, `library's ring segment_bytes=65536`."""
        told = self.fields()
        algorithm, name = told.pop("algorithm"), told.pop("library_algorithm", None)
        first = algorithm if name is None else f"library's {name}"
        return " ".join([str(first), *(f"{field}={value}" for field, value in told.items())])


LIBRARY = Choice()
TOLD = Choice(library_algorithm=OWN_CHOICE)


class Place(NamedTuple):
    """Where messages are alike: what is decided for one place says nothing of another."""

    operation: Operation
    np: int
    ranks_per_node: int


class Point(BaseModel):
    """One choice at one size, under one eager limit (None: the library's own).

    `bytes`: of the message; of an all-gather and a gather those of all ranks together, as `hvscale bench` counts. `seconds`: a sample each, of the
    slowest rank. `wrong`: results that were not what they should be; a choice that has any is never taken. `starts`: of ranks, that samples are of.
    """

    model_config = ConfigDict(extra="forbid")

    operation: Operation
    np: int = Field(ge=2, le=MOST_RANKS)
    ranks_per_node: int = Field(ge=1, le=MOST_RANKS)
    bytes: int = Field(ge=1, le=MOST_BYTES)
    eager_limit_bytes: int | None = Field(default=None, ge=1, le=MOST_RANKS)
    choice: Choice = Choice()
    seconds: list[Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(min_length=1)
    wrong: int = Field(default=0, ge=0)
    starts: int = Field(default=1, ge=1)

    @property
    def place(self) -> Place:
        return Place(self.operation, self.np, self.ranks_per_node)


@dataclass(frozen=True)
class Time:
    """Seconds: the median of the samples, and the 95 % interval of their geometric mean, which one sample leaves open on both sides."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, seconds: Iterable[float]) -> Self:
        # In one order, so that floating-point sums do not depend on which came first.
        values = sorted(seconds)
        found = estimate(values)
        median = float(np.median(values))
        if found.low is None or found.high is None:
            return cls(median, 0.0, inf)
        return cls(median, found.low, found.high)

    def overlaps(self, other: "Time") -> bool:
        return self.low <= other.high and other.low <= self.high


class Measurements(VersionedDocument):
    """`hvscale tune-collectives`' points. `mpi`: the flavour, or nccl; `library`: as it names itself."""

    model_config = ConfigDict(extra="forbid")

    schema_: Literal["hvscale/collective-measurements/1"] = "hvscale/collective-measurements/1"
    mpi: str = Field(pattern="^[a-z0-9]+$")
    library: str = ""
    points: list[Point] = []

    @model_validator(mode="after")
    def check(self) -> Self:
        """What was measured can stand in a table."""
        for point in self.points:
            rule = Rule.model_validate({**point.place._asdict(), **point.choice.fields()})
            CollectivesTable(mpi=self.mpi, rule=[rule])
        return self

    def write(self, path: Path) -> None:
        """Raises OSError when the file cannot be written."""
        text = self.model_dump_json(by_alias=True, indent=1, exclude_none=True) + "\n"
        write_atomically(path, lambda stream: stream.write(text.encode()))


def read_measurements(path: Path) -> Measurements:
    """Raises RequestError, naming the place, for a file that cannot be read or is damaged."""
    try:
        return Measurements.model_validate_json(read_bytes(path))
    except OSError as error:
        raise RequestError(f"{path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise RequestError(
            f"{path} is no measurements of collectives: {where + ': ' if where else ''}{first['msg']}"
        ) from error
