"""A synthetic study of collectives, for tests of its tables, figures and page."""

from collections.abc import Callable

from hvscale.comm_tuning.collectives.decide.cost_model import Fit, wire_seconds
from hvscale.comm_tuning.collectives.decide.measurements import (
    LIBRARY,
    LIBRARY_AUTO,
    AlgorithmChoice,
    Measurements,
    Point,
)
from hvscale.comm_tuning.collectives.document import TuneCollectivesDocument
from hvscale.comm_tuning.collectives.tables.table import Operation
from hvscale.launch.options import LaunchOptions
from hvscale.launch.placement_options import PlacementOptions

KIB, MIB = 1 << 10, 1 << 20
LINK = 1e9
SIZES = [4 * KIB << step for step in range(15)]
SMALL = AlgorithmChoice(algorithm="chain", chunk_bytes=8 * KIB, depth=16)
LARGE = AlgorithmChoice(algorithm="chain", chunk_bytes=32 * KIB, depth=16)
TREE = AlgorithmChoice(algorithm="k-nomial", chunk_bytes=64 * KIB, depth=8, radix=4)
FLAT = AlgorithmChoice(algorithm="flat", chunk_bytes=64 * KIB, depth=4)
RING = AlgorithmChoice(library_algorithm="segmented_ring", segment_bytes=64 * KIB)
DOUBLING = AlgorithmChoice(library_algorithm="recursive_doubling")
NETWORK = Fit(
    level="between nodes",
    start_seconds=2e-5,
    bytes_per_second=LINK / 8,
    rendezvous_seconds=4e-5,
    eager_limit_bytes=64 * KIB,
    points=0,
    error_percent=0,
)


def samples(seconds: float, spread: float = 0.01) -> list[float]:
    """Five samples around `seconds`."""
    return [seconds * (1 + spread * step) for step in (-1, -0.5, 0, 0.5, 1)]


def point(
    operation: Operation, np: int, size: int, choice: AlgorithmChoice, seconds: float, spread: float = 0.01
) -> Point:
    return Point(
        operation=operation, np=np, ranks_per_node=1, bytes=size, choice=choice, seconds=samples(seconds, spread)
    )


def by_model(operation: Operation, np: int, size: int, choice: AlgorithmChoice) -> float:
    seconds = NETWORK.seconds(operation, np, size, choice)
    assert seconds is not None
    return seconds


def broadcast_library(np: int, size: int) -> float:
    """Seconds of the library's broadcast: good up to 16 KiB, slow above."""
    whole = wire_seconds("broadcast", np, size, LINK / 8)
    return 3e-5 * np + whole * (0.6 if size <= 16 * KIB else 2.5)


def study(
    nps: list[int] | None = None, link: float | None = LINK, more: Callable[[], list[Point]] = list
) -> TuneCollectivesDocument:
    """A study of broadcast and all-reduce between nodes, with a decision. `more`: further
    points.
    """
    nps = nps or [2, 4]
    points = more()
    for np in nps:
        for size in SIZES:
            points.append(point("broadcast", np, size, LIBRARY, broadcast_library(np, size)))
            points += [
                point("broadcast", np, size, choice, by_model("broadcast", np, size, choice))
                for choice in (SMALL, LARGE, TREE, FLAT)
            ]
            library = 2.2 * by_model("allreduce", np, size, DOUBLING)
            points.append(point("allreduce", np, size, LIBRARY, library, spread=0.05))
            points.append(point("allreduce", np, size, LIBRARY_AUTO, 0.999 * library, spread=0.05))
            points.append(point("broadcast", np, size, LIBRARY_AUTO, broadcast_library(np, size)))
            points += [
                point("allreduce", np, size, choice, by_model("allreduce", np, size, choice))
                for choice in (RING, DOUBLING)
            ]
    document = TuneCollectivesDocument(
        state="finished",
        folder="/studies/collectives",
        mpi="openmpi",
        library="openmpi 5.0.11",
        np=max(nps),
        nps=nps,
        operations=["broadcast", "allreduce"],
        sizes={"broadcast": SIZES, "allreduce": SIZES},
        eager_limits=[None],
        launch=LaunchOptions(placement=PlacementOptions(placement="netns")),
        link_bits_per_second=link,
        measurements=Measurements(mpi="openmpi", points=points),
    )
    document.tabulate()
    return document
