"""What Horovod is built from and how: the key of the built wheel, and the environment of the
build.
"""

import hashlib
import json
import os
import platform
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from cuda import Cuda
from lock_file import LockedPackage, read_locked_package
from machine import Compilers, build_jobs
from mpi import Mpi
from registry import registry_variables

CMAKE_FILES = Path(__file__).resolve().parent / "horovod"
# What a build may see of the caller's environment; anything else could change the wheel without
# changing its key.
VARIABLES_HANDED_ON = (
    *("HOME", "USER", "LANG", "LC_ALL", "LD_LIBRARY_PATH"),  # a site's compiler may need its libraries' path
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NETRC", "XDG_CONFIG_HOME"),
)


@dataclass(frozen=True)
class Recipe:
    """Everything that one built wheel of Horovod depends on."""

    horovod: LockedPackage
    torch_version: str
    mpi: Mpi
    cuda: Cuda | None
    compilers: Compilers

    def ingredients(self) -> dict[str, object]:
        """All that the wheel depends on, by name; two builds with the same ingredients are
        interchangeable.
        """
        return {
            "horovod": self.horovod.requirement,
            "torch": self.torch_version,
            "mpi": {
                "version": self.mpi.name,
                # A site's MPI is also its folder; the wheel lies in each environment at the same
                # place.
                "home": None if self.mpi.dependency_group else str(self.mpi.mpicxx.parent.parent),
            },
            "python": {"implementation": sys.implementation.cache_tag, "abi": sysconfig.get_config_var("SOABI")},
            "compiler": self.compilers.cxx_version,
            "platform": f"{sysconfig.get_platform()} {' '.join(platform.libc_ver())}",
            "options": self.options(),
            "cuda": f"{self.cuda.home} {self.cuda.version}" if self.cuda else None,
            "cmake_files": {path.name: digest(path.read_bytes()) for path in sorted(CMAKE_FILES.glob("*.cmake"))},
        }

    @property
    def key(self) -> str:
        """The name of the wheel's folder in the cache: readable in front, unique behind."""
        text = json.dumps(self.ingredients(), sort_keys=True)
        return f"torch-{self.torch_version}-{self.mpi.label}-{sys.implementation.cache_tag}-{digest(text.encode())}"

    def options(self) -> dict[str, str]:
        """Horovod's own build variables that do not depend on where the environment lies."""
        options = {
            "HOROVOD_WITH_PYTORCH": "1",
            "HOROVOD_WITH_MPI": "1",
            "HOROVOD_WITH_GLOO": "1",
            "HOROVOD_WITHOUT_TENSORFLOW": "1",
            "HOROVOD_WITHOUT_MXNET": "1",
            "HOROVOD_WITHOUT_NVTX": "1",
            # Horovod would ask the compiler what this processor has; said here, it is part of the
            # key.
            "HOROVOD_BUILD_ARCH_FLAGS": processor_flags(),
        }
        if self.cuda:
            options["HOROVOD_CUDA_HOME"] = str(self.cuda.home)
        if self.cuda and self.cuda.with_nccl:
            options |= {"HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_NCCL_LINK": "shared"}
        return options

    def build_variables(self, environment: Path, work: Path) -> dict[str, str]:
        """The whole environment of the build: chosen parts of the caller's, and what the recipe
        sets.
        """
        variables = {
            name: value for name, value in os.environ.items() if name in VARIABLES_HANDED_ON or name.startswith("PIP_")
        }
        variables |= registry_variables() | self.options()
        mpi = self.mpi.build_variables(work)
        # CMake takes mpicc from PATH: it has to be mpicxx's neighbour, under the same path, and
        # cmake the environment's own.
        mpi_programs, own_programs = Path(mpi["HVSCALE_BUILD_MPICXX"]).parent, environment / "bin"
        both = [mpi_programs, own_programs] if self.mpi.dependency_group else [own_programs, mpi_programs]
        tools = [*both, *([self.cuda.home / "bin"] if self.cuda else [])]
        run_path = ["$ORIGIN/../../torch/lib", *self.mpi.library_folders]
        if self.cuda and self.cuda.with_nccl:
            nccl = nccl_for_linking(self.cuda, environment, work)
            variables |= {"HOROVOD_NCCL_HOME": str(nccl), "HOROVOD_NCCL_LIB": str(nccl / "lib")}
            variables["HOROVOD_NCCL_INCLUDE"] = str(nccl / "include")
            run_path.append("$ORIGIN/../../nvidia/nccl/lib" if not self.cuda.nccl_home else str(nccl / "lib"))
        return variables | {
            "PATH": os.pathsep.join([*map(str, tools), os.environ["PATH"]]),
            "CC": self.compilers.c,
            "CXX": self.compilers.cxx,
            "MAKEFLAGS": f"-j{build_jobs()}",
            "CMAKE_TOOLCHAIN_FILE": str(CMAKE_FILES / "toolchain.cmake"),
            **mpi,
            "HVSCALE_BUILD_RUNPATH": ";".join(run_path),
            "TMPDIR": str(work),
        }


def choose_recipe(lock_file: Path, mpi: Mpi, cuda: Cuda | None, compilers: Compilers) -> Recipe:
    """The recipe for the versions that uv.lock pins."""
    horovod = read_locked_package(lock_file, "horovod")
    return Recipe(horovod, read_locked_package(lock_file, "torch").version, mpi, cuda, compilers)


def processor_flags() -> str:
    """Which of the instruction sets that Horovod has code for this processor has."""
    known = {"f16c", "avx", "fma"}
    line = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")), "")
    return " ".join(f"-m{name}" for name in sorted(known & set(line.split())))


def nccl_for_linking(cuda: Cuda, environment: Path, work: Path) -> Path:
    """NCCL's folder; for PyTorch's wheel, which lacks the name that a linker looks for, a folder of
    links beside the build.
    """
    if cuda.nccl_home:
        return cuda.nccl_home
    wheel = next(environment.glob("lib/python3*/site-packages/nvidia/nccl"))
    links = work / "nccl"
    (links / "lib").mkdir(parents=True)
    (links / "include").symlink_to(wheel / "include")
    (links / "lib" / "libnccl.so").symlink_to(wheel / "lib" / "libnccl.so.2")
    return links


def digest(content: bytes) -> str:
    """Enough of a SHA-256 to tell recipes apart."""
    return hashlib.sha256(content).hexdigest()[:12]
