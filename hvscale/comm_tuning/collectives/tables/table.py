"""The decision table of collectives: which algorithm a message takes. A TOML file for people, and a
compact form for the C part.
"""

import tomllib
from collections.abc import Iterable
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from hvscale.comm_tuning.collectives.broadcast.call import DEFAULT_CHUNK, DEFAULT_DEPTH, DEFAULT_RADIX
from hvscale.comm_tuning.collectives.tables.library_algorithms import algorithms_of, segmented
from hvscale.core.documents import VersionedDocument
from hvscale.core.errors import RequestError

Operation = Literal["broadcast", "allreduce", "allgather", "gather"]
Protocol = Literal["ll", "ll128", "simple"]
Algorithm = Literal["library", "flat", "chain", "k-nomial", "two-level"]
# As native/broadcast/table.c and native/broadcast/node_memory.h have them.
MOST_CHUNK, MOST_CHUNK_OF_TWO_LEVEL, MOST_DEPTH = 1 << 30, 2 << 20, 1024
MOST_BYTES = 2**63 - 1  # the largest number of TOML
MOST_RANKS = 2**31 - 1
COMPACT_FIRST_LINE = "hvscale-collectives 1"
OF_THE_LIBRARY = ("library_algorithm", "segment_bytes", "protocol", "channels")


