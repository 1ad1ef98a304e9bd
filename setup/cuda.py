"""The CUDA toolkit and NCCL, for a Horovod that works on GPU memory."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from machine import first_line_of
from messages import SetUpError


@dataclass(frozen=True)
class Cuda:
    """A CUDA toolkit, and whether Horovod is to call NCCL."""

    home: Path
    version: str
    with_nccl: bool
    nccl_home: Path | None  # None: the wheel that PyTorch brings into the environment


def choose_cuda() -> Cuda | None:
    """What HVSCALE_NCCL, HVSCALE_CUDA_HOME and HVSCALE_NCCL_HOME ask for, or None on a machine
    without a CUDA toolkit.

    A toolkit counts without HVSCALE_NCCL, too: Horovod's build uses any that PyTorch finds, and
    then its wheel depends on it.
    """
    with_nccl = os.environ.get("HVSCALE_NCCL", "0") not in ("", "0")
    home = find_toolkit()
    if home is None:
        if with_nccl:
            raise SetUpError(
                "HVSCALE_NCCL is set but there is no nvcc: name the CUDA toolkit's folder with HVSCALE_CUDA_HOME"
            )
        return None
    nccl_home = os.environ.get("HVSCALE_NCCL_HOME")
    if nccl_home and not Path(nccl_home, "include", "nccl.h").exists():
        raise SetUpError(f"HVSCALE_NCCL_HOME={nccl_home}: there is no include/nccl.h in it")
    return Cuda(home, nvcc_version(home), with_nccl, Path(nccl_home) if nccl_home else None)


def find_toolkit() -> Path | None:
    """The first folder with bin/nvcc, looked for where PyTorch looks."""
    on_path = shutil.which("nvcc")
    named = [os.environ.get(name) for name in ("HVSCALE_CUDA_HOME", "CUDA_HOME", "CUDA_PATH")]
    candidates = [*named, str(Path(on_path).parent.parent) if on_path else None, "/usr/local/cuda"]
    return next((Path(folder) for folder in candidates if folder and Path(folder, "bin", "nvcc").exists()), None)


def nvcc_version(home: Path) -> str:
    """The compiler's version line; SetUpError when nvcc does not run."""
    version = first_line_of([str(home / "bin" / "nvcc"), "--version"], line_with="release")
    if version is None:
        raise SetUpError(f"{home}/bin/nvcc does not run: name a working CUDA toolkit with HVSCALE_CUDA_HOME")
    return version
