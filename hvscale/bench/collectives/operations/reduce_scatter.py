"""Reduce-scatter with blocks of equal size (MPI_Reduce_scatter_block)."""

from hvscale.bench.collectives.elements import block_addend, total
from hvscale.bench.collectives.operations import Collective, register

register(
    Collective(
        name="reduce-scatter",
        summary="each rank gets its block of the sum over all ranks",
        bus_factor=lambda np: (np - 1) / np,
        blocks_in_buffer=lambda np: np,
        sends=lambda rank, np, root: [block_addend(rank, np, block) for block in range(np)],
        expects=lambda rank, np, root: [total(np, rank)],
        reduces=True,
        mpi=lambda to: (
            "MPI_Reduce_scatter_block",
            (to.send, to.receive, to.count, to.datatype, to.sum(), to.communicator),
        ),
    )
)
