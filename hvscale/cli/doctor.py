"""Checks of what is installed and what works, and how to fix the rest."""

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from pydantic import BaseModel

from hvscale import profiling
from hvscale.comm_tuning.collectives import broadcast as own_broadcast
from hvscale.core.built_library import preloaded
from hvscale.core.documents import VersionedDocument
from hvscale.core.errors import HvscaleError, RankFailedError, RequestError
from hvscale.core.host import (
    describe_host,
    gpu_topology,
    lockable_bytes,
    network_cards,
    ptrace_scope,
    shared_memory_bytes,
    single_copy_problem,
)
from hvscale.launch import flavours, placements
from hvscale.launch.controller import launch
from hvscale.launch.mpi import build_record, horovod_build, mpi_library
from hvscale.launch.mpi.probe import probe
from hvscale.launch.options import LaunchHooks, LaunchOptions

OLDEST_PYTHON = (3, 11)
SET_UP_AGAIN = "run `make setup`"
# What Docker gives a container by default is 64 MiB: PyTorch's data loaders and a few ranks fill
# it.
ENOUGH_SHARED_MEMORY = 256 * 2**20
# The CPU's own names, as Linux lists them, for instructions that make bf16 faster than fp32.
BF16_FLAGS = ("amx_bf16", "avx512_bf16")
# Without collecting garbage, which takes a fifth of the time.
ASK_HOROVOD = """
import gc
gc.disable()
import horovod.torch as h
print(*(n for n in ('mpi', 'gloo', 'nccl') if getattr(h, n + '_built')()))
gc.freeze()
"""
TRY_BROADCAST = """
from mpi4py import MPI
from hvscale.comm_tuning.collectives.broadcast import broadcast
data = bytearray(b"data" * 50_000 if MPI.COMM_WORLD.rank == 0 else 200_000)
broadcast(data, chunk=8192)
if data != b"data" * 50_000:
    raise SystemExit("wrong data")
"""
ASK_SECONDS = 120


class Check(BaseModel):
    """The result of one check; `fix` says what to do where it is not good, and else is empty."""

    name: str
    good: bool
    found: str
    fix: str = ""

    def model_post_init(self, context: object) -> None:
        if self.good:
            self.fix = ""


class Report(VersionedDocument):
    schema_: Literal["hvscale/doctor/2"] = "hvscale/doctor/2"
    checks: list[Check]


Examination = Callable[[], Check]
_examinations: list[Examination] = []


def examination(check: Examination) -> Examination:
    """Decorator: register a check; they run in the order of this file."""
    _examinations.append(check)
    return check


def examine() -> Iterator[Check]:
    """The checks, one by one, because some take seconds."""
    for check in _examinations:
        yield examined(check)
    for name in placements.names():
        yield placement(name)


def examined(check: Examination) -> Check:
    """The check's result; a broken installation, which makes a check fail, is reported too."""
    try:
        return check()
    except Exception as problem:
        found = (str(problem).strip().splitlines() or [type(problem).__name__])[-1]
        return Check(name=check.__name__.replace("_", " "), good=False, found=found, fix=SET_UP_AGAIN)


@examination
def python() -> Check:
    oldest = ".".join(map(str, OLDEST_PYTHON))
    return Check(
        name="Python",
        good=sys.version_info >= OLDEST_PYTHON,
        found=f"{platform.python_version()} in {sys.prefix}",
        fix=f"{oldest} or later is needed",
    )


@examination
def compiler() -> Check:
    program = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++")
    if program is None:
        return Check(
            name="C++ compiler",
            good=False,
            found="none in PATH",
            fix="install g++ (Debian, Ubuntu) or gcc-c++ (Fedora, RHEL)",
        )
    asked = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=ASK_SECONDS)
    return Check(
        name="C++ compiler",
        good=asked.returncode == 0,
        found=first_line(asked.stdout),
        fix=f"{program} does not start: reinstall it",
    )


@examination
def torch() -> Check:
    try:
        import torch
    except Exception as problem:  # a library that it needs is missing or has another release
        return Check(name="PyTorch", good=False, found=f"cannot be imported: {problem}", fix=SET_UP_AGAIN)

    accelerator = f"{torch.cuda.device_count()} GPUs" if torch.cuda.is_available() else "no usable GPU"
    return Check(name="PyTorch", good=True, found=f"{torch.__version__}, {accelerator}")