class Rule(BaseModel):
    """What messages of `bytes_min` to `bytes_max` (both included; null: no end) take on so many
    ranks.

    `chunk_bytes` are sent at once, `depth` chunks are under way at once, a `radix` is a k-nomial
    tree's; these are of our broadcasts alone. `library_algorithm`: of the library, in the words of
    `hvscale knobs`, None for its own choice; it may have parts of `segment_bytes`, None for its
    own. `protocol` and `channels` are NCCL's. `bytes` of an all-gather and a gather are those of
    all ranks together.
    """

    model_config = ConfigDict(extra="forbid")

    operation: Operation = "broadcast"
    np: int = Field(ge=2, le=MOST_RANKS)
    ranks_per_node: int = Field(ge=1, le=MOST_RANKS)
    bytes_min: int = Field(default=1, ge=1, le=MOST_BYTES)
    bytes_max: int | None = Field(default=None, ge=1, le=MOST_BYTES)
    algorithm: Algorithm
    chunk_bytes: int = Field(default=DEFAULT_CHUNK, ge=1, le=MOST_CHUNK)
    depth: int = Field(default=DEFAULT_DEPTH, ge=1, le=MOST_DEPTH)
    radix: int = Field(default=DEFAULT_RADIX, ge=2, le=MOST_RANKS)
    library_algorithm: str | None = None
    segment_bytes: int | None = Field(default=None, ge=1, le=MOST_RANKS)
    protocol: Protocol | None = None
    channels: int | None = Field(default=None, ge=1, le=64)

    @property
    def last(self) -> int:
        return MOST_BYTES if self.bytes_max is None else self.bytes_max

    @property
    def own_fields(self) -> tuple[str, ...]:
        """Those that mean something to its algorithm."""
        match self.algorithm:
            case "library":
                return OF_THE_LIBRARY
            case "k-nomial":
                return ("chunk_bytes", "depth", "radix")
            case _:
                return ("chunk_bytes", "depth")

    @model_validator(mode="after")
    def check(self) -> Self:
        if self.last < self.bytes_min:
            raise ValueError(f"bytes_max {self.bytes_max} is less than bytes_min {self.bytes_min}")
        if self.ranks_per_node > self.np:
            raise ValueError(f"ranks_per_node {self.ranks_per_node} is more than np {self.np}")
        if self.algorithm != "library" and self.operation != "broadcast":
            raise ValueError(
                f'{self.algorithm} is a broadcast: {self.operation} takes algorithm = "library", and a library_algorithm'
            )
        for name in ("chunk_bytes", "depth", "radix", *OF_THE_LIBRARY):
            given = name in self.model_fields_set and getattr(self, name) is not None
            if given and name not in self.own_fields:
                raise ValueError(f"{name} means nothing to {self.algorithm}: leave it out")
        if self.segment_bytes is not None and self.library_algorithm is None:
            raise ValueError("segment_bytes is a library_algorithm's: name one, or leave it out")
        if self.algorithm == "two-level" and self.chunk_bytes > MOST_CHUNK_OF_TWO_LEVEL:
            raise ValueError(f"chunk_bytes of two-level is at most {MOST_CHUNK_OF_TWO_LEVEL}, half of a node's memory")
        return self

    @model_serializer(mode="wrap")
    def without_what_means_nothing(self, fields: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """So that what is written can be read back."""
        nothing = {"chunk_bytes", "depth", "radix", *OF_THE_LIBRARY} - set(self.own_fields)
        return {name: value for name, value in fields(self).items() if name not in nothing}


class CollectivesTable(VersionedDocument):
    """The table as TOML holds it. `mpi`: the flavour that it was made with, or nccl.

    `eager_limit_bytes`: the library's largest message without a rendezvous, one for all of a job;
    None for its own.
    """

    model_config = ConfigDict(extra="forbid")

    schema_: Literal["hvscale/collectives/1"] = "hvscale/collectives/1"
    mpi: str = Field(pattern="^[a-z0-9]+$")
    eager_limit_bytes: int | None = Field(default=None, ge=1, le=MOST_RANKS)
    rule: list[Rule] = []

    @model_validator(mode="after")
    def check(self) -> Self:
        for one, other in pairwise(sorted(self.rule, key=place)):
            if place(one)[:3] == place(other)[:3] and other.bytes_min <= one.last:
                raise ValueError(
                    f"two rules for {one.operation} of {other.bytes_min} bytes on {one.np} ranks, {one.ranks_per_node} on a node"
                )
        for rule in self.rule:
            known = algorithms_of(self.mpi, rule.operation)
            if rule.library_algorithm is not None and rule.library_algorithm not in known:
                has = f"it has {', '.join(known)}" if known else "none of its algorithms has a name here"
                raise ValueError(f"{self.mpi} knows no {rule.operation} {rule.library_algorithm}: {has}")
            if rule.segment_bytes is not None and rule.library_algorithm not in segmented(self.mpi, rule.operation):
                raise ValueError(
                    f"{self.mpi}'s {rule.operation} {rule.library_algorithm} cuts nothing into segments: leave out segment_bytes"
                )
            if self.mpi != "nccl" and (rule.protocol is not None or rule.channels is not None):
                raise ValueError(f"protocol and channels are NCCL's, and this table is for {self.mpi}")
            if self.mpi == "nccl" and rule.library_algorithm is not None and rule.protocol is None:
                raise ValueError(f"{rule.library_algorithm} needs a protocol: NCCL takes both together")
        return self

    @property
    def names_algorithms(self) -> bool:
        """Whether the library has to be told some: our broadcasts need no word of its own."""
        return any(rule.library_algorithm is not None for rule in self.rule)

    @property
    def tells_the_library(self) -> bool:
        return self.names_algorithms or self.eager_limit_bytes is not None

    @property
    def broadcasts(self) -> bool:
        """Whether some take a broadcast of ours."""
        return any(rule.algorithm != "library" for rule in self.rule)

    def toml(self) -> str:
        lines = [f'schema = "{self.schema_}"', f'mpi = "{self.mpi}"']
        if self.eager_limit_bytes is not None:
            lines.append(f"eager_limit_bytes = {self.eager_limit_bytes}")
        for rule in self.rule:
            lines += ["", "[[rule]]"]
            for name in ("operation", "np", "ranks_per_node", "bytes_min", "bytes_max", "algorithm", *rule.own_fields):
                value = getattr(rule, name)
                if value is not None:
                    lines.append(f'{name} = "{value}"' if isinstance(value, str) else f"{name} = {value}")
        return "\n".join([*lines, ""])

    def compact(self) -> bytes:
        """What the ranks read: a line for each rule of a broadcast, in which the library is the
        library, and a checksum of all before it.
        """
        lines = [COMPACT_FIRST_LINE, f"mpi {self.mpi}"]
        for rule in sorted((rule for rule in self.rule if rule.operation == "broadcast"), key=place):
            words = (rule.np, rule.ranks_per_node, rule.bytes_min, rule.last, rule.algorithm)
            lines.append(" ".join(map(str, (rule.operation, *words, rule.chunk_bytes, rule.depth, rule.radix))))
        text = "\n".join([*lines, ""]).encode()
        return text + f"check {checksum(text):016x}\n".encode()


def place(rule: Rule) -> tuple[str, int, int, int]:
    return rule.operation, rule.np, rule.ranks_per_node, rule.bytes_min


def nearest(known: Iterable[int], wanted: int) -> int:
    """As a ratio, of two equally near the smaller: which of the table's np, or ranks on a node, a
    communicator takes.
    """
    return min(known, key=lambda one: (Fraction(max(one, wanted), min(one, wanted)), one))


def checksum(data: bytes) -> int:
    """FNV-1a with 64 bits."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def keys(model: type[BaseModel]) -> list[str]:
    return sorted(field.alias or name for name, field in model.model_fields.items())


def read_table(path: Path) -> CollectivesTable:
    """Raises RequestError, naming the place, for a file that cannot be read, is damaged, or asks
    for what does not exist.
    """
    try:
        return CollectivesTable.model_validate(tomllib.loads(path.read_text()))
    except OSError as error:
        raise RequestError(f"--collectives {path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) + ": " if first["loc"] else ""
        of = Rule if first["loc"][:1] == ("rule",) else CollectivesTable
        known = f"; known are {', '.join(keys(of))}" if first["type"] == "extra_forbidden" else ""
        raise RequestError(
            f"--collectives {path}: {where}{first['msg'].removeprefix('Value error, ')}{known}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise RequestError(f"--collectives {path} is not valid TOML: {error}") from error
