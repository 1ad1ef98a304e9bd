"""The algorithms of a library for each collective: the words of `hvscale knobs`, each with the library's own."""

from collections.abc import Mapping

from hvscale.comm_tuning.knobs.library import libraries
from hvscale.comm_tuning.knobs.values import Choice

OWN_CHOICE = "auto"  # the library's decision once it was told algorithms for other messages


def algorithms_of(mpi: str, operation: str) -> Mapping[str, str]:
    """`mpi`: a flavour, or nccl. Empty for a library that has none with names, and where the knobs do not know it."""
    knob = "nccl_algorithm" if mpi == "nccl" else f"{operation}_algorithm"
    for library in libraries():
        if library.key == mpi:
            for spelling in library.spellings:
                if spelling.knob == knob and isinstance(spelling.values, Choice):
                    return spelling.values.words
    return {}