@examination
def horovod() -> Check:
    """Loads it in a process of its own: a broken build may take the whole process down."""
    try:
        version = metadata.version("horovod")
    except metadata.PackageNotFoundError:
        return Check(name="Horovod", good=False, found="not installed", fix=SET_UP_AGAIN)
    asked = subprocess.run([sys.executable, "-c", ASK_HOROVOD], capture_output=True, text=True, timeout=ASK_SECONDS)
    built_with = ", ".join(asked.stdout.split())
    return Check(
        name="Horovod",
        good=asked.returncode == 0 and built_with != "",
        found=f"{version}, built with {built_with or 'nothing: ' + last_line(asked.stderr)}",
        fix=f"{SET_UP_AGAIN}: it rebuilds Horovod when torch or MPI has changed",
    )


@examination
def horovod_build_record() -> Check:
    """In each environment, what its Horovod was built against, compared with what is there."""
    found, problems = [], []
    for prefix in horovod_build.environments_of_clone():
        library = horovod_build.library_in(prefix)
        if library is None:
            continue
        try:
            record = build_record.read_record(library)
            found.append(f"{prefix}: {record.description() if record else 'no record: not built by the set-up'}")
            build_record.check_torch(library)
        except RequestError as problem:
            problems.append(str(problem))
    return Check(name="Horovod's build", good=not problems, found="\n".join(found) or "none", fix="; ".join(problems))


@examination
def mpi() -> Check:
    """Each flavour as a job would get it: from the environment of its ABI, or from PATH."""
    found, problems = [], []
    for flavour in flavours.all_with_mpi():
        try:
            environment = horovod_build.with_flavour_programs(dict(os.environ), flavour)
            library = flavour.find(environment)
        except RequestError as problem:
            problems.append(str(problem))
            continue
        transports = ", ".join(flavour.transports(library, environment)) or "unknown"
        found.append(f"{flavour.name} {library.version} ({library.launcher}; transports: {transports})")
    return Check(name="MPI", good=bool(found), found="\n".join(found) or "none", fix="; ".join(problems))


@examination
def horovod_linked() -> Check:
    """In each environment, the library that its Horovod is linked to, started alone: what it chose
    here, and what it knows of GPUs.
    """
    found, problems = [], []
    for prefix in horovod_build.environments_of_clone():
        library = horovod_build.library_in(prefix)
        if library is None:
            problems.append(f"no Horovod in {prefix}: {SET_UP_AGAIN}")
            continue
        try:
            soname, file = horovod_build.linked_mpi(library, dict(os.environ)) or (None, None)
        except RequestError as problem:
            problems.append(str(problem))
            continue
        if file is None or soname is None:
            problems.append(f"{library} is linked to {soname or 'no MPI'}: --mpi gloo works, for MPI {SET_UP_AGAIN}")
            continue
        file = file.resolve()
        name = flavours.describe(mpi_library.library_version(file, os.environ))
        tried = probe(file)
        if tried.problem:
            problems.append(f"{file} ({name}) does not start: {tried.problem}")
            continue
        ucx = {True: "its UCX is CUDA-aware", False: "its UCX is not CUDA-aware", None: "without UCX"}
        found.append(
            f"{file} ({name}; transport here: {tried.transport or 'unknown'}; "
            f"{'CUDA-aware' if tried.cuda_aware else 'not CUDA-aware: GPU tensors go through host memory or NCCL'}; "
            f"{ucx[tried.ucx_with_cuda]})"
        )
    return Check(name="Horovod's MPI", good=not problems, found="\n".join([*found, *problems]), fix="; ".join(problems))


@examination
def profiler() -> Check:
    try:
        paths = [profiling.library_path(large_counts) for large_counts in (False, True)]
        for path in paths:
            ctypes.CDLL(str(path))
    except (RequestError, OSError) as problem:
        return Check(name="profiler", good=False, found=str(problem), fix=SET_UP_AGAIN)
    return Check(name="profiler", good=True, found=str(paths[0]))


