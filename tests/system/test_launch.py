"""`hvscale launch` with real ranks: their environment and output, and how jobs end."""

import json
import os
import pwd
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from hvscale.core.host import available_cores
from tests.conftest import (
    DIRECT_START,
    HANG_SECONDS,
    MPICH_PREFIX,
    PROGRAMS,
    Run,
    needs_mpich,
    requested_env,
    run_json,
    start_job,
)

FLAVOURS = ("openmpi", pytest.param("mpich", marks=needs_mpich), "gloo")
PYTHON = PROGRAMS / "python"

HOROVOD_SUM = """
import horovod.torch as hvd, torch
hvd.init()
print("sum", int(hvd.allreduce(torch.tensor([hvd.rank() + 1]), op=hvd.Sum)), "of", hvd.size(), flush=True)
"""

# Rank 1 fails in the way that its argument names, after all ranks have printed "ready".
ONE_RANK_FAILS = """
import os, signal, sys, time
rank = int(next(os.environ[name] for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "HOROVOD_RANK") if name in os.environ))
for line in range(30):
    print("line", line, flush=True)
print("ready", flush=True)
if rank == 1:
    how = sys.argv[1]
    if how == "raise":
        raise ValueError("this rank is unwell")
    if how == "exit":
        sys.exit(7)
    os.kill(os.getpid(), getattr(signal, how))
time.sleep(1200)
"""

# Ignores SIGTERM, SIGINT and SIGHUP, and starts a child process in another session.
IGNORES_SIGNALS = """
import signal, subprocess, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
subprocess.Popen(["sleep", "1200"], start_new_session=True)
print("ready", flush=True)
time.sleep(1200)
"""


