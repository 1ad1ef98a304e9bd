"""Measurements of collectives: samples of each algorithm at each size."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Annotated, Literal, NamedTuple, Self

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from hvscale.comm_tuning.collectives.tables.table import (
    INT_MAX,
    MAX_BYTES,
    Algorithm,
    CollectivesTable,
    Operation,
    Protocol,
    Rule,
)
from hvscale.comm_tuning.knobs.library import AUTO
from hvscale.core.documents import VersionedDocument
from hvscale.core.statistics import estimate


class AlgorithmChoice(BaseModel):
    """One choice of algorithm for a collective, in the fields of a table's rule.

    `algorithm`: `library` or one of hvscale's own broadcasts. With `library` and all other fields
    None, the library chooses.
    """

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
    def without_unset_fields(self, serialize: SerializerFunctionWrapHandler) -> dict[str, int | str]:
        """A study's document holds thousands of these."""
        return {name: value for name, value in serialize(self).items() if value is not None}

    @property
    def order(self) -> tuple[tuple[bool, int, str], ...]:
        """A sort key that is stable across runs, for choices with equal times."""
        values = (getattr(self, name) for name in type(self).model_fields)
        return tuple((value is not None, value if isinstance(value, int) else 0, str(value)) for value in values)

    def fields(self) -> dict[str, int | str]:
        return self.model_dump()

    def __str__(self) -> str:
        """Such as `chain chunk_bytes=32768 depth=8` or `library's ring segment_bytes=65536`."""
        fields = self.fields()
        algorithm, name = fields.pop("algorithm"), fields.pop("library_algorithm", None)
        first = algorithm if name is None else f"library's {name}"
        return " ".join([str(first), *(f"{field}={value}" for field, value in fields.items())])


LIBRARY = AlgorithmChoice()
LIBRARY_AUTO = AlgorithmChoice(library_algorithm=AUTO)


class CollectiveCase(NamedTuple):
    """A collective on a number of ranks in a layout. Each case is decided separately."""

    operation: Operation
    np: int
    ranks_per_node: int


class Point(BaseModel):
    """One choice at one size, under one eager limit (None: the library's own).

    `bytes`: of the message; for all-gather and gather, of all ranks together, as in `hvscale
    bench`. `seconds`: samples of the slowest rank. `wrong`: wrong elements; a choice with any is
    never used for the operation. `starts`: the number of starts that the samples come from.
    """

    model_config = ConfigDict(extra="forbid")

    operation: Operation
    np: int = Field(ge=2, le=INT_MAX)
    ranks_per_node: int = Field(ge=1, le=INT_MAX)
    bytes: int = Field(ge=1, le=MAX_BYTES)
    eager_limit_bytes: int | None = Field(default=None, ge=1, le=INT_MAX)
    choice: AlgorithmChoice = AlgorithmChoice()
    seconds: list[Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(min_length=1)
    wrong: int = Field(default=0, ge=0)
    starts: int = Field(default=1, ge=1)

    @property
    def case(self) -> CollectiveCase:
        return CollectiveCase(self.operation, self.np, self.ranks_per_node)


@dataclass(frozen=True)
class Time:
    """Seconds: the median of the samples and the 95 % interval of their geometric mean.

    The interval of a single sample is 0 to infinity.
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, seconds: Iterable[float]) -> Self:
        # Sorted, so that floating-point sums do not depend on the order of the samples.
        values = sorted(seconds)
        found = estimate(values)
        median = float(np.median(values))
        if found.low is None or found.high is None:
            return cls(median, 0.0, inf)
        return cls(median, found.low, found.high)

    def overlaps(self, other: "Time") -> bool:
        return self.low <= other.high and other.low <= self.high


class Measurements(VersionedDocument):
    """The measurements of `hvscale tune-collectives`.

    `mpi`: the flavour, or nccl. `library`: the name that the library reports.
    """

    model_config = ConfigDict(extra="forbid")

    schema_: Literal["hvscale/collective-measurements/1"] = "hvscale/collective-measurements/1"
    mpi: str = Field(pattern="^[a-z0-9]+$")
    library: str = ""
    points: list[Point] = []

    @model_validator(mode="after")
    def check(self) -> Self:
        """Checks that every point could be a rule of a table."""
        for point in self.points:
            rule = Rule.model_validate({**point.case._asdict(), **point.choice.fields()})
            CollectivesTable(mpi=self.mpi, rule=[rule])
        return self
