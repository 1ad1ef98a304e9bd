"""Reduce."""

from hvscale.bench.collectives.elements import addend, total
from hvscale.bench.collectives.operations import Collective, register

register(
    Collective(
        name="reduce",
        meaning="the root gets the sum over all ranks",
        bus_factor=lambda np: 1,
        largest=lambda np: 1,
        sends=lambda rank, np, root: [addend(rank, np)],
        expects=lambda rank, np, root: [total(np)] if rank == root else None,
        reduces=True,
        rooted=True,
    )
)
