"""The collectives that can be measured, one file each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from hvscale.bench.collectives.elements import Pattern
from hvscale.core.registry import Registry

# The data that a rank sends or must receive: a pattern for each block of `count` elements.
Blocks = list[Pattern]


@dataclass(frozen=True)
class MpiArguments:
    """Arguments for MPI's functions: addresses of buffers, handles, and numbers.

    `send`: MPI_IN_PLACE if in place. `block_bytes`: the size of `count` elements. `sum()`: the
    handle of the operation that sums elements of `datatype`.
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
    """A collective. A rank sends and receives whole blocks of `count` elements, where `count` is
    defined as in nccl-tests.

    `summary`: what it does, for the help.
    `bus_factor(np)`: busbw / algbw, from nccl-tests' doc/PERFORMANCE.md.
    `blocks_in_buffer(np)`: blocks in the larger of the two buffers; they give the size column, as
    in nccl-tests.
    `sends(rank, np, root)`, `expects(rank, np, root)`: the blocks a rank sends and must receive;
    None if it receives nothing.
    `mpi(arguments)`: the name and the arguments of MPI's function.
    `own_block(rank)`: the block of the receive buffer with the rank's contribution, in place.
    `rooted`: ranks may run ahead of each other, so a barrier comes before each timed call.
    `out_of_place`, `in_place`: whether MPI supports it with two buffers and with one.
    `osu_size`: what OSU's benchmark prints as the size.
    """

    name: str
    summary: str
    bus_factor: Callable[[int], float]
    blocks_in_buffer: Callable[[int], int]
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
