"""Run `hvscale` in forked processes that have torch loaded, because importing it takes seconds.

multiprocessing's fork server imports torch once per test worker and forks a process for each call,
with its own arguments, environment, working folder, output and exit status. Each test file also
runs the installed command.
"""

import multiprocessing
import os
import subprocess
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory

from hvscale.cli.main import main

FORK_SERVER = multiprocessing.get_context("forkserver")
FORK_SERVER.set_forkserver_preload(
    ["hvscale.trainer.training", "hvscale.trainer.inference.evaluate", "torchvision.models", "scipy.ndimage"]
)
OUTPUTS = ("stdout", "stderr")


def run(
    arguments: list[str], folder: Path, environment: dict[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run `hvscale`. After `timeout` seconds, kill it and raise subprocess.TimeoutExpired."""
    with TemporaryDirectory() as outputs:
        process = start(arguments, folder, environment, Path(outputs))
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(arguments, timeout)
        texts = [(Path(outputs) / name).read_text() for name in OUTPUTS]
        return subprocess.CompletedProcess(arguments, process.exitcode, *texts)


def start(arguments: list[str], folder: Path, environment: dict[str, str], outputs: Path) -> BaseProcess:
    """Start `hvscale`, which writes its output to `stdout` and `stderr` in the folder `outputs`."""
    process = FORK_SERVER.Process(target=_call, args=(arguments, folder, environment, outputs))
    process.start()
    return process


def _call(arguments: list[str], folder: Path, environment: dict[str, str], outputs: Path) -> None:
    """Run the command in the forked process. Raises SystemExit as the command does."""
    for number, name in enumerate(OUTPUTS, start=1):
        os.dup2(os.open(outputs / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = ["hvscale", *arguments]
    main()
