"""The collectives that can be measured. Each is the file of its name in this folder and registers itself."""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

from hvscale.bench.collectives.values import Pattern
from hvscale.core.errors import RequestError
from hvscale.core.suggest import unknown

# What a rank sends or is to receive: a pattern for each block of `count` elements.
Blocks = list[Pattern]


@dataclass(frozen=True)
class Collective:
    """`count` is what nccl-tests calls so: the elements of a block. A rank sends and receives whole blocks.

    `largest(np)`: blocks in the larger of its two buffers, which make up the size column, as nccl-tests counts it.
    `sends(rank, np, root)`; `expects(rank, np, root)`: None where nothing is received. `own_block(rank)`: where a rank's contribution lies
    when it sends from where it receives. `bus_factor(np)`: busbw / algbw, from nccl-tests' doc/PERFORMANCE.md.
    `rooted`: a root may run ahead of the others, so calls are timed one by one. `osu_size`: what OSU's benchmark counts as its size.
    """

    name: str
    meaning: str
    bus_factor: Callable[[int], float]
    largest: Callable[[int], int]
    sends: Callable[[int, int, int], Blocks]
    expects: Callable[[int, int, int], Blocks | None]
    own_block: Callable[[int], int] = lambda rank: 0
    reduces: bool = False
    rooted: bool = False
    has_data: bool = True
    osu_size: Literal["all", "block"] = "all"


_collectives: dict[str, Collective] = {}


def register(collective: Collective) -> None:
    _collectives[collective.name] = collective


@cache
def collectives() -> dict[str, Collective]:
    """All that are known, by name."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return dict(sorted(_collectives.items()))


def get(name: str) -> Collective:
    """Raises RequestError, naming a near one, for an unknown name."""
    if name not in collectives():
        raise RequestError(f"{name}: no such collective; {unknown(name, collectives())}")
    return collectives()[name]
