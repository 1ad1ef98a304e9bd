"""Profiles that lost messages on a full disk do not lead to wrong conclusions."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hvscale.core.units import MIB
from hvscale.profiling.read.profile_file import RECORD, ProfileFile
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


# Each of the two ranks takes 64 MiB; the disk has space for none or one of them.
@pytest.mark.parametrize("size", ["40m", "100m"])
def test_lost_messages_are_not_counted_as_absent(
    hvscale: Run, program: Callable[[str], Path], small_disk: Callable[..., Path], size: str
) -> None:
    disk = small_disk(size)
    job = ("-np", 2, "--env", "HVPROF_MIB=64", "--run")
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


def ring_mib(run: Path) -> list[int]:
    return [
        ProfileFile(run / f"hvprof/rank-{rank:05d}.hvp").header.capacity * RECORD.itemsize // MIB for rank in range(2)
    ]


def test_the_ranks_share_a_bound_for_their_profiles(
    hvscale: Run, program: Callable[[str], Path], tmp_path: Path
) -> None:
    profile = ("profile", "-np", 2, "--json", "--env")
    command = ("--", "python", program(STEPS))
    done = hvscale(*profile, "HVPROF_JOB_MIB=5", "--run", "job", *command)
    assert done.returncode == 0, done.stderr
    assert ring_mib(tmp_path / "job") == [2, 2]
    assert "each rank's profile keeps its last 32768 messages (2 MiB), because HVPROF_JOB_MIB=5" in done.stderr
    done = hvscale(*profile, "HVPROF_JOB_MIB=many", "--run", "none", *command)
    assert (done.returncode, done.stderr.splitlines()[-1].split(":")[1]) == (2, " HVPROF_JOB_MIB=many"), done.stderr


def test_profiles_fit_on_a_small_disk(
    hvscale: Run, program: Callable[[str], Path], small_disk: Callable[..., Path]
) -> None:
    disk = small_disk("40m")
    done = hvscale("profile", "-np", 2, "--run", disk / "job", "--json", "--", "python", program(STEPS))
    assert done.returncode == 0, done.stderr
    assert ring_mib(disk / "job") == [8, 8]
    assert f"because the disk of {disk}/job has 39 MiB left" in done.stderr
    assert json.loads(done.stdout)["incomplete"] is None