def processes_of(run: Path) -> list[psutil.Process]:
    """Return all living processes of the machine that have the run in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get("HVSCALE_RUN") == str(run):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.parametrize("mpi", FLAVOURS)
def test_ranks_of_a_horovod_program_connect(
    hvscale: Run, program: Callable[[str], Path], tmp_path: Path, mpi: str
) -> None:
    done = hvscale("launch", "-np", 2, "--mpi", mpi, "--run", "job", "--", "python", program(HOROVOD_SUM))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] sum 3 of 2" for rank in range(2)]
    for rank in range(2):
        assert (tmp_path / f"job/logs/rank-{rank:05d}.log").read_text() == "sum 3 of 2\n"
    record = run_json(tmp_path / "job")
    assert record["schema"] == "hvscale/run/2"
    assert (record["state"], record["exit_status"], record["np"]) == ("finished", 0, 2)
    assert record["command"][0] == "python"
    assert record["library"]["flavour"] == mpi
    assert [entry["exit_status"] for entry in record["ranks"]] == [0, 0]
    assert record["started_at"] < record["ended_at"]
    assert processes_of(tmp_path / "job") == []


# What is said of a rank that fails in this way.
FAILURES = {
    "SIGKILL": "rank 1 on .* was killed by SIGKILL",
    "SIGSEGV": "rank 1 on .* was killed by SIGSEGV",
    "exit": "rank 1 on .* ended with status 7",
    "raise": "rank 1 on .* ended with status 1",
}


@pytest.mark.parametrize("mpi", FLAVOURS)
def test_a_failed_rank_ends_the_job(hvscale: Run, program: Callable[[str], Path], tmp_path: Path, mpi: str) -> None:
    script = program(ONE_RANK_FAILS)

    def run(how: str) -> subprocess.CompletedProcess[str]:
        options = ("-np", 3, "--mpi", mpi, "--run", how)
        return hvscale("launch", *options, "--", "python", script, how, timeout=HANG_SECONDS)

    with ThreadPoolExecutor(len(FAILURES)) as pool:  # the jobs wait for their launchers most of the time
        ended = dict(zip(FAILURES, pool.map(run, FAILURES), strict=True))
    for how, done in ended.items():
        assert done.returncode == 3, how
        line, *last_lines = done.stderr[done.stderr.index("hvscale: rank") :].splitlines()
        assert re.search(FAILURES[how], line)
        assert len(last_lines) == 20
        assert last_lines[-1].strip() == ("ValueError: this rank is unwell" if how == "raise" else "ready")
        record = run_json(tmp_path / how)
        assert (record["state"], record["exit_status"], record["failed_rank"]) == ("failed", 3, 1)
        failed = record["ranks"][1]
        assert failed["signal"] == how or failed["exit_status"] in (1, 7)
        assert processes_of(tmp_path / how) == []


StartIgnoring = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture(params=FLAVOURS)
def start_signal_ignoring(
    request: pytest.FixtureRequest, program: Callable[[str], Path], tmp_path: Path
) -> StartIgnoring:
    """Return a function that starts `hvscale launch` with two IGNORES_SIGNALS ranks, as the run
    "job" in a new folder, and waits until both run.
    """
    words = ("--", "python", program(IGNORES_SIGNALS))

    def start(name: str) -> subprocess.Popen[str]:
        (tmp_path / name).mkdir()
        options = ("launch", "-np", 2, "--mpi", request.param, "--run", "job")
        return start_job(tmp_path / name, *options, *words, prints="ready")

    return start


def test_a_signal_ends_a_job_that_ignores_it(start_signal_ignoring: StartIgnoring, tmp_path: Path) -> None:
    jobs = {number: start_signal_ignoring(number.name) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number, job in jobs.items():
        assert run_json(tmp_path / number.name / "job")["state"] == "running"
        job.send_signal(number)
    for number, job in jobs.items():
        run = tmp_path / number.name / "job"
        _, stderr = job.communicate(timeout=HANG_SECONDS)
        assert job.returncode == 128 + number
        assert number.name in stderr.splitlines()[-1]
        record = run_json(run)
        assert (record["state"], record["exit_status"]) == ("interrupted", 128 + number)
        assert processes_of(run) == []


def test_a_killed_supervisor_ends_the_job(start_signal_ignoring: StartIgnoring, tmp_path: Path) -> None:
    jobs = {which: start_signal_ignoring(which) for which in ("the launcher's child", "the supervisor")}
    for which in jobs:
        rank_processes = [process for process in processes_of(tmp_path / which / "job") if process.name() == "hvrank"]
        supervisors = [process for process in rank_processes if process.parent() in rank_processes]
        (
            supervisors
            if which == "the supervisor"
            else [process for process in rank_processes if process not in supervisors]
        )[-1].kill()
    for which, job in jobs.items():
        _, stderr = job.communicate(timeout=HANG_SECONDS)
        assert job.returncode == 3, stderr
        assert run_json(tmp_path / which / "job")["state"] == "failed"
        assert processes_of(tmp_path / which / "job") == []


def test_leftover_processes_are_killed_with_a_warning(
    hvscale: Run, program: Callable[[str], Path], tmp_path: Path
) -> None:
    script = program("import subprocess; subprocess.Popen(['sleep', '1200'], start_new_session=True)")
    done = hvscale("launch", "--run", "job", "--", "python", script)
    assert done.returncode == 0
    assert "processes that the command left running, now killed: 1" in done.stderr
    assert processes_of(tmp_path / "job") == []


@pytest.mark.parametrize("mpi", ["openmpi", "gloo"])
def test_leftover_processes_with_another_environment_are_killed(hvscale: Run, tmp_path: Path, mpi: str) -> None:
    script = "env -i sleep 1200 & echo $!; sleep 1200 &"
    done = hvscale("launch", "--mpi", mpi, "--run", "job", "--", "sh", "-c", script)
    assert done.returncode == 0
    assert "processes that the command left running, now killed: 2" in done.stderr
    assert not psutil.pid_exists(int(done.stdout.removeprefix("[0] ")))
    assert processes_of(tmp_path / "job") == []


def test_only_listed_variables_reach_the_ranks(hvscale: Run, program: Callable[[str], Path], tmp_path: Path) -> None:
    script = program("import json, os; print(json.dumps(dict(os.environ)))")
    done = hvscale(
        *(
            "launch",
            "--run",
            "job",
            "--env",
            "CHOSEN",
            "--env",
            "NEW=a b=c",
            "--env",
            "WANDB_API_KEY",
            "--",
            "python",
            script,
        ),
        CHOSEN="yes",
        STRAY="no",
        NCCL_ALGO="Ring",
        WANDB_API_KEY="very secret",
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.removeprefix("[0] "))
    assert (seen["CHOSEN"], seen["NEW"], seen["WANDB_API_KEY"]) == ("yes", "a b=c", "very secret")
    assert "STRAY" not in seen
    assert "NCCL_ALGO" not in seen
    assert "not passed to the ranks: NCCL_ALGO" in done.stderr
    assert "very secret" not in (tmp_path / "job/run.json").read_text()
    assert requested_env(run_json(tmp_path / "job")) == dict.fromkeys(("CHOSEN", "NEW", "WANDB_API_KEY"), "(hidden)")


@pytest.mark.parametrize(
    ("in_file", "given", "used"), [("", "", "^ofi"), ("btl = ^uct", "", "^uct"), ("btl = ^uct", "self,sm", "self,sm")]
)
def test_open_mpi_starts_without_the_component_that_waits_a_second(
    hvscale: Run, program: Callable[[str], Path], tmp_path: Path, in_file: str, given: str, used: str
) -> None:
    """Unless the user chose the components, on the command line or in Open MPI's own file."""
    (tmp_path / ".openmpi").mkdir()
    (tmp_path / ".openmpi/mca-params.conf").write_text(f"{in_file}\n")
    script = program("import horovod.torch as hvd, os; hvd.init(); print('btl', os.environ['OMPI_MCA_btl'])")
    options = ["--env", f"OMPI_MCA_btl={given}"] if given else []
    done = hvscale("launch", "-np", "2", "--run", "job", *options, "--", "python", script, HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] btl {used}" for rank in range(2)]
    (in_effect,) = run_json(tmp_path / "job")["settings_in_effect"]
    assert in_effect["settings"]["btl"] == used


