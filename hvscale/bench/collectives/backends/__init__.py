"""The back ends that collectives can be measured on. Each file of this folder registers at least
one.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hvscale.bench.collectives.request import BenchRequest, Device, InPlace, MessagePath
from hvscale.core.errors import RequestError
from hvscale.core.registry import Registry
from hvscale.core.suggest import suggest_name
from hvscale.launch import flavours

if TYPE_CHECKING:
    from hvscale.bench.collectives.rank_side.engine import Engine

SINGLE_PATHS = ("host", "nccl")  # a back end with one of these has no other
HOST: Mapping[Device, tuple[MessagePath, ...]] = {"cpu": ("host",)}


@dataclass(frozen=True)
class Backend:
    """A library that sends messages.

    `flavour`: the --mpi that starts its ranks.
    `out_of_place`, `in_place`: the collectives it supports with two buffers and with one.
    `paths`: how messages reach the library, by the memory that holds them, the default first.
    `buffers`: the number of buffers of the largest size in a rank.
    `supports_rotating_root`: whether calls can be timed with each rank as the root in turn.
    `gather_copies_twice`: whether the root of a gather holds all blocks twice.
    `problem(command, environment)`: what is not installed and how to install it, or "".
    `open(request)`: the engine, opened inside a rank.
    """

    name: str
    flavour: str
    out_of_place: frozenset[str]
    in_place: frozenset[str]
    dtypes: tuple[str, ...]
    paths: Mapping[Device, tuple[MessagePath, ...]]
    open: "Callable[[BenchRequest], Engine]"
    buffers: int = 2
    supports_rotating_root: bool = False
    supports_param_server: bool = False
    gather_copies_twice: bool = False
    problem: Callable[[list[str], dict[str, str]], str] = lambda command, environment: ""

    @property
    def collectives(self) -> frozenset[str]:
        return self.out_of_place | self.in_place


BACKENDS: Registry[Backend] = Registry("back end", __name__)
# Accepted by --backend besides the names: the back ends that depend on --mpi.
ALIASES = ("mpi", "horovod")


def register(backend: Backend) -> Backend:
    return BACKENDS.register(backend.name, backend)


def find_backend(name: str) -> Backend:
    """The back end of this name. Raises RequestError, suggesting the nearest name, if there is
    none.
    """
    known = BACKENDS.all()
    if name not in known:
        raise RequestError(f"--backend {name}: {suggest_name('back end', name, [*ALIASES, *known])}")
    return known[name]


def select(words: list[str], mpi: str) -> list[Backend]:
    """The back ends of `--backend a,b --backend c`, each once. `mpi` means the flavour of --mpi,
    `horovod` Horovod over it.
    """
    aliases = {"mpi": mpi, "horovod": f"horovod-{mpi}"}
    names = [name.strip() for word in words for name in word.split(",")] or [mpi]
    return [find_backend(name) for name in dict.fromkeys(aliases.get(name, name) for name in names)]


def check_mpi(mpi: str, started_by: Collection[str]) -> None:
    """Raises RequestError if --mpi names another MPI than the back ends.

    `started_by`: their flavours. Back ends without MPI do not contradict it.
    """
    others = [name for name in started_by if flavours.get(name).has_mpi]
    if others and mpi not in started_by:
        raise RequestError(
            f"--mpi {mpi}, but --backend names back ends of {', '.join(dict.fromkeys(others))}: leave out --mpi, or add mpi to --backend"
        )


def names_where(condition: Callable[[Backend], bool]) -> str:
    """The names of the back ends that meet a condition, for error messages."""
    return ", ".join(name for name, backend in BACKENDS.all().items() if condition(backend)) or "none"


def supported_paths(
    backend: Backend, collective: str, dtype: str, device: Device, paths: list[MessagePath]
) -> list[MessagePath]:
    """The paths to measure: those of `paths` that the back end supports, or its default.

    Raises RequestError for an unsupported request, naming the back ends that support it.
    """
    if collective not in backend.collectives:
        raise RequestError(
            f"{backend.name} does not support {collective}; supported by {names_where(lambda other: collective in other.collectives)}"
        )
    if dtype not in backend.dtypes:
        raise RequestError(
            f"{backend.name} does not support {dtype}; supported by {names_where(lambda other: dtype in other.dtypes)}"
        )
    if device not in backend.paths:
        raise RequestError(
            f"{backend.name} does not support {device} memory: use --device {next(iter(backend.paths))}, or one of "
            f"{names_where(lambda other: device in other.paths)}"
        )
    supported = backend.paths[device]
    selected = [path for path in paths if path in supported] if paths else list(supported[:1])
    if not selected:
        raise RequestError(
            f"{backend.name} does not support --path {','.join(paths)} on {device} memory; it supports {', '.join(supported)}"
        )
    return selected


def display_name(backend: Backend, path: MessagePath) -> str:
    """The back end's name in tables, with the path if it has several."""
    return backend.name if path in SINGLE_PATHS else f"{backend.name}-{path}"


def in_place_modes(backend: Backend, collective: str, requested: InPlace) -> list[bool]:
    """The modes to measure, False for out of place and True for in place.

    Raises RequestError if the back end supports none of the requested modes.
    """
    supported = {False: collective in backend.out_of_place, True: collective in backend.in_place}
    found = [
        in_place
        for in_place in {"both": (False, True), "out": (False,), "in": (True,)}[requested]
        if supported[in_place]
    ]
    if not found:
        raise RequestError(
            f"{backend.name} supports {collective} only {'out of' if supported[False] else 'in'} place: use --in-place both"
        )
    return found
