"""All-to-all."""

from hvscale.bench.collectives.elements import mark
from hvscale.bench.collectives.operations import Collective, register

register(
    Collective(
        name="alltoall",
        meaning="every rank gets a different block from every rank",
        bus_factor=lambda np: (np - 1) / np,
        largest=lambda np: np,
        sends=lambda rank, np, root: [mark(rank, target) for target in range(np)],
        expects=lambda rank, np, root: [mark(source, rank) for source in range(np)],
        osu_size="block",
        mpi=lambda to: (
            "MPI_Alltoall",
            (to.send, to.count, to.datatype, to.receive, to.count, to.datatype, to.communicator),
        ),
    )
)