@pytest.mark.parametrize(
    ("command", "given"), [("launch", "HVSCALE_NP=7"), ("launch", "HVSCALE_RUN=/"), ("profile", "HVPROF_DIRECTORY=x")]
)
def test_a_variable_that_each_job_sets_itself_is_refused(
    hvscale: Run, tmp_path: Path, command: str, given: str
) -> None:
    done = hvscale(command, "--run", "job", "--env", given, "--", "true")
    variable = given.partition("=")[0]
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [f"hvscale: --env {variable}: hvscale sets it for each job itself; leave it out"]
    assert list(tmp_path.iterdir()) == []


def test_preloaded_libraries_and_sanitizer_options_of_the_user_are_kept(hvscale: Run) -> None:
    given = {"LD_PRELOAD": "libm.so.6", "ASAN_OPTIONS": "verbosity=0"}
    options = [word for name, value in given.items() for word in ("--env", f"{name}={value}")]
    done = hvscale("launch", "--run", "job", *options, "--", "sh", "-c", "echo $LD_PRELOAD; echo $ASAN_OPTIONS")
    assert done.returncode == 0, done.stderr
    for line, value in zip(done.stdout.splitlines(), given.values(), strict=True):
        assert value in line


def test_more_ranks_than_cores_is_a_warning(hvscale: Run) -> None:
    ranks = available_cores() + 1
    done = hvscale("launch", "-np", ranks, "--", "true")
    assert done.returncode == 0
    assert f"{ranks} ranks on {ranks - 1} cores" in done.stderr


