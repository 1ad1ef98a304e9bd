"""All commands of the tutorials succeed, one after another in a fresh folder."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import HANG_SECONDS, PROGRAMS, QUICK_START

TUTORIALS = sorted(
    path for path in Path(__file__).parents[2].joinpath("docs", "tutorials").glob("*.md") if path.stem != "index"
)
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def commands(console: str) -> Iterator[str]:
    """Yield the commands of a console block: what follows `$ `, with the lines that a backslash at
    the end continues; other lines are output.
    """
    yield from re.findall(r"^\$ ((?:.*\\\n)*.*)$", console, re.MULTILINE)


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_every_command_of_the_tutorial_works(tutorial: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}", "COLUMNS": "80"}
    commands_run = 0
    for language, title, text in BLOCK.findall(tutorial.read_text()):
        if title:
            # Its commands compile nothing.
            quick = f"{QUICK_START}\n" if language == "python" and "import horovod.torch" in text else ""
            (tmp_path / title).write_text(quick + text)
        if language != "console":
            continue
        for command in commands(text):
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=tmp_path,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=HANG_SECONDS,
            )
            print(f"$ {command}\n{done.stdout}")
            assert done.returncode == 0, f"{command}\n{done.stdout}"
            commands_run += 1
    assert commands_run >= 2
