"""Find the CUDA toolkit and NCCL for a Horovod that supports GPU tensors."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from logged_run import SetUpError
from machine import first_line_of


@dataclass(frozen=True)
class Cuda:
    """A CUDA toolkit, and whether Horovod uses NCCL."""

    home: Path
    version: str
    with_nccl: bool
    nccl_home: Path | None  # None: the NCCL wheel that PyTorch installs


def choose_cuda() -> Cuda | None:
    """Find what HVSCALE_NCCL, HVSCALE_CUDA_HOME and HVSCALE_NCCL_HOME name; None without a toolkit.

    A toolkit matters even without HVSCALE_NCCL: Horovod's build uses any that PyTorch finds, so the
    wheel depends on it.
    """
    with_nccl = os.environ.get("HVSCALE_NCCL", "0") not in ("", "0")
    home = find_toolkit()
    if home is None:
        if with_nccl:
            raise SetUpError(
                "HVSCALE_NCCL is set but nvcc is not installed: set HVSCALE_CUDA_HOME to the CUDA toolkit's folder"
            )
        return None
    nccl_home = os.environ.get("HVSCALE_NCCL_HOME")
    if nccl_home and not Path(nccl_home, "include", "nccl.h").exists():
        raise SetUpError(
            f"HVSCALE_NCCL_HOME={nccl_home}: include/nccl.h is missing; give the folder with NCCL's include and lib"
        )
    return Cuda(home, nvcc_version(home), with_nccl, Path(nccl_home) if nccl_home else None)


def find_toolkit() -> Path | None:
    """Return the first folder with bin/nvcc in the places where PyTorch looks."""
    on_path = shutil.which("nvcc")
    named = [os.environ.get(name) for name in ("HVSCALE_CUDA_HOME", "CUDA_HOME", "CUDA_PATH")]
    candidates = [*named, str(Path(on_path).parent.parent) if on_path else None, "/usr/local/cuda"]
    return next((Path(folder) for folder in candidates if folder and Path(folder, "bin", "nvcc").exists()), None)


def nvcc_version(home: Path) -> str:
    """Return the compiler's version line. Raises SetUpError if nvcc does not run."""
    version = first_line_of([str(home / "bin" / "nvcc"), "--version"], line_with="release")
    if version is None:
        raise SetUpError(f"{home}/bin/nvcc does not run: set HVSCALE_CUDA_HOME to a working CUDA toolkit")
    return version
