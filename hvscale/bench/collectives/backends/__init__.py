"""The back ends that collectives can be measured on. Each file of this folder registers one or more
back ends.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hvscale.bench.collectives.request import BenchRequest, Device, InPlace, MessagePath
from hvscale.core.errors import RequestError
from hvscale.core.registry import Registry
from hvscale.core.suggest import suggest_name

if TYPE_CHECKING:
    from hvscale.bench.collectives.rank_side.engine import Engine

SINGLE_PATHS = ("host", "nccl")  # a back end with one of these has no other
HOST: Mapping[Device, tuple[MessagePath, ...]] = {"cpu": ("host",)}


@dataclass(frozen=True)
class Backend:
    """A library that carries messages.

    `flavour`: the --mpi that starts its ranks. `out_of_place`, `in_place`: the collectives it
    supports with two buffers and with one. `paths`: how messages reach the library, by the memory
    that holds them, the default first. `buffers`: buffers of the largest size in a rank.
    `rotates_root`: can be timed with each rank as the root in turn. `serves`: works with a
    parameter server. `gathers_twice`: the root of its gather holds all blocks twice.
    `problem(command, environment)`: what is not installed and how to install it; empty when nothing
    is missing. `open(request)`: opens it inside a rank.
    """

    name: str
    flavour: str
    out_of_place: frozenset[str]
    in_place: frozenset[str]
    dtypes: tuple[str, ...]
    paths: Mapping[Device, tuple[MessagePath, ...]]
    open: "Callable[[BenchRequest], Engine]"
    buffers: int = 2
    rotates_root: bool = False
    serves: bool = False
    gathers_twice: bool = False
    problem: Callable[[list[str], dict[str, str]], str] = lambda command, environment: ""

    @property
    def collectives(self) -> frozenset[str]:
        return self.out_of_place | self.in_place


BACKENDS: Registry[Backend] = Registry("back end", __name__)
# What --backend takes beside the names: the back ends that go with --mpi.
ALIASES = ("mpi", "horovod")


def register(backend: Backend) -> Backend:
    return BACKENDS.register(backend.name, backend)


def find_backend(name: str) -> Backend:
    """The back end of this name. Raises RequestError, suggesting the nearest name, for an unknown
    one.
    """
    known = BACKENDS.all()
    if name not in known:
        raise RequestError(f"--backend {name}: {suggest_name('back end', name, [*ALIASES, *known])}")
    return known[name]


def named(words: list[str], mpi: str) -> list[Backend]:
    """The back ends of `--backend a,b --backend c`, each once. `mpi` means the flavour of --mpi,
    `horovod` Horovod over it.
    """
    meant = {"mpi": mpi, "horovod": f"horovod-{mpi}"}
    names = [name.strip() for word in words for name in word.split(",")] or [mpi]
    return [find_backend(meant.get(name, name)) for name in dict.fromkeys(names)]


def names_with(has: Callable[[Backend], bool]) -> str:
    """The names of the back ends with a property, for error messages."""
    return ", ".join(name for name, backend in BACKENDS.all().items() if has(backend)) or "none"


def check(backend: Backend, collective: str, dtype: str, device: Device, paths: list[MessagePath]) -> list[MessagePath]:
    """The paths to measure. Raises RequestError, naming the back ends that support it, for what
    this one does not.
    """
    if collective not in backend.collectives:
        raise RequestError(
            f"{backend.name} does not support {collective}; supported by {names_with(lambda other: collective in other.collectives)}"
        )
    if dtype not in backend.dtypes:
        raise RequestError(
            f"{backend.name} does not support {dtype}; supported by {names_with(lambda other: dtype in other.dtypes)}"
        )
    if device not in backend.paths:
        raise RequestError(
            f"{backend.name} does not support {device} memory: use --device {next(iter(backend.paths))}, or one of "
            f"{names_with(lambda other: device in other.paths)}"
        )
    have = backend.paths[device]
    taken = [path for path in paths if path in have] if paths else list(have[:1])
    if not taken:
        raise RequestError(
            f"{backend.name} does not support --path {','.join(paths)} on {device} memory; it supports {', '.join(have)}"
        )
    return taken


def name_of(backend: Backend, path: MessagePath) -> str:
    """Its name in tables, with the path where the back end has several."""
    return backend.name if path in SINGLE_PATHS else f"{backend.name}-{path}"


def places(backend: Backend, collective: str, asked: InPlace) -> list[bool]:
    """Whether in place, for each of the requested placements of data that the back end supports.
    Raises RequestError for none.
    """
    supported = {False: collective in backend.out_of_place, True: collective in backend.in_place}
    found = [
        in_place for in_place in {"both": (False, True), "out": (False,), "in": (True,)}[asked] if supported[in_place]
    ]
    if not found:
        raise RequestError(
            f"{backend.name} supports {collective} only {'out of' if supported[False] else 'in'} place: use --in-place both"
        )
    return found
