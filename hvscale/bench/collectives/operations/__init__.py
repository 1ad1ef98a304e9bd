"""The collectives that can be measured. Each file of this folder registers the collective of its
name.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from hvscale.bench.collectives.elements import Pattern
from hvscale.core.registry import Registry

# What a rank sends or must receive: a pattern for each block of `count` elements.
Blocks = list[Pattern]


@dataclass(frozen=True)
class MpiArguments:
    """What a function of MPI may take: addresses of the buffers, handles, and numbers. In place,
    `send` is MPI_IN_PLACE.

    `block_bytes`: the size of `count` elements. `sum()`: the handle of the operation that adds up
    elements of `datatype`.
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
    """A collective. A rank sends and receives whole blocks of `count` elements, in nccl-tests'
    sense of count.

    `largest(np)`: blocks in the larger of the two buffers, which give the size column, as in
    nccl-tests. `sends(rank, np, root)` and `expects(rank, np, root)`: the blocks a rank sends and
    must receive; None where it receives nothing. `own_block(rank)`: the block of the receive buffer
    that holds a rank's contribution in place. `bus_factor(np)`: busbw / algbw, from nccl-tests'
    doc/PERFORMANCE.md. `mpi(arguments)`: the name and arguments of MPI's function. `out_of_place`,
    `in_place`: whether MPI supports it with two buffers, and with one. `rooted`: a root may run
    ahead of the others, so there is a barrier before each timed call. `osu_size`: what OSU's
    benchmark counts as the size.
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
