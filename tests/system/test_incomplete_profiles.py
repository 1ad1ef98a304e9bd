"""A profile that lost messages on a full disk: no conclusions are drawn from the missing ones."""

import json
import subprocess
from collections.abc import Callable, Iterator
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


@pytest.fixture
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={request.param}m", "tmpfs", folder], capture_output=True
    ).returncode:
        pytest.skip("a small file system cannot be mounted here: it takes root")
    yield folder
    subprocess.run(["umount", folder], check=True)


# Of two ranks none has room for its 64 MiB, or one has.
@pytest.mark.parametrize("small_disk", [40, 100], indirect=True)
def test_lost_messages_are_not_counted_as_absent(
    hvscale: Run, program: Callable[[str], Path], small_disk: Path
) -> None:
    job = ("-np", 2, "--run")
    command = ("--", "python", program(STEPS))
    done = hvscale("tune", *job, small_disk / "study", "--trials", 2, "--trial-seconds", 1, *command)
    assert done.returncode == 4, done.stdout + done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"hvscale: the profile of {small_disk}/study/start-0001 is incomplete")
    assert "cannot create a profile of " in last
    assert "No space left on device" in last
    assert "Traceback" not in done.stderr
    document = json.loads((small_disk / "study/tune.json").read_text())
    assert (document["state"], document["trials"], document["space"]) == ("failed", [], [])

    subprocess.run(["rm", "-r", small_disk / "study"], check=True)
    done = hvscale("profile", *job, small_disk / "job", *command)
    assert done.returncode == 4, done.stdout + done.stderr
    assert "No space left on device" in done.stderr.splitlines()[-1]
    done = hvscale("compare", small_disk / "job", small_disk / "job")
    assert done.returncode == 4, done.stdout + done.stderr
    assert "is incomplete" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("small_disk", [100], indirect=True)
def test_a_complete_profile_is_trusted(hvscale: Run, program: Callable[[str], Path], small_disk: Path) -> None:
    run = ("-np", 2, "--run", small_disk / "job", "--env", "HVPROF_MIB=1")
    done = hvscale("profile", *run, "--json", "--", "python", program(STEPS))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["incomplete"] is None