@pytest.mark.parametrize("mpi", FLAVOURS[:2])
@pytest.mark.parametrize(("limits", "status"), [("ulimit -S -n 48", 0), ("ulimit -n 64", 2)])
def test_a_launcher_may_open_the_files_of_its_ranks(tmp_path: Path, mpi: str, limits: str, status: int) -> None:
    """As with 256 ranks and a limit of 1024."""
    words = [str(PROGRAMS / "hvscale"), "launch", "-np", "12", "--mpi", mpi, "--", "true"]
    limited = ["sh", "-c", f'{limits}; exec "$@"', "sh", *words]
    done = subprocess.run(limited, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == status, done.stderr
    if status:
        *_, line = done.stderr.splitlines()
        assert "open files at a time, and the hard limit is 64 (`ulimit -H -n`): use fewer ranks or nodes, or " in line


@pytest.mark.parametrize("mpi", FLAVOURS)
def test_a_command_has_the_signal_handlers_of_a_plain_launcher(tmp_path: Path, mpi: str) -> None:
    """Runs under nohup, which ignores SIGHUP.

    Python ignores SIGPIPE and SIGXFSZ; the command must not inherit that.
    """
    under_nohup = ["env", "--default-signal", "--ignore-signal=HUP"]
    show = ["sh", "-c", "grep -E 'Sig(Ign|Blk)' /proc/self/status; yes | head -n 1"]
    launchers = {"openmpi": PROGRAMS / "mpirun", "mpich": MPICH_PREFIX / "bin/mpirun"}
    plain = [launchers[mpi], "-np", "1"] if mpi in launchers else []

    def seen(*command: object) -> list[str]:
        words = [*under_nohup, *map(str, command), *show]
        done = subprocess.run(words, cwd=tmp_path, env={**os.environ, **DIRECT_START}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "Broken pipe" not in done.stdout + done.stderr
        return [line.removeprefix("[0] ") for line in done.stdout.splitlines()]

    expected = seen(*plain)
    assert [line.partition(":")[0] for line in expected] == ["SigBlk", "SigIgn", "y"]
    assert seen(PROGRAMS / "hvscale", "launch", "--mpi", mpi, "--run", "job", "--") == expected


@pytest.mark.parametrize("mpi", FLAVOURS)
def test_non_utf_8_bytes_reach_the_command_unchanged(tmp_path: Path, mpi: str) -> None:
    """Covers the command, its arguments, --env, PATH, the working directory and the run folder."""
    here = os.fsencode(tmp_path) + b"/here\xff"
    Path(os.fsdecode(here)).mkdir()
    script = Path(os.fsdecode(here + b"/program\xfe"))
    script.write_text('#!/bin/sh\nprintf "%s\\n" "$0" "$1" "$ODD" "$(pwd)" "${PATH##*:}"\n')
    script.chmod(0o755)
    job = [b"--mpi", mpi.encode(), b"--run", b"job\xfd", b"--env", b"ODD=value\xfc"]
    command = [b"./program\xfe", b"word\xfb"]
    done = subprocess.run(
        [bytes(PROGRAMS / "hvscale"), b"profile", *job, b"--json", b"--", *command],
        cwd=here,
        env={**os.environb, b"PATH": os.environb[b"PATH"] + b":/nowhere\xfa"},
        capture_output=True,
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    run = Path(os.fsdecode(here + b"/job\xfd"))
    seen = (run / "logs/rank-00000.log").read_bytes().splitlines()
    assert seen == [*command, b"value\xfc", here, b"/nowhere\xfa"]
    assert [os.fsencode(word) for word in run_json(run)["command"]] == command
    assert os.fsencode(json.loads(done.stdout)["run"]) == bytes(run)
    report = subprocess.run([PROGRAMS / "hvscale", "report", run], capture_output=True, timeout=HANG_SECONDS)
    assert report.returncode == 2, "it holds no calls"
    assert b"Traceback" not in report.stderr


def test_output_without_newline_and_with_binary_bytes_is_kept(
    hvscale: Run, program: Callable[[str], Path], tmp_path: Path
) -> None:
    script = program(r"import sys; sys.stdout.buffer.write(b'10%\r20%\rdone\n\xff\xfeodd')")
    done = hvscale("launch", "--run", "job", "--", "python", script)
    assert done.stdout.splitlines() == ["[0] done", "[0] \ufffd\ufffdodd"]
    assert (tmp_path / "job/logs/rank-00000.log").read_bytes() == b"10%\r20%\rdone\n\xff\xfeodd"


# Prints on stderr the largest peak memory, in KiB, of the command and its child processes.
PEAK_MEMORY = """
import resource, subprocess, sys
status = subprocess.call(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(status)
"""


def test_output_without_newlines_does_not_fill_memory(program: Callable[[str], Path], tmp_path: Path) -> None:
    written = 300 * 1024 * 1024
    script = program(f"import os\nfor _ in range({written >> 16}): os.write(1, b'x' * 65536)")
    command = [str(PROGRAMS / "hvscale"), "launch", "--run", "job", "--", "python", str(script)]
    with (tmp_path / "shown").open("wb") as shown:
        # Starts it from a small process, because a child's peak memory includes that of its parent
        # at fork.
        measured = [sys.executable, "-I", "-S", "-c", PEAK_MEMORY, *command]
        done = subprocess.run(measured, cwd=tmp_path, stdout=shown, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stderr.splitlines()[-1]) * 1024 < written / 2
    assert (tmp_path / "job/logs/rank-00000.log").stat().st_size == written
    lines = (tmp_path / "shown").read_bytes().splitlines()
    assert sum(len(line) - len("[0] ") for line in lines) == written


def test_a_full_disk_truncates_the_log_but_the_job_ends(
    hvscale: Run, program: Callable[[str], Path], small_disk: Callable[..., Path]
) -> None:
    small = small_disk("128k")
    script = program("import sys; print('x' * 400_000); print('at the end', file=sys.stderr)")
    done = hvscale("launch", "--run", small / "job", "--", "python", script)
    assert "No space left" in done.stderr
    assert done.returncode == 2
    assert (small / "job/logs/rank-00000.log").stat().st_size > 0
    record = run_json(small / "job")
    assert (record["state"], record["exit_status"]) == ("failed", 2)
    assert "No space left" in record["warnings"][-1]
    later = hvscale("launch", "--run", small / "later", "--", "true")
    assert (later.returncode, len(later.stderr.splitlines())) == (2, 1), later.stderr
    assert "No space left" in later.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-np", "0", "--", "true"], "--np 0: give a number from 1 to 1000000"),
        (["-np", "two", "--", "true"], "-np"),
        (["-np", "2"], "COMMAND"),
        (["-np", "2", "--", "no-such-command"], "no-such-command: command not found"),
        (
            ["--mpi", "lam", "--", "true"],
            "--mpi lam: unknown flavour. Known: gloo, intelmpi, mpich, mvapich2, openmpi",
        ),
        (
            ["--env", "NOT_SET", "--", "true"],
            "NOT_SET: not set in this shell; export it first, or write --env NOT_SET=V",
        ),
        (["--env", "MY_TOKEN", "--", "true"], "--env MY_TOKEN: not set in this shell; export it first\n"),
        (["--env", "=1", "--", "true"], "--env =...: the variable name is missing"),
        (["--run", "/proc/job", "--", "true"], "cannot write the run folder /proc/job"),
        (["--bogus", "--", "true"], "--bogus"),
        (["--devices", "some", "--", "true"], "--devices some: unknown policy; use one of own, all, split"),
        (["--devices", "split", "--", "true"], "--devices split: openmpi 5.0.11 uses the GPUs"),
        (["--transport", "carrier-pigeon", "--", "true"], "--transport carrier-pigeon: not in openmpi 5.0.11; it has"),
    ],
)
def test_an_invalid_request_is_one_line_and_status_2(hvscale: Run, arguments: list[str], message: str) -> None:
    done = hvscale("launch", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["profile", "--env", "HVPROF_JOB_MIB=32G"], "HVPROF_JOB_MIB=32G: give a whole number"),
        (["profile", "--env", "HVPROF_JOB_MIB=32G", "--run", "job"], "HVPROF_JOB_MIB=32G: give a whole number"),
        (["launch", "--submit"], "--submit needs sbatch"),
        (["launch", "--sbatch", "missing/job.sh"], "--sbatch missing/job.sh: No such file"),
        (["launch", "--sbatch", "missing/job.sh", "--sbatch-option=--array=1", "--run", "job"], "No such file"),
    ],
)
def test_a_refused_request_leaves_no_run_folder(
    hvscale: Run, tmp_path: Path, arguments: list[str], message: str
) -> None:
    environment = {"PATH": "/nowhere"} if "--submit" in arguments else {}
    done = hvscale(*arguments, "--", "/bin/true", **environment)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert message in done.stderr
    assert [*tmp_path.glob("runs/*"), *tmp_path.glob("job")] == []


