"""All-to-all."""

from hvscale.bench.collectives.elements import sender_pattern
from hvscale.bench.collectives.operations import Collective, register

register(
    Collective(
        name="alltoall",
        summary="every rank gets a different block from every rank",
        bus_factor=lambda np: (np - 1) / np,
        blocks_in_buffer=lambda np: np,
        sends=lambda rank, np, root: [sender_pattern(rank, target) for target in range(np)],
        expects=lambda rank, np, root: [sender_pattern(source, rank) for source in range(np)],
        osu_size="block",
        mpi=lambda to: (
            "MPI_Alltoall",
            (to.send, to.count, to.datatype, to.receive, to.count, to.datatype, to.communicator),
        ),
    )
)
