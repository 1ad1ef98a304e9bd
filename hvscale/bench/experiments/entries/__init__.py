"""The kinds of measurements in an experiment.

Each file of this folder defines one kind and registers it: its keys in the TOML file, and how it is
measured.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, Protocol, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from hvscale.bench.experiments.series import Series
from hvscale.core.registry import Registry
from hvscale.core.run_folder import DEFAULT_PLACEMENT, Host
from hvscale.launch.options import NO_HOOKS, LaunchHooks, LaunchOptions, Resolve
from hvscale.launch.placement_options import PlacementOptions
from hvscale.studies.base import Warn
from hvscale.studies.interleaved import InterleavedStudy, ProgressReporter

Collectives = Literal["library", "table"]
StudyT = TypeVar("StudyT", bound=InterleavedStudy[Any, Any, Any])


class Measurement(Protocol):
    """`path`: its folder. `starts`: the starts of ranks in each of the `repeats` rounds."""

    path: Path

    @property
    def starts(self) -> int: ...

    @property
    def repeats(self) -> int: ...

    @property
    def host(self) -> Host | None: ...

    def measure(self, progress: ProgressReporter, warn: Warn) -> None:
        """Make the measurements that the folder does not hold yet. Raises what the studies of the
        commands raise.
        """

    def series(self) -> list[Series]:
        """The series of all measurements so far."""


class MeasurementInTurns(Generic[StudyT]):
    """A measurement made by an interleaved study."""

    def __init__(self, study: StudyT) -> None:
        self.study, self.path = study, study.path
        self.starts, self.repeats = len(study.starts), study.document.repeats

    @property
    def host(self) -> Host | None:
        found: Host | None = self.study.document.host
        return found

    def measure(self, progress: ProgressReporter, warn: Warn) -> None:
        self.study.measure(progress, warn)


@dataclass(frozen=True)
class Launching:
    """How the measurements are launched: `options` as they were given, and what the caller adds to
    each launch.
    """

    options: LaunchOptions
    resolve: Resolve
    hooks: LaunchHooks = NO_HOOKS


class Entry(BaseModel, ABC):
    """One measurement of the TOML file. `measure`: its kind. `placement`: one or more, interleaved.
    `repeat`: fresh starts of each.
    """

    model_config = ConfigDict(extra="forbid")

    measure: str
    placement: Annotated[tuple[str, ...], Field(min_length=1)] = (DEFAULT_PLACEMENT,)
    nodes: PositiveInt | None = None
    link: str | None = None
    repeat: PositiveInt

    @property
    def wants_table(self) -> bool:
        """Whether part of it is measured with the decision table of --collectives."""
        return False

    def placed(self, asked: PlacementOptions) -> tuple[tuple[str, ...], PlacementOptions]:
        """Its placements and their common options. A --placement on the command line replaces the
        placements and options of the file.
        """
        if asked.placement is not None:
            places, own = tuple(name.strip() for name in asked.placement.split(",")), asked
        else:
            places, own = self.placement, PlacementOptions(nodes=self.nodes, link=self.link)
        return places, own.model_copy(update={**asked.model_dump(exclude_none=True), "placement": ",".join(places)})

    @abstractmethod
    def measurement(self, path: Path, launch: Launching) -> Measurement:
        """`launch`: as the command line has it, the placement the entry's own. Raises RequestError
        for what cannot be; writes nothing.
        """


class WithTable(Entry, ABC):
    """A measurement interleaved over `collectives`: the library's own, or those of the decision
    table on the command line.
    """

    collectives: Annotated[tuple[Collectives, ...], Field(min_length=1)] = ("library",)

    @property
    def wants_table(self) -> bool:
        return "table" in self.collectives


def by(collectives: Collectives, options: LaunchOptions) -> LaunchOptions:
    """The options with their table, or without."""
    return options if collectives == "table" else options.replace(collectives=None)


Kind = TypeVar("Kind", bound=type[Entry])
ENTRIES: Registry[type[Entry]] = Registry("kind of measurement", __name__)


def register(kind: Kind) -> Kind:
    """Decorator for the model of a kind, whose field `measure` holds its name."""
    [name] = get_args(kind.__annotations__["measure"])
    ENTRIES.register(name, kind)
    return kind


def commas(values: Sequence[Any]) -> str:
    """The values as the command line takes them."""
    return ",".join(map(str, values))
