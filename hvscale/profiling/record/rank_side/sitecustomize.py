"""Python imports this at start-up in every process of a rank: its folder is on PYTHONPATH.

It wraps Horovod's all-reduces when the program imports `horovod.torch`, which needs no change to
the program. A `sitecustomize` of the site is imported as well. Standard library only.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 (pathlib takes 5 ms to import)
HOROVOD = "horovod.torch.mpi_ops"


class WrapHorovod:
    """A finder: Horovod's module is found as usual, and wrapped once it has been executed."""

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != HOROVOD:
            return None
        sys.meta_path.remove(cls)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_wrap(module: ModuleType) -> None:
            execute(module)
            recorder = load("gradient_recorder", [FOLDER])
            if recorder is not None:
                recorder.wrap(module)

        spec.loader.exec_module = execute_and_wrap  # type: ignore[method-assign]
        return spec


def load(name: str, folders: list[str]) -> ModuleType | None:
    """Execute a module of one of `folders`, if it is there; the program cannot import it."""
    spec = importlib.machinery.PathFinder.find_spec(name, folders)
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if os.environ.get("HVSCALE_GRADIENTS"):
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != FOLDER]  # noqa: PTH100
    sys.meta_path.insert(0, WrapHorovod)
    load("sitecustomize", sys.path)  # the one that this file hides
