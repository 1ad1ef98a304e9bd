"""The decision table: which algorithm each collective uses, by ranks and message size.

It is a TOML file. Its broadcast rules also have a compact form, which the ranks' C library reads.
"""

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

from hvscale.comm_tuning.collectives.broadcast import DEFAULT_CHUNK, DEFAULT_DEPTH, DEFAULT_RADIX
from hvscale.comm_tuning.knobs.library import algorithms_of, segmented_algorithms
from hvscale.core.documents import VersionedDocument, read_toml

Operation = Literal["broadcast", "allreduce", "allgather", "gather"]
Protocol = Literal["ll", "ll128", "simple"]
Algorithm = Literal["library", "flat", "chain", "k-nomial", "two-level"]
# The same limits as in native/broadcast/table.c and native/broadcast/node_memory.h.
MAX_CHUNK, MAX_TWO_LEVEL_CHUNK, MAX_DEPTH = 1 << 30, 2 << 20, 1024
MAX_BYTES = 2**63 - 1  # the largest number of TOML
INT_MAX = 2**31 - 1
COMPACT_FIRST_LINE = "hvscale-collectives 1"
LIBRARY_FIELDS = ("library_algorithm", "segment_bytes", "protocol", "channels")
BROADCAST_FIELDS = ("chunk_bytes", "depth", "radix")


