"""All-reduce."""

from hvscale.bench.collectives.elements import addend, total
from hvscale.bench.collectives.operations import Collective, register

register(
    Collective(
        name="allreduce",
        summary="every rank gets the sum over all ranks",
        bus_factor=lambda np: 2 * (np - 1) / np,
        blocks_in_buffer=lambda np: 1,
        sends=lambda rank, np, root: [addend(rank, np)],
        expects=lambda rank, np, root: [total(np)],
        reduces=True,
        mpi=lambda to: ("MPI_Allreduce", (to.send, to.receive, to.count, to.datatype, to.sum(), to.communicator)),
    )
)
