"""The algorithms of a library for each collective: the words of `hvscale knobs`, each with the library's own."""

from collections.abc import Mapping

from hvscale.comm_tuning.knobs.library import Spelling, libraries
from hvscale.comm_tuning.knobs.values import OneOf

OWN_CHOICE = "auto"  # what the part of a library chooses by itself that can be told algorithms


def spelling_of(mpi: str, knob: str) -> Spelling | None:
    """`mpi`: a flavour, or nccl. None where the knobs do not know it of that library."""
    for library in libraries():
        if library.key == mpi:
            return next((spelling for spelling in library.spellings if spelling.knob == knob), None)
    return None


def algorithm_knob(mpi: str, operation: str) -> Spelling | None:
    """That which names its algorithms for this collective."""
    return spelling_of(mpi, "nccl_algorithm" if mpi == "nccl" else f"{operation}_algorithm")


def segmented(mpi: str, operation: str) -> tuple[str, ...]:
    """Those that cut a message into parts of as many bytes as they are told."""
    spelling = algorithm_knob(mpi, operation)
    return spelling.segmented if spelling is not None else ()


def algorithms_of(mpi: str, operation: str) -> Mapping[str, str]:
    """Empty for a library that has none with names."""
    spelling = algorithm_knob(mpi, operation)
    return spelling.values.words if spelling is not None and isinstance(spelling.values, OneOf) else {}
