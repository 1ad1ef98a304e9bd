"""`hvscale` in processes that have torch loaded when they begin: loading it takes several seconds
of a core, and a file of tests has many starts.

multiprocessing's fork server loads it once for each worker of the tests and forks a new process for
each call, with arguments, environment, working folder, output and exit status of its own. Each file
of tests starts the installed command itself too.
"""

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from hvscale.cli.main import main

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["hvscale.trainer.training", "hvscale.trainer.inference.evaluate", "torchvision.models", "scipy.ndimage"]
)
OUTPUTS = ("stdout", "stderr")


def run(
    arguments: list[str], folder: Path, environment: dict[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """Raises subprocess.TimeoutExpired, the process then killed, after `timeout` seconds."""
    with TemporaryDirectory() as outputs:
        process = FORKS.Process(target=_call, args=(arguments, folder, environment, Path(outputs)))
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(arguments, timeout)
        said = [(Path(outputs) / name).read_text() for name in OUTPUTS]
        return subprocess.CompletedProcess(arguments, process.exitcode, *said)


def _call(arguments: list[str], folder: Path, environment: dict[str, str], outputs: Path) -> None:
    """In the new process. Ends by SystemExit, as the command does."""
    for number, name in enumerate(OUTPUTS, start=1):
        os.dup2(os.open(outputs / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = ["hvscale", *arguments]
    main()