class Rule(BaseModel):
    """The algorithm for messages of `bytes_min` to `bytes_max`, both included, on `np` ranks.

    `bytes_max` None: no upper limit. For allgather and gather, the bytes are those of all ranks
    together.

    hvscale's own broadcasts send `chunk_bytes` at a time, with `depth` chunks in flight; `radix`
    applies to the k-nomial tree. `library_algorithm`: a name from `hvscale knobs`, None for the
    library's own choice. `segment_bytes`: the segments of that algorithm, None for its default.
    `protocol` and `channels` apply to NCCL.
    """

    model_config = ConfigDict(extra="forbid")

    operation: Operation = "broadcast"
    np: int = Field(ge=2, le=INT_MAX)
    ranks_per_node: int = Field(ge=1, le=INT_MAX)
    bytes_min: int = Field(default=1, ge=1, le=MAX_BYTES)
    bytes_max: int | None = Field(default=None, ge=1, le=MAX_BYTES)
    algorithm: Algorithm
    chunk_bytes: int = Field(default=DEFAULT_CHUNK, ge=1, le=MAX_CHUNK)
    depth: int = Field(default=DEFAULT_DEPTH, ge=1, le=MAX_DEPTH)
    radix: int = Field(default=DEFAULT_RADIX, ge=2, le=INT_MAX)
    library_algorithm: str | None = None
    segment_bytes: int | None = Field(default=None, ge=1, le=INT_MAX)
    protocol: Protocol | None = None
    channels: int | None = Field(default=None, ge=1, le=64)

    @property
    def last(self) -> int:
        """`bytes_max`, or the largest possible size."""
        return MAX_BYTES if self.bytes_max is None else self.bytes_max

    @property
    def valid_fields(self) -> tuple[str, ...]:
        """The fields that apply to the rule's algorithm."""
        match self.algorithm:
            case "library":
                return LIBRARY_FIELDS
            case "k-nomial":
                return BROADCAST_FIELDS
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
                f'{self.algorithm} supports only broadcast: for {self.operation} use algorithm = "library" and a library_algorithm'
            )
        for name in (*BROADCAST_FIELDS, *LIBRARY_FIELDS):
            given = name in self.model_fields_set and getattr(self, name) is not None
            if given and name not in self.valid_fields:
                raise ValueError(f"{name} does not apply to {self.algorithm}: remove it")
        if self.segment_bytes is not None and self.library_algorithm is None:
            raise ValueError("segment_bytes needs a library_algorithm: add one, or remove segment_bytes")
        if self.algorithm == "two-level" and self.chunk_bytes > MAX_TWO_LEVEL_CHUNK:
            raise ValueError(
                f"chunk_bytes of two-level must be at most {MAX_TWO_LEVEL_CHUNK}, half of a node's shared memory"
            )
        return self

    @model_serializer(mode="wrap")
    def only_valid_fields(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without the fields that `check` would reject when the rule is read back."""
        unused = {*BROADCAST_FIELDS, *LIBRARY_FIELDS} - set(self.valid_fields)
        return {name: value for name, value in serialize(self).items() if name not in unused}


class CollectivesTable(VersionedDocument):
    """The content of the TOML file.

    `mpi`: the flavour that the table was measured on, or nccl. `eager_limit_bytes`: the largest
    message that the library sends without a rendezvous, for the whole job; None for its default.
    """

    model_config = ConfigDict(extra="forbid")

    schema_: Literal["hvscale/collectives/1"] = "hvscale/collectives/1"
    mpi: str = Field(pattern="^[a-z0-9]+$")
    eager_limit_bytes: int | None = Field(default=None, ge=1, le=INT_MAX)
    rule: list[Rule] = []

    @model_validator(mode="after")
    def check(self) -> Self:
        for one, other in pairwise(sorted(self.rule, key=sort_key)):
            if sort_key(one)[:3] == sort_key(other)[:3] and other.bytes_min <= one.last:
                raise ValueError(
                    f"two rules cover {one.operation} of {other.bytes_min} bytes on {one.np} ranks, {one.ranks_per_node} per node"
                )
        for rule in self.rule:
            known = algorithms_of(self.mpi, rule.operation)
            if rule.library_algorithm is not None and rule.library_algorithm not in known:
                fix = f"use {', '.join(known)}" if known else "remove library_algorithm"
                raise ValueError(f"{self.mpi} has no {rule.operation} algorithm {rule.library_algorithm}: {fix}")
            if rule.segment_bytes is not None and rule.library_algorithm not in segmented_algorithms(
                self.mpi, rule.operation
            ):
                raise ValueError(
                    f"{self.mpi}'s {rule.operation} algorithm {rule.library_algorithm} has no segments: remove segment_bytes"
                )
            if self.mpi != "nccl" and (rule.protocol is not None or rule.channels is not None):
                raise ValueError(
                    f"protocol and channels apply only to NCCL, and this table is for {self.mpi}: remove them"
                )
            if self.mpi == "nccl" and rule.library_algorithm is not None and rule.protocol is None:
                raise ValueError(f"{rule.library_algorithm} needs a protocol: NCCL accepts only both together")
        return self

    @property
    def names_algorithms(self) -> bool:
        """Whether any rule names an algorithm of the library."""
        return any(rule.library_algorithm is not None for rule in self.rule)

    @property
    def configures_library(self) -> bool:
        return self.names_algorithms or self.eager_limit_bytes is not None

    @property
    def has_own_broadcasts(self) -> bool:
        """Whether any rule uses one of hvscale's own broadcasts."""
        return any(rule.algorithm != "library" for rule in self.rule)

    def toml(self) -> str:
        lines = [f'schema = "{self.schema_}"', f'mpi = "{self.mpi}"']
        if self.eager_limit_bytes is not None:
            lines.append(f"eager_limit_bytes = {self.eager_limit_bytes}")
        for rule in self.rule:
            lines += ["", "[[rule]]"]
            for name in (
                *("operation", "np", "ranks_per_node", "bytes_min", "bytes_max", "algorithm"),
                *rule.valid_fields,
            ):
                value = getattr(rule, name)
                if value is not None:
                    lines.append(f'{name} = "{value}"' if isinstance(value, str) else f"{name} = {value}")
        return "\n".join([*lines, ""])

    def compact(self) -> bytes:
        """The form that ranks read: one line per broadcast rule, then a checksum of these lines.

        Algorithms of the library are written as `library`.
        """
        lines = [COMPACT_FIRST_LINE, f"mpi {self.mpi}"]
        for rule in sorted((rule for rule in self.rule if rule.operation == "broadcast"), key=sort_key):
            words = (rule.np, rule.ranks_per_node, rule.bytes_min, rule.last, rule.algorithm)
            lines.append(" ".join(map(str, (rule.operation, *words, rule.chunk_bytes, rule.depth, rule.radix))))
        text = "\n".join([*lines, ""]).encode()
        return text + f"check {checksum(text):016x}\n".encode()


def sort_key(rule: Rule) -> tuple[str, int, int, int]:
    return rule.operation, rule.np, rule.ranks_per_node, rule.bytes_min


def nearest(known: Iterable[int], wanted: int) -> int:
    """The number with the smallest ratio to `wanted`; of two with the same ratio, the smaller.

    A communicator uses the table's rules for the nearest np, and of these the nearest ranks per
    node.
    """
    return min(known, key=lambda one: (Fraction(max(one, wanted), min(one, wanted)), one))


def checksum(data: bytes) -> int:
    """FNV-1a with 64 bits."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def field_names(model: type[BaseModel]) -> list[str]:
    return sorted(field.alias or name for name, field in model.model_fields.items())


def read_table(path: Path) -> CollectivesTable:
    """Raises RequestError, naming the field, for a file that is unreadable or invalid."""
    return read_toml(CollectivesTable, path, f"--collectives {path}", problem)


def problem(error: ValidationError) -> str:
    """The first error with its field."""
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"])) + ": " if first["loc"] else ""
    model = Rule if first["loc"][:1] == ("rule",) else CollectivesTable
    known = f"; use {', '.join(field_names(model))}" if first["type"] == "extra_forbidden" else ""
    return f"{where}{first['msg'].removeprefix('Value error, ')}{known}"
