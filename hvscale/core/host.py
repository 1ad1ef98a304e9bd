"""Describe the machine that a job starts on."""

import functools
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from hvscale.core.run_folder import Host, Scheduling

POLICIES: dict[int, Scheduling] = {
    os.SCHED_BATCH: "batch",
    os.SCHED_IDLE: "idle",
    os.SCHED_FIFO: "fifo",
    os.SCHED_RR: "round-robin",
}
ANSWER_SECONDS = 20.0  # a tool whose driver hangs never answers


def available_cores() -> int:
    """Return the cores of this process: its affinity mask, limited by a cgroup v2 CPU quota."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):  # no cgroup version 2, or "max"
        pass
    return cores


def scheduling() -> Scheduling:
    """Return how the kernel shares cores between this process's children."""
    return POLICIES.get(os.sched_getscheduler(0), "default")


def machine_identity() -> str:
    """The identity of this machine's start: its containers and network namespaces share it.

    The host's name where the kernel does not tell.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def memory_bytes() -> int:
    """The machine's memory. Not by psutil, whose import takes 9 ms."""
    with Path("/proc/meminfo").open() as lines:
        return 1024 * int(next(lines).split()[1])


def cache_bytes() -> tuple[int, int] | None:
    """The bytes of a core's second-level cache, and of its share of the third; None if unknown."""
    of_level = {}
    try:
        for cache in Path("/sys/devices/system/cpu/cpu0/cache").glob("index[0-9]*"):
            level, size, cores = ((cache / name).read_text() for name in ("level", "size", "shared_cpu_map"))
            of_level[int(level)] = (
                1024 * int(size.strip().removesuffix("K")) // int(cores.replace(",", ""), 16).bit_count()
            )
        return of_level[2], of_level[3]
    except (OSError, ValueError, ZeroDivisionError, KeyError):  # some virtual machines do not tell
        return None


def tcp_congestion_control() -> str | None:
    """How the kernel's TCP finds the rate of a connection; None if it does not tell."""
    try:
        return Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    except OSError:
        return None


def nvidia_smi(query: str) -> list[str]:
    """The values of a query to nvidia-smi, one for each GPU; empty without it or an answer."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    try:
        asked = subprocess.run(
            [tool, f"--query-gpu={query}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=ANSWER_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in asked.stdout.splitlines() if line.strip()]


@functools.cache
def gpus() -> list[str]:
    """The names of the NVIDIA GPUs."""
    return nvidia_smi("name")


# One process reads another's memory by process_vm_readv; both are children of a third, like ranks.
READ_A_SIBLING = """
import ctypes, os
class Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]
libc = ctypes.CDLL(None, use_errno=True)
libc.process_vm_readv.argtypes = [ctypes.c_int, *[ctypes.POINTER(Piece), ctypes.c_ulong] * 2, ctypes.c_ulong]
here, there = ctypes.create_string_buffer(8), ctypes.create_string_buffer(b"message")
stop, go = os.pipe()
sibling = os.fork()
if sibling == 0:
    os.close(go)
    os.read(stop, 1)
    os._exit(0)
reader = os.fork()
if reader == 0:
    local, remote = Piece(ctypes.addressof(here), 8), Piece(ctypes.addressof(there), 8)
    copied = libc.process_vm_readv(sibling, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
    if copied != 8:
        print(os.strerror(ctypes.get_errno()), flush=True)
    os._exit(copied != 8)
status = os.waitpid(reader, 0)[1]
os.close(go)
os.waitpid(sibling, 0)
raise SystemExit(status != 0)
"""


def single_copy_problem() -> str:
    """Return why a process cannot read its sibling's memory (CMA); empty if it can.

    MPI libraries use CMA (process_vm_readv) for large messages.
    """
    command = [sys.executable, "-I", "-S", "-c", READ_A_SIBLING]
    tried = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS)
    return "" if tried.returncode == 0 else tried.stdout.strip() or tried.stderr.strip()


def ptrace_scope() -> int | None:
    """Return Yama's ptrace limit: 0 none, 1 own children, 2 and 3 stricter; None without Yama."""
    try:
        return int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        return None


def shared_memory_bytes() -> int:
    """Return the size of /dev/shm, which ranks and data loaders use; 0 without it."""
    return shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else 0  # noqa: S108


def lockable_bytes() -> int | None:
    """Return the limit of locked memory, which network cards need for buffers; None: no limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if limit == resource.RLIM_INFINITY else limit


def network_cards() -> list[str]:
    """Return the kernel's names of the InfiniBand, RoCE and Omni-Path cards."""
    folder = Path("/sys/class/infiniband")
    return sorted(card.name for card in folder.iterdir()) if folder.is_dir() else []


def gpu_topology() -> str:
    """Return the matrix of GPU and network links by `nvidia-smi topo -m`; empty without it."""
    tool = shutil.which("nvidia-smi")
    if tool is None or not gpus():  # one that hangs on gpus() would hang again
        return ""
    try:
        asked = subprocess.run([tool, "topo", "-m"], capture_output=True, text=True, timeout=ANSWER_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return ""
    return asked.stdout.strip() if asked.returncode == 0 else ""


def describe_host() -> Host:
    return Host(
        name=socket.gethostname(),
        kernel=platform.release(),
        cpu=cpu_model(),
        cores=available_cores(),
        memory_bytes=memory_bytes(),
        gpus=gpus(),
        scheduling=scheduling(),
        cache_bytes=cache_bytes(),
        tcp_congestion_control=tcp_congestion_control(),
    )
