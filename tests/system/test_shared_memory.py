"""Every run removes MPI's shared memory segments, except those of live jobs."""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from hvscale.launch.cleanup.shared_memory import FOLDER
from tests.conftest import (
    DIRECT_START,
    HANG_SECONDS,
    MPICH_PREFIX,
    PROGRAMS,
    Run,
    needs_mpich,
    processes_below,
    wait_until,
)

FLAVOURS = ("openmpi", pytest.param("mpich", marks=needs_mpich))
LAUNCHERS = {"openmpi": PROGRAMS / "mpirun", "mpich": MPICH_PREFIX / "bin/mpiexec.hydra"}
# When all ranks have connected, each writes the paths of its mapped segments and session files.
PROGRAM = """
import json, pathlib, sys, time
from mpi4py import MPI
world, folder = MPI.COMM_WORLD, pathlib.Path(sys.argv[1])
world.allreduce(1)
world.Barrier()
paths = {line.split()[-1] for line in open("/proc/self/maps") if line.split()[-1].startswith(("/dev/shm/", "/tmp/ompi."))}
(folder / f"{world.rank}.temporary").write_text(json.dumps(sorted(paths)))
(folder / f"{world.rank}.temporary").rename(folder / f"{world.rank}.mapped")
while not (folder / "go").exists():
    time.sleep(0.05)
world.Barrier()
"""


@contextmanager
def waiting_job(folder: Path, *launcher: object) -> Iterator[tuple[subprocess.Popen[str], list[Path]]]:
    """Start two ranks that connect and wait for the file `go`.

    Yield the launcher and the files that the ranks have mapped.
    """
    folder.mkdir(parents=True)
    (folder / "program.py").write_text(PROGRAM)
    with subprocess.Popen(
        [*map(str, launcher), "python", "program.py", str(folder)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **DIRECT_START},
        start_new_session=True,
    ) as started:
        try:
            files = [folder / f"{rank}.mapped" for rank in range(2)]
            wait_until(lambda: all(file.exists() for file in files) or started.poll() is not None)
            assert started.poll() is None, started.communicate()[0]
            mapped = {Path(path) for file in files for path in json.loads(file.read_text())}
            assert any(path.parent == FOLDER for path in mapped)
            yield started, sorted(path for path in mapped if path.exists())
        finally:
            if started.poll() is None:
                started.terminate()


def kill_launcher(job: subprocess.Popen[str], mpi: str) -> None:
    """Kill MPI's launcher, a child of hvscale."""
    name = LAUNCHERS[mpi].resolve().name
    (launcher,) = [child for child in psutil.Process(job.pid).children() if child.name() in (name, "prterun")]
    launcher.kill()


def interrupt(job: subprocess.Popen[str], mpi: str) -> None:
    job.send_signal(signal.SIGINT)


@pytest.mark.parametrize("mpi", FLAVOURS)
@pytest.mark.parametrize("end", [interrupt, kill_launcher])
def test_an_interrupted_run_leaves_no_shared_memory(
    tmp_path: Path, mpi: str, end: Callable[[subprocess.Popen[str], str], None]
) -> None:
    launch = (PROGRAMS / "hvscale", "launch", "-np", 2, "--mpi", mpi, "--")
    with waiting_job(tmp_path / "job", *launch) as (job, mapped):
        assert mapped
        end(job, mpi)
        job.communicate(timeout=HANG_SECONDS)
    assert job.returncode in (130, 3)
    assert [path for path in mapped if path.exists()] == []


@pytest.mark.usefixtures("cleanup_alone")
@pytest.mark.parametrize("mpi", FLAVOURS)
def test_cleanup_removes_only_unused_segments(hvscale: Run, tmp_path: Path, mpi: str) -> None:
    """A job of another test that ends meanwhile may remove them first: then try again."""
    assert any(removes_only_unused_segments(hvscale, tmp_path / f"attempt-{number}", mpi) for number in range(8))


def removes_only_unused_segments(hvscale: Run, tmp_path: Path, mpi: str) -> bool:
    """Whether `hvscale cleanup` listed and removed all segments of a killed job."""
    launch = (PROGRAMS / "hvscale", "launch", "-np", 2, "--mpi", mpi, "--")
    python = LAUNCHERS[mpi].parent / "python"
    plain_launcher = (LAUNCHERS[mpi], "-np", 2, *(["--map-by", ":OVERSUBSCRIBE"] if mpi == "openmpi" else []))
    with (
        waiting_job(tmp_path / "killed", *launch) as (killed, killed_job_files),
        waiting_job(tmp_path / "living", *plain_launcher, "env", f"PATH={python.parent}:{os.environ['PATH']}") as (
            living,
            live_job_files,
        ),
    ):
        # Suspend all first, so that none can remove its segments.
        processes = [psutil.Process(killed.pid), *processes_below(tmp_path / "killed")]
        for process in processes:
            process.suspend()
        for process in processes:
            process.kill()
        killed.communicate(timeout=HANG_SECONDS)
        wait_until(lambda: processes_below(tmp_path / "killed") == [])
        left = [path for path in killed_job_files if path.exists()]
        assert left
        listed = {
            leftover["name"] for leftover in json.loads(hvscale("cleanup", "--dry-run", "--json").stdout)["leftovers"]
        }
        unlisted = {str(segment_or_folder(path)) for path in left} - listed
        assert listed.isdisjoint({str(segment_or_folder(path)) for path in live_job_files})
        removed = hvscale("cleanup")
        assert removed.returncode == 0, removed.stderr
        lines = removed.stdout.splitlines()
        for path in {segment_or_folder(path) for path in left}:
            kind = "shared memory" if path.parent == FOLDER else "session folder"
            if f"removed {kind} {path} of no living process" not in lines:
                unlisted.add(str(path))
            assert not path.exists()
        assert [path for path in live_job_files if not path.exists()] == []
        (tmp_path / "living/go").touch()
        assert living.wait(timeout=HANG_SECONDS) == 0, living.communicate()[0]
    return not unlisted


@pytest.mark.usefixtures("cleanup_alone")
@pytest.mark.parametrize("creator", ["ompi", "prtrn", "prted"])
def test_cleanup_removes_only_session_folders_of_dead_processes(hvscale: Run, tmp_path: Path, creator: str) -> None:
    """Another process with the number could not listen there."""
    with subprocess.Popen(["true"]) as dead:
        pass
    folders = {number: tmp_path / f"{creator}.{number}" for number in (dead.pid, os.getpid())}
    for folder in folders.values():
        folder.mkdir()
        (folder / "pmix.n1.tool").touch()
    lines = hvscale("cleanup", TMPDIR=str(tmp_path)).stdout.splitlines()
    assert f"removed session folder {folders[dead.pid]} of no living process" in lines
    assert [path for path in folders.values() if path.exists()] == [folders[os.getpid()]]


def segment_or_folder(path: Path) -> Path:
    """Return the segment, or the session folder that contains the file."""
    return path if path.parent == FOLDER else Path(*path.parts[:3])
