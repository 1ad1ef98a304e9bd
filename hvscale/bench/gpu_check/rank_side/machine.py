"""Prints what PyTorch, Horovod and the compilers find on this machine, as JSON."""

import gc
import json
import platform
import shutil
import subprocess
import sys
from importlib import metadata
from typing import Any


def version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def nccl_in_horovod() -> bool | None:
    """Whether Horovod was built with NCCL; None if it cannot be loaded.

    In a process of its own, which a broken build may take down.
    """
    program = "import gc; gc.disable(); import horovod.torch as hvd; print(int(hvd.nccl_built() > 0)); gc.freeze()"
    words = [sys.executable, "-c", program]
    asked = subprocess.run(words, capture_output=True, text=True)
    return None if asked.returncode else asked.stdout.strip() == "1"


def nccl_version() -> list[int]:
    """The version of the NCCL that PyTorch loads; empty if it is built without."""
    import torch

    try:
        return list(torch.cuda.nccl.version())  # type: ignore[no-untyped-call]
    except (AttributeError, RuntimeError):
        return []


def gpus() -> dict[str, Any]:
    """The GPUs that PyTorch can compute on, or the problem."""
    import torch

    if not torch.cuda.is_available():
        built = "is built without CUDA" if torch.version.cuda is None else "finds no GPU that it can use"
        return {"problem": f"PyTorch {torch.__version__} {built}"}
    try:
        torch.ones(1, device="cuda").item()
    except RuntimeError as error:
        return {"problem": f"PyTorch {torch.__version__} cannot compute on the GPU: {str(error).splitlines()[0]}"}
    properties = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    return {
        "gpus": [one.name for one in properties],
        "gpu_memory_bytes": [one.total_memory for one in properties],
        "compute_capability": [(one.major, one.minor) for one in properties],
        "nccl": nccl_version(),
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
    }


def main() -> None:
    gc.disable()  # which takes a fifth of the time to load PyTorch
    import torch

    found = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": None,
        "triton": version_of("triton"),
        "compiler": next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None),
        "horovod": version_of("horovod"),
        "nccl_in_horovod": nccl_in_horovod(),
        "mpi4py": version_of("mpi4py"),
        **gpus(),
    }
    print(json.dumps(found))
    gc.freeze()  # Python collects once more when it ends


if __name__ == "__main__":
    main()
