"""A library's spelling of the knobs, and the list of libraries."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from hvscale.comm_tuning.knobs.values import Value, Values
from hvscale.core.errors import RequestError
from hvscale.core.registry import Registry
from hvscale.core.suggest import suggest_name
from hvscale.launch import flavours

# What a new value needs to be read: a fresh start of the job, or hvd.shutdown() and hvd.init().
Restart = Literal["start", "init"]


@dataclass(frozen=True)
class Spelling:
    """How one library spells one knob.

    `variables`: the environment variables that hold the value, or the one option of `hvscale launch`, each with the default in the library's
    words ("" where there is none). `along`: what has to be set together with it (`along_for`: with this value alone), unless the user has set it.
    `transport`: the knob is of this one alone. `build`: only libraries that were built with this have it. `source`: where the fact comes from.
    Of a collective's algorithms: `segmented` are those that cut a message into parts of as many bytes as `segment_variable` says, and `only_on`
    tells which numbers of ranks one is for.
    """

    knob: str
    variables: Mapping[str, str]
    values: Values
    source: str
    unit: str = ""
    restart: Restart = "start"
    needs: str = ""
    along: Mapping[str, str] = field(default_factory=dict)
    along_for: Value | None = None
    transport: str | None = None
    build: str = ""
    segment_variable: str = ""
    segmented: tuple[str, ...] = ()
    only_on: Mapping[str, Callable[[int], bool]] = field(default_factory=dict)

    @property
    def is_option(self) -> bool:
        return next(iter(self.variables)).startswith("--")

    def write(self, value: Value) -> dict[str, str]:
        """The variables that set the value."""
        return dict.fromkeys(self.variables, self.values.write(value))

    def needed_along(self, value: Value) -> Mapping[str, str]:
        return self.along if self.along_for in (None, value) else {}

    def read(self, variables: Mapping[str, str]) -> Value:
        """The value that the variables set. Raises KeyError where one is missing and ValueError where they are at odds or unknown."""
        first, *others = [self.values.read(variables[name]) for name in self.variables]
        if any(value != first for value in others):
            raise ValueError(f"{', '.join(self.variables)} differ")
        return first


@dataclass(frozen=True)
class Target:
    """A job that is to be set: its `--mpi`, the library that this is here, and what carries its messages."""

    flavour: str
    version: str
    transport: str
    command: list[str]
    environment: Mapping[str, str]


def always(target: Target) -> bool:
    return True


@dataclass(frozen=True)
class KnobLibrary:
    """A library and its knobs. `flavours`: the `--mpi` of the jobs that may use it, None for all.

    `in_job(target)`: whether one of these jobs uses it; None where only its run will show.
    """

    key: str
    name: str
    spellings: tuple[Spelling, ...]
    flavours: tuple[str, ...] | None = None
    in_job: Callable[[Target], bool | None] = always

    def may_be_in(self, flavour: str) -> bool:
        return self.flavours is None or flavour in self.flavours


LIBRARIES: Registry[KnobLibrary] = Registry("knob library", "hvscale.comm_tuning.knobs.libraries")


def register(library: KnobLibrary) -> None:
    LIBRARIES.register(library.key, library)


def libraries() -> list[KnobLibrary]:
    """All that are known, by name."""
    return sorted(LIBRARIES.all().values(), key=lambda library: library.name.lower())


def of_flavour(word: str) -> list[KnobLibrary]:
    """The libraries of a job with this `--mpi`, or the one library of this name. Raises RequestError for an unknown word."""
    if word in flavours.names():
        return [library for library in libraries() if library.may_be_in(word)]
    known = LIBRARIES.all()
    if word not in known:
        raise RequestError(
            f"--mpi {word}: {suggest_name('flavour or library', word, sorted({*flavours.names(), *known}))}"
        )
    return [known[word]]
