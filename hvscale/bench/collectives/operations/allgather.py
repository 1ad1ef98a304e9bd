"""All-gather."""

from hvscale.bench.collectives.elements import mark
from hvscale.bench.collectives.operations import Collective, register

register(
    Collective(
        name="allgather",
        meaning="every rank gets every rank's block",
        bus_factor=lambda np: (np - 1) / np,
        largest=lambda np: np,
        sends=lambda rank, np, root: [mark(rank)],
        expects=lambda rank, np, root: [mark(source) for source in range(np)],
        own_block=lambda rank: rank,
        osu_size="block",
        mpi=lambda to: (
            "MPI_Allgather",
            (to.send, to.count, to.datatype, to.receive, to.count, to.datatype, to.communicator),
        ),
    )
)
