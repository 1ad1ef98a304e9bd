"""Slurm jobs with many tasks, arrays of jobs, and a node that fails, on a cluster of four nodes."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hvscale.core.errors import RequestError
from hvscale.launch.cleanup.shared_memory import FOLDER as SHARED_MEMORY
from hvscale.profiling.read.profile_file import ProfileFile
from tests.conftest import HANG_SECONDS, MPICH_PREFIX, PROGRAMS, Run, needs_mpich, processes_below, run_json, wait_until
from tests.system import services

NODES = ["n1", "n2", "n3", "n4"]
ALLREDUCES = Path(__file__).parents[2] / "benchmarks" / "allreduces.c"
BYTES = 8  # of each all-reduce
CALLS = 20
FOREVER = (10**9, 100000)  # calls, and the microseconds between them: the ranks leave the cores to other tests


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cluster of this file's own: a test kills one of its nodes."""
    if reason := services.why_no_slurm():
        pytest.skip(reason)
    with services.slurm_cluster(tmp_path_factory.mktemp("slurm")) as configuration:
        yield configuration


@pytest.fixture(autouse=True)
def cluster(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", str(slurm))


def compiled(programs: Path, folder: Path) -> Path:
    """The program ALLREDUCES for the MPI that has its compiler in `programs`."""
    program = folder / "allreduces"
    subprocess.run([programs / "mpicc", "-O2", "-o", program, ALLREDUCES], check=True)
    return program


def profile_in_allocation(
    np: int, folder: Path, arguments: tuple[int, ...], *allocation: str, nodes: int = 4, mpi: str = "openmpi"
) -> "subprocess.Popen[str]":
    """Profile the program with np tasks and these arguments, in an allocation of so many nodes."""
    programs = MPICH_PREFIX / "bin" if mpi == "mpich" else PROGRAMS
    salloc = ("salloc", "--quiet", f"--nodes={nodes}", f"--ntasks-per-node={np // nodes}", *allocation)
    options = ("profile", "-np", np, "--mpi", mpi, "--placement", "slurm", "--run", "job", "--json")
    words = (*salloc, programs / "hvscale", *options, "--", compiled(programs, folder), *arguments)
    return subprocess.Popen(
        [str(word) for word in words], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("mpi", ["openmpi", pytest.param("mpich", marks=needs_mpich)])
def test_32_tasks_are_recorded_on_four_nodes(tmp_path: Path, mpi: str) -> None:
    job = profile_in_allocation(32, tmp_path, (CALLS,), mpi=mpi)
    stdout, stderr = job.communicate(timeout=HANG_SECONDS)
    assert job.returncode == 0, stderr
    (row,) = (row for row in json.loads(stdout)["rows"] if row["operation"] == "allreduce")
    assert (row["calls"], row["bytes"]) == (32 * CALLS, 32 * CALLS * BYTES)
    record = run_json(tmp_path / "job")
    nodes = {node["name"]: node["ranks"] for node in record["nodes"]}
    assert nodes == {name: list(range(8 * number, 8 * (number + 1))) for number, name in enumerate(NODES)}
    for path in (tmp_path / "job/hvprof").glob("*.hvp"):
        header = ProfileFile(path).header
        assert header.host == NODES[header.rank // 8]


def test_each_task_of_an_array_has_its_own_run(hvscale: Run, tmp_path: Path) -> None:
    command = ("--", "sh", "-c", "echo task $SLURM_ARRAY_TASK_ID")
    options = ("-np", 2, "--mpi", "gloo", "--sbatch-option=--array=3,7", "--run", "my 100%a runs")
    submitted = hvscale("launch", *options, "--submit", *command)
    assert (submitted.returncode, submitted.stderr.count("\n")) == (2, 1), submitted.stderr
    assert "write its job script with --sbatch FILE" in submitted.stderr
    written = hvscale("launch", *options, "--sbatch", "job.sh", *command)
    assert written.returncode == 0, written.stderr
    assert f"{tmp_path}/my 100%a runs/task-ID" in written.stdout
    done = subprocess.run(
        ["sbatch", "--wait", "job.sh"], cwd=tmp_path, capture_output=True, text=True, timeout=HANG_SECONDS
    )
    assert done.returncode == 0, done.stderr
    for task in (3, 7):
        run = tmp_path / "my 100%a runs" / f"task-{task}"
        assert run_json(run)["state"] == "finished"
        assert {log.read_text() for log in run.glob("logs/rank-*.log")} == {f"task {task}\n"}
        assert "run folder" in (tmp_path / f"my 100%a runs/logs/slurm-{task}.log").read_text()
    listed = json.loads(hvscale("runs", "my 100%a runs", "--json").stdout)["entries"]
    assert {entry["name"]: entry["placement"] for entry in listed} == {"task-3": "slurm", "task-7": "slurm"}
    again = hvscale("launch", *options, "--sbatch", "job.sh", *command)
    assert again.returncode == 2
    assert "holds runs already" in again.stderr


def calls_recorded(path: Path) -> int:
    try:
        return sum(ProfileFile(path).counters["calls"].tolist())
    except RequestError:  # its rank is creating it
        return 0


def shared_memory_of(folder: Path) -> set[Path]:
    """Return the segments that the ranks of a job in the folder have mapped."""
    lines = [
        line for rank in processes_below(folder) for line in Path(f"/proc/{rank.pid}/maps").read_text().splitlines()
    ]
    return {Path(line.split()[-1]) for line in lines if line.split()[-1].startswith(f"{SHARED_MEMORY}/")}


def wait_until_recorded(job: "subprocess.Popen[Any]", local: Path) -> None:
    """Wait until both ranks have recorded calls below the folder on their node."""

    def recorded() -> bool:
        return len([path for path in local.glob("*/rank-*.hvp") if calls_recorded(path) > 10]) == 2

    wait_until(lambda: job.poll() is not None or recorded())
    assert job.poll() is None


def test_a_daemon_that_finds_the_session_folder_of_a_killed_one_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the same process number. The message of Open MPI's daemon is lost."""
    front, real = tmp_path / "front", PROGRAMS / "prted"
    front.mkdir()
    (front / "srun").write_text(
        f"#!{sys.executable} -S\nimport os, sys\nwords = sys.argv[1:]\n"
        f"if '--nodelist=n2' in words and '{real}' in words[-1] and not os.path.exists('{front}/once'):\n"
        f"    os.mkdir('{front}/once')\n    words[-1] = words[-1].replace('{real}', '{front}/prted')\n"
        f"os.execv('{shutil.which('srun')}', ['srun', *words])\n"
    )
    # The daemon forks and gets an unknown number. This one believes that it is number 1.
    # Its folders are this test's own: daemons of other tests must not find the one left.
    number = f"{front}/number.so"
    compile_number = [str(PROGRAMS / "mpicc"), "-shared", "-fPIC", "-x", "c", "-", "-o", number]
    subprocess.run(compile_number, input="int getpid(void) { return 1; }", text=True, check=True)
    (front / "prted").write_text(
        f"#!{sys.executable} -S\nimport os, socket, sys\n"
        f"os.mkdir('{front}/once/prted.1')\n"
        f"open(f'{front}/once/prted.1/pmix.{{socket.gethostname()}}.tool', 'w').close()\n"
        f"os.environ.update(TMPDIR='{front}/once', LD_PRELOAD='{number}')\n"
        f"os.execv('{real}', ['{real}', *sys.argv[1:]])\n"
    )
    for program in front.iterdir():
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{front}:{os.environ['PATH']}")
    job = profile_in_allocation(2, tmp_path, (CALLS,), "--nodelist=n1,n2", nodes=2)
    output, errors = job.communicate(timeout=HANG_SECONDS)
    assert job.returncode == 0, errors
    assert "mpirun started no rank because it or a node's daemon cannot listen: probably a killed job left" in errors
    assert "n2: task 0: Exited with exit code 213" in (tmp_path / "job/logs/launcher-1.log").read_text()
    (row,) = (row for row in json.loads(output)["rows"] if row["operation"] == "allreduce")
    assert row["calls"] == 2 * CALLS


@pytest.mark.usefixtures("cleanup_alone")
def test_profiles_on_the_nodes_are_collected_in_a_later_allocation(hvscale: Run, tmp_path: Path) -> None:
    """`kill -9` of hvscale, and the end of its allocation."""
    local, program = tmp_path / "local", compiled(PROGRAMS, tmp_path)
    local.mkdir()
    options = ("-np", "2", "--placement", "slurm", "--record-dir", str(local), "--run", "job")
    words = [str(PROGRAMS / "hvscale"), "profile", *options, "--", str(program), *map(str, FOREVER)]
    job = subprocess.Popen(
        ["salloc", "--quiet", "--nodelist=n1,n2", "--ntasks-per-node=1", *words],
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
    )
    wait_until_recorded(job, local)
    os.kill(int((tmp_path / "job/.lock").read_text().split()[1]), signal.SIGKILL)
    job.wait(timeout=HANG_SECONDS)
    wait_until(lambda: processes_below(tmp_path) == [])
    (folder,) = local.iterdir()
    outside = hvscale("cleanup", "job")
    (line,) = [line for line in outside.stderr.splitlines() if str(folder) in line]
    assert f"the profiles of ranks 0-1 stayed on nodes n1, n2 in {folder}: the allocation " in line
    assert line.endswith("; run the same command in an allocation of n1,n2")
    again = subprocess.run(
        ["salloc", "--quiet", "--nodelist=n1,n2", PROGRAMS / "hvscale", "cleanup", "job"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert f"collected profiles {folder} of {tmp_path}/job" in again.stdout.splitlines(), again.stderr
    assert sorted(path.name for path in (tmp_path / "job/hvprof").iterdir()) == ["rank-00000.hvp", "rank-00001.hvp"]
    assert list(local.iterdir()) == []


@pytest.mark.usefixtures("cleanup_alone")
def test_profiles_on_the_nodes_are_collected_in_the_allocation_that_still_runs(tmp_path: Path) -> None:
    local, program = tmp_path / "local", compiled(PROGRAMS, tmp_path)
    local.mkdir()
    script = tmp_path / "allocation.sh"
    script.write_text('"$@"\nread line\nhvscale cleanup job\n')
    options = ("-np", "2", "--placement", "slurm", "--record-dir", str(local), "--run", "job")
    words = [str(PROGRAMS / "hvscale"), "profile", *options, "--", str(program), *map(str, FOREVER)]
    job = subprocess.Popen(
        ["salloc", "--quiet", "--nodelist=n1,n2", "--ntasks-per-node=1", "sh", script, *words],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    wait_until_recorded(job, local)
    (folder,) = local.iterdir()
    os.kill(int((tmp_path / "job/.lock").read_text().split()[1]), signal.SIGKILL)
    wait_until(lambda: processes_below(tmp_path, named="allreduces") == [])
    output, _ = job.communicate("go on\n", timeout=HANG_SECONDS)
    assert f"collected profiles {folder} of {tmp_path}/job" in output.splitlines()
    assert sorted(path.name for path in (tmp_path / "job/hvprof").iterdir()) == ["rank-00000.hvp", "rank-00001.hvp"]
    assert list(local.iterdir()) == []


def error_of_failed_node(
    hvscale: Run, job: "subprocess.Popen[str]", folder: Path, np: int, lost: int, fail: Callable[[], None]
) -> str:
    """Call `fail` once all ranks have recorded calls. Return hvscale's line, and check the run.

    `lost`: the first rank on the node that fails.
    """
    files = [folder / f"job/hvprof/rank-{rank:05d}.hvp" for rank in range(np)]
    try:
        wait_until(lambda: job.poll() is not None or all(calls_recorded(file) > 10 for file in files))
        mapped = shared_memory_of(folder)
        fail()
    finally:
        _, stderr = job.communicate(timeout=HANG_SECONDS)
    assert job.returncode == 3, stderr
    own = [line for line in stderr.splitlines() if line.startswith("hvscale: ") and "warning" not in line]
    assert len(own) == 1, stderr
    record = run_json(folder / "job")
    assert (record["state"], record["exit_status"], record["failed_rank"]) == ("failed", 3, lost)
    read = hvscale("breakdown", "job", "--json")
    assert read.returncode == 0, read.stderr
    calls = {row["rank"]: row["calls"] for row in json.loads(read.stdout)["rank_rows"]}
    assert calls.keys() == set(range(np))
    assert min(calls.values()) > 10
    wait_until(lambda: processes_below(folder) == [])
    assert mapped
    assert [path for path in mapped if path.exists()] == []
    return own[0]


def test_what_was_recorded_before_a_node_failed_can_be_read(hvscale: Run, slurm: Path, tmp_path: Path) -> None:
    """Its node n3 does not come back."""
    job = profile_in_allocation(16, tmp_path, FOREVER)
    error = error_of_failed_node(hvscale, job, tmp_path, 16, 8, lambda: services.kill_slurm_node("n3", slurm))
    assert error.startswith("hvscale: ranks 8-11 on n3 are lost: Slurm can start nothing there (")


def test_a_node_that_slurm_itself_gives_up_is_named(hvscale: Run, slurm: Path, tmp_path: Path) -> None:
    """The last test of this file: n4 loses only its daemon, and Slurm ends the job (NODE_FAIL)."""
    with slurm.open("a") as stream:
        stream.write("SlurmdTimeout=5\n")
    subprocess.run(["scontrol", "reconfigure"], check=True)
    job = profile_in_allocation(6, tmp_path, FOREVER, "--exclude=n3", nodes=3)
    error = error_of_failed_node(hvscale, job, tmp_path, 6, 4, lambda: services.slurm_daemon("n4", slurm).kill())
    assert error.startswith("hvscale: ranks 4-5 on n4 are lost: Slurm reports it as down")
    ended = subprocess.run(
        ["scontrol", "show", "job", "--oneliner"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert any("JobState=NODE_FAIL" in line or "Reason=NodeDown" in line for line in ended)
