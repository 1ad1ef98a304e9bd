"""Broadcast. It has one buffer, so in MPI and PyTorch it is always in place."""

from hvscale.bench.collectives.elements import mark
from hvscale.bench.collectives.operations import Collective, register

register(
    Collective(
        name="broadcast",
        meaning="every rank gets the root's data",
        bus_factor=lambda np: 1,
        largest=lambda np: 1,
        sends=lambda rank, np, root: [mark(root)] if rank == root else [],
        expects=lambda rank, np, root: [mark(root)],
        rooted=True,
        mpi=lambda to: ("MPI_Bcast", (to.receive, to.count, to.datatype, to.root, to.communicator)),
        out_of_place=False,
    )
)
