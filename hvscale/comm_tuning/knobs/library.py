"""How each library spells the knobs, and the registry of libraries."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from hvscale.comm_tuning.knobs.values import Value, Values
from hvscale.core.errors import RequestError
from hvscale.core.registry import Registry
from hvscale.core.suggest import suggest_name
from hvscale.launch import flavours

# When the library reads a new value: at a fresh start of the job, or at hvd.init() after
# hvd.shutdown().
Restart = Literal["start", "init"]


@dataclass(frozen=True)
class Spelling:
    """How one library spells one knob.

    `variables`: the environment variables that hold the value, or the one option of `hvscale
    launch`, each with the library's default ("" where there is none). `also_set`: variables that
    must be set with it, unless the user has set them; with `also_set_for` only for this value.
    `transport`: the only transport that has the knob. `build`: only a library built with this has
    it. `note`: conditions and side effects, for people. `source`: where the fact comes from.

    For the algorithms of a collective: those in `segmented` cut a message into segments of the
    bytes in `segment_variable`; `only_on` limits an algorithm to some numbers of ranks.
    """

    knob: str
    variables: Mapping[str, str]
    values: Values
    source: str
    unit: str = ""
    restart: Restart = "start"
    note: str = ""
    also_set: Mapping[str, str] = field(default_factory=dict)
    also_set_for: Value | None = None
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

    def also_needed(self, value: Value) -> Mapping[str, str]:
        return self.also_set if self.also_set_for in (None, value) else {}

    def read(self, variables: Mapping[str, str]) -> Value:
        """The value that the variables set.

        Raises KeyError for a missing one, and ValueError when they disagree or are invalid.
        """
        first, *others = [self.values.read(variables[name]) for name in self.variables]
        if any(value != first for value in others):
            raise ValueError(f"{', '.join(self.variables)} differ")
        return first


@dataclass(frozen=True)
class Target:
    """The job whose knobs are set.

    `flavour`: its --mpi; `version`: of the library found here; `transport`: what carries its
    messages.
    """

    flavour: str
    version: str
    transport: str
    command: list[str]
    environment: Mapping[str, str]


def always(target: Target) -> bool:
    return True


@dataclass(frozen=True)
class KnobLibrary:
    """A library and its knobs.

    `flavours`: the `--mpi` of the jobs that may use it, None for all. `in_job(target)`: whether the
    job uses it; None where only a run shows that.
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
    """Every known library, ordered by its name."""
    return sorted(LIBRARIES.all().values(), key=lambda library: library.name.lower())


def libraries_of(word: str, option: str = "--mpi") -> list[KnobLibrary]:
    """The libraries that a job of this flavour may use, or the one library of this name.

    Raises RequestError for an unknown word, which the user gave to `option`.
    """
    if word in flavours.names():
        return [library for library in libraries() if library.may_be_in(word)]
    known = sorted({*flavours.names(), *LIBRARIES.names()})
    if word not in known:
        raise RequestError(f"{option} {word}: {suggest_name('flavour or library', word, known)}")
    return [LIBRARIES.get(word)]
