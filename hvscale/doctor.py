"""What is installed, what works, and how to mend what does not."""

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from hvscale import profiling
from hvscale.errors import RequestError
from hvscale.host import describe_host
from hvscale.launch import flavours, horovod_build

OLDEST_PYTHON = (3, 11)
SET_UP_AGAIN = "run `make setup`"
# The CPU's own names, as Linux lists them, for instructions that make bf16 faster than fp32.
BF16_FLAGS = ("amx_bf16", "avx512_bf16")
ASK_HOROVOD = "import horovod.torch as h; print(*(n for n in ('mpi', 'gloo', 'nccl') if getattr(h, n + '_built')()))"
ASK_SECONDS = 120


class Check(BaseModel):
    """One line: what was looked at, whether it is well, what was found, and how to mend it where it is not."""

    name: str
    good: bool
    found: str
    mend: str = ""


class Report(BaseModel):
    model_config = ConfigDict(populate_by_name=True)

    schema_: Annotated[Literal["hvscale/doctor/1"], Field(alias="schema")] = "hvscale/doctor/1"
    checks: list[Check]


Examination = Callable[[], Check]
_examinations: list[Examination] = []


def examination(check: Examination) -> Examination:
    """Decorator: adds a check to the doctor's round, in the order of this file."""
    _examinations.append(check)
    return check


def examine() -> Iterator[Check]:
    """The checks, one by one, because some take seconds."""
    for check in _examinations:
        yield check()


@examination
def python() -> Check:
    oldest = ".".join(map(str, OLDEST_PYTHON))
    return Check(
        name="Python",
        good=sys.version_info >= OLDEST_PYTHON,
        found=f"{platform.python_version()} in {sys.prefix}",
        mend=f"{oldest} or later is needed",
    )


@examination
def compiler() -> Check:
    program = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++")
    if program is None:
        return Check(
            name="C++ compiler",
            good=False,
            found="none in PATH",
            mend="install g++ (Debian, Ubuntu) or gcc-c++ (Fedora, RHEL)",
        )
    asked = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=ASK_SECONDS)
    return Check(
        name="C++ compiler",
        good=asked.returncode == 0,
        found=first_line(asked.stdout),
        mend=f"{program} does not start: reinstall it",
    )


@examination
def torch() -> Check:
    import torch

    accelerator = f"{torch.cuda.device_count()} GPUs" if torch.cuda.is_available() else "no GPU it can use"
    return Check(name="PyTorch", good=True, found=f"{torch.__version__}, {accelerator}")


@examination
def horovod() -> Check:
    """Loads it in a process of its own: a broken build may take the whole process down."""
    try:
        version = metadata.version("horovod")
    except metadata.PackageNotFoundError:
        return Check(name="Horovod", good=False, found="not installed", mend=SET_UP_AGAIN)
    asked = subprocess.run([sys.executable, "-c", ASK_HOROVOD], capture_output=True, text=True, timeout=ASK_SECONDS)
    built_with = ", ".join(asked.stdout.split())
    return Check(
        name="Horovod",
        good=asked.returncode == 0 and built_with != "",
        found=f"{version}, built with {built_with or 'nothing: ' + last_line(asked.stderr)}",
        mend=f"{SET_UP_AGAIN}: it builds Horovod anew when torch or MPI has changed",
    )


@examination
def mpi() -> Check:
    found, problems = [], []
    for flavour in flavours.all_with_mpi():
        try:
            library = flavour.find(
                dict(os.environ, PATH=f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}")
            )
            found.append(f"{flavour.name} {library.version} ({library.launcher})")
        except RequestError as problem:
            problems.append(str(problem))
    return Check(name="MPI", good=bool(found), found="; ".join(found) or "none", mend="; ".join(problems))


@examination
def horovod_linked() -> Check:
    library = horovod_build.horovod_library(["python"], {"PATH": str(Path(sys.prefix) / "bin")})
    if library is None:
        return Check(name="Horovod's MPI", good=False, found="no Horovod to look at", mend=SET_UP_AGAIN)
    soname, file = horovod_build.linked_mpi(library, dict(os.environ)) or (None, None)
    flavour = flavours.of_soname(soname) if soname else None
    return Check(
        name="Horovod's MPI",
        good=flavour is not None and file is not None,
        found=f"{file or soname or 'none'} ({flavour or 'not one that hvscale can start'})",
        mend="--mpi gloo works; for MPI build Horovod against one of "
        + ", ".join(f.name for f in flavours.all_with_mpi()),
    )


@examination
def profiler() -> Check:
    try:
        path = profiling.library_path()
        ctypes.CDLL(str(path))
    except (RequestError, OSError) as problem:
        return Check(name="profiler", good=False, found=str(problem), mend=SET_UP_AGAIN)
    return Check(name="profiler", good=True, found=str(path))


@examination
def cores() -> Check:
    import torch

    host = describe_host()
    memory = host.memory_bytes / 2**30
    return Check(
        name="cores",
        good=True,
        found=f"{host.cores} of {host.cpu}, {memory:.0f} GiB, {torch.get_num_threads()} threads in PyTorch",
    )


@examination
def bf16() -> Check:
    flags = Path("/proc/cpuinfo").read_text().split()
    fast = [flag for flag in BF16_FLAGS if flag in flags]
    return Check(
        name="bf16", good=True, found=", ".join(fast) if fast else "no instructions for it in this CPU: fp32 is used"
    )


@examination
def gpus() -> Check:
    names = describe_host().gpus
    return Check(name="GPUs", good=True, found=", ".join(names) if names else "none: training runs on the CPU")


def first_line(text: str) -> str:
    return (text.splitlines() or [""])[0]


def last_line(text: str) -> str:
    return (text.splitlines() or [""])[-1]
