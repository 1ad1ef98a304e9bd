"""A run folder belongs to one live process and one user, and records how its run ended."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hvscale.core.run_folder import RunFolder
from tests.conftest import HANG_SECONDS, PROGRAMS, Run, run_json, suspend, wait_until

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="other users' files and small disks take root")
TRAIN = (
    *("train", "edsr-baseline", "--n-resblocks", 1, "--n-feats", 8, "--batch-size", 2, "--patch-size", 16),
    *("--precision", "fp32", "--memory-format", "contiguous", "--threads", 1),
)
WAITING = """
import sys, time
from pathlib import Path
print("begun", flush=True)
while not Path(sys.argv[1]).exists():
    time.sleep(0.05)
"""


def start(folder: Path, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(PROGRAMS / "hvscale"), *map(str, arguments)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@contextmanager
def small_disk(folder: Path, kibibytes: int) -> Iterator[Path]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kibibytes}k", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def test_only_one_of_two_simultaneous_starts_gets_the_folder(tmp_path: Path) -> None:
    """Each pair shares one --run; launches without --run get separate folders."""
    launch = ("launch", "--mpi", "gloo")
    pairs = [
        [start(tmp_path, *launch, "--run", f"job-{number}", "--", "echo", who) for who in ("one", "two")]
        for number in range(6)
    ]
    alone = [start(tmp_path, *launch, "--", "true") for _ in range(6)]
    for number, pair in enumerate(pairs):
        outputs = {process: process.communicate(timeout=HANG_SECONDS) for process in pair}
        assert sorted(process.returncode for process in pair) == [0, 2], outputs
        (error,) = (outputs[process][1] for process in pair if process.returncode == 2)
        assert str(tmp_path / f"job-{number}") in error
        assert "is in use by process" in error or "holds a run already" in error
        assert len(error.splitlines()) == 1
        (output,) = (outputs[process][0] for process in pair if process.returncode == 0)
        assert (tmp_path / f"job-{number}/logs/rank-00000.log").read_text() == output.removeprefix("[0] ")
    for process in alone:
        _, stderr = process.communicate(timeout=HANG_SECONDS)
        assert process.returncode == 0, stderr
    assert len(list(tmp_path.glob("runs/*/run.json"))) == 6


def test_a_live_process_locks_its_folder(
    hvscale: Run, hvscale_warm: Run, program: Callable[[str], Path], tmp_path: Path
) -> None:
    run, go_file = tmp_path / "job", tmp_path / "go-on"
    waiting = ("--", "python", program(WAITING), go_file)
    first = start(tmp_path, "launch", "--mpi", "gloo", "--run", "job", *waiting)
    try:
        wait_until(lambda: (run / "logs/rank-00000.log").exists() and run_json(run)["state"] == "running")
        commands = [
            ("launch", "--mpi", "gloo", "--run", "job", "--", "true"),
            ("scale", "--np", "1", "--mpi", "gloo", "--run", "job", "--", "true"),
            ("bench", "allreduce", "-np", "2", "--run", "job"),
        ]
        resumed = (*TRAIN, "--steps", "2", "--run", "job", "--resume", "auto")
        for second in [*(hvscale(*arguments) for arguments in commands), hvscale_warm(*resumed)]:
            assert (second.returncode, len(second.stderr.splitlines())) == (2, 1), second.stderr
            assert f"{run} is in use by process {first.pid} on {os.uname().nodename}" in second.stderr
        assert run_json(run)["state"] == "running"
    finally:
        go_file.touch()
        _, stderr = first.communicate(timeout=HANG_SECONDS)
    assert first.returncode == 0, stderr
    assert run_json(run)["state"] == "finished"
    assert not [path.name for path in run.iterdir() if path.name.startswith(".")]
    again = hvscale("launch", "--mpi", "gloo", "--run", "job", "--", "true")
    assert "holds a run already" in again.stderr


def test_a_run_does_not_begin_in_the_folder_of_a_study(hvscale_warm: Run, tmp_path: Path) -> None:
    study = ("scale", "--np", "1", "--mpi", "gloo", "--repeat", "1", "--run", "study", "--metric", "speed ([0-9]+)")
    assert hvscale_warm(*study, "--", "echo", "speed 7").returncode == 0
    job = next((tmp_path / "study").glob("*/run.json")).parent
    before = sorted((tmp_path / "study").iterdir())
    for command in [("launch", "--", "true"), ("profile", "--", "true"), ("replay", job)]:
        refused = hvscale_warm(command[0], "--run", "study", *command[1:])
        assert refused.returncode == 2
        assert refused.stderr == "hvscale: study holds a study (scale.json): give another folder with --run\n"
    assert sorted((tmp_path / "study").iterdir()) == before


def test_a_running_training_locks_its_folder(hvscale_warm: Run, tmp_path: Path) -> None:
    """A second start is rejected; after the first is killed, a third resumes in its folder."""
    train = (*TRAIN, "--run", "job", "--checkpoint-every", "5", "--resume", "auto")
    steps = tmp_path / "job/steps.jsonl"
    first = start(tmp_path, *train, "--steps", 1_000_000)
    try:
        wait_until(lambda: steps.exists() and len(steps.read_text().splitlines()) > 12)
        suspend(first.pid)  # still alive
        before = steps.read_bytes()
        second = hvscale_warm(*train, "--steps", 20)
        assert second.returncode == 2
        assert second.stderr.splitlines()[-1].startswith(
            f"hvscale: {tmp_path}/job is in use by process {first.pid} on "
        )
        assert steps.read_bytes() == before
    finally:
        first.kill()
        first.wait()
    assert run_json(tmp_path / "job")["state"] == "running"
    third = hvscale_warm(*train, "--steps", len(before.splitlines()) + 2)
    assert third.returncode == 0, third.stderr
    assert "resuming after step" in third.stderr
    numbers = [json.loads(line)["step"] for line in steps.read_text().splitlines()]
    assert numbers == list(range(1, len(before.splitlines()) + 3))
    assert run_json(tmp_path / "job")["state"] == "finished"


@needs_root
def test_another_users_folder_is_an_error(hvscale: Run, tmp_path: Path) -> None:
    """Covers another user's folder, links out of the folder, and a world-writable folder."""
    precious = tmp_path / "precious"
    precious.write_text("mine")
    theirs, ours, open_to_all = (tmp_path / name for name in ("theirs", "ours", "open"))
    for folder in (theirs / "logs", ours, open_to_all):
        folder.mkdir(parents=True)
    (theirs / "logs/launcher.log").symlink_to(precious)
    (tmp_path / "elsewhere").mkdir()
    (ours / "logs").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "theirlink").symlink_to(tmp_path / "elsewhere")
    for path in (theirs, theirs / "logs", tmp_path / "theirlink"):
        os.lchown(path, NOBODY, NOBODY)
    open_to_all.chmod(0o777)
    for name, message in (
        ("theirs", f"theirs belongs to another user (uid {NOBODY})"),
        ("ours", "ours/logs is a symbolic link"),
        ("theirlink", f"theirlink is a symbolic link of another user (uid {NOBODY})"),
        ("open", f"every user may write in {open_to_all}: `chmod o-w` it"),
    ):
        done = hvscale("launch", "--mpi", "gloo", "--run", name, "--", "true")
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
        assert message in done.stderr
    done = hvscale("scale", "--np", "1", "--mpi", "gloo", "--run", "theirs", "--", "true")
    assert (done.returncode, "belongs to another user" in done.stderr) == (2, True)
    for name in ("launcher.log", "rank-00000.log"):  # links made while the folder was open to others
        (tmp_path / "cleared/logs").mkdir(parents=True, exist_ok=True)
        (tmp_path / "cleared/logs" / name).symlink_to(precious)
    done = hvscale("launch", "--mpi", "gloo", "--run", "cleared", "--", "echo", "hello")
    assert done.returncode == 0, done.stderr
    assert precious.read_text() == "mine"
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_special_files_are_a_one_line_error(hvscale_warm: Run, tmp_path: Path) -> None:
    """A FIFO, a device or an endless file replaces a file of the run."""
    run = tmp_path / "job"
    train = ("hvscale", *TRAIN, "--steps", "2", "--checkpoint-every", "2")
    assert hvscale_warm("profile", "-np", "1", "--run", "job", "--", *train).returncode == 0
    (checkpoint,) = (run / "checkpoints").iterdir()
    kept = {path: path.read_bytes() for path in (run / "run.json", run / "result.json", checkpoint)}

    def endless(path: Path) -> None:
        with path.open("wb") as stream:
            stream.truncate(1 << 40)

    prepare: dict[str, Callable[[Path], object]] = {
        "fifo": os.mkfifo,
        "device": lambda path: path.symlink_to("/dev/zero"),
        "endless": endless,
    }
    cases: list[tuple[Path, tuple[str, ...], int, tuple[str, ...]]] = [
        (run / "run.json", ("breakdown", "job"), 2, ("fifo", "device", "endless")),
        (run / "run.json", ("compare", "job", "job"), 2, ("fifo",)),
        (run / "steps.jsonl", ("breakdown", "job", "--explain"), 0, ("fifo", "device", "endless")),
        (run / "steps.jsonl", ("report", "job"), 2, ("fifo",)),
        (run / "hvprof/rank-00000.hvp", ("breakdown", "job"), 2, ("fifo", "device", "endless")),
        (run / "hvprof/nccl-00000.hvn", ("breakdown", "job"), 2, ("fifo", "endless")),
        (checkpoint, ("eval", str(checkpoint), "--data", "bundled", "--images", "1"), 2, ("fifo",)),
        (run / "result.json", ("eval", "job", "--images", "1"), 0, ("fifo",)),
    ]
    for path, command, status, kinds in cases:
        for kind in kinds:
            path.unlink(missing_ok=True)
            prepare[kind](path)
            done = hvscale_warm(*command)
            context = f"{command} with {path.name} as {kind}: {done.stderr}"
            assert done.returncode == status, context
            assert "Traceback" not in done.stderr, context
            assert status == 0 or len(done.stderr.splitlines()) == 1, context
            path.unlink()
        if path in kept:
            path.write_bytes(kept[path])
    endless(run / "hvprof/horovod-timeline.json")
    done = hvscale_warm("breakdown", "job")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "hvscale: job/hvprof/horovod-timeline.json is not a timeline that Horovod wrote"
    ]


