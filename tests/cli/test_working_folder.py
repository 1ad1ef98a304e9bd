"""The working folder may be deleted by another program."""

import subprocess
from pathlib import Path

import pytest

from tests.conftest import PROGRAMS


@pytest.mark.parametrize("words", [("watch",), ("launch", "--", "true")])
def test_a_deleted_working_folder_is_one_line(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "deleted").mkdir()
    script = 'cd deleted && rmdir ../deleted && exec "$0" "$@"'
    done = subprocess.run(
        ["sh", "-c", script, PROGRAMS / "hvscale", *words], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr == "hvscale: the working folder was deleted: change to another folder\n"
