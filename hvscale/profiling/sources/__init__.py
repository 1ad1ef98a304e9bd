"""One file for each kind of profile. A new file registers itself here: nothing else needs to know it."""

from importlib import import_module
from pkgutil import iter_modules

from hvscale.profiling.events import SOURCES

# The first that knows a run speaks for it: beside NCCL's calls, MPI's are the ranks' agreeing on what to send next.
import_module(f"{__name__}.nccl")
for module in iter_modules(__path__):
    import_module(f"{__name__}.{module.name}")

__all__ = ["SOURCES"]