def test_a_run_whose_hvscale_was_killed_is_interrupted(
    hvscale_warm: Run, program: Callable[[str], Path], tmp_path: Path
) -> None:
    run, go_file = tmp_path / "job", tmp_path / "go-on"
    first = start(tmp_path, "profile", "--mpi", "gloo", "--run", "job", "--", "python", program(WAITING), go_file)
    try:
        log = run / "logs/rank-00000.log"
        wait_until(lambda: log.exists() and "begun" in log.read_text() and run_json(run)["state"] == "running")
        assert RunFolder(run).read().state == "running"
        assert "interrupted" not in hvscale_warm("breakdown", "job").stderr
        first.kill()
        first.wait()
        assert run_json(run)["state"] == "running"
        assert RunFolder(run).read().state == "interrupted"
        done = hvscale_warm("breakdown", "job", "--json")
        assert done.returncode == 0, done.stderr
        assert [text for text in json.loads(done.stdout)["warnings"] if "was interrupted: its hvscale process" in text]
    finally:
        go_file.touch()
        first.kill()


@needs_root
def test_an_unreadable_folder_is_a_one_line_error(hvscale: Run, tmp_path: Path) -> None:
    """Run as another user who may enter all parent folders.

    hvscale is imported before, because that user may not read its files.
    """
    assert hvscale("launch", "--mpi", "gloo", "--run", "job", "--", "true").returncode == 0
    loaded = "import hvscale.profiling.analyze.explanation, hvscale.cli.commands.breakdown, hvscale.cli.main, os, sys"
    ask = f"{loaded}; os.setuid({NOBODY}); hvscale.cli.main.main()"
    with tempfile.TemporaryDirectory() as open_to_all:
        Path(open_to_all).chmod(0o755)
        shutil.move(tmp_path / "job", open_to_all)
        run = Path(open_to_all) / "job"
        for closed in (run / "hvprof", run / "run.json", run):
            closed.chmod(0o700)
            command = [sys.executable, "-c", ask, "breakdown", str(run)]
            done = subprocess.run(command, cwd=open_to_all, capture_output=True, text=True)
            assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
            message = "is not readable" if closed == run else "Permission denied"
            assert message in done.stderr
            closed.chmod(0o755)
