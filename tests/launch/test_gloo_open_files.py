"""Ranks over Gloo have sockets for each other rank, and so may need more open files than usual."""

import resource
import subprocess

import pytest

from hvscale.launch.flavours.gloo import FILES_OF_A_PROGRAM, USUAL_FILES, with_open_files

SHOW = ["sh", "-c", "ulimit -S -n; ulimit -H -n; printf '%s\\n' \"$@\"", "sh", "an argument", "$(false)"]


def run(sockets: int, soft: int, hard: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        with_open_files(SHOW, sockets),
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard)),
    )


@pytest.mark.parametrize(
    ("sockets", "soft", "expected"),
    [
        (USUAL_FILES, 1024, USUAL_FILES + FILES_OF_A_PROGRAM),
        (USUAL_FILES, 3000, 3000),
        (USUAL_FILES - FILES_OF_A_PROGRAM, 900, 900),
    ],
)
def test_the_limit_is_raised_only_as_far_as_needed(sockets: int, soft: int, expected: int) -> None:
    done = run(sockets, soft, 4000)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [str(expected), "4000", "an argument", "$(false)"]


def test_a_hard_limit_that_does_not_suffice_is_one_line() -> None:
    done = run(USUAL_FILES, 1024, 1500)
    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("hvscale: a rank of this job over Gloo needs 1792 open files, and the hard limit is 1500 ")
