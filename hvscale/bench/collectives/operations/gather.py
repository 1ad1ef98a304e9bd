"""Gather."""

from hvscale.bench.collectives.elements import mark
from hvscale.bench.collectives.operations import Collective, register

register(
    Collective(
        name="gather",
        meaning="the root gets every rank's block",
        bus_factor=lambda np: (np - 1) / np,
        largest=lambda np: np,
        sends=lambda rank, np, root: [mark(rank)],
        expects=lambda rank, np, root: [mark(source) for source in range(np)] if rank == root else None,
        own_block=lambda rank: rank,
        rooted=True,
        osu_size="block",
    )
)
