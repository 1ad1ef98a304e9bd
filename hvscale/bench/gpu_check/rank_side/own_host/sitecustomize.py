"""Python imports this at start-up in ranks that share a GPU with an NCCL before release 2.30.

Such an NCCL refuses two ranks on one GPU of a host. NCCL_HOSTID makes each rank a host of its own.
HVSCALE_RANK_VARIABLES names the variables that may hold the rank, separated by commas; the first
that is set applies. A `sitecustomize` of the site is imported as well. Standard library only.
"""

import importlib.machinery
import importlib.util
import os
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 (pathlib takes 5 ms to import)


def use_own_host() -> None:
    names = os.environ.get("HVSCALE_RANK_VARIABLES", "").split(",")
    rank = next((os.environ[name] for name in names if name in os.environ), None)
    if rank is not None:
        os.environ.setdefault("NCCL_HOSTID", f"hvscale-rank-{rank}")


def import_hidden() -> None:
    """Execute the `sitecustomize` that this file hides, if there is one."""
    folders = [entry for entry in sys.path if os.path.abspath(entry) != FOLDER]  # noqa: PTH100
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", folders)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


use_own_host()
import_hidden()
