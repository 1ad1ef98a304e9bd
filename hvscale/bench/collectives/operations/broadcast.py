"""Broadcast. It has one buffer, so MPI and PyTorch support it only in place."""

from hvscale.bench.collectives.elements import sender_pattern
from hvscale.bench.collectives.operations import Collective, register

register(
    Collective(
        name="broadcast",
        summary="every rank gets the root's data",
        bus_factor=lambda np: 1,
        blocks_in_buffer=lambda np: 1,
        sends=lambda rank, np, root: [sender_pattern(root)] if rank == root else [],
        expects=lambda rank, np, root: [sender_pattern(root)],
        rooted=True,
        mpi=lambda to: ("MPI_Bcast", (to.receive, to.count, to.datatype, to.root, to.communicator)),
        out_of_place=False,
    )
)
