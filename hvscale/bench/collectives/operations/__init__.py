"""The collectives that can be measured. Each is the file of its name in this folder and registers itself."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from hvscale.bench.collectives.elements import Pattern
from hvscale.core.registry import Registry

# What a rank sends or is to receive: a pattern for each block of `count` elements.
Blocks = list[Pattern]


@dataclass(frozen=True)
class MpiArguments:
    """What a function of MPI may take: addresses of the buffers, handles, and numbers. In place, `send` is MPI_IN_PLACE.

    `block_bytes`: the size of `count` elements. `sum()`: the handle of the operation that adds up elements of `datatype`.
    """

    send: int
    receive: int
    count: int
    datatype: int
    communicator: int
    sum: Callable[[], int]
    rank: int
    root: int
    block_bytes: int
    in_place: bool

    @property
    def is_root(self) -> bool:
        return self.rank == self.root


@dataclass(frozen=True)
class Collective:
    """`count` is what nccl-tests calls so: the elements of a block. A rank sends and receives whole blocks.

    `largest(np)`: blocks in the larger of its two buffers, which make up the size column, as nccl-tests counts it.
    `sends(rank, np, root)`; `expects(rank, np, root)`: None where nothing is received. `own_block(rank)`: where a rank's contribution lies
    when it sends from where it receives. `bus_factor(np)`: busbw / algbw, from nccl-tests' doc/PERFORMANCE.md.
    `mpi(arguments)`: the name and arguments of MPI's function. `out_of_place`, `in_place`: whether MPI has it with two buffers, and with one.
    `rooted`: a root may run ahead of the others, so calls are timed one by one. `osu_size`: what OSU's benchmark counts as its size.
    """

    name: str
    meaning: str
    bus_factor: Callable[[int], float]
    largest: Callable[[int], int]
    sends: Callable[[int, int, int], Blocks]
    expects: Callable[[int, int, int], Blocks | None]
    mpi: Callable[[MpiArguments], tuple[str, tuple[int, ...]]]
    own_block: Callable[[int], int] = lambda rank: 0
    reduces: bool = False
    rooted: bool = False
    has_data: bool = True
    out_of_place: bool = True
    in_place: bool = True
    osu_size: Literal["all", "block"] = "all"


COLLECTIVES: Registry[Collective] = Registry("collective", __name__)


def register(collective: Collective) -> Collective:
    return COLLECTIVES.register(collective.name, collective)
