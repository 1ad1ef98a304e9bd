"""Measured all-reduces: those of `hvscale bench allreduce` and `hvscale tune-collectives`."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from hvscale.core.documents import VersionedDocument, from_json, other_version, parse_json
from hvscale.core.errors import RequestError
from hvscale.core.files import read_bytes
from hvscale.core.run_folder import RunFolder, RunRecord
from hvscale.prediction.model.samples import MAX_AGREEMENT_BYTES, Samples, place

OPTION = "--from-table"
OPERATION = "allreduce"
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Size = Annotated[int, Field(ge=0, lt=2**63)]
HOROVOD_BACKENDS = "horovod-"
NCCL_PATH = "nccl"
AUTO = "auto"  # the library's own choice, measured again


class Measured(NamedTuple):
    """Mean seconds of all-reduces of `bytes` on `np` ranks.

    `run`: the run's folder in the study. `algorithm`: None for the library's own choice.
    """

    run: str
    np: int
    algorithm: str | None
    bytes: int
    seconds: float


class Table(VersionedDocument):
    """A document with measured all-reduces, as far as predictions need it."""

    file_name: ClassVar[str]
    command: ClassVar[str]

    @abstractmethod
    def operations(self) -> list[str]:
        """The collectives that were measured."""

    @abstractmethod
    def measured(self) -> list[Measured]:
        """The measured all-reduces. Raises RequestError if none is of MPI or Gloo itself."""


class BenchBackend(BaseModel):
    """A back end, the path of its messages, and its run's folder in the study."""

    name: str
    backend: str
    path: str
    run: str

    @property
    def is_library(self) -> bool:
        """Whether its times are those of MPI or Gloo.

        Horovod's include its own cycle and agreement, which the model adds. NCCL's messages do not
        block Horovod's loop.
        """
        return not self.backend.startswith(HOROVOD_BACKENDS) and self.path != NCCL_PATH


class BenchRowExcerpt(BaseModel):
    """One size on one back end."""

    backend: str
    bytes: Size
    in_place: bool
    seconds: Seconds


class BenchTable(Table):
    """bench.json."""

    file_name = "bench.json"
    command = "hvscale bench allreduce"

    schema_: Literal["hvscale/bench/2"] = "hvscale/bench/2"
    collective: str
    np: int = Field(ge=2)
    backends: list[BenchBackend] = []
    rows: list[BenchRowExcerpt] = []

    def operations(self) -> list[str]:
        return [self.collective] if self.rows else []

    def measured(self) -> list[Measured]:
        """Those in place, as Horovod sends fused messages; others where there are none."""
        found = []
        for backend in filter(lambda one: one.is_library, self.backends):
            rows = [row for row in self.rows if row.backend == backend.name and row.bytes]
            rows = [row for row in rows if row.in_place] or rows
            found += [Measured(backend.run, self.np, None, row.bytes, row.seconds) for row in rows]
        if not found:
            raise RequestError("it has no times of MPI or Gloo alone: measure the library itself with --backend")
        return found


class Choice(BaseModel):
    """An algorithm of a library; all fields None: the library's own choice."""

    algorithm: str = "library"
    library_algorithm: str | None = None
    segment_bytes: int | None = None


class PointExcerpt(BaseModel):
    """The samples of one choice at one size."""

    operation: str
    np: int = Field(ge=2)
    bytes: Size
    eager_limit_bytes: int | None = None
    choice: Choice = Choice()
    seconds: list[Seconds] = Field(min_length=1)
    wrong: int = 0


class MeasurementsExcerpt(VersionedDocument):
    """The measurements in a study of collectives."""

    schema_: Literal["hvscale/collective-measurements/1"] = "hvscale/collective-measurements/1"
    points: list[PointExcerpt] = []


class TuningJobExcerpt(BaseModel):
    """A start of ranks, and its run's folder in the study."""

    np: int
    operation: str
    run: str


class TuneCollectivesTable(Table):
    """tune-collectives.json."""

    file_name = "tune-collectives.json"
    command = "hvscale tune-collectives --ops allreduce"

    schema_: Literal["hvscale/tune-collectives/2"] = "hvscale/tune-collectives/2"
    jobs: list[TuningJobExcerpt] = []
    measurements: MeasurementsExcerpt

    def operations(self) -> list[str]:
        return [point.operation for point in self.measurements.points]

    def measured(self) -> list[Measured]:
        """Those with the library's own eager limit and segments."""
        runs = {job.np: job.run for job in reversed(self.jobs) if job.operation == OPERATION}
        return [
            Measured(
                runs[point.np], point.np, point.choice.library_algorithm, point.bytes, float(np.mean(point.seconds))
            )
            for point in self.measurements.points
            if point.operation == OPERATION
            and point.np in runs
            and not point.wrong
            and point.choice.library_algorithm != AUTO
            and point.bytes
            and (point.choice.algorithm, point.choice.segment_bytes, point.eager_limit_bytes) == ("library", None, None)
        ]


TABLES: tuple[type[Table], ...] = (BenchTable, TuneCollectivesTable)
KNOWN = " or ".join(f"`{table.command}`" for table in TABLES)


