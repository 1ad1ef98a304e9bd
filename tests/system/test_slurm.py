"""A real Slurm cluster of four nodes: jobs inside an allocation, job scripts and submitted jobs."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hvscale.trainer.system.step_watchdog import STACK_DUMP_SECONDS
from tests.conftest import HANG_SECONDS, PROGRAMS, Run, run_json, wait_until
from tests.system.services import machine_state
from tests.system.test_interrupted_training import slow_training
from tests.system.test_placements import (
    BYTES,
    FLAVOURS,
    HOROVOD,
    HOROVOD_PROGRAM,
    ROUNDS,
    WITH_MPICH,
    waiting_program,
)
from tests.system.test_resume import steps

NODES = ["n1", "n2", "n3", "n4"]


@pytest.fixture(autouse=True)
def cluster(slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check after each test that no job is queued and no process is left on the nodes."""
    monkeypatch.setenv("SLURM_CONF", str(slurm))
    yield
    wait_until(lambda: queue() == [])
    wait_until(lambda: machine_state(None, tmp_path)["processes"] == [])


def queue() -> list[str]:
    return subprocess.run(["squeue", "--noheader"], capture_output=True, text=True, check=True).stdout.splitlines()


def run_in_allocation(
    tasks: int, *arguments: object, cwd: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["salloc", "--quiet", f"--ntasks={tasks}", f"--nodes={tasks}", PROGRAMS / "hvscale", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )


def has_exact_counts(text: str, ranks: int) -> bool:
    rows = [row for row in json.loads(text)["rows"] if row["bytes_max"] == BYTES and row["operation"] == "allreduce"]
    return [(row["calls"], row["bytes"]) for row in rows] == [(ranks * ROUNDS, ranks * ROUNDS * BYTES)]


@pytest.mark.parametrize("mpi", WITH_MPICH)
def test_a_horovod_program_is_profiled_on_three_nodes(program: Callable[[str], Path], tmp_path: Path, mpi: str) -> None:
    nodes = NODES[:3]
    options = ("-np", 3, "--mpi", mpi, "--placement", "slurm", "--run", "job", "--json", "--bins", "512K,1M")
    done = run_in_allocation(
        3,
        *("profile", *options, "--env", "CHOSEN", "--", "python", program(HOROVOD_PROGRAM)),
        cwd=tmp_path,
        CHOSEN='a "quoted" b=c',
    )
    assert done.returncode == 0, done.stderr
    assert has_exact_counts(done.stdout, 3)
    record = run_json(tmp_path / "job")
    assert (record["placement"], [node["name"] for node in record["nodes"]]) == ("slurm", nodes)
    for rank, node in enumerate(nodes):
        printed = json.loads((tmp_path / f"job/logs/rank-{rank:05d}.log").read_text().splitlines()[-1])
        assert (printed["rank"], printed["host"], printed["local_size"]) == (rank, node, 1)
        assert (printed["here"], printed["chosen"]) == (str(tmp_path), 'a "quoted" b=c')


@pytest.mark.parametrize("submitted", [False, True])
def test_profiles_on_the_nodes_disks_are_collected(
    program: Callable[[str], Path], tmp_path: Path, hvscale: Run, submitted: bool
) -> None:
    (tmp_path / "local").mkdir()
    barrier = program("import mpi4py.MPI as mpi\nmpi.COMM_WORLD.Barrier()\n")
    job = ("profile", "-np", 2, "--record", "counters", "--record-dir", tmp_path / "local", "--run", "job", "--json")
    command = ("--", "python", barrier)
    if submitted:
        done = hvscale(*job, "--submit", "--nodes", 2, *command)
    else:
        done = run_in_allocation(2, *job, "--placement", "slurm", *command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [row["calls"] for row in document["rows"]] == [2]
    assert "hvscale profile --record calls" in document["unavailable"]["waiting"]
    assert len(list((tmp_path / "job/hvprof").iterdir())) == 2
    assert list((tmp_path / "local").iterdir()) == []


def test_more_ranks_than_the_allocation_is_an_error(tmp_path: Path) -> None:
    done = run_in_allocation(2, "launch", "-np", 4, "--placement", "slurm", "--", "true", cwd=tmp_path)
    assert done.returncode == 2
    assert "hvscale: -np 4, but the allocation has 2 tasks: request more (`-n 4`), or use fewer ranks" in done.stderr


def test_inside_a_step_the_ranks_use_all_nodes_of_the_allocation(tmp_path: Path) -> None:
    """srun shows a program the tasks of its step instead of the job's."""
    step = ("srun", "--nodes=1", "--ntasks=1", PROGRAMS / "hvscale")
    options = ("launch", "-np", "2", "--mpi", "gloo", "--placement", "slurm", "--run", "job")
    done = subprocess.run(
        ["salloc", "--quiet", "--ntasks=2", "--nodes=2", *step, *options, "--", "true"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert [node["name"] for node in run_json(tmp_path / "job")["nodes"]] == ["n1", "n2"]


def test_outside_an_allocation_the_error_lists_the_options(hvscale: Run) -> None:
    done = hvscale("launch", "-np", 2, "--placement", "slurm", "--", "true")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "--submit" in line
    assert "--sbatch FILE" in line


def test_a_rejected_srun_is_a_one_line_error(hvscale: Run, tmp_path: Path) -> None:
    """The environment describes an allocation that has ended, so srun rejects it."""
    ended_allocation = {"SLURM_JOB_ID": "999", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "1(x2)"}
    done = hvscale("launch", "-np", 2, "--placement", "slurm", "--run", "job", "--", "true", **ended_allocation)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "hvscale: srun cannot start " in line
    assert "Invalid job id specified" in line
    assert run_json(tmp_path / "job")["state"] == "failed"


def test_a_job_script_runs_the_command(hvscale: Run, program: Callable[[str], Path], tmp_path: Path) -> None:
    options = ("--sbatch", "job.sh", "--nodes", 2, "--sbatch-option", "--time=10", "--run", "a job")
    done = hvscale("launch", "-np", 2, "--mpi", "gloo", *options, "--", "python", program(HOROVOD))
    assert done.returncode == 0, done.stderr
    assert "job.sh" in done.stdout
    assert not (tmp_path / "a job/run.json").exists()
    text = (tmp_path / "job.sh").read_text()
    for line in ("#SBATCH --ntasks=2", "#SBATCH --nodes=2", "#SBATCH --time=10"):
        assert line in text.splitlines()
    sbatch = subprocess.run(
        ["sbatch", "--wait", "job.sh"], cwd=tmp_path, capture_output=True, text=True, timeout=HANG_SECONDS
    )
    assert sbatch.returncode == 0, sbatch.stderr
    record = run_json(tmp_path / "a job")
    assert (record["state"], [node["name"] for node in record["nodes"]]) == ("finished", ["n1", "n2"])


def test_a_submitted_job_is_followed_and_its_profile_shown(
    hvscale: Run, program: Callable[[str], Path], tmp_path: Path
) -> None:
    options = ("-np", 2, "--submit", "--nodes", 2, "--run", "job", "--json", "--bins", "512K,1M")
    done = hvscale("profile", *options, "--", "python", program(HOROVOD_PROGRAM))
    assert done.returncode == 0, done.stderr
    assert has_exact_counts(done.stdout, 2)
    assert '[0] {"rank": 0, "size": 2' in done.stderr
    record = run_json(tmp_path / "job")
    assert record["state"] == "finished"
    # The nodes share an address, and no other interface of the machine may be used.
    (reported,) = record["settings_in_effect"]
    assert reported["settings"]["btl_tcp_if_include"] == record["nodes"][0]["interface"]


def test_a_submitted_job_reports_a_failed_rank(hvscale: Run) -> None:
    script = "import sys; print('unwell', flush=True); sys.exit(4)"
    done = hvscale("launch", "-np", 1, "--submit", "--mpi", "gloo", "--run", "job", "--", "python", "-c", script)
    assert done.returncode == 3
    assert "rank 0 on n1 ended with status 4" in done.stderr
    assert done.stderr.splitlines()[-1].strip() == "unwell"


def test_a_rejected_job_is_a_one_line_error(hvscale: Run) -> None:
    done = hvscale("launch", "--submit", "--sbatch-option", "--partition=none", "--run", "job", "--", "true")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "hvscale: Slurm rejected the job" in line
    assert "partition" in line


@pytest.mark.parametrize("mpi", FLAVOURS)
def test_ctrl_c_cancels_a_submitted_job(program: Callable[[str], Path], tmp_path: Path, mpi: str) -> None:
    options = ["-np", "2", "--mpi", mpi, "--submit", "--nodes", "2", "--run", "job"]
    launcher = subprocess.Popen(
        [PROGRAMS / "hvscale", "launch", *options, "--", "python", program(waiting_program(mpi))],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    logs = [tmp_path / f"job/logs/rank-{rank:05d}.log" for rank in range(2)]
    wait_until(lambda: all(log.exists() and "ready" in log.read_text() for log in logs))
    launcher.send_signal(signal.SIGINT)
    launcher.communicate(timeout=HANG_SECONDS)
    assert launcher.returncode == 128 + signal.SIGINT
    assert run_json(tmp_path / "job")["state"] == "interrupted"


SLOW_SBATCH = """#!/bin/sh
job=$({sbatch} "$@") || exit
sleep 1
echo "$job"
"""


@pytest.mark.parametrize("answers_late", [False, True])
def test_ctrl_c_cancels_a_pending_job(tmp_path: Path, answers_late: bool) -> None:
    """It has no launcher yet, and Slurm would refuse to signal it. sbatch may not have named it."""
    environment = dict(os.environ)
    if answers_late:
        slow = tmp_path / "bin/sbatch"
        slow.parent.mkdir()
        slow.write_text(SLOW_SBATCH.format(sbatch=shutil.which("sbatch")))
        slow.chmod(0o755)
        environment["PATH"] = f"{slow.parent}:{environment['PATH']}"
    submit = ("launch", "--submit", "--mpi", "gloo", "--sbatch-option=--hold", "--run", "job", "--", "true")
    launcher = subprocess.Popen([PROGRAMS / "hvscale", *submit], cwd=tmp_path, env=environment, stderr=subprocess.PIPE)
    wait_until(lambda: len(queue()) == 1)
    launcher.send_signal(signal.SIGINT)
    launcher.communicate(timeout=HANG_SECONDS)
    assert launcher.returncode == 128 + signal.SIGINT
    assert queue() == []


@pytest.mark.parametrize("batch", [("--batch",), ()], ids=["to-hvscale", "to-the-steps"])
def test_a_job_whose_ranks_save_on_sigusr1_exits_with_75(tmp_path: Path, batch: tuple[str, ...]) -> None:
    """sbatch's option --signal sends the signal to the script with `B:`, otherwise to the steps."""
    options = ("-np", "2", "--mpi", "gloo", "--submit", "--nodes", "2", "--run", "job")
    script = "trap 'sleep 1; exit 75' USR1; echo ready; while :; do sleep 0.1; done"
    launcher = subprocess.Popen(
        [PROGRAMS / "hvscale", "launch", *options, "--", "sh", "-c", script],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    logs = [tmp_path / f"job/logs/rank-{rank:05d}.log" for rank in range(2)]
    wait_until(lambda: all(log.exists() and "ready" in log.read_text() for log in logs))
    (job,) = (line.split()[0] for line in queue())
    subprocess.run(["scancel", "--signal=USR1", *batch, job], check=True)
    _, stderr = launcher.communicate(timeout=HANG_SECONDS)
    assert launcher.returncode == 75, stderr
    record = run_json(tmp_path / "job")
    assert (record["state"], record["exit_status"]) == ("interrupted", 75)


def test_a_pending_job_locks_its_folder(hvscale: Run, tmp_path: Path) -> None:
    submit = ("launch", "--submit", "--mpi", "gloo", "--sbatch-option=--hold", "--run", "job", "--", "true")
    first = subprocess.Popen([PROGRAMS / "hvscale", *submit], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    list_jobs = ["squeue", "--noheader", "--name", "job", "--format", "%i"]
    try:
        wait_until(lambda: bool(subprocess.check_output(list_jobs)))
        second = hvscale(*submit)
        assert (second.returncode, len(second.stderr.splitlines())) == (2, 1), second.stderr
        assert f"{tmp_path}/job already belongs to a Slurm job" in second.stderr
        assert len(subprocess.check_output(list_jobs).split()) == 1
    finally:
        subprocess.run(["scancel", *subprocess.check_output(list_jobs, text=True).split()], check=True)
        _, stderr = first.communicate(timeout=HANG_SECONDS)
    assert first.returncode == 2
    assert "ended without a run" in stderr


def test_a_job_suspended_beyond_the_step_timeout_continues_when_resumed(tmp_path: Path) -> None:
    train = (*slow_training(tmp_path), "--steps", 300, "--stall-timeout", 2)
    options = ("-np", "2", "--submit", "--nodes", "2", "--run", "job")
    with subprocess.Popen(
        [PROGRAMS / "hvscale", "launch", *options, "--", "hvscale", *map(str, train)],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as launcher:
        file = tmp_path / "job/steps.jsonl"
        wait_until(lambda: file.exists() and len(file.read_text().splitlines()) >= 10)
        (job,) = (line.split()[0] for line in queue())
        subprocess.run(["scontrol", "suspend", job], check=True)
        time.sleep(2 + STACK_DUMP_SECONDS + 2)
        assert len(file.read_text().splitlines()) < 300
        (tmp_path / "slow").unlink()
        subprocess.run(["scontrol", "resume", job], check=True)
        _, stderr = launcher.communicate(timeout=HANG_SECONDS)
    assert launcher.returncode == 0, stderr
    assert len(steps(file.parent)) == 300
    for rank in range(2):
        log = (tmp_path / f"job/logs/rank-{rank:05d}.log").read_text()
        assert "this process was suspended for" in log, (rank, log[-500:])


def test_a_revoked_allocation_is_reported_as_a_lost_rank(program: Callable[[str], Path], tmp_path: Path) -> None:
    with subprocess.Popen(
        ["salloc", "--quiet", "--kill-command=TERM", "--ntasks=2", "--nodes=2", "sleep", "1200"], start_new_session=True
    ) as allocation:
        wait_until(lambda: len(queue()) == 1)
        (job,) = (line.split()[0] for line in queue())
        allocation_environment = {"SLURM_JOB_ID": job, "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "1(x2)"}
        launcher = subprocess.Popen(
            [
                PROGRAMS / "hvscale",
                "launch",
                "-np",
                "2",
                "--placement",
                "slurm",
                "--run",
                "job",
                "--",
                "python",
                program(waiting_program("openmpi")),
            ],
            cwd=tmp_path,
            env={**os.environ, **allocation_environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        logs = [tmp_path / f"job/logs/rank-{rank:05d}.log" for rank in range(2)]
        wait_until(lambda: all(log.exists() and "ready" in log.read_text() for log in logs))
        subprocess.run(["scancel", job], check=True)
        _, stderr = launcher.communicate(timeout=HANG_SECONDS)
        allocation.wait(timeout=HANG_SECONDS)
    assert launcher.returncode == 3
    assert f"ranks 0-1 on n1, n2 are lost: the allocation {job} is" in stderr
