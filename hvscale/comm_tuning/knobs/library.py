"""What each knob means, how each library spells it, and the registry of libraries."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from hvscale.comm_tuning.knobs.values import OneOf, Value, Values
from hvscale.comm_tuning.knobs.variable_list import has_member, member_like, name_of, with_member
from hvscale.core.errors import RequestError
from hvscale.core.registry import Registry
from hvscale.core.suggest import suggest_name
from hvscale.launch import flavours

# When a library reads a new value: at a fresh start of the job; at hvd.init() after hvd.shutdown();
# or for a new communicator, which hvd.init() creates, from MPI's tools interface.
Restart = Literal["start", "init", "communicator"]
AUTO = "auto"  # the automatic choice of the component that accepts algorithms as settings

MEANING = {
    "cuda_ipc": "lets ranks on one node read each other's GPU memory directly",
    "registration_cache": "keeps memory registered with the network adapter for later messages",
    "visible_devices": "selects the GPUs that the program and the communication library can see",
    "fusion_threshold": "packs gradients into messages of up to this size; 0 turns packing off",
    "cycle_time": "sets how long Horovod collects gradients before it sends them",
    "cache_capacity": "caches the negotiation of up to this many tensors; 0 turns the cache off",
    "hierarchical_allreduce": "runs all-reduce within each node first, then between nodes",
    "transport": "selects the transport that carries messages",
    "eager_threshold": "sends messages of up to this size without a rendezvous with the receiver",
    "allreduce_algorithm": "selects the algorithm of all-reduce",
    "broadcast_algorithm": "selects the algorithm of broadcast",
    "hvscale_broadcast": "replaces broadcasts of 64 KiB or more by hvscale's own algorithm",
    "allgather_algorithm": "selects the algorithm of all-gather",
    "gather_algorithm": "selects the algorithm of gather",
    "segment_size": "sets the segment size of pipelined algorithms; 0 sends each message whole",
    "nccl_algorithm": "selects the algorithm of NCCL's all-reduce",
    "nccl_protocol": "selects the protocol of NCCL's collectives",
    "nccl_channels": "sets the number of channels (thread blocks) of each NCCL collective",
    "nccl_buffer_size": "sets the size of each channel's buffer between two GPUs",
    "nccl_threads": "sets the number of threads in each NCCL thread block",
    "yield_when_idle": "lets a rank that waits for messages yield its core",
    "huge_pages": "takes large blocks of memory in pages of 2 MiB",
    "threads": "sets the number of OpenMP threads in each rank",
    "thread_affinity": "pins Horovod's background thread to a core, one core per local rank",
    "binding": "binds each rank to a core, a socket or a NUMA node",
    "socket_interfaces": "selects the network interfaces for messages over TCP",
}


@dataclass(frozen=True)
class RankLimit:
    """The numbers of ranks on which a library uses an algorithm. `needs`: the same in words."""

    needs: str
    allows: Callable[[int], bool]


TWO_RANKS = RankLimit("2 ranks", lambda np: np == 2)
EVEN_RANKS = RankLimit("an even number of ranks", lambda np: np % 2 == 0)
POWER_OF_TWO_RANKS = RankLimit("a power-of-two number of ranks", lambda np: np.bit_count() == 1)


@dataclass(frozen=True)
class Spelling:
    """How one library spells one knob.

    `variables`: the environment variables that hold the value, or the one option of `hvscale
    launch`, each with the library's default ("" if it has none). `also_set`: variables that the
    value requires, unless the user has set them; with `also_set_for`, only for that value.
    `preload`: hvscale's C library that ranks preload for any value but the default.
    `transport`: the only transport that supports the knob. `build`: the build of the library that
    the knob needs. `separator`: of the members of the variables, each of which lists several
    NAME=VALUE. `note`: conditions and side effects, for people. `source`: the documentation.

    For the algorithms of a collective: those in `segmented` split a message into segments of the
    bytes in `segment_variable`; `rank_limits` restricts an algorithm to some numbers of ranks. On
    others the library fails or uses another algorithm.
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
    preload: str = ""
    transport: str | None = None
    build: str = ""
    separator: str = ""
    segment_variable: str = ""
    segmented: tuple[str, ...] = ()
    rank_limits: Mapping[str, RankLimit] = field(default_factory=dict)

    @property
    def is_live(self) -> bool:
        """Whether the value can change in a running job: `hvscale launch --autotune` does it."""
        return self.restart != "start"

    @property
    def is_option(self) -> bool:
        return next(iter(self.variables)).startswith("--")

    def supports(self, value: str, np: int) -> bool:
        """Whether the library uses this value on so many ranks. A single one sends no messages."""
        return np == 1 or value not in self.rank_limits or self.rank_limits[value].allows(np)

    def write(self, value: Value) -> dict[str, str]:
        """The variables that set the value."""
        return dict.fromkeys(self.variables, self.values.write(value))

    def write_into(self, environment: Mapping[str, str], value: Value) -> dict[str, str]:
        """The variables that set the value in this environment: lists keep their other members."""
        return {
            name: with_member(environment.get(name, ""), word, self.separator) if self.separator else word
            for name, word in self.write(value).items()
        }

    def is_set_by(self, name: str, text: str) -> bool:
        """Whether this text of one of the variables sets the knob: a list may set only others."""
        return not self.separator or has_member(text, name_of(self.variables[name]), self.separator)

    def required_variables(self, value: Value) -> Mapping[str, str]:
        """The variables in `also_set` that this value requires."""
        return self.also_set if self.also_set_for in (None, value) else {}

    def preloads(self, value: Value) -> bool:
        """Whether ranks must preload the library in `preload` for this value."""
        return bool(self.preload) and self.write(value) != self.variables

    def read(self, variables: Mapping[str, str]) -> Value:
        """The value that the variables set.

        Raises KeyError for a missing variable, and ValueError if they differ or are invalid.
        """
        words = {name: variables[name] for name in self.variables}
        if self.separator:
            words = {name: member_like(word, self.variables[name], self.separator) for name, word in words.items()}
        first, *others = [self.values.read(word) for word in words.values()]
        if any(value != first for value in others):
            raise ValueError(f"{', '.join(self.variables)} differ")
        return first


