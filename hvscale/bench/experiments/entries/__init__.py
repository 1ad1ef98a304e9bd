"""The kinds of measurements in an experiment. Each file of this folder registers one kind.

A kind defines the keys in the TOML file and how they are measured.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, Protocol, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from hvscale.bench.experiments.series import Series, Unavailable
from hvscale.core.registry import Registry
from hvscale.core.run_folder import DEFAULT_PLACEMENT, Host, RunFolder
from hvscale.launch.options import NO_HOOKS, LaunchHooks, LaunchOptions, Resolve
from hvscale.launch.placement_options import PlacementOptions
from hvscale.report.tables import TableModel
from hvscale.studies.base import Warn, load_previous
from hvscale.studies.interleaved import InterleavedStudy, ProgressReporter

CollectivesChoice = Literal["library", "table"]
StudyT = TypeVar("StudyT", bound=InterleavedStudy[Any, Any, Any])


class Measurement(Protocol):
    """`path`: its folder. `starts`: how often ranks are started in each of the `repeats` rounds."""

    path: Path

    @property
    def starts(self) -> int: ...

    @property
    def repeats(self) -> int: ...

    @property
    def host(self) -> Host | None: ...

    @property
    def is_complete(self) -> bool:
        """Whether all results are there that `measure` would make."""

    def resume(self, warn: Warn) -> None:
        """Take over the finished results in the folder.

        Raises RequestError if it holds another measurement, or results that cannot be read as
        requested. Writes nothing.
        """

    def measure(self, progress: ProgressReporter, warn: Warn) -> None:
        """Measure what is not in the folder yet. Raises the errors of the command's study."""

    def series(self) -> list[Series]:
        """The series of all results so far."""

    def unavailable(self) -> list[Unavailable]:
        """What this measurement does not have, for claims that need it."""

    def tables(self) -> list[TableModel]:
        """Tables of the results so far, which the experiment shows beside its findings."""


class MeasurementDefaults:
    """What most measurements have: nothing unavailable and no tables of their own."""

    def unavailable(self) -> list[Unavailable]:
        return []

    def tables(self) -> list[TableModel]:
        return []


class InterleavedMeasurement(MeasurementDefaults, Generic[StudyT]):
    """A measurement made by an interleaved study."""

    def __init__(self, study: StudyT) -> None:
        self.study, self.path = study, study.path
        self.starts, self.repeats = len(study.variants), study.document.repeats

    @property
    def host(self) -> Host | None:
        """Of the study or, where it names none, of its first finished run."""
        document = self.study.document
        done = next((run for run in document.runs if run.problem is None), None)
        found: Host | None = document.host
        return found if found is not None or done is None else RunFolder(self.path / done.folder).read().host

    @property
    def is_complete(self) -> bool:
        return self.study.is_complete

    def resume(self, warn: Warn) -> None:
        previous = load_previous(self.study.file, self.study.document, self.study.must_match)
        if previous is not None:
            self.study.tell_user = warn
            self.study.resume(previous)
            self.study.tabulate()

    def measure(self, progress: ProgressReporter, warn: Warn) -> None:
        self.study.measure(progress, warn)


# Applies named settings, such as those of `hvscale compare-settings`, to the launch of a command.
# Raises RequestError if the job's libraries do not support them, and ConflictError if they do but
# the options ask for other values.
ApplySettings = Callable[[list[str], LaunchOptions], LaunchOptions]


@dataclass(frozen=True)
class LaunchContext:
    """How the measurements are launched.

    `options`: from the command line. `resolve` and `hooks`: for each launch. `settings`: by their
    names in an entry.
    """

    options: LaunchOptions
    resolve: Resolve
    hooks: LaunchHooks = NO_HOOKS
    settings: Mapping[str, ApplySettings] = field(default_factory=dict)


class Entry(BaseModel, ABC):
    """One measurement in the TOML file.

    `measure`: its kind. `placement`: one or more, interleaved. `repeat`: starts of each variant.
    """

    model_config = ConfigDict(extra="forbid")

    measure: str
    placement: Annotated[tuple[str, ...], Field(min_length=1)] = (DEFAULT_PLACEMENT,)
    nodes: PositiveInt | None = None
    link: str | None = None
    repeat: PositiveInt

    @property
    def needs_table(self) -> bool:
        """Whether some variants use the decision table of --collectives."""
        return False

    def resolve_placement(self, requested: PlacementOptions) -> tuple[tuple[str, ...], PlacementOptions]:
        """The names of the placements and their common options.

        `requested`: from the command line. A --placement replaces all placement options of the
        file; other options replace only their own.
        """
        if requested.placement is not None:
            names, base = tuple(name.strip() for name in requested.placement.split(",")), requested
        else:
            names, base = self.placement, PlacementOptions(nodes=self.nodes, link=self.link)
        return names, base.model_copy(update={**requested.model_dump(exclude_none=True), "placement": ",".join(names)})

    def check_part(self, part: Mapping[str, "Entry"]) -> None:
        """Check what this entry says about the others of its part, by name. Raises RequestError."""

    @abstractmethod
    def measurement(self, path: Path, launch: LaunchContext) -> Measurement:
        """The measurement of this entry. `launch`: with this entry's placement.

        Raises RequestError for an invalid request. Writes nothing.
        """


class TableEntry(Entry, ABC):
    """A measurement that can use a decision table.

    `collectives`: interleaved variants, "library" without and "table" with the table of
    --collectives.
    """

    collectives: Annotated[tuple[CollectivesChoice, ...], Field(min_length=1)] = ("library",)

    @property
    def needs_table(self) -> bool:
        return "table" in self.collectives


def with_collectives(collectives: CollectivesChoice, options: LaunchOptions) -> LaunchOptions:
    """The options with or without their decision table."""
    return options if collectives == "table" else options.replace(collectives=None)


Kind = TypeVar("Kind", bound=type[Entry])
ENTRIES: Registry[type[Entry]] = Registry("kind of measurement", __name__)


def register(kind: Kind) -> Kind:
    """Decorator for the model of a kind; the type of its field `measure` gives the name."""
    [name] = get_args(kind.__annotations__["measure"])
    ENTRIES.register(name, kind)
    return kind


def comma_list(values: Sequence[Any]) -> str:
    """The values in the format of the command line."""
    return ",".join(map(str, values))
