"""A launcher that hangs, cannot listen or is killed is named; the first two are retried once."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.conftest import HANG_SECONDS, PROGRAMS, Run, needs_mpich, processes_below, run_json, wait_until

HANG = "sleep 1200"
# What a killed mpirun with the same process number left. After exec, the number stays the same.
CANNOT_LISTEN = "folder=${TMPDIR:-/tmp}/ompi.$$; mkdir $folder; : >$folder/pmix.$(hostname).tool"
LISTENER_FAILED = "The PMIx server's listener thread failed to start. We cannot\ncontinue.\n" + 74 * "-"
NO_SLOTS = "There are not enough slots available in the system"
LONG_TIMEOUT = "300"
# The process names of the launchers of Open MPI 5, Open MPI 4 and Hydra.
LAUNCHERS = ("prterun", "mpirun", "mpiexec.hydra")

FakeMpirun = Callable[[str, int], dict[str, str]]


@pytest.fixture
def fake_mpirun(tmp_path: Path) -> FakeMpirun:
    """Return a function that puts a fake mpirun first in PATH.

    The first `times` starts run the shell command `behaviour`; later ones run the real mpirun.
    """

    def put(behaviour: str, times: int) -> dict[str, str]:
        folder, real = tmp_path / "front", PROGRAMS / "mpirun"
        folder.mkdir()
        (folder / "mpirun").write_text(
            f'#!/bin/sh\n[ "$1" = --version ] && exec {real} "$@"\n'
            f"echo start >>{folder}/starts\n"
            f'if [ "$(wc -l <{folder}/starts)" -le {times} ]; then\n{behaviour}\nfi\n'
            f'exec {real} "$@"\n'
        )
        (folder / "mpirun").chmod(0o755)
        return {"PATH": f"{folder}:{PROGRAMS}:{os.environ['PATH']}"}

    return put


def starts(tmp_path: Path) -> int:
    return len((tmp_path / "front/starts").read_text().splitlines())


def test_a_hanging_launcher_is_retried(hvscale: Run, tmp_path: Path, fake_mpirun: FakeMpirun) -> None:
    """--start-timeout is shorter than the hang, but applies only once a rank has started."""
    done = hvscale(
        *("launch", "-np", 2, "--start-timeout", 6, "--run", "job", "--", "echo", "here"),
        **fake_mpirun(f"echo stuck; {HANG}", 1),
        HVSCALE_FIRST_RANK_TIMEOUT="10",
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] here", "[1] here"]
    (warning,) = [line for line in done.stderr.splitlines() if "started no rank within 10 s" in line]
    assert "front/mpirun" in warning
    record = run_json(tmp_path / "job")
    assert record["state"] == "finished"
    assert [text for text in record["warnings"] if "retrying" in text] == [warning.removeprefix("hvscale: warning: ")]
    assert (tmp_path / "job/logs/launcher-1.log").read_text() == "stuck\n"
    assert processes_below(tmp_path) == []


def test_a_launcher_that_hangs_twice_is_an_error(hvscale: Run, tmp_path: Path, fake_mpirun: FakeMpirun) -> None:
    done = hvscale(
        *("launch", "-np", 2, "--run", "job", "--", "true"), **fake_mpirun(HANG, 99), HVSCALE_FIRST_RANK_TIMEOUT="0.5"
    )
    assert done.returncode == 3, done.stderr
    assert "front/mpirun started no rank within 0.5 s and was killed, twice" in done.stderr
    assert "HVSCALE_FIRST_RANK_TIMEOUT=SECONDS" in done.stderr
    assert starts(tmp_path) == 2
    record = run_json(tmp_path / "job")
    assert (record["state"], record["exit_status"], record["failed_rank"]) == ("failed", 3, None)
    assert processes_below(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_hanging_launcher(tmp_path: Path, fake_mpirun: FakeMpirun, number: signal.Signals) -> None:
    launcher = subprocess.Popen(
        [PROGRAMS / "hvscale", "launch", "-np", "2", "--run", "job", "--", "true"],
        cwd=tmp_path,
        env={**os.environ, **fake_mpirun(HANG, 99), "HVSCALE_FIRST_RANK_TIMEOUT": LONG_TIMEOUT},
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until((tmp_path / "front/starts").exists)
    launcher.send_signal(number)
    _, stderr = launcher.communicate(timeout=HANG_SECONDS)
    assert launcher.returncode == 128 + number, stderr
    assert starts(tmp_path) == 1
    assert run_json(tmp_path / "job")["state"] == "interrupted"
    assert processes_below(tmp_path) == []


def test_a_launcher_that_cannot_listen_is_retried(hvscale: Run, fake_mpirun: FakeMpirun) -> None:
    done = hvscale("launch", "-np", 2, "--run", "job", "--", "echo", "here", **fake_mpirun(CANNOT_LISTEN, 1))
    assert done.returncode == 0, done.stderr
    assert "cannot listen: probably a killed job left its session folder" in done.stderr
    assert "(`hvscale cleanup` on each node removes it); retrying" in done.stderr
    assert len(done.stdout.splitlines()) == 2


@pytest.mark.parametrize(
    ("behaviour", "error", "times"),
    [(CANNOT_LISTEN, LISTENER_FAILED, 2), (f'echo "{NO_SLOTS}" >&2; exit 1', NO_SLOTS, 1)],
    ids=["cannot-listen", "no-slots"],
)
def test_a_launcher_error_ends_the_run(
    hvscale: Run, tmp_path: Path, fake_mpirun: FakeMpirun, behaviour: str, error: str, times: int
) -> None:
    """Errors that a second start cannot avoid are not retried."""
    done = hvscale("launch", "-np", 2, "--run", "job", "--", "true", **fake_mpirun(behaviour, 99))
    assert done.returncode == 3, done.stderr
    assert "front/mpirun" in done.stderr
    assert "\n".join(line.strip() for line in done.stderr.splitlines()).endswith(error)
    assert starts(tmp_path) == times


def test_an_invalid_time_limit_is_a_one_line_error(hvscale: Run, tmp_path: Path) -> None:
    for name, value in (("HVSCALE_FIRST_RANK_TIMEOUT", "soon"), ("HVSCALE_ANSWER_TIMEOUT", "nan")):
        done = hvscale("launch", "--run", "job", "--", "true", **{name: value})
        assert done.returncode == 2
        assert f"{name}={value}: not a valid number of seconds" in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "job").exists()


@pytest.mark.parametrize("mpi", ["openmpi", pytest.param("mpich", marks=needs_mpich)])
@pytest.mark.parametrize("first", ["import mpi4py.MPI", "pass"])
def test_a_killed_launcher_is_named_instead_of_its_ranks(
    program: Callable[[str], Path], tmp_path: Path, mpi: str, first: str
) -> None:
    """Ranks that use MPI notice the loss of the launcher and abort."""
    script = program(f'import time\n{first}\nprint("ready", flush=True)\ntime.sleep(1200)\n')
    run = subprocess.Popen(
        [PROGRAMS / "hvscale", "launch", "-np", "2", "--mpi", mpi, "--run", "job", "--", "python", script],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    logs = [tmp_path / f"job/logs/rank-{rank:05d}.log" for rank in range(2)]
    wait_until(lambda: all(log.exists() and "ready" in log.read_text() for log in logs))
    (launcher,) = [child for child in psutil.Process(run.pid).children() if child.name() in LAUNCHERS]
    launcher.kill()
    _, stderr = run.communicate(timeout=HANG_SECONDS)
    assert run.returncode == 3, stderr
    name = "mpirun" if mpi == "openmpi" else "mpiexec.hydra"
    assert f"{name} was killed by SIGKILL, which took its ranks down" in stderr
    record = run_json(tmp_path / "job")
    assert (record["state"], record["failed_rank"]) == ("failed", None)
    assert processes_below(tmp_path) == []