@examination
def broadcast() -> Check:
    """Try our broadcast on two ranks of an MPI that this environment's programs run on."""
    name = "broadcast"
    try:
        path = own_broadcast.library_path()
        ctypes.CDLL(str(path))
        here = next((flavour.name for flavour in flavours.all_with_mpi() if runs_here(flavour)), None)
        if here is not None:
            with TemporaryDirectory() as folder:
                launch(
                    ["python", "-c", TRY_BROADCAST],
                    LaunchOptions(np=2, mpi=here, run=Path(folder) / "run"),
                    LaunchHooks(
                        instrument=lambda run, record, environment: preloaded(path, environment),
                        warn=lambda text: None,
                    ),
                )
    except RankFailedError as problem:
        return Check(name=name, good=False, found=" ".join([str(problem), *problem.last_lines[-1:]]), fix=SET_UP_AGAIN)
    except (HvscaleError, OSError) as problem:
        return Check(name=name, good=False, found=str(problem), fix=SET_UP_AGAIN)
    return Check(
        name=name,
        good=True,
        found=f"{path} ({f'tried on {here}' if here else 'not tried: the MPI of this Horovod is not installed'})",
    )


def runs_here(flavour: flavours.Flavour) -> bool:
    """Whether it can be started, and this environment's Horovod is built on it."""
    own = horovod_build.library_in(Path(sys.prefix))
    if own is None or flavour.soname is None or not horovod_build.links_to(own, flavour.soname):
        return False
    try:
        flavour.find(horovod_build.with_flavour_programs(dict(os.environ), flavour))
    except RequestError:
        return False
    return True


@examination
def cores() -> Check:
    host = describe_host()
    memory = host.memory_bytes / 2**30
    found = f"{host.cores} of {host.cpu}, {memory:.0f} GiB"
    with suppress(Exception):  # the check of PyTorch reports it
        import torch

        found += f", {torch.get_num_threads()} threads in PyTorch"
    return Check(name="cores", good=True, found=found)


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


@examination
def gpus_connected() -> Check:
    topology = gpu_topology()
    return Check(name="GPU topology", good=True, found=topology or "unknown: nvidia-smi shows none here")


@examination
def shared_memory() -> Check:
    size = shared_memory_bytes()
    return Check(
        name="/dev/shm",  # noqa: S108
        good=size >= ENOUGH_SHARED_MEMORY,
        found=f"{size / 2**20:.0f} MiB",
        fix="ranks and data loaders pass data through it: start the container with --shm-size=1g, or "
        "mount -o remount,size=1g /dev/shm",
    )


@examination
def single_copy() -> Check:
    """Try it: Docker's seccomp profile blocks it as well as Yama does."""
    problem, scope = single_copy_problem(), ptrace_scope()
    found = problem or "ranks read each other's memory directly"
    told = f"ptrace_scope {scope}" if scope is not None else "no ptrace_scope"
    return Check(
        name="CMA",
        good=not problem,
        found=f"{found} ({told})",
        fix="large messages on a node are copied twice: sysctl kernel.yama.ptrace_scope=0, or in Docker --cap-add SYS_PTRACE",
    )


@examination
def locked_memory() -> Check:
    """A limit matters with a network card only."""
    limit, cards = lockable_bytes(), network_cards()
    return Check(
        name="locked memory",
        good=limit is None or not cards,
        found=("unlimited" if limit is None else f"{limit / 2**20:.0f} MiB")
        + (f", network cards {', '.join(cards)}" if cards else ", no InfiniBand or RoCE card to need it"),
        fix="the cards register the buffers that they send: ulimit -l unlimited (limits.conf: memlock), in Docker --ulimit memlock=-1",
    )


def placement(name: str) -> Check:
    """What `--placement NAME` finds here, or would need."""
    try:
        return Check(name=f"placement {name}", good=True, found=placements.find(name).readiness())
    except RequestError as problem:
        return Check(name=f"placement {name}", good=False, found="cannot be used here", fix=str(problem))


def first_line(text: str) -> str:
    return (text.splitlines() or [""])[0]


def last_line(text: str) -> str:
    return (text.splitlines() or [""])[-1]
