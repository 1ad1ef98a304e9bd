"""The algorithms of each library by collective, in the names of `hvscale knobs` and in the
library's own.
"""

from collections.abc import Mapping

from hvscale.comm_tuning.knobs.library import Spelling, libraries
from hvscale.comm_tuning.knobs.values import OneOf

OWN_CHOICE = "auto"  # the choice of a library's tunable component


def spelling_of(mpi: str, knob: str) -> Spelling | None:
    """A library's spelling of a knob; None where it does not have the knob. `mpi`: a flavour, or
    nccl.
    """
    for library in libraries():
        if library.key == mpi:
            return next((spelling for spelling in library.spellings if spelling.knob == knob), None)
    return None


def algorithm_knob(mpi: str, operation: str) -> Spelling | None:
    """The knob that chooses the algorithm of a collective."""
    return spelling_of(mpi, "nccl_algorithm" if mpi == "nccl" else f"{operation}_algorithm")


def segmented(mpi: str, operation: str) -> tuple[str, ...]:
    """The algorithms that split messages into segments of a given size."""
    spelling = algorithm_knob(mpi, operation)
    return spelling.segmented if spelling is not None else ()


def algorithms_of(mpi: str, operation: str) -> Mapping[str, str]:
    """The algorithms by name; empty for a library without named algorithms."""
    spelling = algorithm_knob(mpi, operation)
    return spelling.values.words if spelling is not None and isinstance(spelling.values, OneOf) else {}
