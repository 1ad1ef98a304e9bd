"""Find the CUDA toolkit and NCCL for a Horovod that supports GPU tensors."""

import os
import re
import shutil
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from logged_run import SetUpError, say
from machine import first_line_of
from site_python import SiteTorch

NCCL_HEADER = Path("include", "nccl.h")
NCCL_LIBRARIES = ("libnccl.so", "libnccl.so.2")


@dataclass(frozen=True)
class Cuda:
    """A CUDA toolkit, and whether Horovod uses NCCL."""

    home: Path
    version: str
    with_nccl: bool
    nccl_home: Path | None  # None: the NCCL wheel that PyTorch installs


def choose_cuda(torch: SiteTorch | None = None, packages: Sequence[Path] = ()) -> Cuda | None:
    """Find what HVSCALE_NCCL, HVSCALE_CUDA_HOME and HVSCALE_NCCL_HOME name; None without a toolkit.

    A toolkit matters even without HVSCALE_NCCL: Horovod's build uses any that PyTorch finds, so the
    wheel depends on it. HVSCALE_NCCL_HOME requests NCCL too. `torch`: a site's PyTorch, which
    decides if there is CUDA. NCCL is then used if it is in `packages`, the site's folders, or
    installed in the system.
    """
    requested = os.environ.get("HVSCALE_NCCL", "")
    with_nccl = requested not in ("", "0")
    if torch is not None and torch.cuda is None:
        if with_nccl:
            raise SetUpError(
                f"HVSCALE_NCCL is set but PyTorch {torch.version} is built without CUDA: unset HVSCALE_NCCL"
            )
        return None
    home = find_toolkit()
    nccl_home = given_nccl()
    if home is None:
        if with_nccl:
            raise SetUpError(
                "HVSCALE_NCCL is set but nvcc is not installed: set HVSCALE_CUDA_HOME to the CUDA toolkit's folder"
            )
        if torch or nccl_home:
            toolkit = f"CUDA {torch.cuda}" if torch else "the CUDA toolkit's folder"
            say(f"no nvcc, so Horovod handles CPU tensors only: for GPUs set HVSCALE_CUDA_HOME to {toolkit}")
        return None
    version = nvcc_version(home)
    if torch is None:
        return Cuda(home, version, with_nccl or (nccl_home is not None and requested != "0"), nccl_home)
    check_same_major(torch, home, version)
    if requested == "0":
        return Cuda(home, version, False, None)
    nccl_home = nccl_home or find_nccl(packages)
    if with_nccl and nccl_home is None:
        raise SetUpError("HVSCALE_NCCL is set but nccl.h was not found: set HVSCALE_NCCL_HOME to NCCL's folder")
    if nccl_home is None:
        say(
            "no nccl.h, so Horovod copies GPU tensors through host memory: for NCCL set HVSCALE_NCCL_HOME to its folder"
        )
    return Cuda(home, version, nccl_home is not None, nccl_home)


def check_same_major(torch: SiteTorch, home: Path, version: str) -> None:
    """Raise SetUpError if the toolkit has another major release than PyTorch's CUDA."""
    release = re.search(r"release (\d+)", version)
    major = str(torch.cuda).partition(".")[0]
    if release and release[1] != major:
        raise SetUpError(
            f"the CUDA toolkit in {home} is release {release[1]}, but PyTorch {torch.version} is built with CUDA {torch.cuda}: "
            f"load the module of CUDA {major}, or set HVSCALE_CUDA_HOME to its folder"
        )


def given_nccl() -> Path | None:
    """Return the folder that HVSCALE_NCCL_HOME names. Raises SetUpError if it has no nccl.h."""
    nccl_home = os.environ.get("HVSCALE_NCCL_HOME")
    if nccl_home and not Path(nccl_home, NCCL_HEADER).exists():
        raise SetUpError(
            f"HVSCALE_NCCL_HOME={nccl_home}: include/nccl.h is missing; give the folder with NCCL's include and lib"
        )
    return Path(nccl_home) if nccl_home else None


def find_nccl(packages: Sequence[Path]) -> Path | None:
    """Return the first folder with NCCL's header and library: a wheel's, conda's, the system's."""
    # Conda's packages are in <prefix>/lib/python3.N/site-packages.
    prefixes = [folder.parents[2] for folder in packages if len(folder.parts) > 3]
    candidates = [*(folder / "nvidia" / "nccl" for folder in packages), *prefixes, Path("/usr"), Path("/usr/local")]
    return next((home for home in candidates if (home / NCCL_HEADER).exists() and nccl_library(home)), None)


def nccl_library(home: Path) -> Path | None:
    """Return libnccl.so in NCCL's folder, or libnccl.so.2 where the link for linking is missing."""
    folders = [home / "lib", home / "lib64", home / "lib" / (sysconfig.get_config_var("MULTIARCH") or "")]
    return next((path for name in NCCL_LIBRARIES for folder in folders if (path := folder / name).exists()), None)


def find_toolkit() -> Path | None:
    """Return the first folder with bin/nvcc in the places where PyTorch looks.

    Raises SetUpError if HVSCALE_CUDA_HOME names a folder without it.
    """
    own = os.environ.get("HVSCALE_CUDA_HOME")
    if own and not Path(own, "bin", "nvcc").exists():
        raise SetUpError(f"HVSCALE_CUDA_HOME={own}: bin/nvcc is missing; give the CUDA toolkit's folder, or unset it")
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
