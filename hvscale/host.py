"""What the machine is that a job starts on."""

import functools
import os
import platform
import shutil
import socket
import subprocess
from pathlib import Path

import psutil

from hvscale.run_folder import Host


def available_cores() -> int:
    """Cores this process may use: its affinity mask, further cut by a cgroup's CPU quota (version 2) where one is set."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):  # no cgroup version 2, or "max"
        pass
    return cores


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


@functools.cache
def gpus() -> list[str]:
    """The names of the NVIDIA GPUs that the driver's own tool lists; empty where there is no driver."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    try:
        listing = subprocess.run(
            [tool, "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in listing.stdout.splitlines() if line.strip()]


def describe_host() -> Host:
    return Host(
        name=socket.gethostname(),
        kernel=platform.release(),
        cpu=cpu_model(),
        cores=available_cores(),
        memory_bytes=psutil.virtual_memory().total,
        gpus=gpus(),
    )
