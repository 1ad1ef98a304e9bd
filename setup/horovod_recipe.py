"""How to build Horovod: the versions and options, the cache key of the wheel, and the variables."""

import hashlib
import json
import os
import platform
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from cuda import Cuda
from machine import Compilers, build_jobs
from mpi import Mpi
from packages import LockedPackage, read_locked_package, registry_variables

CMAKE_FILES = Path(__file__).resolve().parent / "horovod"
# The caller's variables that a build may see. Others could change the wheel without changing its
# key.
INHERITED_VARIABLES = (
    *("HOME", "USER", "LANG", "LC_ALL", "LD_LIBRARY_PATH"),  # a site's compiler may need its libraries' path
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NETRC", "XDG_CONFIG_HOME"),
)


@dataclass(frozen=True)
class Recipe:
    """Everything on which a wheel of Horovod depends."""

    horovod: LockedPackage
    torch_version: str
    mpi: Mpi
    cuda: Cuda | None
    compilers: Compilers

    def ingredients(self) -> dict[str, object]:
        """Return the dependencies by name; builds with the same ingredients are interchangeable."""
        return {
            "horovod": self.horovod.requirement,
            "torch": self.torch_version,
            "mpi": {
                "version": self.mpi.name,
                # Only a site's MPI depends on its folder: the wheel's path is relative.
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
        """The name of the wheel's cache folder: a readable prefix and a hash."""
        text = json.dumps(self.ingredients(), sort_keys=True)
        return f"torch-{self.torch_version}-{self.mpi.label}-{sys.implementation.cache_tag}-{digest(text.encode())}"

    def options(self) -> dict[str, str]:
        """Horovod's build variables that do not depend on the environment's path."""
        options = {
            "HOROVOD_WITH_PYTORCH": "1",
            "HOROVOD_WITH_MPI": "1",
            "HOROVOD_WITH_GLOO": "1",
            "HOROVOD_WITHOUT_TENSORFLOW": "1",
            "HOROVOD_WITHOUT_MXNET": "1",
            "HOROVOD_WITHOUT_NVTX": "1",
            # By default Horovod asks the compiler; here the flags become part of the key.
            "HOROVOD_BUILD_ARCH_FLAGS": processor_flags(),
        }
        if self.cuda:
            options["HOROVOD_CUDA_HOME"] = str(self.cuda.home)
        if self.cuda and self.cuda.with_nccl:
            options |= {"HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_NCCL_LINK": "shared"}
        return options

    def build_variables(self, environment: Path, work: Path) -> dict[str, str]:
        """Return all variables of the build: the inherited ones and the recipe's."""
        variables = {
            name: value for name, value in os.environ.items() if name in INHERITED_VARIABLES or name.startswith("PIP_")
        }
        variables |= registry_variables() | self.options()
        mpi = self.mpi.build_variables(work)
        # CMake finds mpicc in PATH: it must be the one beside mpicxx, under the same path. The
        # environment's cmake must come first.
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
    """Return the recipe for the versions that uv.lock pins."""
    horovod = read_locked_package(lock_file, "horovod")
    return Recipe(horovod, read_locked_package(lock_file, "torch").version, mpi, cuda, compilers)


def processor_flags() -> str:
    """Compiler flags for the instruction sets that both Horovod and this processor support."""
    known = {"f16c", "avx", "fma"}
    line = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")), "")
    return " ".join(f"-m{name}" for name in sorted(known & set(line.split())))


def nccl_for_linking(cuda: Cuda, environment: Path, work: Path) -> Path:
    """Return NCCL's folder. PyTorch's wheel lacks libnccl.so, so `work` gets a folder of links."""
    if cuda.nccl_home:
        return cuda.nccl_home
    wheel = next(environment.glob("lib/python3*/site-packages/nvidia/nccl"))
    links = work / "nccl"
    (links / "lib").mkdir(parents=True)
    (links / "include").symlink_to(wheel / "include")
    (links / "lib" / "libnccl.so").symlink_to(wheel / "lib" / "libnccl.so.2")
    return links


def digest(content: bytes) -> str:
    """Return the first 12 hexadecimal digits of the SHA-256."""
    return hashlib.sha256(content).hexdigest()[:12]
