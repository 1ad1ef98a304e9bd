"""The back ends that collectives can be measured on. Each file of this folder registers one or more."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hvscale.bench.collectives.request import Device, InPlace, Request, Way
from hvscale.core.errors import RequestError
from hvscale.core.registry import Registry
from hvscale.core.suggest import suggest_name

if TYPE_CHECKING:
    from hvscale.bench.collectives.rank_side.engine import Engine

ONLY_WAY = ("host", "nccl")  # of what has it
HOST: Mapping[Device, tuple[Way, ...]] = {"cpu": ("host",)}


@dataclass(frozen=True)
class Backend:
    """`flavour`: the --mpi that starts its ranks. `paths`: the ways of a message by the memory that it lies in, the usual one first.

    `out_of_place`, `in_place`: the collectives that it has with two buffers, and with one. `buffers`: how many of the largest size a rank
    holds. `turns_roots`: whether it is timed with each rank as the root in turn. `serves`: whether it works with a parameter server;
    `gathers_twice`: the root of its gather holds all blocks once more. `problem(command, environment)`: what is missing here, and how to get
    it; empty when nothing is. `open(request)`: in a rank.
    """

    name: str
    flavour: str
    out_of_place: frozenset[str]
    in_place: frozenset[str]
    dtypes: tuple[str, ...]
    paths: Mapping[Device, tuple[Way, ...]]
    open: "Callable[[Request], Engine]"
    buffers: int = 2
    turns_roots: bool = False
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
    """The back end of this name. Raises RequestError, suggesting the nearest name, for an unknown one."""
    known = BACKENDS.all()
    if name not in known:
        raise RequestError(f"--backend {name}: {suggest_name('back end', name, [*ALIASES, *known])}")
    return known[name]


def named(words: list[str], mpi: str) -> list[Backend]:
    """Those of `--backend a,b --backend c`, each once. `mpi` stands for the flavour of --mpi, `horovod` for Horovod over it."""
    meant = {"mpi": mpi, "horovod": f"horovod-{mpi}"}
    names = [name.strip() for word in words for name in word.split(",")] or [mpi]
    return [find_backend(meant.get(name, name)) for name in dict.fromkeys(names)]


def having(what: Callable[[Backend], bool]) -> str:
    """The names of those that have something, for a refusal."""
    return ", ".join(name for name, backend in BACKENDS.all().items() if what(backend)) or "none"


def check(backend: Backend, collective: str, dtype: str, device: Device, paths: list[Way]) -> list[Way]:
    """The ways that are to be measured. Raises RequestError, naming who has it, for what the back end lacks."""
    if collective not in backend.collectives:
        raise RequestError(
            f"{backend.name} has no {collective}; {having(lambda other: collective in other.collectives)} have it"
        )
    if dtype not in backend.dtypes:
        raise RequestError(f"{backend.name} has no {dtype}; {having(lambda other: dtype in other.dtypes)} have it")
    if device not in backend.paths:
        raise RequestError(
            f"{backend.name} does not work on {device} memory: --device {next(iter(backend.paths))}, or one of "
            f"{having(lambda other: device in other.paths)}"
        )
    have = backend.paths[device]
    taken = [path for path in paths if path in have] if paths else list(have[:1])
    if not taken:
        raise RequestError(
            f"{backend.name} has no --path {','.join(paths)} on {device} memory; it has {', '.join(have)}"
        )
    return taken


def name_of(backend: Backend, path: Way) -> str:
    """In tables: with the path where it is one of several."""
    return backend.name if path in ONLY_WAY else f"{backend.name}-{path}"


def places(backend: Backend, collective: str, asked: InPlace) -> list[bool]:
    """In place or not: what was asked for, as far as the back end has it. Raises RequestError where it has none of it."""
    having = {False: collective in backend.out_of_place, True: collective in backend.in_place}
    found = [
        in_place for in_place in {"both": (False, True), "out": (False,), "in": (True,)}[asked] if having[in_place]
    ]
    if not found:
        raise RequestError(
            f"{backend.name} has its {collective} {'out of' if having[False] else 'in'} place only: --in-place both"
        )
    return found
