"""Broadcast: one buffer, so it is always in place in MPI and PyTorch."""

from hvscale.bench.collectives.elements import mark
from hvscale.bench.collectives.operations import Collective, register

register(
    Collective(
        name="broadcast",
        meaning="every rank gets what the root has",
        bus_factor=lambda np: 1,
        largest=lambda np: 1,
        sends=lambda rank, np, root: [mark(root)] if rank == root else [],
        expects=lambda rank, np, root: [mark(root)],
        rooted=True,
        mpi=lambda to: ("MPI_Bcast", (to.receive, to.count, to.datatype, to.root, to.communicator)),
        out_of_place=False,
    )
)