def test_an_existing_run_is_not_overwritten(hvscale: Run, tmp_path: Path) -> None:
    assert hvscale("launch", "--run", "job", "--", "true").returncode == 0
    before = (tmp_path / "job/run.json").read_bytes()
    again = hvscale("launch", "--run", "job", "--", "true")
    assert again.returncode == 2
    assert "holds a run already" in again.stderr
    assert (tmp_path / "job/run.json").read_bytes() == before


def test_horovod_built_for_another_mpi_is_an_error(hvscale: Run, tmp_path: Path) -> None:
    """Makes a prefix whose Horovod is linked to MPICH's library."""
    package = tmp_path / "prefix/lib/python3.11/site-packages/horovod/torch"
    package.mkdir(parents=True)
    (tmp_path / "prefix/bin").mkdir()
    (tmp_path / "prefix/bin/python").symlink_to(PYTHON)
    (tmp_path / "mpi.c").write_text("int MPI_Init(void) { return 0; }")
    (tmp_path / "hvd.c").write_text("int MPI_Init(void); int start(void) { return MPI_Init(); }")
    mpi, hvd = tmp_path / "libmpi.so.12", package / "mpi_lib_v2.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-soname,libmpi.so.12", "-o", mpi, tmp_path / "mpi.c"], check=True)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", hvd, tmp_path / "hvd.c", mpi], check=True)
    python = tmp_path / "prefix/bin/python"
    done = hvscale("launch", "-np", "2", "--", python, "-c", "pass")
    assert done.returncode == 2
    assert "is built for intelmpi or mpich or mvapich2 (libmpi.so.12)" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert hvscale("launch", "-np", "2", "--mpi", "gloo", "--", python, "-c", "pass").returncode == 0
    hvd.write_text("not a library")
    damaged = hvscale("launch", "-np", "2", "--", python, "-c", "pass")
    assert damaged.returncode == 2
    assert "is not a valid library" in damaged.stderr


