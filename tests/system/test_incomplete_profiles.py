"""Profiles that lost messages on a full disk do not lead to wrong conclusions."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Run

STEPS = """
import json, os, time
from pathlib import Path
import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
own, total = np.ones(1 << 15, np.float32), np.empty(1 << 15, np.float32)
steps = (Path(os.environ["HVSCALE_RUN"]) / "steps.jsonl").open("w", buffering=1) if world.rank == 0 else None
for step in range(60):
    began = time.monotonic()
    time.sleep(0.01)
    world.Allreduce(own, total)
    if steps is not None:
        steps.write(json.dumps({"images": 32, "seconds": time.monotonic() - began}) + "\\n")
"""


# Each of the two ranks needs 64 MiB; the disk has space for none or one of them.
@pytest.mark.parametrize("size", ["40m", "100m"])
def test_lost_messages_are_not_counted_as_absent(
    hvscale: Run, program: Callable[[str], Path], small_disk: Callable[..., Path], size: str
) -> None:
    disk = small_disk(size)
    job = ("-np", 2, "--run")
    command = ("--", "python", program(STEPS))
    done = hvscale("tune", *job, disk / "study", "--trials", 2, "--trial-seconds", 1, *command)
    assert done.returncode == 4, done.stdout + done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"hvscale: the profile of {disk}/study/start-0001 is incomplete")
    assert "cannot create a profile of " in last
    assert "No space left on device" in last
    assert "Traceback" not in done.stderr
    document = json.loads((disk / "study/tune.json").read_text())
    assert (document["state"], document["trials"], document["space"]) == ("failed", [], [])

    subprocess.run(["rm", "-r", disk / "study"], check=True)
    done = hvscale("profile", *job, disk / "job", *command)
    assert done.returncode == 4, done.stdout + done.stderr
    assert "No space left on device" in done.stderr.splitlines()[-1]
    done = hvscale("compare", disk / "job", disk / "job")
    assert done.returncode == 4, done.stdout + done.stderr
    assert "is incomplete" in done.stderr.splitlines()[-1]


def test_a_complete_profile_is_trusted(
    hvscale: Run, program: Callable[[str], Path], small_disk: Callable[..., Path]
) -> None:
    disk = small_disk("100m")
    run = ("-np", 2, "--run", disk / "job", "--env", "HVPROF_MIB=1")
    done = hvscale("profile", *run, "--json", "--", "python", program(STEPS))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["incomplete"] is None
