"""How to build Horovod: the versions and options, the cache key of the wheel, and the variables."""

import hashlib
import json
import os
import platform
import re
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from cuda import NCCL_HEADER, Cuda, choose_cuda, nccl_library
from logged_run import SetUpError
from machine import Compilers, build_jobs
from mpi import Mpi
from packages import LockedPackage, read_locked_package, registry_variables
from site_python import LATEST_STANDARD, SitePython, SiteTorch

CMAKE_FILES = Path(__file__).resolve().parent / "horovod"
TOOLCHAIN, SITE_TOOLCHAIN = "toolchain.cmake", "site_toolchain.cmake"
USED_BY_TOOLCHAIN = {TOOLCHAIN: ("adapt.cmake",), SITE_TOOLCHAIN: (TOOLCHAIN, "adapt.cmake", "site_adapt.cmake")}
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
    site_torch: SiteTorch | None = None  # None: the locked wheel

    def ingredients(self) -> dict[str, object]:
        """Return the dependencies by name; builds with the same ingredients are interchangeable."""
        return {
            "horovod": self.horovod.requirement,
            "torch": self.torch_ingredient(),
            "mpi": {
                "version": self.mpi.name,
                # Only a site's MPI depends on its folder: the wheel's path is relative.
                "home": None if self.mpi.dependency_group else str(self.mpi.mpicxx.parent.parent),
            },
            "python": {"implementation": sys.implementation.cache_tag, "abi": sysconfig.get_config_var("SOABI")},
            "compiler": self.compilers.cxx_version,
            "platform": f"{sysconfig.get_platform()} {' '.join(platform.libc_ver())}",
            "options": self.options(),
            "cuda": f"{self.cuda.home} {self.cuda.version}{self.nccl_ingredient()}" if self.cuda else None,
            "cmake_files": {
                name: digest((CMAKE_FILES / name).read_bytes())
                for name in sorted([self.toolchain, *USED_BY_TOOLCHAIN[self.toolchain]])
            },
        }

    def torch_ingredient(self) -> object:
        """A site's PyTorch also matters by its folder, which is in the wheel's run path."""
        if self.site_torch is None:
            return self.torch_version
        found = self.site_torch
        return {"version": found.version, "cuda": found.cuda, "cxx11_abi": found.cxx11_abi, "folder": str(found.folder)}

    def nccl_ingredient(self) -> str:
        """NCCL's folder, if one was named or found."""
        return f" NCCL in {self.cuda.nccl_home}" if self.cuda and self.cuda.nccl_home else ""

    @property
    def toolchain(self) -> str:
        """The CMake file that adapts Horovod's build."""
        return TOOLCHAIN if self.site_torch is None else SITE_TOOLCHAIN

    @property
    def key(self) -> str:
        """The name of the wheel's cache folder: a readable prefix and a hash."""
        text = json.dumps(self.ingredients(), sort_keys=True)
        torch = re.sub(r"[^A-Za-z0-9.]+", "_", self.torch_version)  # part of a URL
        return f"torch-{torch}-{self.mpi.label}-{sys.implementation.cache_tag}-{digest(text.encode())}"

    @property
    def cxx_standard(self) -> int:
        """The C++ standard that PyTorch's headers need."""
        return self.site_torch.standard if self.site_torch else LATEST_STANDARD

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
        torch_folders = self.site_torch.library_folders if self.site_torch else ("$ORIGIN/../../torch/lib",)
        run_path = [*torch_folders, *self.mpi.library_folders]
        if self.cuda and self.cuda.with_nccl:
            nccl, folder = nccl_for_linking(self.cuda, environment, work)
            variables |= {"HOROVOD_NCCL_HOME": str(nccl), "HOROVOD_NCCL_LIB": str(nccl / "lib")}
            variables["HOROVOD_NCCL_INCLUDE"] = str(nccl / "include")
            run_path.append(folder)
        return variables | {
            "PATH": os.pathsep.join([*map(str, tools), os.environ["PATH"]]),
            "CC": self.compilers.c,
            "CXX": self.compilers.cxx,
            "MAKEFLAGS": f"-j{build_jobs()}",
            "CMAKE_TOOLCHAIN_FILE": str(CMAKE_FILES / self.toolchain),
            "HVSCALE_BUILD_CXX_STANDARD": str(self.cxx_standard),
            **mpi,
            "HVSCALE_BUILD_RUNPATH": ";".join(run_path),
            "TMPDIR": str(work),
        }


def choose_recipe(lock_file: Path, mpi: Mpi, compilers: Compilers, site: SitePython | None) -> Recipe:
    """Return the recipe for the versions that uv.lock pins, or for a site's PyTorch."""
    horovod = read_locked_package(lock_file, "horovod")
    if site:
        cuda = choose_cuda(site.torch, site.folders)
        return Recipe(horovod, site.torch.version, mpi, cuda, compilers, site.torch)
    return Recipe(horovod, read_locked_package(lock_file, "torch").version, mpi, choose_cuda(), compilers)


def processor_flags() -> str:
    """Compiler flags for the instruction sets that both Horovod and this processor support."""
    known = {"f16c", "avx", "fma"}
    line = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")), "")
    return " ".join(f"-m{name}" for name in sorted(known & set(line.split())))


def nccl_for_linking(cuda: Cuda, environment: Path, work: Path) -> tuple[Path, str]:
    """Return a folder with NCCL's include and lib, and the run path entry for its library.

    NCCL's wheels lack libnccl.so, so `work` gets a folder of links.
    """
    home = cuda.nccl_home or next(environment.glob("lib/python3*/site-packages/nvidia/nccl"))
    library = nccl_library(home)
    if library is None:
        raise SetUpError(f"{home}: no lib/libnccl.so; set HVSCALE_NCCL_HOME to the folder with NCCL's include and lib")
    links = work / "nccl"
    (links / "lib").mkdir(parents=True)
    # One header, because a folder such as /usr/include must not come before the compiler's own.
    (links / "include").mkdir()
    for header in (home / NCCL_HEADER).parent.glob("nccl*"):
        (links / "include" / header.name).symlink_to(header)
    (links / "lib" / "libnccl.so").symlink_to(library)
    return links, str(library.parent) if cuda.nccl_home else "$ORIGIN/../../nvidia/nccl/lib"


def digest(content: bytes) -> str:
    """Return the first 12 hexadecimal digits of the SHA-256."""
    return hashlib.sha256(content).hexdigest()[:12]
