"""The working folder may be deleted by another program, and the disk of the output be full."""

import subprocess
from pathlib import Path

import pytest

from tests.conftest import PROGRAMS, Run


@pytest.mark.parametrize("words", [("watch",), ("launch", "--", "true")])
def test_a_deleted_working_folder_is_one_line(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "deleted").mkdir()
    script = 'cd deleted && rmdir ../deleted && exec "$0" "$@"'
    done = subprocess.run(
        ["sh", "-c", script, PROGRAMS / "hvscale", *words], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr == "hvscale: the working folder was deleted: change to another folder\n"


def test_a_full_disk_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [PROGRAMS / "hvscale", "--version"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
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
