"""Where the C part lies, and how ranks are made to use it in place of MPI_Bcast."""

from collections.abc import Mapping
from pathlib import Path

from hvscale.core.built_library import built_library, preloaded

LIBRARY = "libhvbcast.so"
TABLE_VARIABLE = "HVBCAST_TABLE"


def library_path() -> Path:
    """Raises RequestError when it was not built."""
    return built_library(LIBRARY)


def preload_environment(table: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """What every rank needs in its environment to broadcast by the decision table, in its compact form; `environment` is what it has.

    Raises RequestError when the library is missing, or lies where LD_PRELOAD cannot name it.
    """
    return {**preloaded(library_path(), environment), TABLE_VARIABLE: str(table.absolute())}