SIGNAL_AT_THE_END = """
import os, signal, threading, time
from pathlib import Path
from hvscale.launch.controller import RunInterruptedError, launch
from hvscale.launch.options import LaunchOptions

def interrupt_when_finished(run):
    while b'"finished"' not in (run.read_bytes() if run.exists() else b""):
        pass
    os.kill(os.getpid(), signal.SIGINT)

for number in range(8):
    folder = Path(f"job-{number}")
    threading.Thread(target=interrupt_when_finished, args=(folder / "run.json",)).start()
    try:
        launch(["true"], LaunchOptions(np=1, run=folder))
        time.sleep(1)  # the signal may come after the launch
    except RunInterruptedError as error:
        print("interrupted", error.exit_status)
    except KeyboardInterrupt:
        print("interrupted", 130)
"""


def test_a_signal_at_the_end_of_a_job_is_not_lost(program: Callable[[str], Path], tmp_path: Path) -> None:
    """A study would otherwise start its next job."""
    done = subprocess.run(
        [sys.executable, program(SIGNAL_AT_THE_END)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert done.stdout.splitlines() == ["interrupted 130"] * 8, done.stderr


def test_a_rank_s_log_has_no_colours(hvscale: Run, tmp_path: Path) -> None:
    """Open MPI gives each rank a terminal, which is a log file."""
    done = hvscale("launch", "-np", "1", "--run", "job", "--", "hvscale", "breakdown", "absent")
    assert done.returncode == 3
    log = (tmp_path / "job/logs/rank-00000.log").read_text()
    assert log.startswith("hvscale: ")
    assert "\x1b" not in log


def test_a_job_without_home_gets_the_users_folder(tmp_path: Path) -> None:
    """Open MPI's programs do not run without HOME, which services do not set."""
    variables = {name: value for name, value in os.environ.items() if name != "HOME"}
    program = str(Path(sys.prefix) / "bin" / "hvscale")
    command = [program, "launch", "--run", "job", "--", "sh", "-c", 'echo "home $HOME"']
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == 0, done.stderr
    assert f"home {pwd.getpwuid(os.getuid()).pw_dir}" in done.stdout
