"""Gather."""

from hvscale.bench.collectives.elements import sender_pattern
from hvscale.bench.collectives.operations import Collective, MpiArguments, register


def mpi(to: MpiArguments) -> tuple[str, tuple[int, ...]]:
    """The call. In place, a rank other than the root sends its own block of the receive buffer."""
    send = to.receive + to.rank * to.block_bytes if to.in_place and not to.is_root else to.send
    blocks = (send, to.count, to.datatype, to.receive, to.count, to.datatype)
    return "MPI_Gather", (*blocks, to.root, to.communicator)


register(
    Collective(
        name="gather",
        summary="the root gets every rank's block",
        bus_factor=lambda np: (np - 1) / np,
        blocks_in_buffer=lambda np: np,
        sends=lambda rank, np, root: [sender_pattern(rank)],
        expects=lambda rank, np, root: [sender_pattern(source) for source in range(np)] if rank == root else None,
        own_block=lambda rank: rank,
        rooted=True,
        osu_size="block",
        mpi=mpi,
    )
)
