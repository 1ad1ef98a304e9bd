"""Barrier."""

from hvscale.bench.collectives.operations import Collective, register

register(
    Collective(
        name="barrier",
        summary="no rank continues until all have arrived",
        bus_factor=lambda np: 0,
        blocks_in_buffer=lambda np: 0,
        sends=lambda rank, np, root: [],
        expects=lambda rank, np, root: None,
        has_data=False,
        mpi=lambda to: ("MPI_Barrier", (to.communicator,)),
        in_place=False,
    )
)
