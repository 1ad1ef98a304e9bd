"""All-gather."""

from hvscale.bench.collectives.elements import sender_pattern
from hvscale.bench.collectives.operations import Collective, register

register(
    Collective(
        name="allgather",
        summary="every rank gets every rank's block",
        bus_factor=lambda np: (np - 1) / np,
        blocks_in_buffer=lambda np: np,
        sends=lambda rank, np, root: [sender_pattern(rank)],
        expects=lambda rank, np, root: [sender_pattern(source) for source in range(np)],
        own_block=lambda rank: rank,
        osu_size="block",
        mpi=lambda to: (
            "MPI_Allgather",
            (to.send, to.count, to.datatype, to.receive, to.count, to.datatype, to.communicator),
        ),
    )
)