@dataclass(frozen=True)
class Target:
    """The job whose knobs are set.

    `flavour`: its --mpi. `version`: of the installed library. `transport`: the one that carries the
    job's messages.
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

    `flavours`: the `--mpi` of jobs that may use the library, None for all. `in_job(target)`:
    whether the job uses it; None if only a run can show that.
    """

    key: str
    name: str
    spellings: tuple[Spelling, ...]
    flavours: tuple[str, ...] | None = None
    in_job: Callable[[Target], bool | None] = always

    def supports_flavour(self, flavour: str) -> bool:
        return self.flavours is None or flavour in self.flavours


LIBRARIES: Registry[KnobLibrary] = Registry("knob library", "hvscale.comm_tuning.knobs.libraries")


def register(library: KnobLibrary) -> None:
    LIBRARIES.register(library.key, library)


def libraries() -> list[KnobLibrary]:
    """All libraries, sorted by name."""
    return sorted(LIBRARIES.all().values(), key=lambda library: library.name.lower())


def libraries_of(word: str) -> list[KnobLibrary]:
    """The libraries that a job of this flavour may use, or the one library with this key.

    Raises RequestError for an unknown word, which the user typed for --mpi.
    """
    if word in flavours.names():
        return [library for library in libraries() if library.supports_flavour(word)]
    known = sorted({*flavours.names(), *LIBRARIES.names()})
    if word not in known:
        raise RequestError(f"--mpi {word}: {suggest_name('flavour or library', word, known)}")
    return [LIBRARIES.get(word)]


def spelling_of(mpi: str, knob: str) -> Spelling | None:
    """The spelling of a knob in the library of a flavour, or in nccl; None if it lacks the knob."""
    for library in libraries():
        if library.key == mpi:
            return next((spelling for spelling in library.spellings if spelling.knob == knob), None)
    return None


def algorithm_knob(mpi: str, operation: str) -> Spelling | None:
    """The spelling of the knob that selects the algorithm of a collective."""
    return spelling_of(mpi, "nccl_algorithm" if mpi == "nccl" else f"{operation}_algorithm")


def algorithms_of(mpi: str, operation: str) -> Mapping[str, str]:
    """The library's words for the algorithms, by the names in `hvscale knobs`.

    Empty for a library without named algorithms.
    """
    spelling = algorithm_knob(mpi, operation)
    return spelling.values.words if spelling is not None and isinstance(spelling.values, OneOf) else {}


def segmented_algorithms(mpi: str, operation: str) -> tuple[str, ...]:
    """The algorithms that split messages into segments of a given size."""
    spelling = algorithm_knob(mpi, operation)
    return spelling.segmented if spelling is not None else ()
