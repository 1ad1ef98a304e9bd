"""Reduce."""

from hvscale.bench.collectives.elements import addend, total
from hvscale.bench.collectives.operations import Collective, MpiArguments, register


def mpi(to: MpiArguments) -> tuple[str, tuple[int, ...]]:
    """The call. In place, a rank other than the root sends from its receive buffer."""
    send = to.receive if to.in_place and not to.is_root else to.send
    return "MPI_Reduce", (send, to.receive, to.count, to.datatype, to.sum(), to.root, to.communicator)


register(
    Collective(
        name="reduce",
        summary="the root gets the sum over all ranks",
        bus_factor=lambda np: 1,
        blocks_in_buffer=lambda np: 1,
        sends=lambda rank, np, root: [addend(rank, np)],
        expects=lambda rank, np, root: [total(np)] if rank == root else None,
        reduces=True,
        rooted=True,
        mpi=mpi,
    )
)
