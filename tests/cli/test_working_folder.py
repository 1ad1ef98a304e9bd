"""The working folder may be deleted by another program, and the disk of the output be full."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.conftest import HANG_SECONDS, PROGRAMS, Run, run_json


@pytest.mark.parametrize("words", [("watch",), ("launch", "--", "true")])
def test_a_deleted_working_folder_is_one_line(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "deleted").mkdir()
    script = 'cd deleted && rmdir ../deleted && exec "$0" "$@"'
    done = subprocess.run(
        ["sh", "-c", script, PROGRAMS / "hvscale", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 2
    assert done.stderr == "hvscale: the working folder was deleted: change to another folder\n"


@pytest.mark.parametrize("words", [("--version",), ("--help",), ("models",), ("knobs",), ("knobs", "--json")])
def test_output_that_nobody_reads_ends_the_command_quietly(words: tuple[str, ...]) -> None:
    """As under `| head`, also if stderr goes there."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [PROGRAMS / "hvscale", *words], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=HANG_SECONDS
        )
        assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")
        for also in (words, ("breakdown", "absent")):
            quiet = subprocess.run([PROGRAMS / "hvscale", *also], stdout=writer, stderr=writer, timeout=HANG_SECONDS)
            assert quiet.returncode == 128 + signal.SIGPIPE
    finally:
        os.close(writer)


def test_a_full_disk_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [PROGRAMS / "hvscale", "--version"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=HANG_SECONDS
        )
    assert done.returncode == 2
    assert done.stderr == "hvscale: no space left for the output: free some, or write to another disk\n"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("launch", "--run", "", "--", "true"), "--run"),
        (("replay", "", "-np", "2"), "RUN"),
        (("predict", "job", "", "--np", "8"), "RUN"),
        (("bench", "allreduce", "--run", ""), "--run"),
    ],
)
def test_an_empty_path_is_not_the_working_folder(hvscale: Run, words: tuple[str, ...], name: str) -> None:
    done = hvscale(*words)
    assert done.returncode == 2
    assert done.stderr == f"hvscale: Invalid value for '{name}': it is empty: give a path\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_lose_only_what_is_printed_there(tmp_path: Path, closed: str) -> None:
    script = f'exec "$0" launch --mpi gloo --run job -- sh -c "echo here" {closed}'
    done = subprocess.run(
        ["sh", "-c", script, PROGRAMS / "hvscale"], cwd=tmp_path, capture_output=True, text=True, timeout=HANG_SECONDS
    )
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    assert done.stdout == ("" if ">&-" in closed.replace("2>&-", "") else "[0] here\n")
    assert run_json(tmp_path / "job")["state"] == "finished"


def test_a_job_goes_on_when_nothing_reads_its_output(tmp_path: Path) -> None:
    script = '"$0" launch --mpi gloo --run job -- sh -c "seq 30000; sleep 1; touch done" | head -n 1'
    done = subprocess.run(
        ["sh", "-c", script, PROGRAMS / "hvscale"], cwd=tmp_path, capture_output=True, text=True, timeout=HANG_SECONDS
    )
    assert done.stdout == "[0] 1\n"
    assert "nothing reads the output any more: the job goes on" in done.stderr
    assert (tmp_path / "done").exists()
    assert (run_json(tmp_path / "job")["state"], run_json(tmp_path / "job")["warnings"]) == ("finished", [])
    assert (tmp_path / "job/logs/rank-00000.log").read_text().endswith("30000\n")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("launch", "--run", 300 * "x", "--", "true"), "File name too long"),
        (("scale", "--np", "1", "--run", 300 * "x", "--", "true"), "File name too long"),
        (("launch", "--run", "loop/y", "--", "true"), "Too many levels of symbolic links"),
        (("report", "loop/y"), "loop"),
        (("predict", "job", "--np", "8", "--network", 300 * "x"), "File name too long"),
    ],
)
def test_a_path_that_cannot_be_used_is_one_line(
    hvscale: Run, tmp_path: Path, words: tuple[str, ...], problem: str
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    done = hvscale(*words)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert problem in done.stderr


def test_a_folder_of_another_user_is_one_line(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("a folder of another user takes root")
    (tmp_path / "locked").mkdir(mode=0o700)
    os.chown(tmp_path / "locked", 65534, 65534)
    rights = "-dac_override,-dac_read_search"
    drop = ["setpriv", f"--bounding-set={rights}", f"--inh-caps={rights}"]
    for words in (["launch", "--run", "locked/in"], ["scale", "--np", "1", "--run", "locked/in"]):
        done = subprocess.run(
            [*drop, PROGRAMS / "hvscale", *words, "--", "true"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
        )
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
        assert "Permission denied" in done.stderr
