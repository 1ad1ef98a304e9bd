"""Values of --env reach the ranks but no file, output or command line, except known settings."""

import json
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import PROGRAMS, Run, requested_env, run_json

# Each value contains its name, to identify a leak.
WRITTEN = ("DATABASE_URL", "PGPASS", "FOO")
FROM_THE_SHELL = ("GH_PAT", "NCCL_AUTH_TOKEN", "HVSCALE_PRIVATE")
SECRETS = {name: f"value-of-{name.lower()}-=\"'$x" for name in (*WRITTEN, *FROM_THE_SHELL)}
ENV = (
    *(f"--env={name}={SECRETS[name]}" for name in WRITTEN),
    *(f"--env={name}" for name in FROM_THE_SHELL),
    *("--env", "HOROVOD_CYCLE_TIME=3"),
)
# Fails if a variable is missing on a rank, or if any command line contains a value from the shell.
STEPS = """
import os, sys, time
from pathlib import Path
import numpy as np
from mpi4py import MPI

own, total = np.ones(4096, np.float32), np.empty(4096, np.float32)
secrets = {name: os.environ[name] for name in sys.argv[1].split(",")}
lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if os.access(path, os.R_OK)]
assert not [line for line in lines if secrets["GH_PAT"].encode() in line]
steps = (Path(os.environ["HVSCALE_RUN"]) / "steps.jsonl").open("w", buffering=1) if MPI.COMM_WORLD.rank == 0 else None
for step in range(int(sys.argv[2])):
    MPI.COMM_WORLD.Allreduce(own, total)
    time.sleep(0.005)
    if steps is not None:
        steps.write('{"images": 1, "seconds": 0.005, "loss": 1.0}\\n')
"""


def leaks(text: str) -> list[str]:
    return [name for name in SECRETS if f"value-of-{name.lower()}" in text]


def test_secret_values_are_in_no_file_or_output(hvscale: Run, program: Callable[[str], Path], tmp_path: Path) -> None:
    shell = {name: SECRETS[name] for name in FROM_THE_SHELL}
    job = (*ENV, "--", "python", program(STEPS), ",".join(SECRETS))
    study_options = ("--trials", "1", "--trial-seconds", "0.5", "--knobs", "allreduce_algorithm")
    calls = (
        ("profile", "-np", "2", "--run", "job", "--json", "--csv", "table.csv", *job, "30"),
        ("report", "job", "--trace", "trace.json"),
        ("scale", "--np", "1", "--repeat", "1", "--run", "scaling", *job, "30"),
        ("tune", "-np", "2", "--run", "study", *study_options, *job, "100000"),
    )
    for call in calls:
        done = hvscale(*call, **shell)
        assert done.returncode == 0, done.stderr
        assert leaks(done.stdout + done.stderr) == []
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 30
    assert {path: found for path in files if (found := leaks(path.read_bytes().decode(errors="replace")))} == {}

    requested = requested_env(run_json(tmp_path / "job"))
    assert requested == {**dict.fromkeys(SECRETS, "(hidden)"), "HOROVOD_CYCLE_TIME": "3"}
    study = json.loads((tmp_path / "study/tune.json").read_text())
    assert set(study["launch"]["env"]) == {*SECRETS, "HOROVOD_CYCLE_TIME=3"}
    assert "--env DATABASE_URL" in (tmp_path / "study/commands.txt").read_text()


def test_a_resumed_study_reads_secret_values_from_the_shell(
    hvscale: Run, program: Callable[[str], Path], tmp_path: Path
) -> None:
    script = program("import os; print('speed', {'right password': 5}[os.environ['FOO']])")
    call = ("scale", "--np", "1", "--repeat", "1", "--run", "study", "--metric", "speed ([0-9]+)", "--env", "FOO", "--")
    first = hvscale(*call, "python", script, FOO="wrong password")
    assert first.returncode == 3
    second = hvscale(*call, "python", script, FOO="right password")
    assert second.returncode == 0, second.stderr
    assert json.loads((tmp_path / "study/scale.json").read_text())["launch"]["env"] == ["FOO"]


@pytest.mark.parametrize("before", [False, True])
def test_a_job_script_with_secret_values_is_readable_only_by_its_user(
    hvscale: Run, tmp_path: Path, before: bool
) -> None:
    script = tmp_path / "job.sh"
    if before:
        script.write_text("echo an older one, which everybody may read\n")
    done = hvscale("launch", "-np", "2", "--sbatch", script, *ENV, "--", "env", **dict.fromkeys(FROM_THE_SHELL, "x"))
    assert done.returncode == 0, done.stderr
    assert leaks(done.stdout + done.stderr) == []
    assert stat.S_IMODE(script.stat().st_mode) == 0o600
    text = script.read_text()
    assert leaks(text.splitlines()[-1]) == []  # the hvscale command of the job
    assert "--env HOROVOD_CYCLE_TIME=3" in text
    # The shell that Slurm starts passes the values on unchanged.
    text = "\n".join([*text.splitlines()[:-1], "exec env -0"])
    seen = subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=True).stdout.split("\0")
    assert {f"{name}={SECRETS[name]}" for name in WRITTEN} <= set(seen)


def test_a_name_that_scripts_cannot_set_is_an_error(hvscale: Run) -> None:
    done = hvscale("launch", "--sbatch", "job.sh", "--env", "a.b=secret", "--", "true")
    assert done.returncode == 2
    assert "--env a.b" in done.stderr
    assert "secret" not in done.stderr


def test_files_follow_the_umask(tmp_path: Path) -> None:
    command = [str(PROGRAMS / "hvscale"), "launch", "--run", "job", "--", "echo", "hello"]
    subprocess.run(command, cwd=tmp_path, umask=0o077, check=True, capture_output=True)
    open_to_others = {path for path in (tmp_path / "job").rglob("*") if path.stat().st_mode & 0o077}
    assert open_to_others == set()
    subprocess.run([*command[:3], "second", *command[4:]], cwd=tmp_path, umask=0o022, check=True, capture_output=True)
    assert stat.S_IMODE((tmp_path / "second/run.json").stat().st_mode) == 0o644
