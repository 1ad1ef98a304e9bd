"""How Horovod's ranks wait where they share cores."""

import sys
from pathlib import Path

import pytest

from hvscale.core.host import available_cores
from tests.conftest import QUICK_START, Run

# A thread that yields its core does not switch voluntarily, and one that sleeps does each time.
PROGRAM = """
import os, resource, sys, time
hvd = horovod.torch
hvd.init()
def switches():
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
hvd.allreduce(torch.ones(4), name="first")
time.sleep(hvd.rank())
handle, before = hvd.allreduce_async(torch.ones(4), name="second"), switches()
hvd.synchronize(handle)
waited = switches() - before
for _ in range(1000):
    os.sched_yield()
print(f"rank {hvd.rank()}: {waited} in synchronize, {switches() - before - waited} in sched_yield")
hvd.shutdown()
"""
MANY = 50


def waits(run: Path) -> tuple[int, int]:
    """Rank 0's voluntary switches: while it waited a second for rank 1, and in 1000 yields."""
    (line,) = [line for line in (run / "logs/rank-00000.log").read_text().splitlines() if line.startswith("rank 0: ")]
    words = line.split()
    return int(words[2]), int(words[5])


def job_waits(hvscale: Run, folder: Path, mpi: str, *options: str) -> tuple[int, int]:
    """What `waits` returns, of a job whose ranks share cores."""
    np = max(2, available_cores() // 2 + 1)
    (folder / "program.py").write_text(QUICK_START + PROGRAM)
    done = hvscale("launch", "-np", np, "--mpi", mpi, *options, "--run", "job", "--", sys.executable, "program.py")
    assert done.returncode == 0, done.stderr
    return waits(folder / "job")


@pytest.mark.parametrize(("mpi", "options"), [("gloo", ()), ("openmpi", ("--env", "HVSCALE_WAIT=sleep"))])
def test_ranks_sleep_in_synchronize(hvscale: Run, tmp_path: Path, mpi: str, options: tuple[str, ...]) -> None:
    in_synchronize, in_yield = job_waits(hvscale, tmp_path, mpi, *options)
    assert in_synchronize >= MANY
    assert in_yield < MANY


@pytest.mark.parametrize(("mpi", "options"), [("gloo", ("--env", "HVSCALE_WAIT=poll")), ("openmpi", ())])
def test_ranks_poll(hvscale: Run, tmp_path: Path, mpi: str, options: tuple[str, ...]) -> None:
    assert job_waits(hvscale, tmp_path, mpi, *options)[0] < MANY


def test_another_wait_is_refused(hvscale: Run) -> None:
    done = hvscale("launch", "-np", 2, "--env", "HVSCALE_WAIT=nap", "--", "true")
    assert done.returncode == 2
    assert done.stderr.strip().endswith("--env HVSCALE_WAIT=nap: choose sleep or poll")
