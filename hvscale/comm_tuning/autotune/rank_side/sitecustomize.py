"""Python imports this at start-up in every process of a rank: its folder is on PYTHONPATH.

It attaches the tuning when the program imports `horovod.torch`, which needs no change to the
program. A `sitecustomize` of the site is imported as well. Standard library only.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 (pathlib takes 5 ms to import)
ROOT = os.path.abspath(os.path.join(FOLDER, *[os.pardir] * 4))  # noqa: PTH100, PTH118
HOROVOD = "horovod.torch.mpi_ops"


class TuneHorovod:
    """A finder: Horovod's module is found as usual, and tuned once it has been executed."""

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != HOROVOD:
            return None
        sys.meta_path.remove(cls)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_attach(module: ModuleType) -> None:
            execute(module)
            attach(module)

        spec.loader.exec_module = execute_and_attach  # type: ignore[method-assign]
        return spec


def attach(horovod: ModuleType) -> None:
    """Attach the tuning to Horovod's module; a failure leaves the module as it is."""
    sys.path.append(ROOT)  # the program's Python may be another than hvscale's
    try:
        from hvscale.comm_tuning.autotune.rank_side.agent import attach

        attach(horovod, os.environ["HVSCALE_AUTOTUNE"])
    except Exception as error:
        sys.stderr.write(f"hvscale: autotune: nothing is tuned: {error}\n")
    finally:
        sys.path.remove(ROOT)


def load_hidden() -> None:
    """Execute the `sitecustomize` that this file hides."""
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


if os.environ.get("HVSCALE_AUTOTUNE"):
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != FOLDER]  # noqa: PTH100
    sys.meta_path.insert(0, TuneHorovod)
    load_hidden()
