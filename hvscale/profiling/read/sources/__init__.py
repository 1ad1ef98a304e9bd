"""One file for each kind of profile. A new file registers itself here: nothing else needs to know it."""

from importlib import import_module
from pkgutil import iter_modules

from hvscale.profiling.read.events import SOURCES

# The first that knows a run speaks for it: beside NCCL's calls, MPI's are the ranks' agreeing on what to send next; and where MPI's
# calls are recorded on each rank, Horovod's timeline of rank 0 tells only what MPI's do not.
for name in ("nccl", "hvprof"):
    import_module(f"{__name__}.{name}")
for module in iter_modules(__path__):
    import_module(f"{__name__}.{module.name}")

__all__ = ["SOURCES"]