def table_samples(path: Path) -> list[Samples]:
    """Read the all-reduces of a study, from its folder or its JSON document.

    There is one of Samples for each run, number of ranks and algorithm. Raises RequestError for
    anything else, and for a study without all-reduces or without the folders of its runs.
    """
    file = find_file(path)
    try:
        table = read_table(file)
        others = sorted({*table.operations()} - {OPERATION})
        if OPERATION not in table.operations():
            what = f"measured {', '.join(others)}" if others else "measured nothing"
            raise RequestError(f"it {what}, and predictions need all-reduces: `{table.command}`")
        measured = table.measured()
    except RequestError as error:
        raise RequestError(f"{OPTION} {file}: {error}") from error
    groups: dict[tuple[str, int, str | None], list[Measured]] = {}
    for one in sorted(measured, key=lambda one: one.bytes):
        groups.setdefault((one.run, one.np, one.algorithm), []).append(one)
    records = {run: read_record(file, run) for run in {one.run for one in measured}}
    return [samples_of(records[run], algorithm, rows, str(file)) for (run, _, algorithm), rows in groups.items()]


def find_file(path: Path) -> Path:
    """The JSON document of the study in `path`, a folder or that document."""
    if not path.is_dir():
        return path
    found = [path / table.file_name for table in TABLES if (path / table.file_name).is_file()]
    if not found:
        names = " or ".join(table.file_name for table in TABLES)
        raise RequestError(f"{OPTION} {path}: the folder has no {names}; give the folder of {KNOWN}")
    return found[0]


def read_table(file: Path) -> Table:
    """Read a study's document. Raises RequestError if it is of another kind or invalid."""
    try:
        text = read_bytes(file)
        document = parse_json(text)
    except OSError as error:
        raise RequestError(f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise RequestError(f"not a JSON document; give the folder of {KNOWN}") from error
    schema = str(document.get("schema")) if isinstance(document, dict) else ""
    name = schema.rpartition("/")[0]
    for kind in TABLES:
        if str(kind.model_fields["schema_"].default).rpartition("/")[0] != name:
            continue
        if writer := other_version(kind, text):
            raise RequestError(f"written by {writer}: measure again with this version, `{kind.command}`")
        try:
            return from_json(kind, text)
        except ValidationError as error:
            first = error.errors()[0]
            raise RequestError(f"invalid: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    raise RequestError(f"not a table of measured all-reduces; give the folder of {KNOWN}")


def read_record(file: Path, run: str) -> RunRecord:
    """The record of a run in the study. Raises RequestError if its folder is missing."""
    folder = file.parent / run
    if Path(run).name != run or not RunFolder(folder).run_json.is_file():
        raise RequestError(
            f"{OPTION} {file}: the run folder {run} is missing beside it, which says on which nodes and link the "
            "ranks ran: copy the whole folder of the study"
        )
    return RunFolder(folder).read()


def samples_of(record: RunRecord, algorithm: str | None, rows: Sequence[Measured], name: str) -> Samples:
    """The rows of one run and algorithm, ascending in bytes; they were measured back to back."""
    where: dict[str, Any] = place(record)
    small = [row.seconds for row in rows[:1] if row.bytes <= MAX_AGREEMENT_BYTES]
    return Samples(
        **{**where, "algorithm": algorithm or where["algorithm"]},
        bytes=np.array([row.bytes for row in rows], np.float64),
        seconds=np.array([row.seconds for row in rows], np.float64),
        idle_seconds=np.zeros(len(rows)),
        fused=np.zeros(len(rows), np.bool_),
        agreements=np.array(small, np.float64),
        name=name,
        from_benchmark=True,
    )


def network(samples: Samples) -> tuple[str, float | None]:
    """The library and the link's rate in bytes per second."""
    return samples.library, samples.bytes_per_second


def of_runs(tables: Sequence[Samples], runs: Sequence[Samples]) -> list[Samples]:
    """The samples of the runs' library and link, if tables have several; else all of them."""
    known = {network(one) for one in runs}
    matching = [one for one in tables if network(one) in known]
    return matching if matching and len({network(one) for one in tables}) > 1 else list(tables)


def with_algorithm(tables: Sequence[Samples], runs: Sequence[Samples], asked: str | None) -> list[Samples]:
    """The samples of tables with the asked algorithm; without one, with that of the runs.

    Without runs it is the library's own choice, or the only algorithm that was measured. Raises
    RequestError that names the measured algorithms if there are no such samples.
    """
    measured = {one.algorithm for one in tables}
    wanted: set[str | None] = {one.algorithm for one in runs} if asked is None else {asked}
    if not wanted and len(measured) > 1:
        wanted = {None}
    found = [one for one in tables if not wanted or one.algorithm in wanted]
    if tables and not found:
        raise RequestError(
            f"{OPTION} {tables[0].name}: no all-reduces by {named(wanted)}; measured: {named(measured)}. "
            "Choose one of them with --set allreduce_algorithm=NAME, or measure more"
        )
    return found


def named(algorithms: Iterable[str | None]) -> str:
    """Algorithms for people."""
    return ", ".join(sorted(one or "the library's own choice" for one in algorithms))
